"""The ASGI application of an edge. Any ASGI 3 server may serve it: ours over TCP (listener.py), and
HTTP/3 on the QUIC port.

Every request passes the Gate, the application around the routes: it identifies the caller before
anything is routed or read, and turns errors raised behind it into answers.
"""

from __future__ import annotations

from typing import Final

import structlog
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as StarletteRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from outrider.errors import (
    MethodNotAllowedError,
    OutriderError,
    RateLimitedError,
    UnknownRouteError,
)
from services.edge.http import native
from services.edge.http.exchange import EXCHANGE, ClientLeft, Exchange
from services.edge.http.frontend import HttpFrontend
from services.edge.http.http_errors import headers_of
from services.edge.http.paths import normal_path
from services.edge.http.routes import ALL_ROUTES, Route, error_answer, is_public
from services.edge.http.verifying import fail_call

log = structlog.get_logger()

_METHODS: Final = {"HEAD", *(route.method for route in ALL_ROUTES)}
_PREFLIGHT: Final = "preflight"
"""Stands for the route in metrics: a browser's question about any of them."""
_CLIENT_LEFT: Final = 499
"""nginx's status for a client that closed the request."""
_POLICY_VIOLATION: Final = 1008
"""RFC 6455, section 7.4.1."""


def build_app(frontend: HttpFrontend) -> ASGIApp:
    """The application of one edge."""
    # The methods of a path are of one Starlette route, so that others are told from unknown paths.
    routes = [
        StarletteRoute(path, _Endpoint([it for it in ALL_ROUTES if it.path == path]))
        for path in dict.fromkeys(route.path for route in ALL_ROUTES)
    ]
    app = Starlette(
        routes=routes,
        middleware=[Middleware(_Gate, frontend=frontend)],
        exception_handlers={HTTPException: _raise_ours},
    )
    app.router.redirect_slashes = False
    return app


class _Endpoint:
    """One path."""

    def __init__(self, routes: list[Route]) -> None:
        self._by_method = {route.method: route for route in routes}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        route = self._by_method.get(method)
        if route is None:
            allowed = ", ".join(self._by_method).replace("GET", "GET, HEAD")
            raise MethodNotAllowedError(
                f"this path accepts only {allowed}", metadata={"allow": allowed}
            )
        exchange: Exchange = scope[EXCHANGE]
        exchange.route = route.path
        exchange.rate_words = route.rate_words
        if exchange.identity is not None:
            exchange.identity.require(route.scope)
        await route.handle(exchange)


class _Gate:
    """Admits requests by their credentials, and answers errors."""

    def __init__(self, app: ASGIApp, frontend: HttpFrontend) -> None:
        self._app = app
        self._frontend = frontend

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": _POLICY_VIOLATION})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope["path"] = normal_path(scope["path"])
        exchange = Exchange(self._frontend, scope, receive, send)
        scope[EXCHANGE] = exchange
        try:
            await self._serve(exchange, scope, receive, send)
        except ClientLeft:
            pass  # a client that leaves is no event of the edge
        finally:
            exchange.release()
            del scope[EXCHANGE]  # they would refer to each other until they are collected
            status = exchange.status or _CLIENT_LEFT
            self._frontend.context.telemetry.answered_http(exchange.route, status)

    async def _serve(self, exchange: Exchange, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            is_stream = native.is_stream(exchange)
            front = self._frontend
            serves_anyone = front.serves_anyone if is_stream else not front.needs_key
            exchange.check_head(needs_key=not serves_anyone)
            if exchange.is_preflight:
                exchange.route = _PREFLIGHT
                await exchange.answer_preflight(_METHODS)
                return
            if not is_public(scope["path"]) and not is_stream:
                exchange.admit()
            await self._app(scope, receive, send)
        except OutriderError as error:
            # The frames of its traceback hold it, and all that the request did.
            await self._answer(exchange, error.bare())
        except ClientLeft:
            raise
        except Exception as failure:
            log.exception("request_failed", route=exchange.route, request_id=exchange.logged_id)
            why = f"the edge failed in this request: {type(failure).__name__}"
            await self._answer(exchange, OutriderError(why))

    async def _answer(self, exchange: Exchange, error: OutriderError) -> None:
        if not exchange.has_chats:  # chats are counted, and refused, each by itself
            self._frontend.context.telemetry.refused(error.reason)
        if exchange.is_call:
            exchange.release()
            await fail_call(exchange, error)
            return
        if exchange.has_begun:
            exchange.abort()  # whatever came of the answer, the client must not take it for whole
            return
        exchange.release()
        await exchange.discard()
        status, body = error_answer(exchange.scope["path"], error, exchange.request_id)
        headers = headers_of(error)
        if isinstance(error, RateLimitedError):
            headers |= exchange.rate_headers()
        await exchange.answer(status, body, headers=headers)


async def _raise_ours(request: Request, failure: Exception) -> Response:
    """Turn Starlette's own errors, for unknown paths, into ours."""
    raise UnknownRouteError("no resource has this path; GET /openapi.json lists all paths")
