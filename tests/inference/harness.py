"""A replica around FakeEngine on real sockets, and a peer that speaks raw session frames: for tests
of what lies below the router, which `tests.mesh` as a whole does not show."""

from __future__ import annotations

import itertools
import threading
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from outrider.codec.tokens import TokenCoder
from outrider.engines.base import Engine, LogitsRows, OverlappedWork, SequenceSlice, no_work
from outrider.engines.fake import FakeEngine, FakeOptions
from outrider.errors import OutriderError
from outrider.rpc import make_channel
from outrider.sampling.params import SamplingParams
from outrider.session.region_wire import ids_of, put_ids
from outrider.telemetry.metrics import Metrics
from outrider.testing import leak_check
from outrider.v1 import common_pb2, inference_pb2, inference_pb2_grpc
from outrider.wire import error_from_proto, sampling_to_proto, token_block_to_proto
from services.inference.app import Replica
from services.inference.model import LoadedModel
from services.inference.reference import ReferenceReply, generate
from services.inference.static_prefixes.prefixes import StaticPrefix
from tests.engines.hooked import HookedEngine
from tests.inference.letters import (
    DIGEST,
    LETTER_TABLE,
    VOCABULARY_SIZE,
    constraint_of,
    new_reply,
)
from tests.mesh import running_replica

CODER = TokenCoder(DIGEST, VOCABULARY_SIZE)
IDENTITY = b"\x0a" * 32
SALT = b"one trust group"
"""Of all sessions that name no other; without any a session shares nothing."""
_request_ids = itertools.count(1)


class GatedEngine(HookedEngine):
    """Steps only while the gate is open; other work is done before."""

    def __init__(self, options: FakeOptions | None = None) -> None:
        super().__init__(options)
        self.gate = threading.Event()
        self.waiting = threading.Event()

    def step(
        self, slices: Sequence[SequenceSlice], overlapped_work: OverlappedWork = no_work
    ) -> list[LogitsRows]:
        overlapped_work()
        return super().step(slices)

    def before(self, slices: Sequence[SequenceSlice]) -> None:
        if not self.is_held(slices):
            return
        self.waiting.set()
        if not self.gate.wait(timeout=30):
            raise RuntimeError("nobody opened the gate")

    def is_held(self, slices: Sequence[SequenceSlice]) -> bool:
        """Whether this call waits for the gate."""
        return True


class Stepwise(GatedEngine):
    """Shuts the gate behind so many steps. Who opens it again waits until it is shut."""

    def __init__(self, num_steps: int, options: FakeOptions | None = None) -> None:
        super().__init__(options)
        self.num_left = num_steps
        self.gate.set()

    def after(self, slices: Sequence[SequenceSlice]) -> None:
        self.num_left -= 1
        if not self.num_left:
            self.gate.clear()


def loaded(engine: Engine, prefixes: tuple[StaticPrefix, ...] = ()) -> LoadedModel:
    return LoadedModel(
        "letters",
        engine,
        CODER,
        DIGEST,
        new_reply,
        IDENTITY,
        token_table=LETTER_TABLE,
        prefixes=prefixes,
    )


def reference(
    prompt: Sequence[int], sampling: SamplingParams, options: FakeOptions | None = None
) -> ReferenceReply:
    constraint = constraint_of(sampling, prompt)
    return generate(FakeEngine(options), prompt, sampling, new_reply, constraint=constraint)


@dataclass(slots=True)
class Reply:
    """What a peer saw of one session."""

    ids: list[int] = field(default_factory=list)
    opened: inference_pb2.SessionOpened | None = None
    commits: list[inference_pb2.Commit] = field(default_factory=list)
    done: inference_pb2.SessionDone | None = None
    error: OutriderError | None = None

    @property
    def num_accepted(self) -> int:
        return sum(commit.accepted for commit in self.commits)

    @property
    def cached_tokens(self) -> int:
        """Of the prompt, as its end says."""
        assert self.done is not None
        return self.done.usage.cached_tokens


def details_of(commit: inference_pb2.Commit) -> inference_pb2.CommitDetails:
    return inference_pb2.CommitDetails.FromString(commit.details)


class Peer:
    """One Generate stream. Checks that every commit joins what is committed already."""

    def __init__(
        self,
        stub: inference_pb2_grpc.InferenceServiceAsyncStub,
        coder: TokenCoder = CODER,
        digest: bytes = DIGEST,
    ) -> None:
        self.call: Any = stub.Generate()
        self._coder = coder
        self._digest = digest
        self._frames: dict[int, deque[inference_pb2.SessionDown]] = defaultdict(deque)
        self._chains: dict[tuple[int, int], tuple[int, list[int]]] = {}
        self.replies: dict[int, Reply] = defaultdict(Reply)

    async def send(self, frame: inference_pb2.SessionUp) -> None:
        await self.call.write(inference_pb2.GenerateRequest(frames=[frame]))

    async def open(
        self,
        number: int,
        prompt: Sequence[int],
        sampling: SamplingParams | None = None,
        *,
        drafts: tuple[int, Sequence[int]] | None = None,
        **fields: Any,
    ) -> None:
        """`drafts`: (epoch, ids from token 0 on). `fields` override those of OpenSession."""
        frame = opening(prompt, sampling, coder=self._coder, digest=self._digest, **fields)
        if drafts is not None:
            frame.draft.CopyFrom(self._draft(number, drafts[0], 0, drafts[1]))
        await self.send(inference_pb2.SessionUp(session=number, open=frame))

    async def draft(self, number: int, epoch: int, base: int, ids: Sequence[int]) -> None:
        draft = self._draft(number, epoch, base, ids)
        await self.send(inference_pb2.SessionUp(session=number, draft=draft))

    async def cancel(self, number: int) -> None:
        cancel = inference_pb2.CancelSession(reason="test")
        await self.send(inference_pb2.SessionUp(session=number, cancel=cancel))

    async def next(self, number: int) -> inference_pb2.SessionDown:
        """The next frame of one session, already entered into its reply."""
        while not self._frames[number]:
            response = await self.call.read()
            assert isinstance(response, inference_pb2.GenerateResponse), "the stream is over"
            for frame in response.frames:
                self._enter(frame)
                self._frames[frame.session].append(frame)
        return self._frames[number].popleft()

    async def finish(self, number: int) -> Reply:
        """Read up to the session's last frame."""
        while (await self.next(number)).WhichOneof("kind") not in ("done", "error"):
            pass
        return self.replies[number]

    def _draft(self, number: int, epoch: int, base: int, ids: Sequence[int]) -> inference_pb2.Draft:
        first, chain = self._chains.setdefault((number, epoch), (base, []))
        chain[base - first :] = ids
        draft = inference_pb2.Draft(epoch=epoch, base=base)
        put_ids(draft, self._coder, ids, self._coder.supported[0])
        return draft

    def _enter(self, frame: inference_pb2.SessionDown) -> None:
        reply = self.replies[frame.session]
        assert reply.done is None and reply.error is None, "a frame after the last one"
        kind = frame.WhichOneof("kind")
        if kind == "opened":
            reply.opened = frame.opened
        elif kind == "commit":
            self._commit(frame.session, reply, frame.commit)
        elif kind == "done":
            reply.done = frame.done
            assert frame.done.upto == len(reply.ids)
            assert frame.done.checksum == self._coder.checksum(reply.ids)
        elif kind == "error":
            reply.error = error_from_proto(frame.error)
        else:
            assert kind == "begun"

    def _commit(self, number: int, reply: Reply, commit: inference_pb2.Commit) -> None:
        assert reply.opened is not None
        assert commit.base == len(reply.ids)
        if commit.accepted:
            base, chain = self._chains[number, commit.epoch]
            start = commit.base - base
            reply.ids += chain[start : start + commit.accepted]
        reply.ids += ids_of(commit, self._coder, max_count=4096)
        assert commit.upto == len(reply.ids)
        reply.commits.append(commit)


def opening(
    prompt: Sequence[int],
    sampling: SamplingParams | common_pb2.Sampling | None = None,
    *,
    coder: TokenCoder = CODER,
    digest: bytes = DIGEST,
    **fields: Any,
) -> inference_pb2.OpenSession:
    """A valid OpenSession, but for what `fields` say."""
    if not isinstance(sampling, common_pb2.Sampling):
        sampling = sampling_to_proto(sampling or SamplingParams(max_tokens=40))
    values: dict[str, Any] = {
        "request_id": f"request-{next(_request_ids)}",
        "cache_salt": SALT,
        "vocabulary_digest": digest,
        "sampling": sampling,
        "codecs": [common_pb2.TokenCodec.ValueType(codec) for codec in coder.supported],
    }
    if "messages" not in fields:
        tail = token_block_to_proto(coder.encode(prompt))
        values["ids"] = inference_pb2.PromptDelta(tail=tail)
    return inference_pb2.OpenSession(**(values | fields))


class Running:
    """A replica with a client."""

    def __init__(self, engine: Engine, replica: Replica, metrics: Metrics) -> None:
        self.crashed = False
        """Set by a test that kills the model thread: its scheduler died with sessions in hand."""
        self.engine = engine
        self.replica = replica
        self.metrics = metrics
        self.channel = make_channel(f"127.0.0.1:{replica.port}")
        self.stub: inference_pb2_grpc.InferenceServiceAsyncStub
        self.stub = inference_pb2_grpc.InferenceServiceStub(self.channel)

    def peer(self) -> Peer:
        return Peer(self.stub)

    @property
    def gated(self) -> GatedEngine:
        """The engine, of a test that gave one with a gate."""
        assert isinstance(self.engine, GatedEngine)
        return self.engine

    def value(self, name: str, **labels: str) -> float | None:
        """A metric; None if there is none yet."""
        return self.metrics.registry.get_sample_value(name, labels)

    @property
    def num_busy_blocks(self) -> int:
        load = self.replica.scheduler.load()
        return load.kv_blocks_total - load.kv_blocks_free

    @property
    def num_pinned_blocks(self) -> int:
        return self.replica.static.num_blocks

    def is_clean(self) -> bool:
        """No session, no stream, no KV in use."""
        return (
            len(self.replica.table) == 0
            and self.replica.service.num_streams == 0
            and not self.replica.scheduler.load().running_sessions
            and self.num_busy_blocks == self.num_pinned_blocks
        )


@asynccontextmanager
async def running(
    engine: Engine | None = None,
    *,
    static: tuple[StaticPrefix, ...] = (),
    is_started: bool = True,
    is_alone: bool = True,
    **settings: Any,
) -> AsyncIterator[Running]:
    """`tests.mesh.running_replica` of the letters with a client, for tests that look into the
    replica: with a FakeEngine if none is given, and these static prefixes; afterwards nothing of it
    may be left. Unless it `is_started`, the test starts it. Where it is not alone in the test,
    tasks of others come and go."""
    engine = engine or FakeEngine()
    model = loaded(engine, static)
    async with leak_check() if is_alone else nullcontext():
        async with running_replica(model, is_started=is_started, **settings) as made:
            it = Running(engine, made.replica, made.metrics)
            try:
                yield it
            finally:
                await it.channel.close()
                if isinstance(engine, GatedEngine):
                    engine.gate.set()
        assert it.crashed or it.is_clean()
        it.replica.scheduler.check_invariants()
