"""A file on this machine, or the parts of a split one, copied into the store."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from outrider.errors import SourceError
from outrider.models.disk.fetch import COPY_BYTES, PartialFetch
from outrider.models.disk.files import file_sha256
from outrider.models.sources.split_gguf import JoinedGguf, joined, parts_of, read_in_pieces


class FileSource:
    """`file:PATH`; of a split GGUF file the path of the first part. A single file's copy is
    resumable: the validator is the file's identity, size and time."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def text(self) -> str:
        """The canonical text, with the absolute path."""
        return f"file:{self._path}"

    def fetch(self, partial: PartialFetch, scratch: Path) -> str | None:
        """Copy the file, or join the parts. SourceError if they cannot be read or change meanwhile,
        ArtifactCorruptError for parts that do not belong together."""
        if parts := parts_of(self._path):
            whole = joined(parts)
            partial.begin("", offset=0, total_bytes=whole.num_bytes)
            for piece in self._pieces(parts, whole):
                partial.write(piece)
            return None
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

    def sha256(self) -> str:
        """SHA-256 of what `fetch` would write now; writes nothing. Raises as `fetch`."""
        parts = parts_of(self._path)
        if not parts:
            return file_sha256(self._path)
        digest = hashlib.sha256()
        for piece in self._pieces(parts, joined(parts)):
            digest.update(piece)
        return digest.hexdigest()

    def _pieces(self, parts: Sequence[Path], whole: JoinedGguf) -> Iterator[bytes]:
        before = [_identity(part.stat()) for part in parts]
        yield from read_in_pieces(whole, COPY_BYTES)
        if [_identity(part.stat()) for part in parts] != before:
            raise SourceError(f"{self.text} changed while it was read; pull again")


def _identity(status: os.stat_result) -> str:
    return f"{status.st_dev}:{status.st_ino}:{status.st_size}:{status.st_mtime_ns}"
