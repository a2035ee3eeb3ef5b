"""Fetches KV from other replicas, one stream for each prompt.

Nothing is ever raised: a replica that is slow, full, gone or lies has nothing. After some failures
in a row it is left alone for a while.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import grpc.aio
import structlog

from outrider.circuit_breaker import CircuitBreaker, CircuitBreakerPolicy
from outrider.errors import ConfigError, MalformedFrameError, OutriderError, OverloadedError
from outrider.lru_map import LruMap
from outrider.rpc import end_call, from_rpc_error, make_channel
from outrider.telemetry.metrics import Metrics
from outrider.tls import PLAINTEXT, Role, Tls
from outrider.v1 import kv_pb2, kv_pb2_grpc
from services.inference.kv_peers.config import KvPeersConfig
from services.inference.kv_peers.pieces import MAX_BLOCKS, PIECE_BYTES, FrameAssembler
from services.inference.kv_peers.telemetry import PEER_FAILURES
from services.inference.prefix_store.planning import LoadPlanner
from services.inference.scheduler.types import KvHolder

MAX_PEERS: Final = 32
"""Replicas to which a connection is kept, and of which is known what fetching takes."""
_FRAME_OVERHEAD_BYTES: Final = 64 << 10
"""Of a frame's header and of incompressible planes."""

_log = structlog.get_logger()


@dataclass(slots=True, eq=False)
class _Peer:
    channel: grpc.aio.Channel
    breaker: CircuitBreaker
    planner: LoadPlanner = field(default_factory=LoadPlanner)
    num_calls: int = 0


class KvPeers:
    """The other replicas, by address. The event loop's."""

    def __init__(
        self,
        config: KvPeersConfig,
        model_identity: bytes,
        vocabulary_digest: bytes,
        block_bytes: int,
        metrics: Metrics,
        tls: Tls = PLAINTEXT,
        *,
        breaker: CircuitBreakerPolicy | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.min_tokens = config.min_tokens
        self._timeout_s = config.timeout_ms / 1e3
        self._model_identity = model_identity
        self._vocabulary_digest = vocabulary_digest
        self._max_frame_bytes = block_bytes + block_bytes // 8 + _FRAME_OVERHEAD_BYTES
        self._tls = tls
        self._policy = breaker or CircuitBreakerPolicy()
        self._clock = clock
        self._peers: LruMap[str, _Peer] = LruMap(MAX_PEERS)
        self._failures = metrics.counter(PEER_FAILURES)
        self.num_failures = 0
        """Requests that failed."""
        self.latest = LoadPlanner()
        """What fetching takes lately, from whomever."""

    def __len__(self) -> int:
        return len(self._peers)

    def planner(self, holder: KvHolder) -> LoadPlanner:
        """What is known of fetching from this replica."""
        peer = self._peers.peek(holder.address)
        return LoadPlanner() if peer is None else peer.planner

    async def fetch(
        self, holder: KvHolder, hashes: Sequence[bytes]
    ) -> AsyncGenerator[tuple[int, bytes], None]:
        """Index in `hashes` (the first 1,024) and frame of each block that it sends, unchecked.
        Close the generator to have no more."""
        peer = await self._peer(holder)
        if peer is None or not peer.breaker.allows(self._clock()):
            return
        stub: kv_pb2_grpc.KvTransferServiceAsyncStub
        stub = kv_pb2_grpc.KvTransferServiceStub(peer.channel)
        wanted = hashes[:MAX_BLOCKS]
        request = kv_pb2.FetchKvRequest(
            model_identity=self._model_identity,
            vocabulary_digest=self._vocabulary_digest,
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
                    self._observe_first(peer, (now - began) * 1e3)
                    is_first, began = False, now
                frame = assembler.add(piece.index, piece.num_bytes, piece.data)
                if frame is not None:
                    yield frame
                    self._observe_block(peer, (self._clock() - began) * 1e3)
                    began = self._clock()
        except grpc.aio.AioRpcError as error:
            self._failed(holder, peer, from_rpc_error(error))
        except (TimeoutError, OSError, MalformedFrameError) as error:
            self._failed(holder, peer, error)
        finally:
            peer.num_calls -= 1
            end_call(call)

    def lied(self, holder: KvHolder) -> None:
        """What it sent is not what it was asked for."""
        peer = self._peers.peek(holder.address)
        if peer is not None:
            self._failed(holder, peer, MalformedFrameError("a block is not what was asked for"))

    async def close(self) -> None:
        """Nothing is fetched any more."""
        peers = [peer for _, peer in self._peers.items()]
        self._peers.clear()
        for peer in peers:
            await peer.channel.close()

    def _observe_first(self, peer: _Peer, ms: float) -> None:
        for planner in (peer.planner, self.latest):
            planner.observe_round_trip(ms)

    def _observe_block(self, peer: _Peer, ms: float) -> None:
        for planner in (peer.planner, self.latest):
            planner.observe_load(1, ms)

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
        self.num_failures += 1
        self._failures.add(1)
        if isinstance(error, OverloadedError):
            return  # it is there, and busy
        was_open = peer.breaker.is_open
        peer.breaker.failed(self._clock())
        if peer.breaker.is_open and not was_open:
            reason = error.message if isinstance(error, OutriderError) else type(error).__name__
            _log.warning("kv_peer_left_alone", replica=holder.replica, reason=reason[:200])
