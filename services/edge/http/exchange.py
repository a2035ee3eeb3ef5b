"""One HTTP request and its answer, over ASGI."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from typing import Any, Final, TypeVar
from uuid import uuid4

from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from outrider.errors import (
    FrameTooLargeError,
    HeadTooLargeError,
    InvalidRequestError,
    MediaTypeError,
    OutriderError,
    OverloadedError,
    SlowRequestError,
    UnauthenticatedError,
)
from services.edge.access.identity import Credential, Identity
from services.edge.access.limits import RateWords, rate_headers
from services.edge.chat.opening import identify
from services.edge.http.frontend import HttpFrontend
from services.edge.http.grpc_calls import is_call
from services.edge.http.origins import Fields
from services.edge.http.proxies import FORWARDED_FOR, is_forwarded
from services.edge.limits.bodies import ArrivingBody
from services.edge.limits.listener import MemoryBudget
from services.edge.session.request_fields import MAX_ID_CHARS, trace

_T = TypeVar("_T")

CONNECTION: Final = "outrider-connection"
"""ASGI extension: what the server says of the connection. All of it is optional: `secret`, 16
random bytes that its requests share; `budget`, a MemoryBudget for what it sent; `streams`, a set
that its requests share (Exchange.streams); `abort`, which ends this request at once; `push`, as
Exchange.push."""
EXCHANGE: Final = "outrider-exchange"
"""Key of the ASGI scope under which a request's Exchange is."""
JSON: Final = "application/json"
_NO_CONTENT: Final = 204
_NOT_MODIFIED: Final = 304
_MAX_SECRET_CHARS: Final = 128
_DISCARD_S: Final = 1.0
_UNBOUNDED: Final = 1 << 62
_PIECE_BYTES: Final = 64 << 10
"""Size of the pieces of an answer; the client's time to read applies to each."""
_SERVED_SAFELY: Final = (
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
)


class ClientLeft(Exception):
    """The client closed the request; no answer can be sent."""


class Exchange:
    """One request. Only the task that serves it uses it."""

    def __init__(self, frontend: HttpFrontend, scope: Scope, receive: Receive, send: Send) -> None:
        self.frontend = frontend
        self.scope = scope
        self.headers = Headers(scope=scope)
        stated = self.headers.get("x-request-id", "")
        self.request_id = request_id_of(stated)
        self.logged_id = "" if self.request_id == stated else self.request_id
        """`request_id` if the edge made it. One that the client states may say anything."""
        self.identity: Identity | None = None
        self.route = "none"
        """The pattern of its path, once it has been routed."""
        self.rate_words = RateWords.OPENAI
        """Wording of rate-limit headers, by the route."""
        self.status = 0
        """Status of the answer; 0 until its head is sent."""
        self.has_chats = False
        """Whether chats of it were begun: from then on it is they that are refused."""
        self._receive = receive
        self._send = send
        self._body: ArrivingBody | None = None
        """Holds the memory of the body, from when it is read until it is not needed any more."""
        self._is_read = False
        """Whether nothing more of the body will come, or is waited for."""
        connection: Mapping[str, Any] = scope.get("extensions", {}).get(CONNECTION, {})
        self.budget: MemoryBudget = connection.get("budget", MemoryBudget(_UNBOUNDED))
        """For what the connection sent."""
        self._abort: Callable[[], None] = connection.get("abort", lambda: None)
        self.push: Callable[[bytes], bool] = connection.get("push", lambda data: False)
        """Sends a piece of a body whose length was not told, in this turn of the event loop; False:
        nothing was sent, and `write` has to. While nobody writes otherwise, and never empty."""
        peer = (scope.get("client") or ("127.0.0.1", 0))[0]
        shared: bytes | None = connection.get("secret")
        if frontend.proxies.trusts(peer) or is_forwarded(self.headers):
            shared = None  # a proxy's connection is of many clients
            connection = {**connection, "streams": set()}
        self.connection_secret: bytes = shared or secrets.token_bytes(16)
        """Random bytes that requests of one connection share; see
        RequestStream.connection_secret."""
        self.streams: set[Any] = connection.get("streams", set())
        """The streams of the native protocol that this client has on its connection."""
        host = frontend.proxies.client(peer, self.headers.getlist(FORWARDED_FOR))
        self.address = frontend.limits.limits.prefixes.of(host)
        """Prefix of the client's address, for quotas; see RequestStream.address."""

    @property
    def has_begun(self) -> bool:
        """Whether the answer's head was sent."""
        return bool(self.status)

    @property
    def is_preflight(self) -> bool:
        """Whether a browser asks, for an allowed page, if it may send a request."""
        return self.frontend.origins.is_preflight(self.scope["method"], self.headers)

    # Who asks.

    def check_head(self, *, needs_key: bool) -> None:
        """`needs_key`: such requests are served with a key alone. Raises HeadTooLargeError,
        MisdirectedError, InvalidRequestError. Servers check the size too, some of them only parts
        of it."""
        limit = self.frontend.config.max_header_bytes
        fields: list[tuple[bytes, bytes]] = self.scope["headers"]
        num_bytes = sum(len(name) + len(value) for name, value in fields)
        if num_bytes + len(self.scope.get("raw_path") or b"") > limit:
            raise HeadTooLargeError(f"the head of a request has at most {limit} bytes; shorten it")
        self.frontend.hosts.check(
            self.headers.getlist("host"),
            server=(self.scope.get("server") or ("", 0))[0],
            is_encrypted=self.scope.get("scheme") == "https",
            needs_key=needs_key,
        )

    def admit(self, user: str = "") -> Identity:
        """Identify the caller; `user` is the end user's id, given by the key's owner. Raises
        UnauthenticatedError, PermissionDeniedError, InvalidRequestError."""
        credential = Credential(self._key(), user, self._client_secret())
        self.identity = identify(
            self, credential, self.frontend.context, needs_key=self.frontend.needs_key
        )
        return self.identity

    def _key(self) -> str:
        stated = self.headers.get("authorization", "")
        scheme, _, key = stated.partition(" ")
        if stated and scheme.lower() != "bearer":
            raise UnauthenticatedError("send the key as `Authorization: Bearer KEY`")
        return key.strip() or self.headers.get("x-api-key", "").strip()

    def _client_secret(self) -> bytes:
        text = self.headers.get("x-outrider-client", "")
        try:
            return bytes.fromhex(text[: _MAX_SECRET_CHARS + 1])
        except ValueError:
            raise InvalidRequestError(
                "x-outrider-client is 16 to 64 random bytes in hexadecimal, the same on every "
                "request of one client"
            ) from None

    @property
    def trace(self) -> tuple[str, str]:
        """W3C traceparent and tracestate."""
        return trace(self.headers.get("traceparent", ""), self.headers.get("tracestate", ""))

    # What it asks for.

    async def body(self) -> bytes:
        """The whole body, which must be JSON. Raises MediaTypeError, FrameTooLargeError,
        SlowRequestError, OverloadedError, and ClientLeft."""
        self.check_media_type(JSON)
        limit = self.frontend.config.max_body_bytes
        stated = self.headers.get("content-length", "")
        length = int(stated[:19]) if stated.isdecimal() else 0
        if length > limit:
            raise _too_large(limit)
        patience_s = self.frontend.config.body_timeout_s
        patience = asyncio.timeout(patience_s)

        def stop_waiting() -> None:
            with contextlib.suppress(RuntimeError):  # it has just ended by itself
                patience.reschedule(0.0)

        self._body = self.frontend.bodies.begin(self.budget, stop_waiting)
        try:
            async with patience:
                return await self._read(limit, self._body)
        except TimeoutError:
            self._body.check()
            self._is_read = True
            raise SlowRequestError(
                f"the body of the request did not come within {patience_s:g} s"
            ) from None

    @property
    def media_type(self) -> str:
        """Of the body."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    @property
    def is_call(self) -> bool:
        """Whether it is a call of gRPC, whose errors are trailers."""
        return self.scope["http_version"] == "2" and is_call(self.media_type)

    def check_media_type(self, expected: str) -> None:
        """A web page may have a browser send text and forms without asking, wherever it is from.
        Raises MediaTypeError."""
        if self.media_type != expected:
            raise MediaTypeError(f"send the body with `Content-Type: {expected}`")
        if self.headers.get("content-encoding", "identity").strip().lower() != "identity":
            raise MediaTypeError("send the body as it is, without Content-Encoding")

    async def _read(self, limit: int, body: ArrivingBody) -> bytes:
        pieces: list[bytes] = []
        num_read = 0
        async for piece in self.pieces():
            num_read += len(piece)
            if num_read > limit:
                raise _too_large(limit)
            body.grow(len(piece))
            pieces.append(piece)
        body.arrived()
        return b"".join(pieces)

    async def pieces(self) -> AsyncIterator[bytes]:
        """The body as it comes, without a limit. Raises ClientLeft."""
        while not self._is_read:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientLeft
            self._is_read = not message.get("more_body", False)
            yield message.get("body", b"")

    async def discard(self) -> None:
        """Read the rest of an unwanted body, within bounds: a client that still sends when its
        connection is closed may lose the answer (RFC 9112, section 9.6)."""
        num_bytes = 0
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_DISCARD_S):
                while not self._is_read and num_bytes <= self.frontend.config.max_body_bytes:
                    message = await self._receive()
                    if message["type"] == "http.disconnect":
                        raise ClientLeft
                    num_bytes += len(message.get("body", b""))
                    self._is_read = not message.get("more_body", False)

    def release(self) -> None:
        """The body is not needed any more."""
        if self._body is not None:
            self._body.release()

    async def left(self) -> None:
        """Return when the client closes the request. To be awaited once its body was read."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def while_there(self, work: Coroutine[Any, Any, _T]) -> _T:
        """The result of `work`, which is cancelled if the client leaves: nobody is computed for who
        is gone. To be awaited once the body was read. Raises ClientLeft, and what `work` raises."""
        task = asyncio.ensure_future(work)
        watch = asyncio.ensure_future(self.left())
        try:
            await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise ClientLeft
            return task.result()
        finally:
            for each in (task, watch):
                each.cancel()
            await asyncio.gather(task, watch, return_exceptions=True)

    def begin_chat(self, client: bytes) -> Callable[[], None]:
        """Count a chat; call the result at its end. Raises DrainingError, OverloadedError. See
        RequestStream.begin_chat."""
        self.frontend.check_draining()
        return self.frontend.begin_chat(self.address, client, asyncio.get_running_loop().time())

    def rate_headers(self) -> dict[str, str]:
        """Headers with the caller's remaining limits; empty without limits."""
        if self.identity is None:
            return {}
        try:
            states = self.frontend.context.limiter.states(self.identity)
        except OverloadedError:
            return {}  # so many tenants have chats that nothing is known of this one
        return rate_headers(states, self.rate_words, time.time())

    # The answer.

    async def begin(
        self, status: int, content_type: str, headers: Mapping[str, str], length: int | None = None
    ) -> None:
        """Send the head; `length`: bytes of the body, None if they are not known."""
        fields = [(b"content-type", content_type.encode()), *self._fields(headers)]
        if length is not None:
            fields.append((b"content-length", b"%d" % length))
        await self._begin(status, fields)

    async def _begin(self, status: int, fields: Fields) -> None:
        self.status = status
        shared = self.frontend.origins.shared(self.headers.get("origin", ""), fields)
        await self._send_in_time(
            {"type": "http.response.start", "status": status, "headers": [*fields, *shared]}
        )

    async def write(self, data: bytes, *, more: bool) -> None:
        """Send a piece of the body."""
        if self.scope["method"] == "HEAD":
            data = b""
        last = max(0, len(data) - 1) // _PIECE_BYTES * _PIECE_BYTES
        for at in range(0, last, _PIECE_BYTES):
            await self._send_body(data[at : at + _PIECE_BYTES], more=True)
        await self._send_body(data[last:], more=more)

    async def answer(
        self,
        status: int,
        body: bytes,
        *,
        content_type: str = JSON,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Send a whole answer."""
        await self.begin(status, content_type, headers or {}, len(body))
        await self.write(body, more=False)

    async def answer_unchanged(self, headers: Mapping[str, str]) -> None:
        """Send an answer without a body: the client has it already (RFC 9110, section 15.4.5)."""
        await self._begin(_NOT_MODIFIED, self._fields(headers))
        await self.write(b"", more=False)

    def _fields(self, headers: Mapping[str, str]) -> Fields:
        """These headers, and those of every answer that they do not replace."""
        stated = [(name.encode(), value.encode()) for name, value in headers.items()]
        names = {name for name, _ in stated}
        return [*(it for it in own_headers(self.request_id) if it[0] not in names), *stated]

    async def begin_call(self, headers: Fields) -> None:
        """Send the head of an answer that ends with `end_call`, over HTTP/2."""
        self.status = 200
        fields = [*headers, *own_headers(self.request_id)]
        await self._send_in_time(
            {"type": "http.response.start", "status": 200, "headers": fields, "trailers": True}
        )

    async def end_call(self, trailers: Fields) -> None:
        """End the answer by a section of trailers."""
        await self._send_body(b"", more=False)
        await self._send_in_time({"type": "http.response.trailers", "headers": trailers})

    async def answer_preflight(self, methods: Iterable[str]) -> None:
        """Tell a browser that an allowed page may send requests by `methods`."""
        about = self.frontend.origins.preflight_answer(self.headers, methods)
        await self._begin(_NO_CONTENT, [*own_headers(self.request_id), *about])
        await self.write(b"", more=False)

    def abort(self) -> None:
        """End the request at once: its stream over HTTP/2 and HTTP/3, its connection over
        HTTP/1.1."""
        self._abort()

    async def _send_body(self, data: bytes, *, more: bool) -> None:
        await self._send_in_time({"type": "http.response.body", "body": data, "more_body": more})

    async def _send_in_time(self, message: dict[str, Any]) -> None:
        """Raises ClientLeft if the client reads nothing."""
        try:
            async with asyncio.timeout(self.frontend.config.send_timeout_s):
                await self._send(message)
        except TimeoutError:
            self._abort()
            raise ClientLeft from None


def _too_large(limit: int) -> OutriderError:
    # Clients that shorten a conversation after a 413 look for its last words.
    return FrameTooLargeError(
        f"the body is larger than {limit} bytes; shorten it, for as one conversation it exceeds "
        "the context window"
    )


def own_headers(request_id: str) -> Fields:
    """Headers of every answer."""
    named = request_id.encode()
    return [(b"x-request-id", named), (b"request-id", named), *_SERVED_SAFELY]


def request_id_of(stated: str) -> str:
    """The client's own, if it can be one."""
    if 0 < len(stated) <= MAX_ID_CHARS and stated.isascii() and stated.isprintable():
        return stated
    return uuid4().hex
