"""vLLM's KV events: from its socket to the seam's prefix events.

vLLM publishes them by ZeroMQ as (topic, number, batch in msgpack). They hold prompts' ids, so the
socket lies in a directory of this process alone.
"""

from __future__ import annotations

import asyncio
import importlib
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import structlog

from outrider.engines.turn.base import BlocksCleared, BlocksRemoved, BlocksStored, PrefixEvent
from outrider.engines.turn.prefix_hub import PrefixHub
from outrider.engines.turn.vllm.requests import salt_of
from outrider.lru_map import LruMap

log = structlog.get_logger()

_GPU: Final = frozenset({None, "GPU"})
"""Where blocks lie that a request reuses at once; events of other tiers are left out."""
_FIRST_GROUP: Final = frozenset({None, 0})
"""Models with several kinds of attention tell each block once for each."""
_NAME_BYTES: Final = 8


class BlockTranslator:
    """From vLLM's events to the seam's, with each block's salt: vLLM tells it for the first block
    of a prompt alone (pure)."""

    def __init__(self, block_tokens: int, max_blocks: int) -> None:
        self._block_tokens = block_tokens
        self._salts: LruMap[bytes, bytes] = LruMap(max_blocks)
        """By name of a stored block."""

    def translate(self, events: Iterable[Any]) -> Iterator[PrefixEvent]:
        """Events of vllm.distributed.kv_events."""
        for event in events:
            match type(event).__name__:
                case "BlockStored":
                    yield from self._stored(event)
                case "BlockRemoved" if _counts(event):
                    names = tuple(_name(it) for it in event.block_hashes)
                    for name in names:
                        self._salts.pop(name)
                    yield BlocksRemoved(names)
                case "AllBlocksCleared":
                    yield self.clear()
                case _:
                    pass

    def clear(self) -> BlocksCleared:
        """Forget all blocks."""
        self._salts.clear()
        return BlocksCleared()

    def _stored(self, event: Any) -> Iterator[BlocksStored]:
        if not _counts(event) or event.block_size != self._block_tokens:
            return
        names = tuple(_name(it) for it in event.block_hashes)
        parent = _name(event.parent_block_hash) if event.parent_block_hash is not None else b""
        salt = self._salts.get(parent) if parent else _first_salt(event)
        if salt is None:
            return  # its prompt began before the translator did
        for name in names:
            self._salts.put(name, salt)
        yield BlocksStored(salt, parent, names, tuple(event.token_ids))


def _counts(event: Any) -> bool:
    return event.medium in _GPU and event.group_idx in _FIRST_GROUP


def _first_salt(event: Any) -> bytes | None:
    """The salt of the first block of a prompt. None for one that has other keys: pictures, say."""
    keys = (event.extra_keys or (None,))[0] or ()
    if not keys:
        return b""
    try:
        return salt_of(keys[0]) if len(keys) == 1 else None
    except (TypeError, ValueError):
        return None


def _name(block_hash: bytes | int) -> bytes:
    if isinstance(block_hash, bytes):
        return block_hash
    return (block_hash % (1 << 8 * _NAME_BYTES)).to_bytes(_NAME_BYTES, "big")


class EventSocket:
    """Where vLLM is to publish, and who reads there."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="outrider-vllm-"))  # its owner's alone
        self.endpoint = f"ipc://{self._folder / 'kv'}"
        self._context: Any = None
        self._socket: Any = None
        self._reading: asyncio.Task[None] | None = None

    def open(self) -> None:
        """Connect. Call it before vLLM starts, so that nothing is missed."""
        zmq = importlib.import_module("zmq.asyncio")
        self._context = zmq.Context()
        self._socket = self._context.socket(importlib.import_module("zmq").SUB)
        self._socket.connect(self.endpoint)
        self._socket.subscribe(b"")

    def read(self, translator: BlockTranslator, hub: PrefixHub) -> None:
        """Start to give the events to the hub."""
        reading = _read(self._socket, translator, hub)
        self._reading = asyncio.create_task(reading, name="vllm-kv-events")

    async def close(self) -> None:
        """Stop reading and remove the directory."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
        if self._socket is not None:
            self._socket.close(linger=0)
            self._context.term()
        shutil.rmtree(self._folder, ignore_errors=True)


async def _read(socket: Any, translator: BlockTranslator, hub: PrefixHub) -> None:
    decoder = _decoder()
    expected: int | None = None
    try:
        while True:
            _, number, payload = await socket.recv_multipart()
            found = int.from_bytes(number, "big")
            if expected is not None and found != expected:
                log.warning("vllm_kv_events_lost", expected=expected, found=found)
                hub.tell(translator.clear())
            expected = found + 1
            for event in translator.translate(decoder(payload).events):
                hub.tell(event)
    except Exception:
        log.exception("vllm_kv_events_ended")
        hub.tell(translator.clear())


def _decoder() -> Any:
    events = importlib.import_module("vllm.distributed.kv_events")
    msgpack = importlib.import_module("msgspec.msgpack")
    return msgpack.Decoder(events.KVEventBatch).decode
