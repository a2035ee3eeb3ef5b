"""Fetches a model by its digest: from one mirror after the other, in the order of preference.

Shards are written to their place in one file, several at once. Each is read back from the disk and
compared with its digest when it is complete, and so is the whole at the end. What an earlier mirror
or process left is taken for nothing: its shards are compared again, and those that are not as they
should be are fetched again.
"""

from __future__ import annotations

import hashlib
import os
import queue
import shutil
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import structlog

from outrider.backoff import Backoff
from outrider.errors import ModelStoreError, SourceError
from outrider.mirrors.manifest import (
    MAX_MANIFEST_BYTES,
    Manifest,
    manifest_name,
    read_manifest,
    shard_name,
)
from outrider.mirrors.mirror import BrokeOffError, LacksError, Mirror, RefusedError
from outrider.mirrors.pace import BandwidthCap
from outrider.models.disk.fetch import DISK_FULL, PullProgress, ReportProgress

_MANIFEST_ATTEMPTS: Final = 3
_ANSWER_S: Final = 30.0
"""For a manifest, all attempts together: then the next mirror is asked."""
_SHARD_S: Final = 600.0
"""Most seconds for a shard, not counting waits for the bandwidth cap."""
_MAX_FAILURES: Final = 6
"""In a row, without a byte between them, before a mirror is given up. What several connections meet
at once counts once."""
_FIRST_PAUSE_S: Final = 0.25
"""After a failure; it doubles with each further one, so that a mirror is given 8 s in all."""
_REPORT_S: Final = 0.2
_HASHED_BYTES: Final = 1 << 20

_log = structlog.get_logger()


class Mirrors:
    """Fetches models by digest. Safe for several threads: fetches are independent but share the
    bandwidth cap."""

    def __init__(
        self, mirrors: Sequence[Mirror], *, connections: int = 4, max_bytes_s: float = 0.0
    ) -> None:
        """The first mirror is asked first, the next one for what that does not give. `connections`:
        shards fetched at once. `max_bytes_s` 0: no cap."""
        self._mirrors = tuple(mirrors)
        self._connections = connections
        self._pace = _Pace(max_bytes_s)
        self.fetched_bytes = {mirror.text: 0 for mirror in self._mirrors}
        """Bytes of shards fetched from each mirror, over all fetches."""

    def fetch(self, sha256: str, path: Path, *, max_bytes: int, report: ReportProgress) -> int:
        """Write the model with this digest to `path`, verified; returns its size in bytes. Resumes
        an earlier attempt. After an error the part stays, unless every mirror offered another
        model. Blocks.

        Raises SourceError if no mirror provides it, with the message of each; ModelStoreError if
        the disk has no room for what one of them offers (nothing is kept of a fetch that filled it)
        and no other provides it; and what `report` raises, which ends the fetch.
        """
        problems, roomless = list[str](), list[str]()
        num_offers = num_false = 0
        for mirror in self._mirrors:
            try:
                manifest = _answer(mirror, sha256, report)
                num_offers += 1
                _check_size(manifest, max_bytes)
                self._fetch_from(mirror, manifest, path, report)
            except SourceError as error:
                problems.append(f"{mirror.text}: {error.message}")
                continue
            except ModelStoreError as error:
                # The size is what a mirror says, which nobody believes yet: others may be right.
                roomless.append(error.message)
                continue
            report(PullProgress("verifying", manifest.num_bytes, manifest.num_bytes))
            if _is_whole(path, manifest):
                return manifest.num_bytes
            num_false += 1
            problems.append(f"{mirror.text}: the manifest is false, its shards make another model")
            _log.warning("model_manifest_false", sha256=sha256, mirror=mirror.text)
        if num_false and num_false == num_offers:
            path.unlink(missing_ok=True)  # the model's own source is asked next, and needs the room
        if roomless:
            raise ModelStoreError("; ".join([*roomless, *problems]))
        raise SourceError(
            f"no mirror has the model {sha256[:12]} whole ({'; '.join(problems)}); check that they "
            "are reached, or push it: outrider models push MODEL MIRROR"
        )

    def _fetch_from(
        self, mirror: Mirror, manifest: Manifest, path: Path, report: ReportProgress
    ) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            with _disk_full(path):
                have = _verified_shards(descriptor, manifest)
                _check_room(descriptor, path, manifest)
                if os.fstat(descriptor).st_size < manifest.num_bytes:
                    # Never the other way: a size that is a lie would cost what is there.
                    os.ftruncate(descriptor, manifest.num_bytes)
                download = _Download(mirror, manifest, descriptor, have, self._pace)
                try:
                    download.run(self._connections, report)
                finally:
                    self.fetched_bytes[mirror.text] += download.fetched_bytes
                os.fsync(descriptor)
        finally:
            os.close(descriptor)


class _Pace:
    """The cap, for all threads of all fetches."""

    def __init__(self, max_bytes_s: float) -> None:
        self._bucket = BandwidthCap(max_bytes_s, time.monotonic())
        self._lock = threading.Lock()

    def take(self, num_bytes: int) -> float:
        with self._lock:
            return self._bucket.take(num_bytes, time.monotonic())


class _Over(Exception):
    """The download has ended while a thread was at work."""


class _Download:
    """The download of a model from one mirror: its threads, and the file they write."""

    def __init__(
        self,
        mirror: Mirror,
        manifest: Manifest,
        descriptor: int,
        have: Sequence[int],
        pace: _Pace,
    ) -> None:
        """`have`: shards that are there, and verified."""
        self._mirror, self._manifest = mirror, manifest
        self._descriptor, self._pace = descriptor, pace
        self._wanted = deque(sorted(set(range(len(manifest.shards))) - set(have)))
        self._changed = threading.Condition()
        """Guards all attributes below, and `_wanted`."""
        self._there = dict.fromkeys(range(len(manifest.shards)), 0)
        """Bytes of each shard that are there."""
        self._there |= {shard: manifest.extent(shard)[1] for shard in have}
        self._lacking = list[int]()
        self.fetched_bytes = 0
        self._num_working = self._num_writing = 0
        self._failures = 0
        self._backoff = Backoff(_FIRST_PAUSE_S)
        self._paused_until = 0.0
        self._is_stopped = False
        self._problem = ""
        """Why the mirror is given up."""
        self._error: Exception | None = None
        """An error of the disk, or of a thread that should not fail."""

    def run(self, connections: int, report: ReportProgress) -> None:
        """Return once all shards are there. Raises SourceError, OSError, what `report` raises."""
        began = time.monotonic()
        self._num_working = min(connections, len(self._wanted))
        for number in range(self._num_working):
            # Daemons: one that waits for a silent mirror must not hold up the end of the process.
            threading.Thread(target=self._work, name=f"shards-{number}", daemon=True).start()
        try:
            self._watch(report)
        finally:
            with self._changed:
                self._is_stopped = True
                self._changed.notify_all()
                # The file is closed next: nobody may be writing to it then.
                self._changed.wait_for(lambda: self._num_writing == 0)
        if self._error is not None:
            raise self._error
        if self._problem:
            raise SourceError(self._problem)
        if self._lacking:
            raise SourceError(f"has no shard {min(self._lacking)} of the model")
        _log.info(
            "model_fetched",
            sha256=self._manifest.sha256,
            num_bytes=self._manifest.num_bytes,
            seconds=round(time.monotonic() - began, 1),
            mirror=self._mirror.text,
            fetched_bytes=self.fetched_bytes,
        )

    def _watch(self, report: ReportProgress) -> None:
        is_over = False
        while not is_over:
            with self._changed:
                is_over = self._changed.wait_for(self._has_ended, _REPORT_S)
                done_bytes = sum(self._there.values())
            report(PullProgress("fetching", done_bytes, self._manifest.num_bytes))

    def _has_ended(self) -> bool:
        return bool(self._problem) or self._error is not None or not self._num_working

    def _work(self) -> None:
        """Body of each thread: fetch shards until none is left."""
        try:
            while (shard := self._next()) is not None:
                self._fetch(shard)
        except _Over:
            pass
        except Exception as error:  # else nobody would hear of it
            with self._changed:
                self._error = self._error or error
        finally:
            with self._changed:
                self._num_working -= 1
                self._changed.notify_all()

    def _next(self) -> int | None:
        with self._changed:
            if self._is_stopped or self._problem or self._error is not None or not self._wanted:
                return None
            return self._wanted.popleft()

    def _fetch(self, shard: int) -> None:
        """Have one shard, in as many attempts as it takes. Raises _Over."""
        while True:
            offset = self._there[shard]
            try:
                self._receive(shard, offset)
                return
            except LacksError:
                _log.warning("shard_missing", mirror=self._mirror.text, shard=shard)
                with self._changed:
                    self._lacking.append(shard)
                return
            except BrokeOffError as error:
                _log.info("shard_broke_off", mirror=self._mirror.text, shard=shard, why=str(error))
                self._sleep(self._broke_off(self._there[shard] > offset, str(error)))
            except _Over:
                raise
            except (RefusedError, SourceError) as error:
                self._give_up(shard, str(error))
            except Exception as error:  # what no mirror should raise, and what only this one does
                self._give_up(shard, f"{type(error).__name__}: {error}")

    def _receive(self, shard: int, offset: int) -> None:
        """Fetch the missing part, and compare the whole with its digest."""
        begin, size = self._manifest.extent(shard)
        late_at = time.monotonic() + _SHARD_S
        with self._mirror.open(shard_name(self._manifest.sha256, shard), offset) as (at, pieces):
            if at not in (0, offset):
                raise RefusedError(f"it gives bytes from {at} where {offset} were wanted")
            self._there[shard] = at
            for piece in pieces:
                if at + len(piece) > size:
                    raise RefusedError(f"shard {shard} has more than {size} bytes")
                self._write(piece, begin + at)
                at += len(piece)
                self._there[shard] = at
                if pause_s := self._pace.take(len(piece)):
                    late_at += pause_s
                    self._sleep(pause_s)
                if time.monotonic() > late_at:
                    raise RefusedError(f"it takes more than {_SHARD_S:.0f} s for shard {shard}")
        if at < size:
            raise BrokeOffError(f"shard {shard} ended after {at} bytes")
        with self._own_disk():
            digest = _digest(self._descriptor, begin, size)
        if digest != self._manifest.shards[shard]:
            raise RefusedError(
                f"the bytes of shard {shard} have another digest than its manifest says"
            )

    def _broke_off(self, has_come: bool, why: str) -> float:
        """Seconds for which to leave the mirror alone. Raises _Over if it is given up."""
        now = time.monotonic()
        with self._changed:
            if has_come or now >= self._paused_until:  # else it is the failure of the pause
                if has_come:
                    self._failures = 0
                    self._backoff.reset()
                self._failures += 1
                self._paused_until = now + self._backoff.next_s()
            if self._failures < _MAX_FAILURES:
                return self._paused_until - now
            self._problem = self._problem or why
            self._changed.notify_all()
        raise _Over

    def _give_up(self, shard: int, why: str) -> None:
        """Ask the mirror for nothing more. Raises _Over."""
        _log.warning("mirror_dropped", mirror=self._mirror.text, shard=shard, why=why)
        with self._changed:
            self._there[shard] = 0
            self._problem = self._problem or why
            self._changed.notify_all()
        raise _Over

    def _write(self, data: bytes, at: int) -> None:
        """Write bytes to the file. Raises _Over if the download has ended, and if the disk
        fails."""
        with self._changed:
            if self._is_stopped or self._has_ended():
                raise _Over
            self._num_writing += 1
        try:
            with self._own_disk():
                _write_all(self._descriptor, data, at)
        finally:
            with self._changed:
                self._num_writing -= 1
                self.fetched_bytes += len(data)
                self._changed.notify_all()

    def _sleep(self, seconds: float) -> None:
        """Raises _Over if the download ends meanwhile."""
        with self._changed:
            if self._changed.wait_for(lambda: self._is_stopped or self._has_ended(), seconds):
                raise _Over

    @contextmanager
    def _own_disk(self) -> Iterator[None]:
        """Turn disk errors into the end of the download, as _Over: they are not the mirror's
        fault."""
        try:
            yield
        except OSError as error:
            with self._changed:
                self._error = self._error or error
                self._changed.notify_all()
            raise _Over from error


def _answer(mirror: Mirror, sha256: str, report: ReportProgress) -> Manifest:
    """The manifest from a mirror; waits no longer than _ANSWER_S, even if the answer never ends.
    Raises SourceError, and what `report` raises."""
    answers = queue.SimpleQueue[Manifest | str]()

    def ask() -> None:
        try:
            answers.put(_manifest_of(mirror, sha256))
        except SourceError as error:
            answers.put(error.message)
        except Exception as error:  # else its answer would be waited for
            answers.put(f"{type(error).__name__}: {error}")

    threading.Thread(target=ask, daemon=True).start()
    late_at = time.monotonic() + _ANSWER_S
    while time.monotonic() < late_at:
        report(PullProgress("asking", 0, None))
        with suppress(queue.Empty):
            answer = answers.get(timeout=_REPORT_S)
            if isinstance(answer, Manifest):
                return answer
            raise SourceError(answer)
    raise SourceError("does not answer")


def _manifest_of(mirror: Mirror, sha256: str) -> Manifest:
    """Raises SourceError."""
    problem = ""
    for attempt in range(_MANIFEST_ATTEMPTS):
        if attempt:
            time.sleep(0.25 * 2**attempt)
        try:
            with mirror.open(manifest_name(sha256)) as (_, pieces):
                return read_manifest(_all_of(pieces), sha256)
        except LacksError:
            raise SourceError("does not have it") from None
        except RefusedError as error:
            raise SourceError(str(error)) from error
        except BrokeOffError as error:
            problem = str(error)
    raise SourceError(f"cannot be reached ({problem})")


def _all_of(pieces: Iterator[bytes]) -> bytes:
    """All bytes, but no more than needed to see that they are too many."""
    data = bytearray()
    for piece in pieces:
        data += piece
        if len(data) > MAX_MANIFEST_BYTES:
            break
    return bytes(data)


def _verified_shards(descriptor: int, manifest: Manifest) -> list[int]:
    """Shards that an earlier attempt wrote to the disk, verified."""
    size = os.fstat(descriptor).st_size
    found = list[int]()
    for shard, digest in enumerate(manifest.shards):
        begin, num_bytes = manifest.extent(shard)
        if begin + num_bytes > size:
            break
        if _is_written(descriptor, begin, num_bytes) and digest == _digest(
            descriptor, begin, num_bytes
        ):
            found.append(shard)
    return found


def _is_written(descriptor: int, begin: int, num_bytes: int) -> bool:
    """Whether anything was written there, as far as the file system knows."""
    try:
        return os.lseek(descriptor, begin, os.SEEK_DATA) < begin + num_bytes
    except OSError:
        return False  # a hole up to the end


def _digest(descriptor: int, begin: int, num_bytes: int) -> str:
    digest, left = hashlib.sha256(), num_bytes
    while left and (data := os.pread(descriptor, min(left, _HASHED_BYTES), begin)):
        digest.update(data)
        begin, left = begin + len(data), left - len(data)
    return digest.hexdigest()


def _write_all(descriptor: int, data: bytes, at: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, at)
        view, at = view[written:], at + written


def _is_whole(path: Path, manifest: Manifest) -> bool:
    """Whether the file begins with the model. What a manifest that was false had it grow by is cut
    off then."""
    descriptor = os.open(path, os.O_RDWR)
    try:
        if _digest(descriptor, 0, manifest.num_bytes) != manifest.sha256:
            return False
        if os.fstat(descriptor).st_size > manifest.num_bytes:
            os.ftruncate(descriptor, manifest.num_bytes)
            os.fsync(descriptor)
        return True
    finally:
        os.close(descriptor)


def _check_size(manifest: Manifest, max_bytes: int) -> None:
    if manifest.num_bytes > max_bytes:
        raise SourceError(
            f"the mirrors offer {manifest.num_bytes} bytes, above the limit of {max_bytes}"
        )


def _check_room(descriptor: int, path: Path, manifest: Manifest) -> None:
    free_bytes = shutil.disk_usage(path.parent).free
    there_bytes = os.fstat(descriptor).st_blocks * 512
    if manifest.num_bytes - there_bytes > free_bytes:
        raise ModelStoreError(
            f"{manifest.num_bytes - there_bytes} bytes are to come and the disk of {path.parent} "
            f"has {free_bytes} free; free space, or point OUTRIDER_MODEL_STORE at another disk"
        )


@contextmanager
def _disk_full(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        with suppress(OSError):
            path.unlink()
        raise ModelStoreError(
            f"the disk of {path.parent} is full; nothing was kept of this fetch: free space, or "
            "point OUTRIDER_MODEL_STORE at another disk"
        ) from error
