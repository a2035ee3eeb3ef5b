"""DELETE /v1/chat/completions: a client gives up a reply that the edge keeps for it. Closing the
request ends a reply, but not one with an Idempotency-Key: for that the client may come back."""

from __future__ import annotations

import msgspec

from outrider.errors import InvalidRequestError
from services.edge.http.exchange import Exchange
from services.edge.session.request_fields import choice_id, request_id


class Cancelled(msgspec.Struct, kw_only=True):
    """What became of the replies that were given up."""

    num_cancelled: int
    """Choices that were under way; 0: the reply had ended, or is not at this edge."""


async def serve_cancel(exchange: Exchange) -> None:
    """Answer one request. Raises InvalidRequestError."""
    key = exchange.headers.get("idempotency-key", "")
    if not key:
        raise InvalidRequestError(
            "DELETE gives up the reply to the request that had the same Idempotency-Key; send it"
        )
    own, identity = request_id(key), exchange.identity
    assert identity is not None
    resumable = exchange.frontend.context.resumable
    choices = range(exchange.frontend.config.max_choices)
    count = sum(resumable.cancel(choice_id(own, index), identity) for index in choices)
    await exchange.answer(200, msgspec.json.encode(Cancelled(num_cancelled=count)))
