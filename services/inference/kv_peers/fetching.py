"""Fetches KV from other replicas, one stream for each prompt.

A replica that is slow, full, gone or lies has nothing. After some failures in a row it is left
alone for a while.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final

import grpc.aio
import structlog

from outrider.circuit_breaker import CircuitBreaker, CircuitBreakerPolicy
from outrider.codec.kv import max_frame_bytes
from outrider.errors import ConfigError, MalformedFrameError, OutriderError, OverloadedError
from outrider.lru_map import LruMap
from outrider.model_identity import inexact_identity
from outrider.rpc import end_call, from_rpc_error, make_channel
from outrider.telemetry.metrics import Metrics
from outrider.tls import PLAINTEXT, Role, Tls
from outrider.v1 import kv_pb2, kv_pb2_grpc
from services.inference.kv_peers.config import KvPeersConfig
from services.inference.kv_peers.pieces import MAX_BLOCKS, PIECE_BYTES, FrameAssembler
from services.inference.kv_peers.telemetry import PEER_BLOCKS, PEER_FAILURES
from services.inference.kv_tiers.blocks import (
    TRANSFER_BOUNDARIES_S,
    TRANSFER_SECONDS,
    TRANSFERRED,
    BlockLoader,
)
from services.inference.kv_tiers.planning import LoadPlanner
from services.inference.kv_tiers.tiers import KvTier, Prefix
from services.inference.scheduler.types import KvHolder, OpenRequest

MAX_PEERS: Final = 32
"""Replicas to which a connection, and the measured cost of fetching, are kept."""
_DIRECTION: Final = {"direction": "fetch"}

_log = structlog.get_logger()


@dataclass(slots=True, eq=False)
class _Peer:
    channel: grpc.aio.Channel
    breaker: CircuitBreaker
    planners: dict[bool, LoadPlanner] = field(
        default_factory=lambda: {False: LoadPlanner(), True: LoadPlanner()}
    )
    """By whether KV is inexact: it has fewer bytes."""
    num_calls: int = 0


class KvPeers(KvTier):
    """The other replicas, by address: one is asked for the blocks that a session's router reports
    it to have. Nothing is sent to others unasked."""

    name = "peer"

    def __init__(
        self,
        config: KvPeersConfig,
        model_identity: bytes,
        loader: BlockLoader,
        metrics: Metrics,
        tls: Tls = PLAINTEXT,
        *,
        breaker: CircuitBreakerPolicy | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._min_tokens = config.min_tokens
        self._timeout_s = config.timeout_ms / 1e3
        self._identities = {False: model_identity, True: inexact_identity(model_identity)}
        """Whose KV is asked for, by whether it is inexact."""
        self._loader = loader
        self._block_tokens = loader.identity.layout.block_tokens
        self._max_frame_bytes = max_frame_bytes(loader.identity.layout)
        self._tls = tls
        self._policy = breaker or CircuitBreakerPolicy()
        self._clock = clock
        self._peers: LruMap[str, _Peer] = LruMap(MAX_PEERS)
        self._blocks = metrics.counter(PEER_BLOCKS)
        self._bytes = metrics.counter(TRANSFERRED)
        self._bytes.add(0, _DIRECTION)
        self._seconds = metrics.histogram(TRANSFER_SECONDS, TRANSFER_BOUNDARIES_S)
        self._failures = metrics.counter(PEER_FAILURES)
        metrics.from_zero(PEER_FAILURES)
        metrics.from_zero(PEER_BLOCKS, "result", ("loaded", "missing", "refused", "late"))
        self._latest = LoadPlanner()
        """Recent cost of fetching, over all replicas."""

    def __len__(self) -> int:
        return len(self._peers)

    def num_blocks(self, request: OpenRequest) -> int:
        holder = request.kv_holder
        return 0 if holder is None else holder.num_tokens // self._block_tokens

    def pays(self, prefix: Prefix, missing: range, block_ms: float) -> bool:
        holder = _holder(prefix)
        num_missing = holder.num_tokens - prefix.cached_tokens
        if num_missing < self._min_tokens:
            return False
        return self._planner(prefix).pays(len(missing), block_ms)

    async def fetch(self, prefix: Prefix, missing: range, block_ms: float) -> None:
        """Fetch blocks from the replica that holds them. Ends when the prefix is computed: blocks
        that arrive later are of no use."""
        holder = _holder(prefix)
        count = max(1, self._planner(prefix).num_to_load(len(missing), block_ms))
        with self._loader.claim(prefix, missing[::-1][:count]) as wanted:
            if wanted:
                await self._fetch(prefix, holder, wanted)

    async def _fetch(self, prefix: Prefix, holder: KvHolder, wanted: Sequence[int]) -> None:
        num_loaded = num_dropped = 0
        began = self._clock()
        hashes = [prefix.hashes[index] for index in wanted]
        try:
            with prefix.cancelling_fetch():
                is_inexact = prefix.request.takes_inexact_kv
                async with aclosing(self.frames(holder, hashes, is_inexact=is_inexact)) as frames:
                    async for place, frame in frames:
                        index = wanted[place]
                        self.counts.num_bytes += len(frame)
                        self._bytes.add(len(frame), _DIRECTION)
                        block = await self._loader.in_thread(
                            self._loader.unpack, prefix, index, frame
                        )
                        if block is None:
                            self._count("refused", 1)
                            self._lied(holder)
                            break
                        if self._loader.load(prefix, ((index, block),), self.name):
                            num_loaded += 1
                        elif prefix.is_computed:
                            break
                        else:
                            num_dropped += 1
        finally:
            if num_loaded:
                self._seconds.record(self._clock() - began, _DIRECTION)
            self._count("loaded", num_loaded)
            self._count("late", num_dropped)
            num_left = len(wanted) - num_loaded - num_dropped
            self._count("late" if prefix.is_computed else "missing", num_left)

    async def frames(
        self, holder: KvHolder, hashes: Sequence[bytes], *, is_inexact: bool = False
    ) -> AsyncGenerator[tuple[int, bytes], None]:
        """Index in `hashes` (the first 1,024) and frame of each block that it sends, unchecked.
        `is_inexact`: which kind of KV is asked for. Close the generator to have no more."""
        peer = await self._peer(holder)
        if peer is None or not peer.breaker.allows(self._clock()):
            return
        stub: kv_pb2_grpc.KvTransferServiceAsyncStub
        stub = kv_pb2_grpc.KvTransferServiceStub(peer.channel)
        wanted = hashes[:MAX_BLOCKS]
        request = kv_pb2.FetchKvRequest(
            model_identity=self._identities[is_inexact],
            vocabulary_digest=self._loader.identity.vocabulary_digest,
            block_hashes=wanted,
        )
        assembler = FrameAssembler(len(wanted), self._max_frame_bytes)
        peer.num_calls += 1
        call = stub.FetchKv(request)
        try:
            began = self._clock()
            is_first = True
            while True:
                async with asyncio.timeout(self._timeout_s):
                    piece = await call.read()
                if not isinstance(piece, kv_pb2.FetchKvResponse):
                    peer.breaker.succeeded()
                    return
                if is_first:
                    now = self._clock()
                    self._observe_first(peer.planners[is_inexact], (now - began) * 1e3)
                    is_first, began = False, now
                frame = assembler.add(piece.index, piece.num_bytes, piece.data)
                if frame is not None:
                    yield frame
                    self._observe_block(peer.planners[is_inexact], (self._clock() - began) * 1e3)
                    began = self._clock()
        except grpc.aio.AioRpcError as error:
            self._failed(holder, peer, from_rpc_error(error))
        except (TimeoutError, OSError, MalformedFrameError) as error:
            self._failed(holder, peer, error)
        finally:
            peer.num_calls -= 1
            end_call(call)

    async def close(self) -> None:
        peers = [peer for _, peer in self._peers.items()]
        self._peers.clear()
        for peer in peers:
            await peer.channel.close()
        self._loader.close()

    def _planner(self, prefix: Prefix) -> LoadPlanner:
        """Cost of fetching from the prefix's replica; of an unknown replica, an empty planner."""
        peer = self._peers.peek(_holder(prefix).address)
        return LoadPlanner() if peer is None else peer.planners[prefix.request.takes_inexact_kv]

    def _lied(self, holder: KvHolder) -> None:
        """The replica sent another block than it was asked for: count a failure."""
        peer = self._peers.peek(holder.address)
        if peer is not None:
            self._failed(holder, peer, MalformedFrameError("a block is not what was asked for"))

    def _observe_first(self, planner: LoadPlanner, ms: float) -> None:
        for one in (planner, self._latest):
            one.observe_round_trip(ms)
        self.counts.first_ms = self._latest.cost.fixed_ms

    def _observe_block(self, planner: LoadPlanner, ms: float) -> None:
        for one in (planner, self._latest):
            one.observe_load(1, ms)
        self.counts.block_ms = self._latest.cost.block_ms

    def _count(self, what: str, num_blocks: int) -> None:
        if num_blocks:
            self._blocks.add(num_blocks, {"result": what})

    async def _peer(self, holder: KvHolder) -> _Peer | None:
        """None where too many are in use, and for an address that may not be called."""
        peer = self._peers.get(holder.address)
        if peer is not None:
            return peer
        try:
            channel = make_channel(
                holder.address,
                tls=self._tls,
                role=Role.INFERENCE,
                region=holder.region,
                max_message_bytes=2 * PIECE_BYTES,
            )
        except ConfigError as error:
            _log.warning("kv_peer_refused", replica=holder.replica, reason=error.message)
            return None
        unused = None
        if self._peers.is_full:
            unused = self._peers.pop_first(lambda peer: not peer.num_calls)
            if unused is None:
                await channel.close()
                return None
        peer = _Peer(channel, CircuitBreaker(self._policy))
        self._peers.put(holder.address, peer)
        if unused is not None:
            await unused.channel.close()
        return peer

    def _failed(self, holder: KvHolder, peer: _Peer, error: Exception) -> None:
        self.counts.num_failures += 1
        self._failures.add(1)
        if isinstance(error, OverloadedError):
            return  # it is there, and busy
        was_open = peer.breaker.is_open
        peer.breaker.failed(self._clock())
        if peer.breaker.is_open and not was_open:
            reason = error.message if isinstance(error, OutriderError) else type(error).__name__
            _log.warning("kv_peer_left_alone", replica=holder.replica, reason=reason[:200])


def _holder(prefix: Prefix) -> KvHolder:
    """The replica that holds blocks of a prefix. The request must name one."""
    assert prefix.request.kv_holder is not None
    return prefix.request.kv_holder
