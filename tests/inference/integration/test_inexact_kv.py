"""KV in 8 bits, for sessions whose tenant allows it at replicas whose operator does.

The fake engine's KV are hashes: rounded, they are others, and so is the text behind them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest

from outrider.codec.block_hashes import block_hashes, inexact_salt
from outrider.codec.kv import Payload, decode_frame
from outrider.engines.fake import FakeOptions
from outrider.errors import UnavailableError
from outrider.model_identity import inexact_identity
from outrider.sampling.params import SamplingParams
from outrider.testing import eventually
from outrider.v1 import common_pb2, inference_pb2, kv_pb2, kv_pb2_grpc
from outrider.wire import token_block_to_proto
from services.inference.kv_peers.config import KvPeersConfig
from services.inference.prefix_store.config import PrefixStoreConfig
from services.inference.scheduler.limits import SchedulerLimits
from tests.inference.harness import (
    CODER,
    IDENTITY,
    SALT,
    GatedEngine,
    Reply,
    Running,
    Stepwise,
    details_of,
    reference,
    running,
)
from tests.inference.letters import DIGEST
from tests.redis_server import redis_server

BLOCK = FakeOptions().block_tokens
NUM_BLOCKS = 12
PROMPT = [n % 25 + 1 for n in range(NUM_BLOCKS * BLOCK + 5)]
SAMPLING = SamplingParams(max_tokens=30, ignore_eos=True)
IDS = list(reference(PROMPT, SAMPLING).ids)
CONSENT: dict[str, Any] = {"allows_inexact": True}
"""What a router adds to an open of a tenant that allows inexact text."""


def settings(**changes: Any) -> dict[str, Any]:
    """As of the tests of exact KV: prompts are computed a block at a time, and fetching pays."""
    peers = KvPeersConfig(min_tokens=BLOCK, timeout_ms=20_000.0)
    limits = SchedulerLimits(prefill_chunk_tokens=BLOCK, row_ms=1000.0)
    return {"kv_peers": peers, "scheduler": limits, "inexact_kv": True} | changes


def holder(it: Running, num_tokens: int = len(PROMPT)) -> inference_pb2.KvHolder:
    address = f"127.0.0.1:{it.replica.port}"
    return inference_pb2.KvHolder(replica="other", address=address, num_tokens=num_tokens)


def is_labelled(reply: Reply) -> bool:
    return any(details_of(commit).inexact for commit in reply.commits)


async def ask(it: Running, prompt: Sequence[int] = PROMPT, **fields: Any) -> Reply:
    peer = it.peer()
    await peer.open(1, prompt, SAMPLING, **fields)
    reply = await peer.finish(1)
    peer.call.cancel()
    assert reply.error is None
    return reply


async def ask_when(it: Running, is_so: Callable[[], bool], **fields: Any) -> Reply:
    """The replica's engine, which is gated, waits until KV has come."""
    it.gated.gate.clear()
    it.gated.waiting.clear()
    peer = it.peer()
    if resumed := fields.pop("resumed", []):
        block = token_block_to_proto(CODER.encode(resumed))
        fields |= {"resume": block, "model_identity": IDENTITY}
        peer.replies[1].ids = list(resumed)
    await peer.open(1, PROMPT, SAMPLING, **fields)
    await eventually(lambda: it.gated.waiting.is_set() and is_so())
    await eventually(lambda: not it.replica.tiers.num_transfers)
    it.gated.gate.set()
    reply = await peer.finish(1)
    peer.call.cancel()
    assert reply.error is None
    return reply


def counted(it: Running, result: str, metric: str = "outrider_kv_peer_blocks_total") -> float:
    return it.value(metric, result=result) or 0.0


def has_most(it: Running, metric: str = "outrider_kv_peer_blocks_total") -> bool:
    """Most blocks of the prompt have come."""
    return counted(it, "loaded", metric) > NUM_BLOCKS / 2


async def settled(*replicas: Running) -> None:
    """Nothing is under way any more, no copy for another replica either."""
    await eventually(lambda: all(it.is_clean() for it in replicas))


async def fetched(it: Running, identity: bytes, salt: bytes) -> list[Payload]:
    """The payloads of the blocks that it gives of the prompt under this salt."""
    stub: kv_pb2_grpc.KvTransferServiceAsyncStub = kv_pb2_grpc.KvTransferServiceStub(it.channel)
    request = kv_pb2.FetchKvRequest(
        model_identity=identity,
        vocabulary_digest=DIGEST,
        block_hashes=list(block_hashes(PROMPT, BLOCK, salt))[::-1],
    )
    return [decode_frame(piece.data).header.payload async for piece in stub.FetchKv(request)]


@pytest.mark.parametrize("operator", [False, True], ids=["operator not", "operator"])
@pytest.mark.parametrize("tenant", [False, True], ids=["tenant not", "tenant"])
async def test_inexact_kv_needs_consent_of_tenant_and_operator(
    operator: bool, tenant: bool
) -> None:
    both = operator and tenant
    said = CONSENT if tenant else {}
    async with (
        running(is_alone=False, **settings()) as other,
        running(GatedEngine(), is_alone=False, **settings(inexact_kv=operator)) as it,
    ):
        assert (await ask(other, **said)).ids == IDS, "what it computes itself is exact"
        reply = await ask_when(it, partial(has_most, it), kv_holder=holder(other), **said)
        assert (reply.ids != IDS) is is_labelled(reply) is both
        assert (it.value("outrider_kv_inexact_sessions_total") or 0.0) == both
        assert [details_of(it).inexact for it in reply.commits].count(True) == both, "said once"
        await settled(it, other)


async def test_inexact_kv_is_never_served_as_exact_kv() -> None:
    """One group asks with consent, then without: another policy, or another router."""
    async with (
        running(is_alone=False, **settings()) as other,
        running(GatedEngine(), is_alone=False, **settings()) as it,
    ):
        await ask(other, **CONSENT)
        first = await ask_when(it, partial(has_most, it), kv_holder=holder(other), **CONSENT)
        assert is_labelled(first)
        again = await ask(it, **CONSENT)
        assert is_labelled(again) and again.cached_tokens > 0, "within its own it is shared"
        exact = await ask(it)
        assert exact.ids == IDS and not is_labelled(exact) and exact.cached_tokens == 0
        salt = inexact_salt(SALT)
        apart = inexact_identity(IDENTITY)
        # Blocks that came, and those behind them, go to no replica that takes exact KV.
        num_exact = len(await fetched(it, IDENTITY, salt))
        assert num_exact == NUM_BLOCKS - first.cached_tokens // BLOCK
        assert await fetched(it, apart, salt) == [Payload.Q8] * NUM_BLOCKS
        assert await fetched(other, IDENTITY, salt) == [Payload.EXACT] * NUM_BLOCKS
        assert await fetched(it, apart, SALT) == [Payload.Q8] * NUM_BLOCKS, "rounded for who asks"
        await settled(it, other)


async def test_inexact_kv_in_a_redis_has_names_and_keys_of_its_own() -> None:
    saved = "outrider_kv_store_blocks_total"
    with redis_server() as server:
        store = PrefixStoreConfig(server.url, key="k" * 32, min_tokens=BLOCK)
        async with running(**settings(prefix_store=store)) as other:
            for _ in range(2):
                await ask(other, group_lasts=True, **CONSENT)
            await eventually(lambda: other.value(saved, result="saved") == NUM_BLOCKS)
        for said, operator in ((CONSENT, False), ({}, True)):
            changes = settings(prefix_store=store, inexact_kv=operator)
            async with running(GatedEngine(), is_alone=False, **changes) as it:
                nothing = partial(counted, it, "missing", saved)
                reply = await ask_when(it, lambda: nothing() > 0, group_lasts=True, **said)  # noqa: B023
                assert reply.ids == IDS and reply.cached_tokens == 0 and not is_labelled(reply)
                assert not counted(it, "refused", saved)
        changes = settings(prefix_store=store)
        async with running(GatedEngine(), is_alone=False, **changes) as it:
            reply = await ask_when(it, partial(has_most, it, saved), group_lasts=True, **CONSENT)
            assert is_labelled(reply) and reply.cached_tokens > 0


async def test_an_inexact_session_that_fails_over_goes_on_and_is_labelled_again() -> None:
    """The replica that it leaves gives it KV that depends on rounded KV; without that KV, what is
    computed behind the committed tokens is exact for these tokens, and not labelled again."""
    engine = Stepwise(0)
    async with (
        running(is_alone=False, **settings()) as source,
        running(engine, is_alone=False, **settings()) as first,
        running(GatedEngine(), is_alone=False, **settings()) as second,
        running(is_alone=False, **settings()) as third,
    ):
        await ask(source, **CONSENT)
        engine.gate.clear()
        peer = first.peer()
        fields: dict[str, Any] = CONSENT | {"speculation": common_pb2.SPECULATION_OFF}
        long = SamplingParams(max_tokens=2000, ignore_eos=True)
        await peer.open(1, PROMPT, long, kv_holder=holder(source), **fields)
        await eventually(lambda: engine.waiting.is_set() and has_most(first))
        await eventually(lambda: not first.replica.tiers.num_transfers)
        engine.num_left = NUM_BLOCKS + BLOCK
        engine.gate.set()
        while len(peer.replies[1].ids) < BLOCK // 2:
            await peer.next(1)
        await eventually(lambda: not engine.gate.is_set())
        await first.stub.Drain(inference_pb2.DrainRequest(move=True))
        engine.gate.set()
        begun = await peer.finish(1)
        peer.call.cancel()
        assert isinstance(begun.error, UnavailableError) and is_labelled(begun)
        resumed = begun.ids[: BLOCK // 2]
        moved = await ask_when(
            second,
            partial(has_most, second),
            kv_holder=holder(first, len(PROMPT)),
            resumed=resumed,
            **CONSENT,
        )
        assert is_labelled(moved) and moved.ids[: len(resumed)] == resumed
        block = token_block_to_proto(CODER.encode(resumed))
        peer = third.peer()
        peer.replies[1].ids = list(resumed)
        resume: dict[str, Any] = {"resume": block, "model_identity": IDENTITY} | CONSENT
        await peer.open(1, PROMPT, SAMPLING, **resume)
        recomputed = await peer.finish(1)
        peer.call.cancel()
        assert recomputed.error is None and not is_labelled(recomputed)
        assert recomputed.ids[: len(resumed)] == resumed
        await settled(source, first, second, third)
