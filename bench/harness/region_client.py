"""Speaks the session frames straight to a replica or a router, as an edge does.

Benchmarks use it to leave the edge out; exactness tests use it to be an edge that drafts whatever
they like, garbage included.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import grpc

from outrider.codec.tokens import TokenCoder
from outrider.errors import UnavailableError
from outrider.rpc import from_rpc_error, make_channel
from outrider.sampling.params import SamplingParams
from outrider.session.region_wire import ids_of, put_ids
from outrider.tls import PLAINTEXT, Role, Tls
from outrider.v1 import common_pb2, inference_pb2, inference_pb2_grpc, router_pb2, router_pb2_grpc
from outrider.wire import error_from_proto, sampling_to_proto, token_block_to_proto

Drafter: TypeAlias = Callable[[Sequence[int]], Sequence[int]]
"""Reply ids so far -> guesses for the next ones."""

_ids = itertools.count(1)

SALT = b"one trust group"
"""Cache salt of all chats of a bench that set no other: they share cached prefixes and phrases."""


@dataclass(slots=True)
class Reply:
    """One finished session as its opener saw it. Times in seconds on `time.perf_counter`."""

    ids: list[int] = field(default_factory=list)
    finish_reason: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Tokens of the prompt whose KV was reused."""
    opened_at: float = 0.0
    first_at: float = 0.0
    commit_times: list[float] = field(default_factory=list)
    num_accepted: int = 0
    """Tokens that came as accepted edge drafts."""

    @property
    def ttft_ms(self) -> float:
        """Open to first committed token."""
        return (self.first_at - self.opened_at) * 1000


class RegionClient:
    """One bidi stream with many sessions on it. Use as an async context manager."""

    def __init__(
        self, coder: TokenCoder, address: str, *, via_router: bool, tls: Tls = PLAINTEXT
    ) -> None:
        """`tls`: the identity to connect with, an edge's if `via_router`, otherwise a router's."""
        self._coder = coder
        self._via_router = via_router
        role = Role.ROUTER if via_router else Role.INFERENCE
        self._channel = make_channel(address, tls=tls, role=role)
        self._up: asyncio.Queue[inference_pb2.SessionUp] = asyncio.Queue()
        self._down: dict[int, asyncio.Queue[inference_pb2.SessionDown | Exception]] = {}
        self._reader: asyncio.Task[None] | None = None
        self._failure: Exception | None = None
        """Why the stream is over."""

    async def __aenter__(self) -> RegionClient:
        self._reader = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._reader is not None
        self._reader.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._reader
        await self._channel.close()

    async def _frames(self) -> AsyncIterator[inference_pb2.SessionUp]:
        while True:
            yield await self._up.get()

    async def _read(self) -> None:
        try:
            async for frame in self._route() if self._via_router else self._generate():
                if frame.session in self._down:
                    self._down[frame.session].put_nowait(frame)
            self._fail(UnavailableError("the region ended the stream"))
        except grpc.aio.AioRpcError as error:
            self._fail(from_rpc_error(error))

    def _fail(self, error: Exception) -> None:
        self._failure = error
        for inbox in self._down.values():
            inbox.put_nowait(error)

    async def _route(self) -> AsyncIterator[inference_pb2.SessionDown]:
        requests = (router_pb2.RouteRequest(frames=[f]) async for f in self._frames())
        stub = router_pb2_grpc.RouterServiceStub(self._channel)
        async for response in stub.Route(requests):
            for frame in response.frames:
                yield frame

    async def _generate(self) -> AsyncIterator[inference_pb2.SessionDown]:
        requests = (inference_pb2.GenerateRequest(frames=[f]) async for f in self._frames())
        stub = inference_pb2_grpc.InferenceServiceStub(self._channel)
        async for response in stub.Generate(requests):
            for frame in response.frames:
                yield frame

    async def generate(
        self,
        prompt: Sequence[int],
        sampling: SamplingParams,
        *,
        digest: bytes,
        speculation: common_pb2.Speculation.ValueType = common_pb2.SPECULATION_ON,
        drafter: Drafter | None = None,
        priority: common_pb2.Priority.ValueType = common_pb2.PRIORITY_MEDIUM,
        cache_salt: bytes = SALT,
        group_lasts: bool = False,
        deadline_ms: int = 0,
        kv_holder: inference_pb2.KvHolder | None = None,
        resume: Sequence[int] = (),
        allows_inexact: bool = False,
        reply: Reply | None = None,
    ) -> Reply:
        """Run one session to its end, which may be its deadline. If this call is cancelled, so is
        the session. The reply begins after the tokens of `resume`; `reply` is filled as tokens
        arrive, so that a caller still has the part that came before a cancellation. Raises the
        region's error as a typed one."""
        opening = opening_frame(self._coder, prompt, sampling, digest)
        opening.speculation = speculation
        opening.priority = priority
        opening.cache_salt = cache_salt
        opening.group_lasts = group_lasts
        opening.deadline_ms = deadline_ms
        opening.allows_inexact = allows_inexact
        if kv_holder is not None:
            opening.kv_holder.CopyFrom(kv_holder)
        if resume:
            opening.resume.CopyFrom(token_block_to_proto(self._coder.encode(resume)))
        state = _Session(self._coder, drafter, Reply() if reply is None else reply)
        state.reply.ids.extend(resume)
        async with self.open(opening) as talk:
            state.reply.opened_at = talk.opened_at
            while not state.apply(await talk.receive()):
                if (draft := state.draft()) is not None:
                    talk.draft(draft)
        return state.reply

    @contextlib.asynccontextmanager
    async def open(self, opening: inference_pb2.OpenSession) -> AsyncIterator[Conversation]:
        """One session, frame by frame; cancelled, it cancels the session. Raises why the stream
        is over."""
        if self._failure is not None:
            raise self._failure
        session = next(_ids)
        inbox = self._down[session] = asyncio.Queue()
        self._up.put_nowait(inference_pb2.SessionUp(session=session, open=opening))
        try:
            yield Conversation(session, self._up, inbox, time.perf_counter())
        except asyncio.CancelledError:
            cancel = inference_pb2.CancelSession(reason="nobody waits")
            self._up.put_nowait(inference_pb2.SessionUp(session=session, cancel=cancel))
            raise
        finally:
            del self._down[session]


@dataclass(frozen=True, slots=True)
class Conversation:
    """One session's frames both ways."""

    session: int
    _up: asyncio.Queue[inference_pb2.SessionUp]
    _inbox: asyncio.Queue[inference_pb2.SessionDown | Exception]
    opened_at: float
    """On `time.perf_counter`, seconds."""

    @property
    def waiting(self) -> bool:
        """Whether a frame has arrived that was not received yet."""
        return not self._inbox.empty()

    async def receive(self) -> inference_pb2.SessionDown:
        """The next frame. Raises the stream's error, and the session's as a typed error."""
        frame = await self._inbox.get()
        if isinstance(frame, Exception):
            raise frame
        if frame.WhichOneof("kind") == "error":
            raise error_from_proto(frame.error)
        return frame

    def draft(self, draft: inference_pb2.Draft) -> None:
        """Send guesses."""
        self._up.put_nowait(inference_pb2.SessionUp(session=self.session, draft=draft))


def opening_frame(
    coder: TokenCoder, prompt: Sequence[int], sampling: SamplingParams, digest: bytes
) -> inference_pb2.OpenSession:
    """Asks for one reply, under an id of its own."""
    return inference_pb2.OpenSession(
        request_id=uuid.uuid4().hex,
        cache_salt=SALT,
        vocabulary_digest=digest,
        ids=inference_pb2.PromptDelta(tail=token_block_to_proto(coder.encode(prompt))),
        sampling=sampling_to_proto(sampling),
        codecs=[int(codec) for codec in coder.supported],  # type: ignore[misc]
    )


class _Session:
    """The edge's side of one session: the reply so far and the drafts it sent."""

    def __init__(self, coder: TokenCoder, drafter: Drafter | None, reply: Reply) -> None:
        self.reply = reply
        self._coder = coder
        self._drafter = drafter
        self._epoch = 0
        self._chains: dict[int, tuple[int, tuple[int, ...]]] = {}

    def apply(self, frame: inference_pb2.SessionDown) -> bool:
        """Take one frame; True when the session is over."""
        kind = frame.WhichOneof("kind")
        if kind == "commit":
            self._commit(frame.commit)
        if kind == "done":
            self.reply.finish_reason = frame.done.finish_reason
            self.reply.prompt_tokens = frame.done.usage.prompt_tokens
            self.reply.cached_tokens = frame.done.usage.cached_tokens
            assert frame.done.upto == len(self.reply.ids)
        return kind == "done"

    def _commit(self, commit: inference_pb2.Commit) -> None:
        now = time.perf_counter()
        reply = self.reply
        reply.first_at = reply.first_at or now
        reply.commit_times.append(now)
        assert commit.base == len(reply.ids), "commits must join without gap or overlap"
        if commit.accepted:
            base, chain = self._chains[commit.epoch]
            start = commit.base - base
            reply.ids.extend(chain[start : start + commit.accepted])
            reply.num_accepted += commit.accepted
        reply.ids.extend(ids_of(commit, self._coder, max_count=1 << 20))
        assert commit.upto == len(reply.ids)

    def draft(self) -> inference_pb2.Draft | None:
        """The next Draft frame: a new chain, so a new epoch, after the committed tokens."""
        if self._drafter is None:
            return None
        ids = tuple(self._drafter(self.reply.ids))
        if not ids:
            return None
        self._epoch += 1
        base = len(self.reply.ids)
        self._chains[self._epoch] = (base, ids)
        draft = inference_pb2.Draft(epoch=self._epoch, base=base)
        put_ids(draft, self._coder, ids, self._coder.supported[0])
        return draft
