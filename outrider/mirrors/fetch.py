"""Fetches a model by its digest: threads that carry out what the plan says.

Shards are written to their place in one file. Each is read back from the disk and compared with its
digest when it is complete, and so is the whole at the end. What an earlier process left is taken
for nothing: its shards are compared again, and those that are not as they should be fetched again.
"""

from __future__ import annotations

import hashlib
import os
import queue
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import structlog

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
from outrider.mirrors.plan import Fetch, FetchPlan
from outrider.models.disk.fetch import DISK_FULL, PullProgress, ReportProgress

_MANIFEST_ATTEMPTS: Final = 3
_ANSWER_S: Final = 120.0
"""For a manifest, however it comes: more than the attempts at a mirror that is silent take."""
_GRACE_S: Final = 5.0
"""For the other mirrors, once one has said what the model is made of."""
_PATIENCE_S: Final = 60.0
"""A shard that takes longer is fetched elsewhere, if there is another source; time in which the cap
made it wait is not counted."""
_REPORT_S: Final = 0.2
_LONGEST_SLEEP_S: Final = 0.5
"""At a time, so that an end is noticed."""
_HASHED_BYTES: Final = 1 << 20

_log = structlog.get_logger()


class Mirrors:
    """Where models are had by digest. Safe for several threads: each `fetch` is by itself but for
    the cap, which they share."""

    def __init__(
        self, mirrors: Sequence[Mirror], *, connections: int = 4, max_bytes_s: float = 0.0
    ) -> None:
        """The first mirror is asked first. `max_bytes_s` 0: no cap."""
        self._mirrors = tuple(mirrors)
        self._connections = connections
        self._pace = _Pace(max_bytes_s)
        self.fetched_bytes = {mirror.text: 0 for mirror in self._mirrors}
        """Of shards, that came from each, of all fetches."""

    def fetch(self, sha256: str, path: Path, *, max_bytes: int, report: ReportProgress) -> int:
        """Have the model of this digest at `path`, verified; returns its size. What is there from
        an earlier attempt is gone on with, and stays after an error, unless all that was offered
        is another model. Blocking.

        Raises SourceError if no mirror gives it, with what each of them said; ModelStoreError if
        the disk had no room for what one of them offers (nothing is kept of a fetch that filled
        it), and no other gives it; what `report` raises, which so ends it.
        """
        offers, problems = self._offers(sha256, report)
        roomless, num_false = list[str](), 0
        for manifest, mirrors in offers.items():
            try:
                _check_size(manifest, max_bytes)
                self._fetch_by(manifest, mirrors, path, report)
            except SourceError as error:
                problems.append(error.message)
                continue
            except ModelStoreError as error:
                # The size is what a mirror says, which nobody believes yet: others may be right.
                roomless.append(error.message)
                continue
            report(PullProgress("verifying", manifest.num_bytes, manifest.num_bytes))
            if _is_whole(path, manifest):
                return manifest.num_bytes
            num_false += 1
            names = ", ".join(mirror.text for mirror in mirrors)
            problems.append(f"{names}: the manifest is false, its shards make another model")
            _log.warning("model_manifest_false", sha256=sha256, mirrors=names)
        if num_false and num_false == len(offers):
            path.unlink(missing_ok=True)  # the model's own source is asked next, and needs the room
        if roomless:
            raise ModelStoreError("; ".join([*roomless, *problems]))
        raise SourceError(
            f"no mirror has the model {sha256[:12]} whole ({'; '.join(problems)}); check that they "
            "are reached, or push it: outrider models push MODEL MIRROR"
        )

    def _offers(
        self, sha256: str, report: ReportProgress
    ) -> tuple[dict[Manifest, list[Mirror]], list[str]]:
        """The mirrors that have the model, by what they say it is made of. All are asked at once;
        once one has answered the others get a few seconds, so that a silent one holds up nobody;
        nor does one whose answer has no end."""
        answers = queue.SimpleQueue[tuple[int, Manifest | SourceError]]()

        def ask(place: int, mirror: Mirror) -> None:
            try:
                answers.put((place, _manifest_of(mirror, sha256)))
            except SourceError as error:
                answers.put((place, error))
            except Exception as error:  # else its answer would be waited for
                answers.put((place, SourceError(f"{mirror.text}: {error}")))

        for place, mirror in enumerate(self._mirrors):
            threading.Thread(target=ask, args=(place, mirror), daemon=True).start()
        said = dict[int, Manifest | SourceError]()
        late_at = time.monotonic() + _ANSWER_S
        while len(said) < len(self._mirrors) and time.monotonic() < late_at:
            with suppress(queue.Empty):
                place, answer = answers.get(timeout=_REPORT_S)
                said[place] = answer
                if isinstance(answer, Manifest):
                    late_at = min(late_at, time.monotonic() + _GRACE_S)
            report(PullProgress("asking", 0, None))
        offers, problems = dict[Manifest, list[Mirror]](), list[str]()
        for place, mirror in enumerate(self._mirrors):
            match said.get(place):
                case Manifest() as manifest:
                    offers.setdefault(manifest, []).append(mirror)
                case SourceError() as error:
                    problems.append(error.message)
                case None:
                    problems.append(f"{mirror.text}: does not answer")
        return offers, problems

    def _fetch_by(
        self, manifest: Manifest, mirrors: Sequence[Mirror], path: Path, report: ReportProgress
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
                run = _Run(manifest, mirrors, descriptor, have, self._pace)
                try:
                    run.go(self._connections, report)
                finally:
                    for name, num_bytes in run.fetched_bytes.items():
                        self.fetched_bytes[name] += num_bytes
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
    """The run has ended while a thread was at work."""


class _Run:
    """One plan, its threads, and the file they write."""

    def __init__(
        self,
        manifest: Manifest,
        mirrors: Sequence[Mirror],
        descriptor: int,
        have: Sequence[int],
        pace: _Pace,
    ) -> None:
        self._manifest, self._mirrors = manifest, mirrors
        self._descriptor, self._pace = descriptor, pace
        names = [mirror.text for mirror in mirrors]
        self._plan = FetchPlan(len(manifest.shards), names, have)
        self._changed = threading.Condition()
        """Guards all below, and the plan."""
        self._there = {shard: manifest.extent(shard)[1] for shard in have}
        """Bytes of each shard that has any."""
        self._done_bytes = sum(self._there.values())
        self.fetched_bytes = dict.fromkeys(names, 0)
        self._num_writing = 0
        self._is_stopped = False
        self._error: Exception | None = None
        """Of the disk, or of a thread that should not fail."""

    def go(self, connections: int, report: ReportProgress) -> None:
        """Return once all shards are there. Raises SourceError, OSError, what `report` raises."""
        began = time.monotonic()
        for number in range(min(connections, len(self._manifest.shards))):
            # Daemons: one that waits for a silent source must not hold up the end of the process.
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
        if self._plan.problem:
            raise SourceError(self._plan.problem)
        _log.info(
            "model_fetched",
            sha256=self._manifest.sha256,
            num_bytes=self._manifest.num_bytes,
            seconds=round(time.monotonic() - began, 1),
            fetched_bytes=self.fetched_bytes,
        )

    def _watch(self, report: ReportProgress) -> None:
        is_over = False
        while not is_over:
            with self._changed:
                is_over = self._changed.wait_for(self._has_ended, _REPORT_S)
                done_bytes = self._done_bytes
            report(PullProgress("fetching", done_bytes, self._manifest.num_bytes))

    def _has_ended(self) -> bool:
        return self._plan.is_over or self._error is not None

    def _work(self) -> None:
        """What each thread does."""
        try:
            while (fetch := self._next()) is not None:
                self._carry_out(fetch)
        except _Over:
            pass
        except Exception as error:  # else the others would wait for this thread's shard
            with self._changed:
                self._error = self._error or error
                self._changed.notify_all()

    def _next(self) -> Fetch | None:
        with self._changed:
            while not self._is_stopped and not self._has_ended():
                step = self._plan.next(time.monotonic())
                if isinstance(step, Fetch):
                    return step
                if step is not None:
                    pause = max(0.0, step.until - time.monotonic())
                    self._changed.wait(min(pause, _LONGEST_SLEEP_S))
            self._changed.notify_all()
            return None

    def _carry_out(self, fetch: Fetch) -> None:
        shard = _Shard(self, fetch)
        with shard.settled():
            shard.receive(self._mirrors[fetch.source])

    def write(self, data: bytes, at: int, source: str) -> None:
        """Put bytes into the file. Raises _Over once nobody may, and for a disk that fails."""
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
                self.fetched_bytes[source] += len(data)
                self._changed.notify_all()

    def note(self, shard: int, num_bytes: int) -> None:
        """So many bytes of a shard are there."""
        with self._changed:
            self._done_bytes += num_bytes - self._there.get(shard, 0)
            self._there[shard] = num_bytes

    def sleep(self, seconds: float) -> None:
        """Raises _Over if the run ends meanwhile."""
        with self._changed:
            if self._changed.wait_for(lambda: self._is_stopped or self._has_ended(), seconds):
                raise _Over

    def digest(self, begin: int, num_bytes: int) -> str:
        """SHA-256 of what is on the disk. Raises _Over for a disk that fails."""
        with self._own_disk():
            return _digest(self._descriptor, begin, num_bytes)

    @contextmanager
    def _own_disk(self) -> Iterator[None]:
        """Its failures end the run, as _Over here: what reads from a source would take them as
        they are for the source's fault."""
        try:
            yield
        except OSError as error:
            with self._changed:
                self._error = self._error or error
                self._changed.notify_all()
            raise _Over from error

    @property
    def manifest(self) -> Manifest:
        return self._manifest

    def pause_s(self, num_bytes: int) -> float:
        """How long the cap has a thread wait that received so much."""
        return self._pace.take(num_bytes)

    def name_of(self, source: int) -> str:
        return self._mirrors[source].text

    def tell(self, what: Callable[[FetchPlan], None]) -> None:
        """Tell the plan what became of a fetch."""
        with self._changed:
            what(self._plan)
            self._changed.notify_all()

    def may_change(self, fetch: Fetch) -> bool:
        """Whether another source could take this shard over."""
        with self._changed:
            return self._plan.has_other(fetch, time.monotonic())


class _Shard:
    """One fetch of one shard, as a thread carries it out."""

    def __init__(self, run: _Run, fetch: Fetch) -> None:
        self._run, self._fetch = run, fetch
        self._begin, self._size = run.manifest.extent(fetch.shard)
        self._name = run.name_of(fetch.source)
        self._num_bytes = fetch.offset
        """Of the shard, that are there."""

    @contextmanager
    def settled(self) -> Iterator[None]:
        """However it ends, the plan is told."""
        run, fetch = self._run, self._fetch
        try:
            yield
        except LacksError:
            _log.warning("shard_missing", mirror=self._name, shard=fetch.shard)
            self._forget()
            run.tell(lambda plan: plan.lacks(fetch))
        except (RefusedError, SourceError) as error:
            self._drop(str(error))
        except BrokeOffError as error:
            why = str(error)
            _log.info("shard_broke_off", mirror=self._name, shard=fetch.shard, why=why)
            run.tell(lambda plan: plan.broke_off(fetch, self._num_bytes, why, time.monotonic()))
        except _TooSlow:
            _log.warning("mirror_slow", mirror=self._name, shard=fetch.shard)
            self._forget()
            run.tell(lambda plan: plan.too_slow(fetch))
        except _Over:
            raise
        except Exception as error:  # what no mirror should raise, and what only this one does
            self._drop(f"{type(error).__name__}: {error}")
        else:
            run.tell(lambda plan: plan.finished(fetch))

    def receive(self, mirror: Mirror) -> None:
        """Fetch what is missing, and compare the whole with its digest."""
        manifest, fetch = self._run.manifest, self._fetch
        give_up_at = time.monotonic() + _PATIENCE_S
        name = shard_name(manifest.sha256, fetch.shard)
        with mirror.open(name, fetch.offset) as (begin, pieces):
            if begin not in (0, fetch.offset):
                raise RefusedError(f"it gives bytes from {begin} where {fetch.offset} were wanted")
            self._go_on_at(begin)
            for piece in pieces:
                self._take(piece)
                if pause_s := self._run.pause_s(len(piece)):
                    give_up_at += pause_s
                    self._run.sleep(pause_s)
                if time.monotonic() > give_up_at and self._run.may_change(fetch):
                    raise _TooSlow
        if self._num_bytes < self._size:
            raise BrokeOffError(f"shard {fetch.shard} ended after {self._num_bytes} bytes")
        if self._run.digest(self._begin, self._size) != manifest.shards[fetch.shard]:
            raise RefusedError(
                f"the bytes of shard {fetch.shard} have another digest than its manifest says"
            )

    def _take(self, piece: bytes) -> None:
        if self._num_bytes + len(piece) > self._size:
            raise RefusedError(f"shard {self._fetch.shard} has more than {self._size} bytes")
        self._run.write(piece, self._begin + self._num_bytes, self._name)
        self._go_on_at(self._num_bytes + len(piece))

    def _drop(self, why: str) -> None:
        fetch = self._fetch
        _log.warning("mirror_dropped", mirror=self._name, shard=fetch.shard, why=why)
        self._forget()
        self._run.tell(lambda plan: plan.refused(fetch, why))

    def _forget(self) -> None:
        self._go_on_at(0)

    def _go_on_at(self, offset: int) -> None:
        self._num_bytes = offset
        self._run.note(self._fetch.shard, offset)


class _TooSlow(Exception):
    """Another source may be faster."""


def _manifest_of(mirror: Mirror, sha256: str) -> Manifest:
    """Raises SourceError, with the mirror's name."""
    problem = ""
    for attempt in range(_MANIFEST_ATTEMPTS):
        if attempt:
            time.sleep(0.25 * 2**attempt)
        try:
            with mirror.open(manifest_name(sha256)) as (_, pieces):
                return read_manifest(_all_of(pieces), sha256, mirror.text)
        except LacksError:
            raise SourceError(f"{mirror.text}: does not have it") from None
        except RefusedError as error:
            raise SourceError(f"{mirror.text}: {error}") from error
        except BrokeOffError as error:
            problem = str(error)
    raise SourceError(f"{mirror.text}: cannot be reached ({problem})")


def _all_of(pieces: Iterator[bytes]) -> bytes:
    """At most as much as says that it is too much."""
    data = bytearray()
    for piece in pieces:
        data += piece
        if len(data) > MAX_MANIFEST_BYTES:
            break
    return bytes(data)


def _verified_shards(descriptor: int, manifest: Manifest) -> list[int]:
    """Those on the disk already, of whatever attempt."""
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
            f"has {free_bytes} free: free space, or point OUTRIDER_MODEL_STORE at another disk"
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
