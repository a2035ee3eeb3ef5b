"""What the web pages have to know of the edge before anybody has sent a key."""

from __future__ import annotations

import msgspec

from services.edge.http.exchange import Exchange
from services.edge.http.ui import check_served


class UiSettings(msgspec.Struct, kw_only=True):
    """Public: an edge says its name and region to everybody, over QUIC too."""

    edge: str
    region: str
    """Empty: unknown."""
    added_distance: bool
    """Whether chats may ask for a longer way to the region, `added_rtt_ms`."""


async def serve_ui_settings(exchange: Exchange) -> None:
    """Answer with them. Raises UnknownRouteError."""
    check_served(exchange)
    context = exchange.frontend.context
    settings = UiSettings(
        edge=context.name, region=context.region, added_distance=context.added_distance
    )
    await exchange.answer(200, msgspec.json.encode(settings))
