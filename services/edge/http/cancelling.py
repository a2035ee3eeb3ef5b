"""DELETE /v1/chat/completions: a client gives up a reply that the edge keeps for it. Closing the
request ends a reply, but not one with an Idempotency-Key: for that the client may come back."""

from __future__ import annotations

import msgspec

from outrider.errors import InvalidRequestError
from services.edge.chat.resumption_table import ChatKey
from services.edge.http.exchange import Exchange
from services.edge.session.request_fields import choice_id, request_id


class Cancelled(msgspec.Struct, kw_only=True):
    """What became of the replies that were given up."""

    num_cancelled: int
    """Choices that were under way; 0: the reply had ended, or is not known here."""


async def serve_cancel(exchange: Exchange) -> None:
    """Answer one request. Raises InvalidRequestError."""
    key = exchange.headers.get("idempotency-key", "")
    if not key:
        raise InvalidRequestError(
            "DELETE gives up the reply to the request that had the same Idempotency-Key; send it"
        )
    own, identity = request_id(key), exchange.identity
    assert identity is not None
    context = exchange.frontend.context
    names = [choice_id(own, index) for index in range(exchange.frontend.config.max_choices)]
    count = sum(context.resumable.cancel(name, identity) for name in names)
    if not count and (shared := context.shared_replies) is not None:
        count = await shared.cancel([ChatKey(identity.owner, name) for name in names])
    await exchange.answer(200, msgspec.json.encode(Cancelled(num_cancelled=count)))
