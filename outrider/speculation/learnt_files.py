"""Copies of trust groups' statistics, as files of this machine.

A folder per model contains a file per group. A file is written beside its place and renamed, so
that a process killed at any moment leaves whole files; a damaged one is ignored and overwritten.
All folders under one root share a limit: beyond it the files written longest ago are removed. Each
writing process enforces it after writing a sixteenth of it, so files may exceed it by that much per
process.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from outrider.errors import ArtifactCorruptError
from outrider.speculation.learnt import KeptGroups, Learnt, LearntConfig, check

_SUFFIX: Final = ".learnt"
_PARTIAL: Final = ".partial"
_STALE_S: Final = 600.0
"""A file that was not renamed for so long is of a process that was killed; a folder that was empty
for so long, of a model that is not served any more."""
_PARTS: Final = 16
"""The bound is looked after once such a part of it was written: every look at it reads the sizes
and times of all files."""
_FILE_BYTES: Final = 4096
"""A file counts at least so much: the file system's block."""
_MAX_FILE_BYTES: Final = 1 << 20
_MAX_ROUNDS: Final = 256
"""Busy groups learn on while they are saved."""
_FOLDER_MODE: Final = 0o700
_FILE_MODE: Final = 0o600

_log = structlog.get_logger()

Copies = list[tuple[bytes, Learnt]]
"""Groups with their statistics."""


class LearntFiles:
    """The files of one model. Blocks: its methods are for threads."""

    def __init__(self, root: Path, binding: bytes, max_bytes: int) -> None:
        """`root` holds the folders of all models; `max_bytes` is the bound of them all."""
        self._root = root
        self._folder = root / binding.hex()[:32]
        self._binding = binding
        self._max_bytes = max_bytes
        self._num_unchecked = max_bytes
        """Bytes written since the last look at the bound; as if all of it had been, at first."""

    def load(self, kept: KeptGroups) -> None:
        """Load the files; if they are too many, those written last."""
        found = sorted(_files(self._folder), key=lambda file: file.written_at)
        for file in found:
            try:
                if file.num_bytes > _MAX_FILE_BYTES:
                    raise ArtifactCorruptError(f"{file.num_bytes} bytes are too many")
                data = file.path.read_bytes()
                check(data, self._binding)
            except (OSError, ArtifactCorruptError) as error:
                _log.warning("learnt_file_ignored", file=str(file.path), error=str(error))
                continue
            kept.keep(file.path.stem, data)

    def save(self, files: Iterable[tuple[str, bytes]]) -> None:
        """Write these, each in one step, and remove the oldest beyond the limit. Raises OSError."""
        for name, data in files:
            self._write(self._folder / f"{name}{_SUFFIX}", data)
            self._num_unchecked += max(len(data), _FILE_BYTES)
        if self._num_unchecked * _PARTS >= self._max_bytes:
            self._num_unchecked = 0
            self._drop()

    def _write(self, path: Path, data: bytes) -> None:
        path.parent.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
        partial = path.with_name(f"{path.stem}-{secrets.token_hex(4)}{_PARTIAL}")
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _FILE_MODE)
        try:
            with open(descriptor, "wb") as file:
                file.write(data)
            partial.replace(path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise

    def _drop(self) -> None:
        """Remove the files written longest ago, of any model, beyond the bound."""
        found = [file for folder in _folders(self._root) for file in _files(folder)]
        found.sort(key=lambda file: file.written_at, reverse=True)
        total = 0
        for file in found:
            total += max(file.num_bytes, _FILE_BYTES)
            if total > self._max_bytes:
                file.path.unlink(missing_ok=True)
        newest = found[0].written_at if found else 0.0
        for folder in _folders(self._root):
            for partial in _files(folder, _PARTIAL):
                if newest - partial.written_at > _STALE_S:
                    partial.path.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # most are not empty
                if newest - folder.stat().st_mtime > _STALE_S:
                    folder.rmdir()


class LearntKeeper:
    """One model's copies and their files: loaded at the start, saved at intervals and at a stop."""

    def __init__(
        self, root: Path, binding: bytes, vocabulary_size: int, config: LearntConfig
    ) -> None:
        """Starts empty, until `load`."""
        self._max_bytes = config.max_bytes if config.keep else 0
        self.kept = KeptGroups(binding, vocabulary_size, self._max_bytes)
        self._files = LearntFiles(root, binding, self._max_bytes)

    @classmethod
    def open(
        cls, root: Path, binding: bytes, vocabulary_size: int, config: LearntConfig
    ) -> LearntKeeper:
        """A keeper with the saved copies loaded. Blocks."""
        keeper = cls(root, binding, vocabulary_size, config)
        keeper.load()
        return keeper

    def load(self) -> None:
        """Load the saved copies, before any group's statistics begin. Blocks: for up to a second
        with thousands of files."""
        if self._max_bytes:
            self._files.load(self.kept)

    def save(self, copies: Sequence[tuple[bytes, Learnt]]) -> None:
        """Keep these copies and write them. Blocks, and never fails: what cannot be written is
        learnt again."""
        packed = [self.kept.packed(group, learnt) for group, learnt in copies]
        for name, data in packed:
            self.kept.keep(name, data)
        if packed:
            try:
                self._files.save(packed)
            except OSError as error:
                _log.warning("learnt_not_saved", groups=len(packed), error=str(error))

    async def run(
        self,
        take: Callable[[], Awaitable[Copies]],
        interval_s: float,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Save what `take` returns, at intervals, until cancelled. A saving that has begun is
        ended first: `take` does not return the same copies again, and no two may write at a
        time."""
        while True:
            await sleep(interval_s)
            saving = asyncio.ensure_future(self.save_now(take))
            try:
                await asyncio.shield(saving)
            except asyncio.CancelledError:
                await saving
                raise

    async def save_now(self, take: Callable[[], Awaitable[Copies]]) -> None:
        """Save what `take` returns, in a thread, until it returns nothing more."""
        for _ in range(_MAX_ROUNDS):
            copies = await take()
            if not copies:
                return
            await asyncio.to_thread(self.save, copies)


@dataclass(frozen=True, slots=True)
class _File:
    path: Path
    num_bytes: int
    written_at: float


def _files(folder: Path, suffix: str = _SUFFIX) -> list[_File]:
    """Files of a folder; others may remove some meanwhile."""
    found = []
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            if path.suffix == suffix:
                with contextlib.suppress(OSError):
                    status = path.stat()
                    found.append(_File(path, status.st_size, status.st_mtime))
    return found


def _folders(root: Path) -> list[Path]:
    with contextlib.suppress(OSError):
        return [path for path in root.iterdir() if path.is_dir()]
    return []
