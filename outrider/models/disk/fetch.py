"""One fetch of an artifact: a source writes its bytes into a file that a later fetch can resume.

A resumed fetch trusts bytes written by an earlier process, perhaps before a power loss. So the
file is resumed only at a checkpoint (bytes fsynced first, then their count and the source's
validator written atomically), only if the source still shows the same validator, and the kept
bytes are hashed again.
"""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol, Self

from outrider.durable_files import write_atomic
from outrider.errors import ModelStoreError, SourceError

COPY_BYTES: Final = 1 << 20
"""Read from a source and written to the file at a time."""
CHECKPOINT_BYTES: Final = 32 << 20
"""Fetched between two checkpoints."""
DISK_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Error numbers of a disk without room."""


@dataclass(frozen=True, slots=True)
class PullProgress:
    """One report. Reports come often and in order; show the last."""

    stage: str
    """`waiting` (another process pulls the same), `asking` (which mirrors have it), `fetching`,
    `unpacking`, `verifying`, or `pushing`."""
    done_bytes: int
    """Bytes done in this stage."""
    total_bytes: int | None
    """Bytes of this stage; None while the source has not given them."""


ReportProgress = Callable[[PullProgress], None]


def ignore_progress(_: PullProgress) -> None:
    """A progress report that does nothing."""


class ByteSink(Protocol):
    """Receives a source's bytes."""

    @property
    def position(self) -> FetchPosition:
        """Position of this fetch, or of an earlier one that was interrupted."""
        ...

    def begin(
        self, validator: str, *, offset: int, total_bytes: int | None, stage: str = "fetching"
    ) -> None:
        """Accept bytes from `offset` on: 0, or what `position` returned."""
        ...

    def write(self, data: bytes) -> None:
        """Add bytes."""
        ...

    def discard(self) -> None:
        """Remove them; the next fetch starts at zero."""
        ...


class ArtifactSource(Protocol):
    """One artifact's origin."""

    @property
    def text(self) -> str:
        """The canonical source text: the key of the store's index."""
        ...

    def fetch(self, partial: PartialFetch, scratch: Path) -> str | None:
        """Write the artifact's bytes into `partial`; blocking.

        `scratch` is an empty directory on the store's disk, removed afterwards. Returns the
        sha256 the origin itself claims for the bytes, if it does. Raises SourceError if the
        origin cannot be read.
        """
        ...


@dataclass(frozen=True, slots=True)
class FetchPosition:
    """Position at which a fetch can resume."""

    validator: str
    """Name of the source's version of the bytes (an ETag, or a file's size and time); "": none."""
    num_bytes: int
    """Bytes already here."""


class PartialFetch:
    """One fetch into one file. A source calls `begin` and `write`; the store does the rest.

    Used as a context manager: leaving it on an error keeps a checkpoint if the source gave a
    validator, and removes the file if it did not or if the disk is full (ModelStoreError).
    """

    def __init__(
        self, path: Path, *, max_bytes: int, report: ReportProgress, revision: str = ""
    ) -> None:
        """`revision` is the commit to fetch; "": the source chooses."""
        self.revision = revision
        """The commit fetched, set by a source whose name can change its commit, such as a
        branch."""
        self._path = path
        self._state_path = path.with_suffix(".json")
        self._max_bytes = max_bytes
        self._report = report
        self._file: io.FileIO | None = None
        self._hash = hashlib.sha256()
        self._num_bytes = 0
        self._total_bytes: int | None = None
        self._validator = ""
        self._stage = ""
        self._checkpoint_at = CHECKPOINT_BYTES

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        is_disk_full = _is_disk_full(error)
        try:
            if error is not None and self._file is not None and not is_disk_full:
                self._keep()
        finally:
            self._close()
        if is_disk_full:
            self.discard()
            raise ModelStoreError(
                f"the disk of {self._path.parent} is full; nothing was kept of this fetch: "
                "free space, or point OUTRIDER_MODEL_STORE at another disk"
            ) from error

    @property
    def path(self) -> Path:
        """File with the bytes so far."""
        return self._path

    @property
    def position(self) -> FetchPosition:
        """Position of this fetch, or of an earlier one that was interrupted."""
        if self._file is not None:
            return FetchPosition(self._validator, self._num_bytes)
        return _read_state(self._path, self._state_path)

    def begin(
        self, validator: str, *, offset: int, total_bytes: int | None, stage: str = "fetching"
    ) -> None:
        """Accept bytes from `offset` on: 0, what `position` returned, or less than that.

        Raises SourceError if the whole would exceed the size limit, ModelStoreError if the disk
        cannot hold it.
        """
        if total_bytes is not None:
            self.check_room(total_bytes, total_bytes - offset)
        if self._file is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            # Unbuffered: on a full disk, closing must not fail on bytes a buffer still holds.
            self._file = io.FileIO(self._path, "r+" if offset else "w+")
        if offset != self._num_bytes or offset == 0:
            self._rewind(self._file, offset)
        self._validator = validator
        self._total_bytes = total_bytes
        self._stage = stage
        self.report(stage, self._num_bytes, total_bytes)

    def write(self, data: bytes) -> None:
        """Add bytes. SourceError if the source sends more than it announced or than allowed."""
        assert self._file is not None, "begin comes first"
        num_bytes = self._num_bytes + len(data)
        self._check_limit(num_bytes)
        if self._total_bytes is not None and num_bytes > self._total_bytes:
            raise SourceError(f"the source sends more than the {self._total_bytes} bytes announced")
        _write_all(self._file, data)
        self._hash.update(data)
        self._num_bytes = num_bytes
        if self._validator and num_bytes >= self._checkpoint_at:
            self._checkpoint()
        self.report(self._stage, num_bytes, self._total_bytes)

    def finish(self) -> tuple[str, int]:
        """Make the whole durable; returns its sha256 and size. SourceError if bytes are missing."""
        if self._file is None:
            raise SourceError("the source sent nothing")
        if self._total_bytes is not None and self._num_bytes != self._total_bytes:
            raise SourceError(
                f"the source ended after {self._num_bytes} of {self._total_bytes} bytes"
            )
        os.fsync(self._file.fileno())
        return self._hash.hexdigest(), self._num_bytes

    def keep(self) -> None:
        """Make all that is here durable for a later fetch, if the source gave a validator."""
        if self._validator:
            self._checkpoint()

    @property
    def parts(self) -> Path:
        """Folder of files that the whole is made of, for sources that fetch several."""
        return self._path.with_suffix(".parts")

    def part(self, name: str, report: ReportProgress) -> PartialFetch:
        """A fetch of one of `parts`, within the same limit."""
        return PartialFetch(self.parts / name, max_bytes=self._max_bytes, report=report)

    def discard(self) -> None:
        """Remove the bytes; the next fetch starts at zero."""
        self._close()
        self._num_bytes, self._validator = 0, ""
        self._state_path.unlink(missing_ok=True)
        self._path.unlink(missing_ok=True)

    def report(self, stage: str, done_bytes: int, total_bytes: int | None) -> None:
        """Report progress to the store's caller. Raises if `total_bytes` exceeds the limit."""
        if total_bytes is not None:
            self._check_limit(total_bytes)
        self._report(PullProgress(stage, done_bytes, total_bytes))

    def check_room(self, total_bytes: int, needed_bytes: int) -> None:
        """Raises SourceError if the whole exceeds the size limit, ModelStoreError if the disk lacks
        the bytes that it needs besides what is here."""
        self._check_limit(total_bytes)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        free_bytes = shutil.disk_usage(self._path.parent).free
        if needed_bytes > free_bytes:
            raise ModelStoreError(
                f"{needed_bytes} bytes are needed and the disk of {self._path.parent} has "
                f"{free_bytes} free; free space, or point OUTRIDER_MODEL_STORE at another disk"
            )

    def _check_limit(self, num_bytes: int) -> None:
        if num_bytes > self._max_bytes:
            raise SourceError(
                f"the source offers {num_bytes} bytes, above the limit of {self._max_bytes}; "
                "raise the store's max_bytes if you trust it"
            )

    def _rewind(self, file: io.FileIO, offset: int) -> None:
        if offset == 0:
            self._state_path.unlink(missing_ok=True)
        file.seek(0)
        self._hash = hashlib.sha256()
        left = offset
        while left:
            chunk = file.read(min(left, 1 << 20))
            if not chunk:
                raise ModelStoreError(f"{self._path} lost bytes behind its checkpoint; pull again")
            self._hash.update(chunk)
            left -= len(chunk)
        file.truncate(offset)
        file.seek(offset)
        self._num_bytes = offset
        self._checkpoint_at = offset + CHECKPOINT_BYTES

    def _keep(self) -> None:
        if self._validator:
            self._checkpoint()
        else:
            self.discard()

    def _checkpoint(self) -> None:
        assert self._file is not None, "begin comes first"
        os.fsync(self._file.fileno())
        state = {"validator": self._validator, "num_bytes": self._num_bytes}
        write_atomic(self._state_path, json.dumps(state).encode())
        self._checkpoint_at = self._num_bytes + CHECKPOINT_BYTES

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _write_all(file: io.FileIO, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]


def _is_disk_full(error: BaseException | None) -> bool:
    return isinstance(error, OSError) and error.errno in DISK_FULL


def _read_state(path: Path, state_path: Path) -> FetchPosition:
    """Anything odd means starting at zero: a partial fetch is a saving, never a need."""
    try:
        state = json.loads(state_path.read_bytes())
        position = FetchPosition(str(state["validator"]), int(state["num_bytes"]))
        if 0 <= position.num_bytes <= path.stat().st_size:
            return position
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return FetchPosition("", 0)
