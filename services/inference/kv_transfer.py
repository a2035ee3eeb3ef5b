"""KV on its way into the engine's blocks and out of them, between calls and while they compute.

The model thread's part of a transfer: what fetches, stores, packs and unpacks is elsewhere
(kv_tiers and the tiers themselves). A block that comes in is written between two calls; one that
goes out is copied while a call computes, one a call. Blocks that go out or are pinned are named by
their hashes, which stand for salt and all ids up to a block's end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import structlog

from outrider.engines.base import Engine
from outrider.errors import EngineError, InvalidRequestError
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
    tier: str
    """The name of the KV tier that brought it."""
    is_inexact: bool = False
    """Whether they were rounded on their way."""

    @property
    def num_bytes(self) -> int:
        return sum(len(data) for _, data in self.blocks)


@dataclass(frozen=True, slots=True)
class ExportedBlock:
    """A copy of a published block, and what it is of."""

    named: NamedBlock
    data: bytes


@dataclass(frozen=True, slots=True)
class ExportBlocks:
    """Command: copy out the KV of blocks of one prefix."""

    hashes: tuple[bytes, ...]
    """Theirs, the last block first; what is not cached, or of another prefix than the first that
    is, is left out."""
    takes_inexact: bool
    """Whether blocks that depend on rounded KV are copied, too; otherwise they are left out."""
    answer: Callable[[list[ExportedBlock]], None]
    """Called in the model thread, once all are copied."""


@dataclass(frozen=True, slots=True)
class PinBlocks:
    """Command: keep the cached KV of blocks of one prefix for as long as the replica runs."""

    hashes: tuple[bytes, ...]
    """As of ExportBlocks."""
    answer: Callable[[list[NamedBlock]], None]
    """Called in the model thread with those that are pinned."""


@dataclass(frozen=True, slots=True)
class KeepBlocks:
    """Command: keep KV of a prefix that a session may bring here later, as cached blocks."""

    cache_salt: bytes
    ids: tuple[int, ...]
    """Of the prefix; those behind its last full block are there to be computed."""
    blocks: tuple[tuple[int, bytes], ...]
    """As of LoadBlocks, in order; none: only the answer is wanted."""
    answer: Callable[[list[int]], None]
    """Called in the model thread with how many leading blocks are cached then; with nothing if
    there is no room."""

    @property
    def num_bytes(self) -> int:
        return sum(len(data) for _, data in self.blocks)


KvCommand: TypeAlias = LoadBlocks | ExportBlocks | PinBlocks | KeepBlocks


@dataclass(frozen=True, slots=True)
class _Export:
    """A prefix that is being copied out, block by block."""

    answer: Callable[[list[ExportedBlock]], None]
    number: int
    """For Scheduler.release_prefix."""
    left: deque[NamedBlock]
    copies: list[ExportedBlock]


class KvTransfer:
    """KV on its way into the engine's blocks and out of them."""

    def __init__(self, engine: Engine, scheduler: Scheduler) -> None:
        self._engine = engine
        self._scheduler = scheduler
        self.waiting: dict[int, list[LoadBlocks]] = {}
        """By session id: what came for sessions that are in the queue."""
        self._waiting_bytes = 0
        self.exports: deque[_Export] = deque()
        """What is left to be copied out."""

    def execute(self, command: KvCommand) -> None:
        """Load, pin, or begin to copy out."""
        if isinstance(command, LoadBlocks):
            self._load(command)
        elif isinstance(command, ExportBlocks):
            self._export(command)
        elif isinstance(command, KeepBlocks):
            self._keep(command)
        else:
            # Held, and never released.
            command.answer(self._scheduler.hold_prefix(command.hashes)[1])

    def _load(self, command: LoadBlocks) -> None:
        """Write blocks, or keep them while their session waits."""
        if not self._scheduler.is_waiting(command.session_id):
            self._import(command)
        elif self._waiting_bytes + command.num_bytes <= MAX_LOADED_BYTES:
            self.waiting.setdefault(command.session_id, []).append(command)
            self._waiting_bytes += command.num_bytes

    def load_waiting(self) -> None:
        """Write what came for sessions that have left the queue since."""
        for session in [it for it in self.waiting if not self._scheduler.is_waiting(it)]:
            for command in self.waiting.pop(session):
                self._waiting_bytes -= command.num_bytes
                self._import(command)

    def _import(self, command: LoadBlocks) -> None:
        for index, data in command.blocks:
            block = self._scheduler.add_loaded(
                command.session_id, index, command.tier, is_inexact=command.is_inexact
            )
            if block is None:
                continue
            try:
                self._engine.import_blocks([block], data)
            except EngineError as error:
                # Nothing that was not written may ever count as computed.
                self._scheduler.drop_loaded(command.session_id, index)
                log.error("kv_not_loaded", error=error.message)

    def _keep(self, command: KeepBlocks) -> None:
        if not self._scheduler.may_keep(len(command.blocks)):
            command.answer([])
            return
        try:
            number, _ = self._scheduler.follow_prefix(command.ids, command.cache_salt)
        except InvalidRequestError:
            command.answer([])
            return
        for index, data in command.blocks:
            block = self._scheduler.add_kept(number, index, command.ids)
            if block is None:
                continue
            try:
                self._engine.import_blocks([block], data)
            except EngineError as error:
                self._scheduler.drop_kept(number, index)
                log.error("kv_not_kept", error=error.message)
        num_cached = self._scheduler.publish_kept(number, command.ids)
        self._scheduler.release_prefix(number)
        command.answer([num_cached])

    def _export(self, command: ExportBlocks) -> None:
        if len(self.exports) >= MAX_EXPORTS:
            command.answer([])
            return
        number, blocks = self._scheduler.hold_prefix(
            command.hashes, takes_inexact=command.takes_inexact
        )
        if blocks:
            self.exports.append(_Export(command.answer, number, deque(blocks), []))
        else:
            command.answer([])

    def export_some(self) -> None:
        """Copy out one block of the first of `exports`. Published blocks are never written: a call
        that is under way does not disturb the copy, nor the copy the call."""
        export = self.exports[0]
        named = export.left.popleft()
        failed = False
        try:
            data = self._engine.export_blocks([named.block])
            export.copies.append(ExportedBlock(named, data))
        except EngineError as error:
            failed = True
            log.error("kv_not_exported", error=error.message)
        if failed or not export.left:
            self.exports.popleft()
            self._scheduler.release_prefix(export.number)
            export.answer(export.copies)
