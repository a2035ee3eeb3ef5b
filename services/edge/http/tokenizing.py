"""POST /tokenize and /detokenize, in vLLM's shapes."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any, Final

import msgspec

from outrider.errors import InvalidRequestError, PromptTooLongError
from outrider.models.chat import MAX_CHAT_CHARS
from outrider.today import today
from services.edge.access.identity import Identity
from services.edge.chat.tokenizing import answered, text_ids, using_model
from services.edge.http.bodies import read
from services.edge.http.exchange import Exchange
from services.edge.http.openai_errors import refused
from services.edge.http.openai_messages import ChatMessage, Tool, messages_of, tools_of
from services.edge.http.passed_over import PassedOver
from services.edge.http.template_fields import continues_in, template_options
from services.edge.http.translation import Conversation
from services.edge.models.served import ServedModel


class TokenizeRequest(msgspec.Struct, kw_only=True):
    """Asks for the token ids of a prompt: of text as it is, or of a conversation by the model's
    chat template. Other fields are ignored."""

    model: str | None = None
    prompt: str | None = None
    """Texts of control tokens in it become these tokens."""
    messages: list[ChatMessage] | None = None
    tools: list[Tool] | None = None
    """Tools that the model may call, with `messages`: the template shows them."""
    chat_template: str | None = None
    """Refused: conversations are rendered by the model's own."""
    chat_template_kwargs: dict[str, Any] | None = None
    """Variables for the model's chat template, with `messages`, as in chat completions."""
    add_special_tokens: bool | None = None
    """Whether `prompt` gets the tokens that the model's prompts begin and end with; null: yes."""
    add_generation_prompt: bool | None = None
    """The opposite of `continue_final_message`; other values are refused."""
    continue_final_message: bool | None = None
    """Whether the prompt ends with the last of `messages`, which is the assistant's."""
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


_SLICE_IDS: Final = 8192
"""Ids whose texts are found at a time, in a few milliseconds."""
_ID_BYTES: Final = 8
_decode_tokenize: Final = msgspec.json.Decoder(TokenizeRequest).decode
_decode_detokenize: Final = msgspec.json.Decoder(DetokenizeRequest).decode


async def serve_tokenize(exchange: Exchange) -> None:
    """Answer one request. Raises OutriderError."""
    asked = read(_decode_tokenize, await exchange.body())
    _check(asked)
    passed_over = PassedOver()
    data = await exchange.while_there(_tokenized(exchange, asked, passed_over))
    await exchange.answer(200, data, headers=exchange.rate_headers() | passed_over.headers)


async def _tokenized(exchange: Exchange, asked: TokenizeRequest, passed_over: PassedOver) -> bytes:
    tools = tools_of(asked.tools or (), passed_over)
    async with _using_model(exchange, asked.model) as model:
        ids = await _ids(asked, model, tools, exchange)
        is_shown = bool(asked.return_token_strs)
        return await _computed(exchange, _written(model, ids, is_shown=is_shown), len(ids))


def _written(
    model: ServedModel, ids: Sequence[int], *, is_shown: bool
) -> Generator[int, None, bytes]:
    """The answer. `is_shown`: with the text of each id."""
    texts = list[str]()
    for start in range(0, len(ids), _SLICE_IDS) if is_shown else ():
        yield start
        some = map(model.vocabulary.token_bytes, ids[start : start + _SLICE_IDS])
        texts += [each.decode(errors="replace") for each in some]
    answer = TokenizeResponse(
        count=len(ids),
        max_model_len=model.limits.max_context_tokens,
        tokens=list(ids),
        token_strs=texts if is_shown else None,
    )
    return msgspec.json.encode(answer)


async def serve_detokenize(exchange: Exchange) -> None:
    """Answer one request. Raises OutriderError."""
    asked = read(_decode_detokenize, await exchange.body())
    data = await exchange.while_there(_detokenized(exchange, asked))
    await exchange.answer(200, data, headers=exchange.rate_headers())


async def _detokenized(exchange: Exchange, asked: DetokenizeRequest) -> bytes:
    async with _using_model(exchange, asked.model) as model:
        longest = model.limits.max_context_tokens
        if len(asked.tokens) > longest:
            raise PromptTooLongError(
                f"the request has {len(asked.tokens)} tokens and a text has at most "
                f"{longest}; send fewer"
            )
        return await _computed(exchange, _text_of(model, asked.tokens), len(asked.tokens))


def _text_of(model: ServedModel, ids: list[int]) -> Generator[int, None, bytes]:
    detokenizer = model.vocabulary.detokenizer(keep_special=True)
    text = (yield from detokenizer.slices(ids)) + detokenizer.finish()
    return msgspec.json.encode(DetokenizeResponse(prompt=text))


async def _computed(exchange: Exchange, slices: Generator[int, None, bytes], num_ids: int) -> bytes:
    """What `slices` return, of a request with so many ids."""
    threads, requester = exchange.frontend.context.threads, _identity(exchange).requester
    return await threads.run_slices(slices, requester, num_bytes=_ID_BYTES * num_ids)


def _check(asked: TokenizeRequest) -> None:
    if (asked.prompt is None) == (asked.messages is None):
        raise InvalidRequestError("send either `prompt` or `messages`")
    if asked.prompt is not None and len(asked.prompt) > MAX_CHAT_CHARS:
        raise PromptTooLongError.of_text("the prompt", len(asked.prompt), MAX_CHAT_CHARS)
    for name in ("tools", "chat_template_kwargs"):
        if getattr(asked, name) and asked.messages is None:
            raise refused(name, f"{name} goes with `messages`: it is for a chat template")
    if asked.chat_template:
        raise refused(
            "chat_template",
            "chat_template: conversations are rendered by the model's own template; leave it out",
        )


async def num_prompt_tokens(exchange: Exchange, model_name: str, said: Conversation) -> int:
    """Tokens of a conversation as the model gets it. Raises OutriderError, ClientLeft."""
    said = replace(said, messages=exchange.frontend.left_out.without(said.messages))

    async def count() -> int:
        async with _using_model(exchange, model_name) as model:
            return len(await _chat_ids(model, said, _identity(exchange)))

    return await exchange.while_there(count())


async def _ids(
    asked: TokenizeRequest, model: ServedModel, tools: tuple[str, ...], exchange: Exchange
) -> tuple[int, ...]:
    identity = _identity(exchange)
    if asked.messages is not None:
        continues = continues_in(asked.continue_final_message, asked.add_generation_prompt)
        options = template_options(asked.chat_template_kwargs, {}, continues=continues)
        messages = exchange.frontend.left_out.without(messages_of(asked.messages))
        said = Conversation(messages, tools, template_options=options)
        return await _chat_ids(model, said, identity)
    return await text_ids(
        asked.prompt or "",
        model,
        identity,
        exchange.frontend.context,
        is_prompt=asked.add_special_tokens is not False,
    )


async def _chat_ids(model: ServedModel, said: Conversation, identity: Identity) -> tuple[int, ...]:
    """Ids of a conversation as the model gets it. Raises OutriderError."""
    tools = said.shown_tools
    if tools:
        model.tool_calling.check_calls_tools()
    variables = model.template_control.given(said.template_options, today())
    pool = model.tokenization
    requester, scope = identity.requester, identity.group or None
    return await answered(
        pool,
        lambda answer: pool.submit(
            said.messages,
            answer,
            requester=requester,
            tools=tools,
            variables=variables,
            scope=scope,
        ),
    )


def _identity(exchange: Exchange) -> Identity:
    assert exchange.identity is not None
    return exchange.identity


def _using_model(exchange: Exchange, asked: str | None) -> AbstractAsyncContextManager[ServedModel]:
    context = exchange.frontend.context
    return using_model(context, _identity(exchange), exchange.begin_chat, asked or "")
