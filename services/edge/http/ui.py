"""Serves the web pages of an edge and their files. They are public and hold nothing of any chat:
what a page shows, it asks for with the key of who uses it."""

from __future__ import annotations

from functools import cache
from typing import Final

from outrider.errors import UnknownRouteError
from services.edge.http.exchange import Exchange
from services.edge.ui.assets import Asset, assets

_KEPT_FOR_GOOD: Final = "public, max-age=31536000, immutable"
_ASKED_AGAIN: Final = "no-cache"
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src {connect}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
"""Content-Security-Policy of a page: it runs and loads nothing but the edge's own files, asks
nobody but the edge, turns no text into markup or code, and is shown in no other page."""
_ISOLATED: Final = {
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}


def connect_sources(exchange: Exchange) -> tuple[str, ...]:
    """Where a page may connect to, besides the origin that it came from."""
    sessions = exchange.frontend.sessions.address(exchange.headers.get("host", ""))
    return (sessions,) if sessions else ()


async def serve_chat_page(exchange: Exchange) -> None:
    """Answer with the chat page. Raises UnknownRouteError if this edge does not serve it."""
    await _serve_page(exchange, "chat.html", "ui/static")


async def serve_mesh_page(exchange: Exchange) -> None:
    """Answer with the operators' page. Raises UnknownRouteError if this edge does not serve it."""
    await _serve_page(exchange, "mesh.html", "static")


async def serve_file(exchange: Exchange) -> None:
    """Answer with one of the pages' files. A folder of another digest is that of another release,
    whose page was got from an edge beside this one: it has this release's file, not to be kept.
    Raises UnknownRouteError."""
    check_served(exchange)
    parameters: dict[str, str] = exchange.scope["path_params"]
    found = assets().files.get(parameters["name"])
    if found is None or found.content_type.startswith("text/html"):
        raise UnknownRouteError("the web pages have no file of this name")
    is_own = parameters["digest"] == assets().digest
    await _answer(exchange, found, {"cache-control": _KEPT_FOR_GOOD if is_own else _ASKED_AGAIN})


async def _serve_page(exchange: Exchange, name: str, folder: str) -> None:
    check_served(exchange)
    connect = " ".join(("'self'", *connect_sources(exchange)))
    headers = {
        "cache-control": _ASKED_AGAIN,
        "content-security-policy": _POLICY.format(connect=connect),
        **_ISOLATED,
    }
    await _answer(exchange, _page(name, folder, exchange.frontend.needs_key), headers)


@cache
def _page(name: str, folder: str, needs_key: bool) -> Asset:
    return assets().page(name, f"{folder}/{assets().digest}", needs_key=needs_key)


def check_served(exchange: Exchange) -> None:
    """Raises UnknownRouteError if this edge serves no web pages."""
    if not exchange.frontend.config.chat_page:
        raise UnknownRouteError("this edge serves no web pages (edge.http.chat_page)")


async def _answer(exchange: Exchange, asset: Asset, headers: dict[str, str]) -> None:
    headers |= {"etag": asset.etag}
    known = exchange.headers.get("if-none-match", "")
    if asset.etag in (it.strip().removeprefix("W/") for it in known.split(",")):
        await exchange.answer_unchanged(headers)
        return
    await exchange.answer(200, asset.body, content_type=asset.content_type, headers=headers)
