"""The mixed load: clients that come and go, resume broken replies and try refused ones again."""

from __future__ import annotations

import asyncio
import json
import random
import ssl
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, Final

from bench.chaos.ledger import Ledger, Reply
from bench.faults.chats import ReferenceChat
from bench.harness.http_client import CHATS, AnsweredError, HttpClient
from bench.regions.mesh import RegionalMesh
from outrider.client import Client, ReconnectPolicy, connect
from outrider.errors import OutriderError, OverloadedError, UnavailableError
from outrider.models.chat import Message

PATIENCE_S: Final = 120.0
"""A request has its reply within this time, whatever happens meanwhile; a fault lasts 12 s at
most."""
_CHATS_PER_CONNECTION: Final = 4
"""Then a client goes, and another one comes."""
_SILENCE_S: Final = 15.0
"""A stream that is silent for so long is broken: edges send a comment after 10 s."""
_WHOLE_S: Final = 45.0
"""A whole reply that is not there after so long is asked for again, with the same key."""
_PAUSE_S: Final = 0.5
"""Before a request is sent again, where the answer names no longer time."""
_TRY_AGAIN: Final = frozenset({429, 503})
"""Statuses that say so (docs/guides/http.md)."""
TRY_AGAIN_CODES: Final = frozenset(
    {
        "unavailable",
        "draining",
        "no_replica",
        "replica_lost",
        "overloaded",
        "rate_limit_exceeded",
        "vocabulary_unavailable",
    }
)
"""Codes of events that say so of a stream."""


@dataclass(frozen=True, slots=True)
class LoadSize:
    """How many clients of each kind there are at a time."""

    num_quic: int = 16
    num_thin: int = 4
    """Over QUIC, who send text without tokenizing it."""
    num_streams: int = 8
    """Over HTTP, who read replies as they come."""
    num_whole: int = 4
    """Over HTTP, who read them at the end."""
    num_tokenize: int = 1


class TryAgainError(Exception):
    """A request was refused or broken off in a way that promises more to who tries again."""

    def __init__(self, why: str, after_s: float = 0.0) -> None:
        super().__init__(why)
        self.after_s = after_s


class MixedLoad:
    """All clients."""

    def __init__(
        self,
        mesh: RegionalMesh,
        references: list[ReferenceChat],
        prompt_ids: Mapping[str, tuple[int, ...]],
        ledger: Ledger,
        seed: int,
        size: LoadSize,
    ) -> None:
        """`prompt_ids`: what `/tokenize` has to say of each prompt."""
        self._mesh = mesh
        self._references = references
        self._prompt_ids = prompt_ids
        self._ledger = ledger
        self._random = random.Random(seed)
        self._size = size
        self._is_over = False
        self._tls = ssl.create_default_context(cafile=str(mesh.ca))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Requests come for as long as the context lasts; at its end those under way end."""
        size = self._size
        workers: list[tuple[int, Callable[[], Awaitable[None]]]] = [
            (size.num_quic, lambda: self._quic("QUIC chat", thin=False)),
            (size.num_thin, lambda: self._quic("QUIC chat, text alone", thin=True)),
            (size.num_streams, lambda: self._http("HTTP stream", self._stream)),
            (size.num_whole, lambda: self._http("HTTP reply", self._whole)),
            (size.num_tokenize, lambda: self._http("HTTP tokenize", self._tokenize)),
        ]
        async with asyncio.TaskGroup() as group:
            for count, work in workers:
                for _ in range(count):
                    group.create_task(self._until_over(work))
            try:
                yield
            finally:
                self._is_over = True

    async def _until_over(self, work: Callable[[], Awaitable[None]]) -> None:
        await asyncio.sleep(self._random.random())  # not all in step
        while not self._is_over:
            await work()

    async def _quic(self, kind: str, *, thin: bool) -> None:
        """One client: some chats over one connection, which is replaced when it is lost."""
        urls = self._random.sample(self._mesh.urls, len(self._mesh.urls))
        began_at = time.monotonic()
        patient = ReconnectPolicy(give_up_after_s=PATIENCE_S / 2)
        while True:
            try:
                client = connect(
                    urls[0],
                    others=urls[1:],
                    ca=self._mesh.ca,
                    key=self._mesh.key,
                    reconnect=patient,
                )
                async with client as connected:
                    for _ in range(_CHATS_PER_CONNECTION):
                        if not self._is_over:
                            await self._quic_chat(kind, connected, thin=thin)
                return
            except UnavailableError as error:
                # Chats keep their own errors: this is of connecting.
                self._ledger.counts(kind).again[f"connecting: {error.reason}"] += 1
                if time.monotonic() > began_at + PATIENCE_S:
                    self._ledger.failed(kind, "connecting", error.message, began_at)
                    return
                await asyncio.sleep(_PAUSE_S)

    async def _quic_chat(self, kind: str, client: Client, *, thin: bool) -> None:
        reference = self._random.choice(self._references)

        async def ask() -> Reply:
            message = Message("user", reference.prompt)
            try:
                asked = client.chat([message], sampling=reference.sampling, thin=thin)
                async with asked as chat:
                    result = await chat.result()
            except (UnavailableError, OverloadedError) as error:
                raise TryAgainError(error.reason, error.retry_delay_ms / 1000) from error
            return Reply(result.text, result.ids)

        await self._tried(kind, _named(reference), Reply(reference.text, reference.ids), ask)

    async def _http(
        self, kind: str, ask: Callable[[ReferenceChat, Request], Awaitable[Reply]]
    ) -> None:
        reference = self._random.choice(self._references)
        addresses = self._mesh.http_addresses
        request = Request(
            addresses=self._random.sample(addresses, len(addresses)),
            headers={"idempotency-key": str(uuid.UUID(int=self._random.getrandbits(128)))},
        )
        expected = Reply(reference.text)
        if ask == self._tokenize:
            expected = Reply("", self._prompt_ids[reference.prompt])

        async def tried() -> Reply:
            try:
                return await ask(reference, request)
            except AnsweredError as error:
                if error.status not in _TRY_AGAIN:
                    raise
                after_s = float(error.fields.get("retry-after-ms", 0)) / 1000
                raise TryAgainError(
                    str(error.status), after_s or float(error.fields.get("retry-after", 0))
                ) from error
            except (OSError, EOFError) as error:
                raise TryAgainError(type(error).__name__) from error

        await self._tried(kind, _named(reference), expected, tried)

    async def _tried(
        self, kind: str, name: str, expected: Reply, ask: Callable[[], Awaitable[Reply]]
    ) -> None:
        """One request, sent again as often as that is of use and within the bound."""
        ledger, began_at = self._ledger, time.monotonic()
        ledger.counts(kind).asked += 1
        ledger.num_under_way += 1
        why = "no answer at all"
        try:
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    try:
                        got = await ask()
                        break
                    except TryAgainError as error:
                        why = f"{error}: {error.__cause__}"
                        ledger.counts(kind).again[str(error)] += 1
                        await asyncio.sleep(max(error.after_s, _PAUSE_S))
            ledger.ended(kind, name, expected, got, began_at, time.monotonic())
        except TimeoutError:
            ledger.failed(kind, name, f"no reply within {PATIENCE_S:g} s; last: {why}", began_at)
        except (OutriderError, ValueError) as error:
            ledger.failed(kind, name, f"{type(error).__name__}: {error}", began_at)
        finally:
            ledger.num_under_way -= 1

    async def _stream(self, reference: ReferenceChat, request: Request) -> Reply:
        """Read events; what came before a break stays in `request`, and the next try continues."""
        with self._connected(request) as client:
            await read_stream(client, reference, request)
        return Reply(request.text)

    async def _whole(self, reference: ReferenceChat, request: Request) -> Reply:
        body = json.dumps(body_of(reference)).encode()
        with self._connected(request) as client:
            async with asyncio.timeout(_WHOLE_S):
                answer = json.loads(await client.whole(body, request.headers))
        return Reply(answer["choices"][0]["message"]["content"])

    async def _tokenize(self, reference: ReferenceChat, request: Request) -> Reply:
        messages = [{"role": "user", "content": reference.prompt}]
        body = json.dumps({"messages": messages}).encode()
        with self._connected(request, "/tokenize") as client:
            async with asyncio.timeout(_SILENCE_S):
                answer = json.loads(await client.whole(body))
        return Reply("", tuple(answer["tokens"]))

    @contextmanager
    def _connected(self, request: Request, path: str = CHATS) -> Iterator[HttpClient]:
        """A client of the edge whose turn it is."""
        host, port = request.next_address()
        client = HttpClient(host, port, self._mesh.key, path, tls=self._tls)
        try:
            yield client
        finally:
            client.abort()


@dataclass(slots=True)
class Request:
    """One request over HTTP, however often it is sent, and what has come of its stream."""

    addresses: list[tuple[str, int]]
    """Edges, in the order in which they are tried."""
    headers: dict[str, str]
    text: str = ""
    last_event_id: str = ""

    def next_address(self) -> tuple[str, int]:
        """The next edge in turn."""
        self.addresses.append(self.addresses.pop(0))
        return self.addresses[-1]

    def take(self, event: dict[str, Any], event_id: str) -> None:
        """An event. Raises TryAgainError for an error that promises more to who tries again, and
        ValueError for others."""
        if error := event.get("error"):
            if error["code"] in TRY_AGAIN_CODES:
                raise TryAgainError(f"event {error['code']}")
            raise ValueError(f"event with {error}")
        self.text += "".join(it["delta"].get("content") or "" for it in event.get("choices", ()))
        self.last_event_id = event_id or self.last_event_id


async def read_stream(client: HttpClient, reference: ReferenceChat, request: Request) -> None:
    """Read the events of a stream to its end, behind those that `request` has. Raises as
    HttpClient.lines and Request.take, and TimeoutError for a stream that is silent."""
    body = json.dumps(body_of(reference) | {"stream": True}).encode()
    headers = dict(request.headers)
    if request.last_event_id:
        headers["last-event-id"] = request.last_event_id
    lines, event_id = client.lines(body, headers), ""
    while True:
        async with asyncio.timeout(_SILENCE_S):
            line = await anext(lines, None)
        if line is None:
            raise EOFError("the stream ended before its end")
        line = line.strip()
        if line.startswith(b"id: "):
            event_id = line[len(b"id: ") :].decode()
        elif line == b"data: [DONE]":
            return
        elif line.startswith(b"data: {"):
            request.take(json.loads(line[len(b"data: ") :]), event_id)
            event_id = ""


def body_of(reference: ReferenceChat) -> dict[str, Any]:
    """A request for the reply of `reference`: the model's own settings do not count."""
    sampling = reference.sampling
    return {
        "messages": [{"role": "user", "content": reference.prompt}],
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "repetition_penalty": sampling.repetition_penalty,
        "seed": sampling.seed,
        "max_tokens": sampling.max_tokens,
        "ignore_eos": sampling.ignore_eos,
    }


def _named(reference: ReferenceChat) -> str:
    sampling = reference.sampling
    return (
        f"{reference.prompt[:60]!r}, {sampling.max_tokens} tokens, temperature "
        f"{sampling.temperature:g}"
    )
