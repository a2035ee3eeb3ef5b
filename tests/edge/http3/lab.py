"""Small ASGI applications to be served, and an edge that serves one."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from outrider.models.vocabulary import Vocabulary
from services.edge.http3.application import Application, Receive, Send
from services.edge.http3.limits import Http3Limits
from services.edge.http3.messages import Message
from tests.edge.http3.client import H3Client, h3_client
from tests.edge.integration.running import REPLY, Running, running


class Lab:
    """An ASGI application with a route for each thing to try; it keeps what happened to it."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.began: list[str] = []
        self.ended: list[tuple[str, str]] = []
        """Path, and how its call ended."""
        self.disconnected: list[str] = []
        self.scopes: list[Message] = []
        self.bodies: list[bytes] = []

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        self.scopes.append(scope)
        self.began.append(path)
        try:
            await getattr(self, "_" + path.strip("/").replace("-", "_"))(scope, receive, send)
        except BaseException as error:
            self.ended.append((path, type(error).__name__))
            raise
        self.ended.append((path, "returned"))

    async def _hello(self, scope: Any, receive: Receive, send: Send) -> None:
        await answer(send, b"hello")

    async def _scope(self, scope: Any, receive: Receive, send: Send) -> None:
        shown = {key: value for key, value in scope.items() if key != "extensions"}
        await answer(send, json.dumps(shown, default=lambda it: it.decode("latin-1")).encode())

    async def _aborts(self, scope: Any, receive: Receive, send: Send) -> None:
        await start(send)
        await body(send, b"begin", True)
        scope["extensions"]["outrider-connection"]["abort"]()
        await body(send, b"end", False)

    async def _keeps(self, scope: Any, receive: Receive, send: Send) -> None:
        budget = scope["extensions"]["outrider-connection"]["budget"]
        assert budget.take(5000)
        await self.gate.wait()
        budget.give_back(5000)

    async def _burns(self, scope: Any, receive: Receive, send: Send) -> None:
        await asyncio.sleep(0)  # steps after the first one count as well
        until = time.thread_time() + 0.1
        while time.thread_time() < until:
            pass
        await answer(send, b"done")

    async def _echo(self, scope: Any, receive: Receive, send: Send) -> None:
        await answer(send, await body_of(receive))

    async def _gated_echo(self, scope: Any, receive: Receive, send: Send) -> None:
        await self.gate.wait()
        await answer(send, await body_of(receive))

    async def _reads_once(self, scope: Any, receive: Receive, send: Send) -> None:
        self.bodies.append((await receive())["body"])
        await answer(send, b"enough")

    async def _ticks(self, scope: Any, receive: Receive, send: Send) -> None:
        await start(send, [(b"content-type", b"text/event-stream")])
        for number in range(3):
            await body(send, b"data: %d\n\n" % number, True)
            await self.gate.wait()
            self.gate.clear()
        await body(send, b"", False)

    async def _wait(self, scope: Any, receive: Receive, send: Send) -> None:
        while (message := await receive())["type"] != "http.disconnect":
            self.bodies.append(message["body"])
        self.disconnected.append(scope["path"])

    async def _deaf(self, scope: Any, receive: Receive, send: Send) -> None:
        await asyncio.Event().wait()

    async def _held(self, scope: Any, receive: Receive, send: Send) -> None:
        await self.gate.wait()
        await answer(send, b"at last")

    async def _fail(self, scope: Any, receive: Receive, send: Send) -> None:
        raise ValueError("on purpose")

    async def _fail_late(self, scope: Any, receive: Receive, send: Send) -> None:
        await start(send)
        await body(send, b"begin", True)
        raise ValueError("on purpose")

    async def _silent(self, scope: Any, receive: Receive, send: Send) -> None:
        """Sends nothing."""

    async def _twice(self, scope: Any, receive: Receive, send: Send) -> None:
        await start(send)
        await start(send)

    async def _big(self, scope: Any, receive: Receive, send: Send) -> None:
        num_bytes = int(scope["query_string"])
        await start(send, [(b"content-length", b"%d" % num_bytes)])
        await body(send, bytes(num_bytes), False)

    async def _pours(self, scope: Any, receive: Receive, send: Send) -> None:
        await start(send)
        while True:
            await body(send, bytes(16_384), True)

    async def _trailers(self, scope: Any, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [], "trailers": True})
        await body(send, b"text", False)
        await send({"type": "http.response.trailers", "headers": [(b"X-Sum", b"4")]})


async def start(send: Send, headers: Any = (), status: int = 200) -> None:
    await send({"type": "http.response.start", "status": status, "headers": list(headers)})


async def body(send: Send, data: bytes, more: bool) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": more})


async def answer(send: Send, data: bytes) -> None:
    await start(send, [(b"content-length", b"%d" % len(data))])
    await body(send, data, False)


async def body_of(receive: Receive) -> bytes:
    parts = []
    while (message := await receive())["type"] == "http.request":
        parts.append(message["body"])
        if not message["more_body"]:
            break
    return b"".join(parts)


@asynccontextmanager
async def serving(
    words: Vocabulary, tmp_path: Path, application: Application, *, quic: Any = None, **limits: Any
) -> AsyncIterator[Running]:
    """An edge with this application; `limits` as Http3Limits has them, `quic` as ListenerLimits."""
    async with running(
        words,
        tmp_path,
        REPLY,
        application=application,
        http3=Http3Limits(**limits),
        **(quic or {}),
    ) as mesh:
        yield mesh


@asynccontextmanager
async def client_of(mesh: Running, **options: Any) -> AsyncIterator[H3Client]:
    async with h3_client(mesh.ports.main, mesh.ca, **options) as client:
        yield client
