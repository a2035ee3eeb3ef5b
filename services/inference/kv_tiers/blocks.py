"""A block between a tier and the engine: whose KV it is, its frame, and its way to the model
thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, ParamSpec, TypeVar

import structlog

from outrider.codec.kv import KvHeader, KvLayout, Payload, decode_frame, encode_frame
from outrider.engines.base import EngineInfo
from outrider.errors import MalformedFrameError
from outrider.telemetry.families import Family
from services.inference.kv_tiers.tiers import Prefix
from services.inference.kv_transfer import ExportedBlock, LoadBlocks
from services.inference.model_thread import ModelThread

TRANSFERRED: Final = Family(
    "outrider_kv_transferred_bytes",
    "Bytes of KV that went to the prefix store (direction: save) or came from it (load), came from "
    "other replicas (fetch) or went to them (serve), packed.",
)
TRANSFER_SECONDS: Final = Family(
    "outrider_kv_transfer_seconds",
    "Time to fetch and unpack, or to pack and store, some blocks of KV; direction as of the bytes.",
)
TRANSFER_BOUNDARIES_S: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)

_P = ParamSpec("_P")
_T = TypeVar("_T")

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class KvIdentity:
    """Whose KV it is."""

    layout: KvLayout
    fingerprint: bytes
    vocabulary_digest: bytes

    def pack(self, block: ExportedBlock, payload: Payload) -> bytes:
        """The frame of a block."""
        header = self._header(block.named.parent, block.named.ids, payload)
        return encode_frame(header, [block.data])

    def unpack(
        self, frame: bytes, parent: bytes, ids: tuple[int, ...], payload: Payload
    ) -> bytes | None:
        """The block, as an engine exported it, or rounded; None if the frame is not the one of this
        payload of the block with these ids behind that one."""
        try:
            opened = decode_frame(frame)
            if opened.header == self._header(parent, ids, payload):
                (block,) = opened.blocks()
                return block
        except MalformedFrameError as error:
            _log.warning("kv_frame_refused", reason=error.message)
        return None

    def _header(self, parent: bytes, ids: tuple[int, ...], payload: Payload) -> KvHeader:
        return KvHeader(
            payload=payload,
            layout=self.layout,
            fingerprint=self.fingerprint,
            vocabulary_digest=self.vocabulary_digest,
            parent_hash=parent,
            ids=ids,
        )


def payload_of(*, is_inexact: bool) -> Payload:
    """The payload of frames of exact KV, or of inexact KV."""
    return Payload.Q8 if is_inexact else Payload.EXACT


def kv_identity(info: EngineInfo, vocabulary_digest: bytes) -> KvIdentity | None:
    """Whose KV the engine computes; None for one whose KV cannot go anywhere."""
    if info.kv_layout is None or not info.exact or not info.fingerprint:
        return None
    return KvIdentity(info.kv_layout, info.fingerprint, vocabulary_digest)


class BlockLoader:
    """Moves blocks between packed bytes and the engine, for all tiers of a replica: one thread
    packs and unpacks, the model thread loads. Used in the event loop."""

    def __init__(self, identity: KvIdentity, model: ModelThread) -> None:
        self.identity = identity
        self.model = model
        self._fetching: set[bytes] = set()
        """Hashes of blocks that are on their way."""
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="kv")

    async def in_thread(self, work: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Run `work` in the thread that packs and unpacks; returns its result."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, lambda: work(*args, **kwargs))

    @contextmanager
    def claim(self, prefix: Prefix, indices: Iterable[int]) -> Iterator[list[int]]:
        """The blocks that no other session is fetching yet; others leave them alone while the
        context lasts. Once the engine has come so far, fetched blocks are published for the whole
        group."""
        claimed = [index for index in indices if prefix.hashes[index] not in self._fetching]
        hashes = [prefix.hashes[index] for index in claimed]
        self._fetching.update(hashes)
        try:
            yield claimed
        finally:
            self._fetching.difference_update(hashes)

    def unpack(self, prefix: Prefix, index: int, frame: bytes) -> bytes | None:
        """Called in the thread: the block, if the frame is valid and the one expected; otherwise
        None."""
        payload = payload_of(is_inexact=prefix.request.takes_inexact_kv)
        return self.identity.unpack(frame, prefix.parent(index), prefix.block_ids(index), payload)

    def load(self, prefix: Prefix, blocks: tuple[tuple[int, bytes], ...], tier: str) -> bool:
        """Hand the engine blocks, each with its index, that the tier of this name has brought;
        False if the engine was sooner, or too much waits for it."""
        if prefix.is_computed:
            return False
        request = prefix.request
        command = LoadBlocks(request.session_id, blocks, tier, request.takes_inexact_kv)
        if not self.model.load_blocks(command):
            return False
        prefix.fetched.update(index for index, _ in blocks)
        return True

    def close(self) -> None:
        """Nothing is packed or unpacked any more."""
        self._threads.shutdown(wait=False, cancel_futures=True)
