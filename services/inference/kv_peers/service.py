"""The gRPC service by which a replica gives KV to others of its model identity.

Blocks are asked for by hashes, which name the trust group's salt and all ids before: whoever can
name a block has the prompt already. They are copied by the model thread while the engine computes,
a few at a time, packed in a thread, and sent as fast as the other side takes them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any, Final

import structlog

from outrider.codec.block_hashes import HASH_BYTES
from outrider.errors import InvalidRequestError, OutriderError, UnavailableError
from outrider.model_identity import inexact_identity, same_model, short_form
from outrider.telemetry.metrics import Metrics
from outrider.telemetry.refusals import RefusalLog
from outrider.v1 import kv_pb2
from outrider.v1.kv_pb2_grpc import KvTransferServiceServicer
from services.inference.kv_peers.config import KvPeersConfig
from services.inference.kv_peers.pieces import MAX_BLOCKS, cut
from services.inference.kv_peers.serving_limits import ServingLimits
from services.inference.kv_peers.telemetry import PEER_BLOCKS
from services.inference.kv_tiers.blocks import TRANSFERRED, KvIdentity, payload_of
from services.inference.model_thread import ModelThread

_DIRECTION: Final = {"direction": "serve"}
_QUIET_S: Final = 0.3
"""Seconds without a request after which no replica is expected to fetch KV any more."""

_log = structlog.get_logger()


class KvTransferService(KvTransferServiceServicer):
    """Answers other replicas. The event loop's."""

    def __init__(
        self,
        config: KvPeersConfig,
        identity: KvIdentity,
        model_identity: bytes,
        model: ModelThread,
        metrics: Metrics,
    ) -> None:
        """`model_identity`: the identity that a replica must have to ask."""
        self._identity = identity
        self._model_identity = model_identity
        self._inexact_identity = inexact_identity(model_identity)
        self._model = model
        self._limits = ServingLimits(config, identity.layout.block_bytes)
        self._blocks = metrics.counter(PEER_BLOCKS)
        metrics.from_zero(PEER_BLOCKS, "result", ("served",))
        self._bytes = metrics.counter(TRANSFERRED)
        self._bytes.add(0, _DIRECTION)
        self._refused = RefusalLog("kv requests")
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="kv-serve")
        self._changed = asyncio.Event()
        self.num_bytes = 0
        """Sent since the replica started, packed."""

    @property
    def num_streams(self) -> int:
        """Requests that are being answered."""
        return self._limits.num_streams

    async def FetchKv(
        self, request: kv_pb2.FetchKvRequest, context: Any
    ) -> AsyncIterator[kv_pb2.FetchKvResponse]:
        try:
            is_inexact = self._check(request)
            with self._limits.serving(_host(context.peer())):
                self._wake()
                try:
                    hashes = tuple(request.block_hashes)
                    async for response in self._answer(hashes, is_inexact=is_inexact):
                        yield response
                finally:
                    self._wake()
        except OutriderError as error:
            self._refused.note(error.reason)
            raise

    async def linger(self, limit_s: float) -> None:
        """Go on answering for as long as anybody asks, `limit_s` at most."""
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                while await self._is_asked():
                    pass

    def close(self) -> None:
        """The server has stopped."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _is_asked(self) -> bool:
        """Whether a request came, or one is being answered, within the quiet time."""
        changed = self._changed
        try:
            async with asyncio.timeout(None if self.num_streams else _QUIET_S):
                await changed.wait()
        except TimeoutError:
            return False
        return True

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _check(self, request: kv_pb2.FetchKvRequest) -> bool:
        """Whether inexact KV is asked for. Raises UnavailableError and InvalidRequestError."""
        is_inexact = same_model(request.model_identity, self._inexact_identity)
        if not is_inexact and not same_model(request.model_identity, self._model_identity):
            raise UnavailableError(
                f"this replica computes as {short_form(self._model_identity)}, not as "
                f"{short_form(request.model_identity[:64])}; compute the KV",
            )
        if request.vocabulary_digest != self._identity.vocabulary_digest:
            raise UnavailableError("this replica has another vocabulary; compute the KV")
        hashes = request.block_hashes
        if not 0 < len(hashes) <= MAX_BLOCKS:
            raise InvalidRequestError(f"{len(hashes)} blocks are asked for; ask for 1 to 1,024")
        if any(len(name) != HASH_BYTES for name in hashes):
            raise InvalidRequestError(f"a block's hash has to have {HASH_BYTES} bytes")
        return is_inexact

    async def _answer(
        self, hashes: tuple[bytes, ...], *, is_inexact: bool
    ) -> AsyncIterator[kv_pb2.FetchKvResponse]:
        pack = partial(self._identity.pack, payload=payload_of(is_inexact=is_inexact))
        places = {name: index for index, name in enumerate(hashes)}
        left = iter(hashes)
        loop = asyncio.get_running_loop()
        while turn := tuple(islice(left, self._limits.turn_blocks)):
            for block in await self._model.export_blocks(turn, takes_inexact=is_inexact):
                frame = await loop.run_in_executor(self._threads, pack, block)
                index = places[block.named.name]
                for piece in cut(frame):
                    yield kv_pb2.FetchKvResponse(
                        index=index, num_bytes=len(frame), data=bytes(piece)
                    )
                self.num_bytes += len(frame)
                self._bytes.add(len(frame), _DIRECTION)
                self._blocks.add(1, {"result": "served"})


def _host(peer: str) -> str:
    """Host part of gRPC's name for a peer, such as `ipv4:10.0.0.1` in `ipv4:10.0.0.1:50000`."""
    return peer.rpartition(":")[0] or peer
