"""POST /tokenize and /detokenize, in vLLM's shapes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import msgspec

from outrider.errors import (
    InvalidRequestError,
    OutriderError,
    PromptTooLongError,
)
from outrider.models.chat import MAX_CHAT_CHARS, Message
from outrider.tokenization.pool.pool import (
    TokenizationJob,
    TokenizationPool,
    TokenizationResult,
)
from services.edge.access.limiter import Allowance
from services.edge.chat.context import EdgeContext
from services.edge.http.bodies import read
from services.edge.http.exchange import Exchange
from services.edge.http.openai_errors import refused
from services.edge.http.openai_messages import ChatMessage, Tool, messages_of, tools_of
from services.edge.models.choice import choose
from services.edge.models.served import ServedModel


class TokenizeRequest(msgspec.Struct, kw_only=True):
    """Asks for the token ids of a prompt: of text as it is, or of a conversation by the model's
    chat template. Fields that are not listed are ignored."""

    model: str | None = None
    prompt: str | None = None
    """Texts of control tokens in it become these tokens."""
    messages: list[ChatMessage] | None = None
    tools: list[Tool] | None = None
    """Tools that the model may call, with `messages`: the template shows them."""
    chat_template: str | None = None
    """Refused: conversations are rendered by the model's own."""
    chat_template_kwargs: dict[str, Any] | None = None
    """Refused, but for an empty object: templates here are rendered as chats have them."""
    add_special_tokens: bool | None = None
    """Accepted without effect: nothing is put before a text."""
    add_generation_prompt: bool | None = None
    """Always as if true."""
    continue_final_message: bool | None = None
    return_token_strs: bool | None = None


class TokenizeResponse(msgspec.Struct, kw_only=True):
    """The token ids."""

    count: int
    max_model_len: int
    """Tokens of prompt and reply together that the model takes."""
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    """Asks for the text of token ids. Fields that are not listed are ignored."""

    model: str | None = None
    tokens: list[int]


class DetokenizeResponse(msgspec.Struct, kw_only=True):
    """The text, including the texts of control tokens."""

    prompt: str


_decode_tokenize: Final = msgspec.json.Decoder(TokenizeRequest).decode
_decode_detokenize: Final = msgspec.json.Decoder(DetokenizeRequest).decode


async def serve_tokenize(exchange: Exchange) -> None:
    """Answer one request. Raises OutriderError."""
    asked = read(_decode_tokenize, await exchange.body())
    _check(asked)
    tools = tools_of(asked.tools or ())
    async with _using_model(exchange, asked.model) as model:
        ids = await _ids(asked, model, tools, _scope(exchange))
        texts = None
        if asked.return_token_strs:
            texts = await asyncio.to_thread(_token_strs, model, ids)
        answer = TokenizeResponse(
            count=len(ids),
            max_model_len=model.limits.max_context_tokens,
            tokens=list(ids),
            token_strs=texts,
        )
    data = await asyncio.to_thread(msgspec.json.encode, answer)
    await exchange.answer(200, data, headers=exchange.rate_headers())


async def serve_detokenize(exchange: Exchange) -> None:
    """Answer one request. Raises OutriderError."""
    asked = read(_decode_detokenize, await exchange.body())
    async with _using_model(exchange, asked.model) as model:
        longest = model.limits.max_context_tokens
        if len(asked.tokens) > longest:
            raise PromptTooLongError(
                f"the request has {len(asked.tokens)} tokens and a text has at most "
                f"{longest}; send fewer"
            )
        text = await asyncio.to_thread(_text_of, model, asked.tokens)
    data = msgspec.json.encode(DetokenizeResponse(prompt=text))
    await exchange.answer(200, data, headers=exchange.rate_headers())


def _check(asked: TokenizeRequest) -> None:
    if (asked.prompt is None) == (asked.messages is None):
        raise InvalidRequestError("send either `prompt` or `messages`")
    if asked.prompt is not None and len(asked.prompt) > MAX_CHAT_CHARS:
        raise refused("prompt", f"a prompt has at most {MAX_CHAT_CHARS} characters; shorten it")
    if asked.tools and asked.messages is None:
        raise refused("tools", "tools go with `messages`: a chat template shows them")
    for name in ("chat_template", "chat_template_kwargs"):
        if getattr(asked, name):
            raise refused(
                name,
                f"{name}: conversations are rendered by the model's own template; leave it out",
            )
    if asked.add_generation_prompt is False or asked.continue_final_message:
        raise refused(
            "add_generation_prompt", "conversations are only rendered for the model's next message"
        )


async def num_prompt_tokens(
    exchange: Exchange, model_name: str, messages: tuple[Message, ...], tools: tuple[str, ...]
) -> int:
    """Tokens of a conversation as the model gets it; `tools` are those shown to it. Raises
    OutriderError."""
    async with _using_model(exchange, model_name) as model:
        return len(await _chat_ids(model, messages, tools, _scope(exchange)))


async def _ids(
    asked: TokenizeRequest, model: ServedModel, tools: tuple[str, ...], scope: bytes | None
) -> tuple[int, ...]:
    pool = model.tokenization
    if asked.messages is None:
        text = asked.prompt or ""
        return await _answered(pool, lambda answer: pool.submit_text(text, answer, scope=scope))
    return await _chat_ids(model, messages_of(asked.messages), tools, scope)


async def _chat_ids(
    model: ServedModel,
    messages: tuple[Message, ...],
    tools: tuple[str, ...],
    scope: bytes | None,
) -> tuple[int, ...]:
    """Ids of a conversation as the model gets it. Raises OutriderError."""
    if tools:
        model.tool_calling.check_calls_tools()
    pool = model.tokenization
    return await _answered(
        pool, lambda answer: pool.submit(messages, answer, tools=tools, scope=scope)
    )


async def _answered(
    pool: TokenizationPool,
    submit: Callable[[Callable[[TokenizationResult], None]], TokenizationJob],
) -> tuple[int, ...]:
    """The ids of a prompt; `submit` passes it to the pool with the callback for them."""
    answered: asyncio.Future[tuple[int, ...]] = asyncio.get_running_loop().create_future()

    def answer(result: TokenizationResult) -> None:
        if answered.done():
            return
        if isinstance(result, OutriderError):
            answered.set_exception(result)
        else:
            answered.set_result(result)

    job = submit(answer)
    try:
        return await answered
    finally:
        pool.cancel(job)


def _scope(exchange: Exchange) -> bytes | None:
    assert exchange.identity is not None
    return exchange.identity.group or None


def _token_strs(model: ServedModel, ids: tuple[int, ...]) -> list[str]:
    return [model.vocabulary.token_bytes(token).decode(errors="replace") for token in ids]


def _text_of(model: ServedModel, ids: list[int]) -> str:
    return model.vocabulary.decode(ids, keep_special=True)


class _Waiting:
    """A request that waits for its model."""

    def __init__(self, release: Callable[[ServedModel], None]) -> None:
        self.model: asyncio.Future[ServedModel] = asyncio.get_running_loop().create_future()
        self._release = release

    def granted(self, model: ServedModel) -> None:
        """The model is loaded."""
        if self.model.done():
            self._release(model)
        else:
            self.model.set_result(model)

    def refused(self, error: OutriderError) -> None:
        """The model is not available now."""
        if not self.model.done():
            self.model.set_exception(error.bare())


@asynccontextmanager
async def _using_model(exchange: Exchange, asked: str | None) -> AsyncIterator[ServedModel]:
    """The model, loaded, for one request, which counts as a chat of its client and as a request of
    its tenant. Its tokens count for nothing: no replica computes them. Raises OutriderError."""
    context: EdgeContext = exchange.frontend.context
    identity = exchange.identity
    assert identity is not None
    name = choose(asked or "", context.models.names, identity.models)
    with contextlib.ExitStack() as held:
        held.callback(exchange.begin_chat(identity.client))
        model = context.models.use(name) or await _wait_for(name, context)
        held.callback(context.models.release, model)
        allowance = context.limiter.begin(identity)
        held.callback(allowance.close)
        await allowed(allowance)
        yield model


async def allowed(allowance: Allowance) -> None:
    """Return once the limits of all edges allow one more request. Raises RateLimitedError."""
    decided: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def decide(refusal: OutriderError | None) -> None:
        if decided.done():
            return  # the client has left meanwhile
        if refusal is None:
            decided.set_result(None)
        else:
            decided.set_exception(refusal.bare())

    allowance.ask(0, decide)
    await decided


async def _wait_for(name: str, context: EdgeContext) -> ServedModel:
    waiting = _Waiting(context.models.release)
    context.models.ask(name, waiting, None)
    try:
        return await waiting.model
    except asyncio.CancelledError:
        # Given up, and with it the future that was awaited. `granted` gives a model back that comes
        # all the same; one that has come already is given back here.
        context.models.leave(waiting)
        model = waiting.model
        if model.done() and not model.cancelled() and model.exception() is None:
            context.models.release(model.result())
        raise
