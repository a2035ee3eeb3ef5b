"""Records the engine's work where it survives a crash of this process.

One file per process, mapped into memory: its contents survive however the process ends, short of
the machine's own failure. Python's fault handler appends to it when a fault signal ends the
process. The replica's next process finds the file and reports the crash to its routers
(outrider.engine_calls).
"""

from __future__ import annotations

import contextlib
import errno
import faulthandler
import fcntl
import mmap
import os
import secrets
import struct
import time
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Final, Self
from urllib.parse import quote

import structlog

from outrider.engine_calls import (
    CRASH_KEPT_S,
    MAX_CALL_REQUESTS,
    MAX_CRASHES,
    Crash,
    EngineCall,
)

_HEADER: Final = struct.Struct("<II")
"""Requests that are named, and all sessions."""
_PART_BYTES: Final = _HEADER.size + 8 * MAX_CALL_REQUESTS
_NUM_PARTS: Final = 2
"""The model thread's part, and the part for preparations."""
_RECORD_BYTES: Final = _NUM_PARTS * _PART_BYTES
"""The fault handler's text comes behind it."""
_PROCESS_BYTES: Final = 8
_CRASHED: Final = ".crashed"
"""Suffix of a record whose process was found to have crashed, at the file's time."""
_MAX_FAULT_CHARS: Final = 2000

_log = structlog.get_logger()


class WorkRecord:
    """Present work of one thread."""

    def __init__(self, record: mmap.mmap | None, offset: int) -> None:
        self._record = record
        self._offset = offset
        self.call = EngineCall()
        """The present work."""
        self._number = self._seen_number = 0
        """Another one for each piece of work."""
        self._seen_at = 0.0

    def begin(self, requests: Collection[int], num_sessions: int) -> None:
        """Work on these begins, which are new, among so many sessions. Without any nothing is
        written: most calls have none."""
        if not requests:
            return
        kept = list(requests)[:MAX_CALL_REQUESTS]
        self._number += 1
        self.call = EngineCall(frozenset(kept), num_sessions)
        if self._record is not None:
            keys = struct.pack(f"<{len(kept)}Q", *kept)
            first = self._offset + _HEADER.size
            self._record[first : first + len(keys)] = keys
            _HEADER.pack_into(self._record, self._offset, len(kept), num_sessions)

    def end(self) -> None:
        """The present work is done."""
        if self.call.requests:
            self.call = EngineCall()
            if self._record is not None:
                _HEADER.pack_into(self._record, self._offset, 0, 0)

    def observe(self, now: float) -> EngineCall:
        """The present work, for another thread; its duration counts from when that thread first saw
        it."""
        number, call = self._number, self.call
        if number != self._seen_number:
            self._seen_number, self._seen_at = number, now
        return call._replace(duration_ms=(now - self._seen_at) * 1e3)


class Preparations:
    """Requests that are prepared for the engine at the same time, in one thread."""

    def __init__(self, work: WorkRecord) -> None:
        self._work = work
        self._requests: Counter[int] = Counter()

    @contextlib.contextmanager
    def of(self, request: int) -> Iterator[None]:
        """Record the preparation of a request while the context lasts."""
        self._requests[request] += 1
        self._note()
        try:
            yield
        finally:
            self._requests[request] -= 1
            self._requests += Counter()  # without those that are done
            self._note()

    def _note(self) -> None:
        self._work.end()
        self._work.begin(self._requests.keys(), self._requests.total())


class CallRecord:
    """The record of this process, and the crashes of those before it. A context manager: a process
    that leaves it has not crashed."""

    def __init__(self, folder: Path | None, replica: str) -> None:
        """`folder` is shared by all processes of this replica; None: nothing is recorded. If it
        cannot be written, a warning is logged and nothing is recorded. Records of earlier processes
        are read now; this one's work is recorded from `__enter__` on."""
        self.process = secrets.token_bytes(_PROCESS_BYTES)
        self.crashes: tuple[Crash, ...] = ()
        """Crashes of the replica's earlier processes, the last ones last."""
        self._file: BinaryIO | None = None
        self._path: Path | None = None
        self._mapped: mmap.mmap | None = None
        self._parts: list[WorkRecord] = []
        self._had_fault_handler = False
        if folder is not None:
            own = folder / quote(replica, safe="")
            try:
                own.mkdir(mode=0o700, parents=True, exist_ok=True)
                self.crashes = _left_behind(own, time.time())
                self._path = own / self.process.hex()
            except OSError as error:
                _log.warning("calls_not_recorded", folder=str(own), error=str(error))

    def __enter__(self) -> Self:
        if self._path is not None:
            try:
                self._file, self._mapped = _create(self._path)
            except OSError as error:
                _log.warning("calls_not_recorded", folder=str(self._path), error=str(error))
            else:
                self._had_fault_handler = faulthandler.is_enabled()
                faulthandler.enable(self._file, all_threads=False)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._file is None or self._path is None:
            return
        faulthandler.disable()
        if self._had_fault_handler:
            faulthandler.enable()
        self._path.unlink(missing_ok=True)
        self._file.close()

    def part(self) -> WorkRecord:
        """A record for one thread. Only called by the event loop."""
        self._parts.append(WorkRecord(self._mapped, len(self._parts) * _PART_BYTES))
        return self._parts[-1]

    def longest(self, now: float) -> EngineCall | None:
        """The work with new requests that has lasted longest, in seconds of any clock."""
        observed = [part.observe(now) for part in self._parts]
        running = [call for call in observed if call.requests]
        return max(running, key=lambda call: call.duration_ms, default=None)


def _create(path: Path) -> tuple[BinaryIO, mmap.mmap]:
    """Raises OSError."""
    # For appending: what the fault handler writes comes behind the record.
    file = open(path, "ab+", opener=lambda name, flags: os.open(name, flags, 0o600))
    try:
        # As long as the lock is held, this process lives.
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Written, not only as long: a store to a page for which the disk has no room is SIGBUS.
        if os.write(file.fileno(), bytes(_RECORD_BYTES)) < _RECORD_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return file, mmap.mmap(file.fileno(), _RECORD_BYTES)
    except BaseException:
        file.close()
        path.unlink(missing_ok=True)
        raise


def _left_behind(folder: Path, now: float) -> tuple[Crash, ...]:
    """Crashes, the last ones last. Removes all other records of processes that are gone. Raises
    OSError."""
    found: list[tuple[float, Crash]] = []
    for path in folder.iterdir():
        try:
            if path.suffix != _CRASHED:
                if not _has_ended(path):
                    continue
                if path.stat().st_size <= _RECORD_BYTES:
                    path.unlink()
                    continue
                os.utime(path, (now, now))
                path = path.rename(path.with_suffix(_CRASHED))
                _log_crash(path)
            crashed_at = path.stat().st_mtime
            if now - crashed_at > CRASH_KEPT_S:
                path.unlink()
            else:
                found.append((crashed_at, _read(path)))
        except (FileNotFoundError, ValueError):
            continue  # another process of the replica was faster; it is no record
    found.sort(key=lambda one: one[0])
    return tuple(crash for _, crash in found[-MAX_CRASHES:])


def _has_ended(path: Path) -> bool:
    """Whether the process of a record is gone."""
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        # Without its full size it has just been created, and is locked next.
        return path.stat().st_size >= _RECORD_BYTES


def _read(path: Path) -> Crash:
    """Raises ValueError for a file that is no record."""
    record = path.read_bytes()[:_RECORD_BYTES]
    if len(record) < _RECORD_BYTES:
        raise ValueError("a record is longer")
    requests: set[int] = set()
    num_sessions = 0
    for offset in range(0, _RECORD_BYTES, _PART_BYTES):
        num_requests, num = _HEADER.unpack_from(record, offset)
        num_requests = min(num_requests, MAX_CALL_REQUESTS)
        requests.update(struct.unpack_from(f"<{num_requests}Q", record, offset + _HEADER.size))
        num_sessions += num
    call = EngineCall(frozenset(requests), num_sessions)
    return Crash(bytes.fromhex(path.stem), call)


def _log_crash(path: Path) -> None:
    """Once for each."""
    fault = path.read_bytes()[_RECORD_BYTES:].decode(errors="replace")
    _log.error("earlier_process_crashed", process=path.stem, fault=fault[:_MAX_FAULT_CHARS])
