"""Serves POST /v1/embeddings: credentials, limits, and the vectors from a router."""

from __future__ import annotations

from functools import partial
from typing import Final

from outrider.errors import OutriderError, by_reason
from outrider.model_identity import short_form
from services.edge.access.identity import Identity
from services.edge.chat.tokenizing import allowed
from services.edge.http.exchange import Exchange
from services.edge.http.openai_embeddings import AskedEmbeddings, answer_of, asked_of
from services.edge.models.choice import choose
from services.edge.upstream.embedding import Embedded, EmbeddingQuery, InputError, embedded

_SHORT_BYTES: Final = 4 << 10
"""Bodies up to this size are parsed at once, in 0.4 ms at most and usually 0.02: starting a thread
takes longer."""
_SHORT_VALUES: Final = 1024
"""Up to this many values of vectors are encoded at once, in 0.15 ms at most."""
_VALUE_BYTES: Final = 4


async def serve_embeddings(exchange: Exchange) -> None:
    """Answer one request, which counts as a request of its tenant, with its tokens. It is no chat:
    beyond what may be under way it waits (`EdgeContext.embedding_calls`), and its body counts
    towards the memory of its address until it has its turn. Raises OutriderError, ClientLeft."""
    exchange.frontend.check_draining()
    body = await exchange.body()
    data = await exchange.while_there(_answered(exchange, body))
    await exchange.answer(200, data, headers=exchange.rate_headers())


async def _answered(exchange: Exchange, body: bytes) -> bytes:
    identity, context = exchange.identity, exchange.frontend.context
    assert identity is not None
    if len(body) <= _SHORT_BYTES:
        asked = asked_of(body)
    else:
        read = partial(asked_of, body)
        asked = await context.threads.run(read, identity.requester, num_bytes=len(body))
    if asked.user:
        identity = exchange.admit(asked.user)
    model = choose(asked.model, context.models.embedders.names, identity.models)
    query = EmbeddingQuery(
        request_id=exchange.request_id,
        model=model,
        inputs=asked.inputs,
        tenant=identity.tenant,
        requester=identity.requester_elsewhere,
        priority=identity.class_of(None),
        residency=identity.residency(asked.residency),
        dimensions=asked.dimensions,
        truncate=asked.truncate,
    )
    found = await _limited(exchange, identity, query)
    answer, size = partial(_written, found, model, asked), found.vectors.size
    if size <= _SHORT_VALUES:
        return answer()
    return await context.threads.run(answer, identity.requester, num_bytes=_VALUE_BYTES * size)


async def _limited(exchange: Exchange, identity: Identity, query: EmbeddingQuery) -> Embedded:
    """Embed within the tenant's limits. The replica counts the tokens, so they are charged after
    the computation, like those of chats that a region tokenizes."""
    context = exchange.frontend.context
    allowance = context.limiter.begin(identity)
    try:
        await allowed(allowance)
        context.identities.check(identity)  # its key may have been revoked meanwhile
        async with context.embedding_calls.held(identity.requester):
            exchange.release()
            found = await embedded(context.upstream, query)
        allowance.charge(input_tokens=found.num_tokens)
        return found
    except InputError as failed:
        raise _of_input(failed) from None
    finally:
        allowance.close()


def _of_input(failed: InputError) -> OutriderError:
    """The error of one input, with its place."""
    error = failed.error
    return by_reason(error.reason)(
        f"input[{failed.index}]: {error.message}",
        retry_delay_ms=error.retry_delay_ms,
        metadata={**error.metadata, "param": "input"},
    )


def _written(found: Embedded, model: str, asked: AskedEmbeddings) -> bytes:
    identity = found.model_identity
    fingerprint = f"fp_{short_form(identity)}" if identity else ""
    return answer_of(
        *(found.vectors, model, found.num_tokens, found.cost, fingerprint),
        is_base64=asked.is_base64,
    )
