"""KV from one replica to another, over gRPC."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, closing
from functools import partial
from typing import TYPE_CHECKING, Any

import grpc.aio
import pytest

from outrider.codec.block_hashes import block_hashes
from outrider.engines.base import LogitsRows, OverlappedWork, SequenceSlice, no_work
from outrider.engines.config import EngineConfig
from outrider.engines.fake import FakeOptions
from outrider.errors import InvalidRequestError, OutriderError, UnavailableError
from outrider.models.vocabulary import Vocabulary
from outrider.rpc import bind, from_rpc_error, make_channel, make_server
from outrider.sampling.params import SamplingParams
from outrider.telemetry.metrics import Metrics
from outrider.testing import eventually
from outrider.v1 import common_pb2, inference_pb2, kv_pb2, kv_pb2_grpc
from outrider.wire import token_block_to_proto
from services.inference.kv_peers.config import KvPeersConfig
from services.inference.kv_peers.fetching import KvPeers
from services.inference.prefix_store.config import PrefixStoreConfig
from services.inference.reference import generate
from services.inference.scheduler.limits import SchedulerLimits
from services.inference.scheduler.types import KvHolder
from services.inference.streaming.wire import load_response
from tests.engines.shallow_model import ShallowModel
from tests.inference.harness import (
    CODER,
    IDENTITY,
    SALT,
    GatedEngine,
    Reply,
    Running,
    Stepwise,
    reference,
    running,
)
from tests.inference.integration import real_engine
from tests.inference.integration.real_engine import Borrowed
from tests.inference.kv_tiers.stubs import loader_to
from tests.inference.letters import DIGEST
from tests.redis_server import redis_server

if TYPE_CHECKING:
    from outrider.engines.openvino.engine import OpenVinoEngine

BLOCK = FakeOptions().block_tokens
NUM_BLOCKS = 12
PROMPT = [n % 25 + 1 for n in range(NUM_BLOCKS * BLOCK + 5)]
SAMPLING = SamplingParams(max_tokens=30)
NO_DRAFTS = common_pb2.SPECULATION_OFF
IDS = list(reference(PROMPT, SAMPLING).ids)
HASHES = list(block_hashes(PROMPT, BLOCK, SALT))[::-1]
"""As they are asked for."""


def settings(**changes: Any) -> dict[str, Any]:
    """Prompts are computed a block at a time, so that what comes has a place; and slowly as the
    first guess has it, so that fetching pays however slow this machine is."""
    peers = KvPeersConfig(min_tokens=BLOCK, timeout_ms=20_000.0)
    limits = SchedulerLimits(prefill_chunk_tokens=BLOCK, row_ms=1000.0)
    return {"kv_peers": peers, "scheduler": limits} | changes


def holder(port: int, num_tokens: int = len(PROMPT)) -> inference_pb2.KvHolder:
    return inference_pb2.KvHolder(
        replica="other", address=f"127.0.0.1:{port}", num_tokens=num_tokens
    )


def counted(it: Running, result: str) -> float:
    return it.value("outrider_kv_peer_blocks_total", result=result) or 0.0


def failures(it: Running) -> float:
    return it.value("outrider_kv_peer_failures_total") or 0.0


def is_settled(it: Running) -> bool:
    return not it.replica.tiers.num_transfers


async def ask(it: Running, **fields: Any) -> Reply:
    peer = it.peer()
    await peer.open(1, PROMPT, SAMPLING, **fields)
    reply = await peer.finish(1)
    peer.call.cancel()
    assert reply.error is None and reply.ids == IDS
    return reply


async def ask_anew(
    port: int, is_over: Callable[[Running], bool], changes: Any = None, **fields: Any
) -> tuple[Reply, inference_pb2.WatchLoadResponse, float]:
    """A new replica that is told who has the prompt; its first engine call lasts until `is_over`.
    What came of it, what routers are told in the end, and requests that failed."""
    engine = GatedEngine()
    async with running(engine, is_alone=False, **settings(**(changes or {}))) as it:
        peer = it.peer()
        resumed = fields.pop("resumed", [])
        if resumed:
            block = token_block_to_proto(CODER.encode(resumed))
            fields |= {"resume": block, "model_identity": IDENTITY}
            peer.replies[1].ids = list(resumed)
        await peer.open(1, PROMPT, SAMPLING, **({"kv_holder": holder(port)} | fields))
        await eventually(lambda: engine.waiting.is_set() and is_over(it))
        engine.gate.set()
        reply = await peer.finish(1)
        peer.call.cancel()
        assert reply.error is None and reply.ids == IDS
        report = load_response(it.replica.scheduler.load(), it.replica.tiers.counts)
        return reply, report, failures(it)


async def test_it_comes_from_the_replica_that_has_it() -> None:
    async with running(**settings()) as other:
        await ask(other)
        reply, report, num_failed = await ask_anew(
            other.replica.port, lambda it: is_settled(it) and counted(it, "loaded") > NUM_BLOCKS / 2
        )
        assert NUM_BLOCKS / 2 < reply.cached_tokens / BLOCK <= NUM_BLOCKS
        kv = report.kv
        assert (kv.peer_tokens, kv.store_tokens, kv.pool_tokens) == (reply.cached_tokens, 0, 0)
        assert kv.peer_bytes > 0 == kv.peer_failures == num_failed
        assert report.peer_block_ms > 0.0 < report.peer_first_ms
        await eventually(lambda: other.replica.kv_service.num_streams == 0)  # type: ignore[union-attr]
        assert counted(other, "served") >= reply.cached_tokens / BLOCK
        sent = other.value("outrider_kv_transferred_bytes_total", direction="serve")
        assert sent == other.replica.kv_service.num_bytes >= kv.peer_bytes  # type: ignore[union-attr]


async def test_what_finds_too_much_waiting_for_the_engine_is_computed() -> None:
    engine = GatedEngine()
    async with running(**settings()) as other, running(engine, **settings()) as it:
        await ask(other)
        runner = it.replica.runner
        runner._inbox._max_loaded_bytes = 1
        peer = it.peer()
        await peer.open(1, PROMPT, SAMPLING, kv_holder=holder(other.replica.port))
        await eventually(lambda: counted(it, "late") > NUM_BLOCKS / 2 and is_settled(it))
        engine.gate.set()
        reply = await peer.finish(1)
        peer.call.cancel()
        assert reply.error is None and reply.ids == IDS
        assert reply.cached_tokens == counted(it, "loaded") == 0
        (peers,) = (tier for tier in it.replica.tiers if isinstance(tier, KvPeers))
        assert not peers._loader._fetching


async def test_a_session_takes_it_along_in_the_middle_of_its_reply() -> None:
    """It is opened on another replica behind its committed tokens, after the one that it was on was
    told to give its sessions up."""
    engine = Stepwise(NUM_BLOCKS + BLOCK + 4)
    async with running(engine, **settings()) as other:
        peer = other.peer()
        await peer.open(1, PROMPT, SamplingParams(max_tokens=2000), speculation=NO_DRAFTS)
        while len(peer.replies[1].ids) < BLOCK:
            await peer.next(1)
        await eventually(lambda: not engine.gate.is_set())
        await other.stub.Drain(inference_pb2.DrainRequest(move=True))
        engine.gate.set()
        reply = await peer.finish(1)
        peer.call.cancel()
        assert isinstance(reply.error, UnavailableError)
        resumed = IDS[:BLOCK]
        assert reply.ids[:BLOCK] == resumed
        num_held = len(PROMPT) + BLOCK
        found, report, _ = await ask_anew(
            other.replica.port,
            lambda it: is_settled(it) and counted(it, "loaded") > NUM_BLOCKS / 2,
            kv_holder=holder(other.replica.port, num_held),
            resumed=resumed,
        )
        assert report.kv.peer_tokens > NUM_BLOCKS / 2 * BLOCK
        assert found.done is not None and found.done.upto == len(IDS)


@pytest.mark.parametrize("fields", [{"cache_salt": b"another group"}, {"cache_salt": b""}])
async def test_groups_get_nothing_of_each_other(fields: dict[str, bytes]) -> None:
    async with running(**settings()) as other:
        await ask(other)
        reply, report, _ = await ask_anew(other.replica.port, is_settled, **fields)
        assert reply.cached_tokens == report.kv.peer_tokens == report.kv.peer_bytes == 0
        assert counted(other, "served") == 0


async def test_too_little_is_not_asked_for() -> None:
    async with running(**settings()) as other:
        await ask(other)
        near = holder(other.replica.port, BLOCK - 1)
        reply, _, _ = await ask_anew(other.replica.port, is_settled, kv_holder=near)
        assert reply.cached_tokens == 0 == counted(other, "served")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"model_identity": b"\x0b" * 32}, UnavailableError),
        ({"model_identity": b""}, UnavailableError),
        ({"vocabulary_digest": b"v" * 32}, UnavailableError),
        ({"block_hashes": []}, InvalidRequestError),
        ({"block_hashes": [b"short"]}, InvalidRequestError),
        ({"block_hashes": [b"h" * 16] * 1025}, InvalidRequestError),
    ],
)
async def test_who_computes_otherwise_or_asks_nonsense_is_refused(
    change: dict[str, Any], expected: type[OutriderError]
) -> None:
    async with running() as it:
        await ask(it)
        right = {"model_identity": IDENTITY, "vocabulary_digest": DIGEST, "block_hashes": HASHES}
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await fetched(it.channel, **(right | change))
        assert type(from_rpc_error(caught.value)) is expected
        assert len(await fetched(it.channel, **right)) == NUM_BLOCKS
        unknown = right | {"block_hashes": [b"h" * 16, *HASHES[:2]]}
        assert {piece.index for piece in await fetched(it.channel, **unknown)} == {1, 2}


async def fetched(channel: grpc.aio.Channel, **fields: Any) -> list[kv_pb2.FetchKvResponse]:
    stub: kv_pb2_grpc.KvTransferServiceAsyncStub = kv_pb2_grpc.KvTransferServiceStub(channel)
    return [piece async for piece in stub.FetchKv(kv_pb2.FetchKvRequest(**fields))]


class Gated(Borrowed):
    """Steps only while the gate is open."""

    def __init__(self, engine: OpenVinoEngine) -> None:
        super().__init__(engine)
        self.gate = threading.Event()

    def step(
        self, slices: Sequence[SequenceSlice], overlapped_work: OverlappedWork = no_work
    ) -> list[LogitsRows]:
        overlapped_work()
        if not self.gate.wait(timeout=60):
            raise RuntimeError("nobody opened the gate")
        return super().step(slices)


@pytest.mark.model
async def test_text_is_exact_behind_kv_of_a_real_engine(
    shallow_model: ShallowModel, vocabulary: Vocabulary
) -> None:
    """One replica has the prompt and the reply's beginning, the other one goes on."""
    how = EngineConfig(num_blocks=32, max_fixed_rows=0)
    with closing(shallow_model.load(how)) as first, closing(shallow_model.load(how)) as second:
        size = first.info.block_tokens
        prompt = [n * 37 % 5000 + 300 for n in range(6 * size + 7)]
        sampling = SamplingParams(max_tokens=2 * size, temperature=0.8, seed=5, ignore_eos=True)
        texts = real_engine.texts_of(vocabulary)
        expected = list(generate(first, prompt, sampling, texts).ids)

        ask_it = partial(real_engine.ask, vocabulary=vocabulary, prompt=prompt, sampling=sampling)
        gated = Gated(second)
        async with (
            real_engine.replica(Borrowed(first), vocabulary, **settings()) as (other, _, asked),
            real_engine.replica(gated, vocabulary, **settings()) as (it, _, anew),
        ):
            assert (await ask_it(asked)).ids == expected
            asking = asyncio.create_task(
                ask_it(
                    anew,
                    resumed=expected[:size],
                    model_identity=first.info.fingerprint,
                    kv_holder=holder(other.port, len(prompt) + size),
                )
            )
            served, tiers = other.kv_service, it.tiers
            assert served is not None
            await eventually(lambda: served.num_bytes > 0 and not tiers.num_transfers)
            gated.gate.set()
            reply = await asking
        assert reply.ids == expected
        assert reply.cached_tokens >= 3 * size, "it came in time"


class BadPeer(kv_pb2_grpc.KvTransferServiceServicer):
    """Answers as it is told, with what a good one said."""

    def __init__(self, how: str, good: Sequence[kv_pb2.FetchKvResponse]) -> None:
        self.how = how
        self.good = good
        self.num_asked = 0
        self.num_cancelled = 0

    async def FetchKv(
        self, request: kv_pb2.FetchKvRequest, context: Any
    ) -> AsyncIterator[kv_pb2.FetchKvResponse]:
        self.num_asked += 1
        first, second = self.good[:2]
        if self.how == "garbage":
            yield kv_pb2.FetchKvResponse(index=0, num_bytes=500, data=b"\0" * 500)
        elif self.how == "another block":
            yield kv_pb2.FetchKvResponse(index=0, num_bytes=len(second.data), data=second.data)
        elif self.how == "flipped":
            data = first.data[:-1] + bytes([first.data[-1] ^ 1])
            yield kv_pb2.FetchKvResponse(index=0, num_bytes=len(data), data=data)
        elif self.how == "endless":
            yield kv_pb2.FetchKvResponse(index=0, num_bytes=1 << 31, data=first.data)
        elif self.how == "not asked for":
            yield kv_pb2.FetchKvResponse(index=99, num_bytes=1, data=b"x")
        elif self.how == "dies":
            yield kv_pb2.FetchKvResponse(index=0, num_bytes=len(first.data), data=first.data[:10])
            await context.abort(grpc.StatusCode.UNAVAILABLE, "gone")
        else:
            try:
                await asyncio.Event().wait()
            finally:
                self.num_cancelled += 1


@asynccontextmanager
async def bad_peer(how: str) -> AsyncIterator[tuple[BadPeer, int]]:
    async with running() as it:
        await ask(it)
        right = {"model_identity": IDENTITY, "vocabulary_digest": DIGEST}
        good = await fetched(it.channel, block_hashes=HASHES, **right)
    peer, server = BadPeer(how, good), make_server()
    kv_pb2_grpc.add_KvTransferServiceServicer_to_server(peer, server)
    port = bind(server, "127.0.0.1", 0)
    await server.start()
    try:
        yield peer, port
    finally:
        await server.stop(grace=None)


@pytest.mark.parametrize(
    "how",
    ["garbage", "another block", "flipped", "endless", "not asked for", "dies", "silent", "gone"],
)
async def test_a_bad_replica_costs_nothing_but_its_kv(how: str) -> None:
    peers = KvPeersConfig(min_tokens=BLOCK, timeout_ms=100.0 if how == "silent" else 20_000.0)
    async with bad_peer(how) as (bad, port):
        where = 1 if how == "gone" else port
        over = lambda it: is_settled(it) and failures(it) == 1  # noqa: E731
        reply, report, _ = await ask_anew(where, over, {"kv_peers": peers})
        assert reply.cached_tokens == report.kv.peer_tokens == 0 and report.kv.peer_failures == 1
        assert bad.num_asked == (how != "gone")


async def test_a_replica_that_failed_often_is_left_alone_for_a_while() -> None:
    now, metrics = 100.0, Metrics("test")
    config = KvPeersConfig(timeout_ms=20_000.0)
    peers = KvPeers(config, IDENTITY, loader_to(digest=DIGEST), metrics, clock=lambda: now)
    async with bad_peer("endless") as (bad, port):
        whom = KvHolder("other", "", f"127.0.0.1:{port}", len(PROMPT))
        for _ in range(6):
            assert [block async for block in peers.frames(whom, HASHES)] == []
        assert bad.num_asked == peers.counts.num_failures == 3
        now += 1.0
        for _ in range(2):
            assert [block async for block in peers.frames(whom, HASHES)] == []
        assert bad.num_asked == 4
        await peers.close()
    metrics.close()


async def test_who_asks_is_gone_at_once() -> None:
    async with bad_peer("silent") as (bad, port):
        engine = GatedEngine()
        async with running(engine, is_alone=False, **settings()) as it:
            peer = it.peer()
            await peer.open(1, PROMPT, SAMPLING, kv_holder=holder(port))
            await eventually(lambda: bad.num_asked == 1)
            engine.gate.set()
            await peer.finish(1)
            peer.call.cancel()
            await eventually(lambda: bad.num_cancelled == 1 and is_settled(it))
            assert failures(it) == 0, "it did nothing wrong"


async def test_what_a_replica_does_not_have_comes_from_the_store() -> None:
    with redis_server() as server:
        store = PrefixStoreConfig(server.url, key="k" * 32, min_tokens=BLOCK)
        async with running(**settings(prefix_store=store)) as other:
            for _ in range(2):
                await ask(other, group_lasts=True)
            saved = partial(other.value, "outrider_kv_store_blocks_total", result="saved")
            await eventually(lambda: saved() == NUM_BLOCKS)
        async with bad_peer("dies") as (_, port):
            reply, report, _ = await ask_anew(
                port, lambda it: is_settled(it), {"prefix_store": store}, group_lasts=True
            )
        assert report.kv.store_tokens == reply.cached_tokens > 0 == report.kv.peer_tokens


async def test_a_replica_that_stops_answers_as_long_as_it_is_asked() -> None:
    """Its sessions are told first, and their next replicas take the KV along."""
    engine = GatedEngine()
    async with running(engine, **settings()) as other:
        engine.gate.set()
        await ask(other)
        peer = other.peer()
        engine.waiting.clear()
        engine.gate.clear()
        await peer.open(1, [*PROMPT, 3], SAMPLING)
        await eventually(engine.waiting.is_set)
        stopping = asyncio.create_task(other.replica.stop())
        reply = await peer.finish(1)
        assert isinstance(reply.error, UnavailableError)
        engine.gate.set()
        right = {"model_identity": IDENTITY, "vocabulary_digest": DIGEST, "block_hashes": HASHES}
        async with make_channel(f"127.0.0.1:{other.replica.port}") as channel:
            assert len(await fetched(channel, **right)) == NUM_BLOCKS
        peer.call.cancel()
        await stopping
