"""A file on this machine, copied into the store."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from outrider.errors import SourceError
from outrider.models.disk.fetch import COPY_BYTES, PartialFetch


class FileSource:
    """`file:PATH`. The copy is resumable: the validator is the file's identity, size and time."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def text(self) -> str:
        """The canonical text, with the absolute path."""
        return f"file:{self._path}"

    def fetch(self, partial: PartialFetch, scratch: Path) -> str | None:
        """Copy the file. SourceError if it cannot be read or changes meanwhile."""
        try:
            # Not blocking: opening a named pipe for reading would otherwise wait for a writer.
            descriptor = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK)
        except OSError as error:
            raise SourceError(f"{self.text} cannot be read: {error.strerror}") from error
        before = os.fstat(descriptor)
        if not stat.S_ISREG(before.st_mode):
            os.close(descriptor)
            hint = f"; for a model's folder write dir:{self._path}"
            raise SourceError(
                f"{self.text} is not a regular file{hint if stat.S_ISDIR(before.st_mode) else ''}"
            )
        with os.fdopen(descriptor, "rb") as file:
            validator = _identity(before)
            kept = partial.position
            offset = kept.num_bytes if kept.validator == validator else 0
            partial.begin(validator, offset=offset, total_bytes=before.st_size)
            file.seek(offset)
            while chunk := file.read(COPY_BYTES):
                partial.write(chunk)
            if _identity(os.fstat(file.fileno())) != validator:
                partial.discard()
                raise SourceError(f"{self.text} changed while it was copied; pull again")
        return None


def _identity(status: os.stat_result) -> str:
    return f"{status.st_dev}:{status.st_ino}:{status.st_size}:{status.st_mtime_ns}"
