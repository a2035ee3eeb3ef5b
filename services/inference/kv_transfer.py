"""KV on its way into the engine's blocks and out of them, between calls and while they compute.

The model thread's part of a transfer: what fetches, stores, packs and unpacks is elsewhere
(prefix_store, kv_peers). A block that comes in is written between two calls; one that goes out is
copied while a call computes, one a call.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import structlog

from outrider.engines.base import Engine, Ids
from outrider.errors import EngineError
from services.inference.kv.pool import NamedBlock
from services.inference.scheduler.scheduler import Scheduler

log = structlog.get_logger()

MAX_LOADED_BYTES = 256 << 20
"""KV that may wait for sessions in the queue, and as much for the model thread while the engine
computes; what comes beyond it is dropped, and computed."""
MAX_EXPORTS = 64
"""Prefixes that may wait to be copied out; more are not."""


@dataclass(frozen=True, slots=True)
class LoadBlocks:
    """Command: KV for blocks of a session's prompt, loaded from elsewhere."""

    session_id: int
    blocks: tuple[tuple[int, bytes], ...]
    """Index of the block in the prompt, and what an engine of the same fingerprint exported."""
    from_peer: bool = False
    """Whether another replica sent it; else the prefix store had it."""

    @property
    def num_bytes(self) -> int:
        return sum(len(data) for _, data in self.blocks)


@dataclass(frozen=True, slots=True)
class ExportBlocks:
    """Command: copy out the KV of leading blocks of these ids."""

    ids: tuple[int, ...]
    salt: bytes
    indices: tuple[int, ...]
    """Those that are wanted; what is not cached is left out."""
    answer: Callable[[list[tuple[int, bytes]]], None]
    """Called in the model thread, once all are copied."""


@dataclass(frozen=True, slots=True)
class ExportedBlock:
    """A copy of a published block, and what it is of."""

    named: NamedBlock
    data: bytes


@dataclass(frozen=True, slots=True)
class ExportNamed:
    """Command: copy out the KV of blocks of one prefix."""

    hashes: tuple[bytes, ...]
    """Theirs; what is not cached, or of another prefix than the first that is, is left out."""
    answer: Callable[[list[ExportedBlock]], None]
    """Called in the model thread, once all are copied."""


@dataclass(frozen=True, slots=True)
class PinPrefix:
    """Command: keep the cached KV of the leading blocks of these ids for as long as the replica
    runs."""

    ids: tuple[int, ...]
    salt: bytes
    answer: Callable[[list[int]], None]
    """Called in the model thread with the blocks that are pinned."""


class _Export(Protocol):
    """A prefix that is being copied out, block by block."""

    number: int
    """For Scheduler.release_prefix."""

    def next(self) -> int | None:
        """The physical block to copy next; None: all are."""
        ...

    def copied(self, data: bytes) -> None:
        """Its copy."""
        ...

    def finish(self) -> None:
        """Answer with what was copied."""
        ...


class _IndexedExport:
    """Of ExportBlocks."""

    def __init__(self, command: ExportBlocks, number: int, blocks: Ids) -> None:
        self.number = number
        self._answer = command.answer
        self._left = deque((it, int(blocks[it])) for it in command.indices if it < len(blocks))
        self._copies: list[tuple[int, bytes]] = []

    def next(self) -> int | None:
        return self._left[0][1] if self._left else None

    def copied(self, data: bytes) -> None:
        self._copies.append((self._left.popleft()[0], data))

    def finish(self) -> None:
        self._answer(self._copies)


class _NamedExport:
    """Of ExportNamed."""

    def __init__(self, command: ExportNamed, number: int, blocks: list[NamedBlock]) -> None:
        self.number = number
        self._answer = command.answer
        self._left = deque(blocks)
        self._copies: list[ExportedBlock] = []

    def next(self) -> int | None:
        return self._left[0].block if self._left else None

    def copied(self, data: bytes) -> None:
        self._copies.append(ExportedBlock(self._left.popleft(), data))

    def finish(self) -> None:
        self._answer(self._copies)


class KvTransfer:
    """KV on its way into the engine's blocks and out of them."""

    def __init__(self, engine: Engine, scheduler: Scheduler) -> None:
        self._engine = engine
        self._scheduler = scheduler
        self._waiting: dict[int, list[LoadBlocks]] = {}
        """By session id: what came for sessions that are in the queue."""
        self._waiting_bytes = 0
        self._exports: deque[_Export] = deque()

    @property
    def is_exporting(self) -> bool:
        """Whether something is left to be copied out."""
        return bool(self._exports)

    def load(self, command: LoadBlocks) -> None:
        """Write blocks, or keep them while their session waits."""
        if not self._scheduler.is_waiting(command.session_id):
            self._import(command)
        elif self._waiting_bytes + command.num_bytes <= MAX_LOADED_BYTES:
            self._waiting.setdefault(command.session_id, []).append(command)
            self._waiting_bytes += command.num_bytes

    def load_waiting(self) -> None:
        """Write what came for sessions that have left the queue since."""
        for session in [it for it in self._waiting if not self._scheduler.is_waiting(it)]:
            for command in self._waiting.pop(session):
                self._waiting_bytes -= command.num_bytes
                self._import(command)

    def _import(self, command: LoadBlocks) -> None:
        for index, data in command.blocks:
            block = self._scheduler.add_loaded(
                command.session_id, index, from_peer=command.from_peer
            )
            if block is None:
                continue
            try:
                self._engine.import_blocks([block], data)
            except EngineError as error:
                # Nothing that was not written may ever count as computed.
                self._scheduler.drop_loaded(command.session_id, index)
                log.error("kv_not_loaded", error=error.message)

    def pin(self, command: PinPrefix) -> None:
        """A prefix that is held and never released."""
        _, blocks = self._scheduler.hold_prefix(command.ids, command.salt)
        command.answer(blocks.tolist())

    def export(self, command: ExportBlocks) -> None:
        """Begin to copy out what is cached of it."""
        if len(self._exports) >= MAX_EXPORTS:
            command.answer([])
            return
        number, blocks = self._scheduler.hold_prefix(command.ids, command.salt)
        self._exports.append(_IndexedExport(command, number, blocks))

    def export_named(self, command: ExportNamed) -> None:
        """Begin to copy out what is cached of it."""
        if len(self._exports) >= MAX_EXPORTS:
            command.answer([])
            return
        number, blocks = self._scheduler.hold_named(command.hashes)
        if blocks:
            self._exports.append(_NamedExport(command, number, blocks))
        else:
            command.answer([])

    def export_some(self) -> None:
        """Copy out one block. Published blocks are never written: a call that is under way does not
        disturb the copy, nor the copy the call."""
        if not self._exports:
            return
        export = self._exports[0]
        failed = False
        if (block := export.next()) is not None:
            try:
                export.copied(self._engine.export_blocks([block]))
            except EngineError as error:
                failed = True
                log.error("kv_not_exported", error=error.message)
        if failed or export.next() is None:
            self._exports.popleft()
            self._scheduler.release_prefix(export.number)
            export.finish()
