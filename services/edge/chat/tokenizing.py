"""Tokenizing for clients that ask for ids alone: by a tokenizer service if one is configured and
the text is long, otherwise in this process."""

from __future__ import annotations

import asyncio
import contextlib
from array import array
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

from outrider.errors import OutriderError, PromptTooLongError
from outrider.tokenization.pool.pool import (
    TokenizationJob,
    TokenizationPool,
    TokenizationResult,
    as_tuple,
)
from outrider.tokenizer_client import TextVocabulary
from services.edge.access.identity import Identity
from services.edge.access.limiter import Allowance
from services.edge.chat.context import EdgeContext
from services.edge.models.choice import choose
from services.edge.models.served import ServedModel


async def text_ids(
    text: str,
    model: ServedModel,
    identity: Identity,
    context: EdgeContext,
    *,
    is_prompt: bool = False,
) -> tuple[int, ...]:
    """The ids of a client's text, in which control tokens' names and markup are these tokens.
    `is_prompt`: with those that the model's prompts begin and end with. Raises PromptTooLongError,
    InvalidRequestError, OverloadedError."""
    ids = await _by_service(text, model, identity, context, is_prompt=is_prompt)
    if ids is not None:
        return ids
    pool, scope, requester = model.tokenization, identity.group or None, identity.requester
    return await answered(
        pool,
        lambda answer: pool.submit_text(
            text, answer, requester=requester, scope=scope, is_prompt=is_prompt
        ),
    )


async def _by_service(
    text: str, model: ServedModel, identity: Identity, context: EdgeContext, *, is_prompt: bool
) -> tuple[int, ...] | None:
    """The ids of a long text; None if no tokenizer service has made them, or if control tokens are
    in it: these tokenize plain text. Raises PromptTooLongError."""
    services, words = context.long_texts, model.vocabulary
    if not services.takes(len(text)):
        return None
    segments = await context.threads.run(
        partial(words.raw_segments, text, is_prompt=is_prompt),
        identity.requester,
        num_bytes=len(text),
    )
    if [segment.text for segment in segments if not segment.is_token] != [text]:
        return None
    vocabulary = TextVocabulary(model.limits.model, model.vocabulary_digest, model.coder)
    ids = await services.encode(text, vocabulary, identity.requester_elsewhere)
    if ids is None:
        return None
    whole = array("I")
    for segment in segments:
        whole += array("I", [words.token_id(segment.text)]) if segment.is_token else ids
    most = model.limits.max_context_tokens - 1
    if len(whole) > most:
        raise PromptTooLongError.of(len(whole), most)
    return as_tuple(whole)


async def answered(
    pool: TokenizationPool,
    submit: Callable[[Callable[[TokenizationResult], None]], TokenizationJob],
) -> tuple[int, ...]:
    """The ids of a prompt. `submit` hands the prompt to the pool with the callback for the result.
    Raises OutriderError."""
    ids: asyncio.Future[tuple[int, ...]] = asyncio.get_running_loop().create_future()

    def answer(result: TokenizationResult) -> None:
        if ids.done():
            return
        if isinstance(result, OutriderError):
            ids.set_exception(result)
        else:
            ids.set_result(result)

    job = submit(answer)
    try:
        return await ids
    finally:
        pool.cancel(job)


class _Waiting:
    """A request that waits for its model."""

    def __init__(self, release: Callable[[ServedModel], None]) -> None:
        self.model: asyncio.Future[ServedModel] = asyncio.get_running_loop().create_future()
        self._release = release

    def granted(self, model: ServedModel) -> None:
        """It is loaded."""
        if self.model.done():
            self._release(model)
        else:
            self.model.set_result(model)

    def refused(self, error: OutriderError) -> None:
        """The model is not available now; its waiter gets `error`."""
        if not self.model.done():
            self.model.set_exception(error.bare())


@asynccontextmanager
async def using_model(
    context: EdgeContext,
    identity: Identity,
    begin_chat: Callable[[bytes], Callable[[], None]],
    asked: str,
) -> AsyncIterator[ServedModel]:
    """The model, loaded, for one request, which counts as a chat of its client (`begin_chat` as in
    RequestStream) and as a request of its tenant. Its tokens count for nothing: no replica computes
    them. Raises OutriderError."""
    name = choose(asked, context.models.names, identity.models)
    with contextlib.ExitStack() as held:
        held.callback(begin_chat(identity.client))
        model = context.models.use(name) or await _wait_for(name, context, identity)
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


async def _wait_for(name: str, context: EdgeContext, identity: Identity) -> ServedModel:
    waiting = _Waiting(context.models.release)
    context.models.ask(name, waiting, None, identity.requester)
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
