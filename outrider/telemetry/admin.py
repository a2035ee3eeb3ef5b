"""The admin port: `/metrics` (Prometheus text), `/health` (alive), `/ready` (serving), `/version`,
and `/config` (which contents of the configuration file were read last, and whether they were
refused).

A deliberately small HTTP/1.1 server: GET and HEAD, no bodies, one request per connection, a
bounded head, a bounded number of connections and a bounded time for each.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from http import HTTPStatus
from typing import Protocol

from prometheus_client import CollectorRegistry, disable_created_metrics
from prometheus_client.exposition import choose_encoder

from outrider import __version__
from outrider.errors import ConfigError
from outrider.host_names import host_of, is_loopback
from outrider.telemetry.config import AdminConfig
from outrider.telemetry.process import Cause, ProcessCollector, StallMonitor

MAX_HEAD_BYTES = 8192
MAX_CONNECTIONS = 32
TIMEOUT_S = 5.0

Ready = Callable[[], tuple[bool, str]]


class _Verdict(Protocol):
    @property
    def sha256(self) -> str: ...
    @property
    def refused(self) -> str: ...


class FollowedFile(Protocol):
    """A configuration file that is followed (`outrider.config_following.ConfigSource`)."""

    @property
    def verdict(self) -> _Verdict | None:
        """Result of the last reading of the configuration file."""


Answer = tuple[HTTPStatus, str, bytes]
"""Status, content type, body."""


class AdminServer:
    """Serves one service's operators, and watches its event loop for stalls. `ready` returns
    whether the service serves, and if not, why; `cause` returns what may have stalled the loop."""

    def __init__(
        self,
        config: AdminConfig,
        *,
        ready: Ready,
        registry: CollectorRegistry,
        cause: Cause | None = None,
        file: FollowedFile | None = None,
        refresh: Callable[[], None] | None = None,
    ) -> None:
        """`refresh` is called, in the event loop, before metrics are read."""
        self._config = config
        self._file = file
        self._ready = ready
        self._registry = registry
        self._cause = cause
        self._refresh = refresh
        self._stalls: StallMonitor | None = None
        self._server: asyncio.Server | None = None
        self._process: ProcessCollector | None = None
        self._connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        """Served now."""
        self._turned_away: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        """Told now that too many are served."""

    async def start(self) -> int:
        """Listen and return the bound port. Raises ConfigError when the address is taken."""
        try:
            self._server = await asyncio.start_server(
                self._serve, self._config.host, self._config.port, limit=MAX_HEAD_BYTES
            )
        except OSError as error:
            raise ConfigError(
                f"cannot listen on admin address {self._config.host}:{self._config.port}: "
                f"{error.strerror}"
            ) from error
        # In OpenMetrics they are one series more for each counter and histogram.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._process = ProcessCollector(asyncio.get_running_loop())
        self._registry.register(self._process)
        self._stalls = StallMonitor(self._registry, cause=self._cause)
        self._stalls.start()
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Stop listening and close open connections. May be called again."""
        if self._server is None or self._process is None or self._stalls is None:
            return
        self._stalls.stop()
        self._registry.unregister(self._process)
        self._server.close()
        open_now = self._connections | self._turned_away
        for writer in open_now.values():
            writer.transport.abort()
        await asyncio.gather(*open_now)
        await self._server.wait_closed()
        self._server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        kept, serve = self._connections, self._exchange
        if len(kept) >= MAX_CONNECTIONS:
            kept, serve = self._turned_away, _turn_away
        if len(kept) >= MAX_CONNECTIONS:
            writer.transport.abort()
            return
        kept[task] = writer
        try:
            async with asyncio.timeout(TIMEOUT_S):
                await serve(reader, writer)
        except (TimeoutError, ConnectionError):
            pass  # an operator's client that stalls or leaves is no event of the service
        finally:
            del kept[task]
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        method = ""
        try:
            request = await reader.readuntil(b"\r\n\r\n")
            line, *fields = request.decode("ascii").split("\r\n")
            method, target, version = line.split(" ")
            hosts = [it[5:].strip() for it in fields if it[:5].lower() == "host:"]
            accept = ",".join(it[7:].strip() for it in fields if it[:7].lower() == "accept:")
            if len(hosts) > 1 or not (hosts or version == "HTTP/1.0"):
                answer = _plain(HTTPStatus.BAD_REQUEST, "send one Host (RFC 9112, section 3.2)")
            elif hosts and self._is_misdirected(hosts[0]):
                answer = _plain(
                    HTTPStatus.MISDIRECTED_REQUEST,
                    "this port is for the machine it is on: ask for 127.0.0.1 or localhost",
                )
            else:
                answer = await self.answer(method, target.split("?")[0], accept)
        except asyncio.LimitOverrunError:
            answer = _plain(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "header too large")
        except asyncio.IncompleteReadError:
            return
        except ValueError:
            answer = _plain(HTTPStatus.BAD_REQUEST, "not an HTTP/1.1 request")
        writer.write(_encode(answer, head=method == "HEAD"))
        await writer.drain()

    def _is_misdirected(self, authority: str) -> bool:
        """Whether a request to a loopback address names another host (see `outrider.host_names`).
        Elsewhere any name may be the operators'."""
        return is_loopback(self._config.host) and not is_loopback(host_of(authority))

    async def answer(self, method: str, path: str, accept: str = "") -> Answer:
        """To one request. Metrics are in Prometheus' own format, or with exemplars in OpenMetrics
        if `accept`, the request's Accept field, asks for that."""
        if method not in ("GET", "HEAD"):
            return _plain(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD")
        if path == "/metrics":
            if self._refresh is not None:
                self._refresh()
            encode, content_type = choose_encoder(accept)
            text = await asyncio.to_thread(encode, self._registry)
            return HTTPStatus.OK, content_type, text
        if path == "/health":
            return json_answer(HTTPStatus.OK, {"status": "alive"})
        if path == "/ready":
            ready, why = self._ready()
            status = HTTPStatus.OK if ready else HTTPStatus.SERVICE_UNAVAILABLE
            return json_answer(status, {"ready": ready, "reason": why})
        if path == "/version":
            return json_answer(HTTPStatus.OK, {"version": __version__})
        verdict = self._file.verdict if self._file is not None else None
        if path == "/config" and verdict is not None:
            return json_answer(
                HTTPStatus.OK, {"sha256": verdict.sha256, "refused": verdict.refused}
            )
        return _plain(
            HTTPStatus.NOT_FOUND, "try /metrics, /health, /ready, /version or, with a file, /config"
        )


async def _turn_away(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Say that too many connections are open, and drop what comes: a socket closed with unread data
    resets its connection, and the answer would be lost."""
    writer.write(
        _encode(_plain(HTTPStatus.SERVICE_UNAVAILABLE, "too many connections"), head=False)
    )
    writer.write_eof()
    while await reader.read(MAX_HEAD_BYTES):
        pass


def _plain(status: HTTPStatus, text: str) -> Answer:
    return status, "text/plain; charset=utf-8", f"{text}\n".encode()


def json_answer(status: HTTPStatus, body: dict[str, object]) -> Answer:
    """An answer in JSON."""
    return status, "application/json", json.dumps(body).encode() + b"\n"


def _encode(answer: Answer, *, head: bool) -> bytes:
    status, content_type, body = answer
    lines = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {content_type}\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return lines.encode("ascii") + (b"" if head else body)
