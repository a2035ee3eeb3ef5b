"""A model's folder on this machine, as one artifact: a tar archive of the files that are used.

An archive has one digest, so that it is pinned, fetched and verified like any file. It depends only
on the files' names and bytes: names in order, no times, owners or modes.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tarfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import BinaryIO, Final, TypeAlias

from outrider.errors import SourceError
from outrider.models.disk.fetch import COPY_BYTES, PartialFetch
from outrider.models.safetensors_file import Extent, read_header
from outrider.models.sources.members import (
    CHECKPOINT_INDEX,
    MAX_INDEX_BYTES,
    POOLING,
    choose_members,
    is_weights_file,
)

_Write: TypeAlias = Callable[[bytes], None]

_BLOCK_BYTES: Final = tarfile.BLOCKSIZE
ARCHIVE_END: Final = bytes(2 * _BLOCK_BYTES)


class FolderSource:
    """`dir:PATH`: a folder as models are published, with a graph of OpenVINO's or a checkpoint in
    safetensors."""

    def __init__(self, path: Path, text: str = "") -> None:
        """`text`: the canonical one, where the folder is a part of something else."""
        self._path = path
        self._text = text or f"dir:{path}"

    @property
    def text(self) -> str:
        """The canonical text, with the absolute path."""
        return self._text

    def fetch(self, partial: PartialFetch, scratch: Path) -> str | None:
        """Write the archive. Raises SourceError if a file is missing or changes meanwhile,
        UnsupportedModelError for a folder of another kind, ArtifactCorruptError for a checkpoint
        whose headers contradict themselves."""
        sizes = self._sizes()
        partial.begin("", offset=0, total_bytes=archive_bytes(sizes.values()))
        self._archive(sizes, partial.write)
        return None

    def sha256(self) -> str:
        """SHA-256 of the archive that `fetch` would write now; writes nothing. Raises as
        `fetch`."""
        digest = hashlib.sha256()
        self._archive(self._sizes(), digest.update)
        return digest.hexdigest()

    def _archive(self, sizes: Mapping[str, int], write: _Write) -> None:
        for name, size in sizes.items():
            write(member_header(name, size))
            self._copy(name, size, write)
            write(member_padding(size))
        write(ARCHIVE_END)

    def _sizes(self) -> dict[str, int]:
        """By name, once the headers of checkpoints are known to be whole."""
        sizes = {name: self._size(name) for name in self._names()}
        for name in filter(is_weights_file, sizes):
            read_header(Extent(name, self._path / name, 0, sizes[name]))
        return sizes

    def _names(self) -> list[str]:
        try:
            there = {entry.name for entry in os.scandir(self._path)}
        except OSError as error:
            raise SourceError(f"{self.text} cannot be read: {error.strerror}") from error
        if (self._path / POOLING).exists():
            there.add(POOLING)
        return choose_members(there, self.text, self._index)

    def _index(self) -> bytes:
        with self._open(CHECKPOINT_INDEX) as file:
            return file.read(MAX_INDEX_BYTES + 1)

    def _size(self, name: str) -> int:
        with self._open(name) as file:
            return os.fstat(file.fileno()).st_size

    def _open(self, name: str) -> BinaryIO:
        try:
            # Not blocking: opening a named pipe for reading would otherwise wait for a writer.
            descriptor = os.open(self._path / name, os.O_RDONLY | os.O_NONBLOCK)
        except OSError as error:
            raise SourceError(f"{self.text}: {name} cannot be read: {error.strerror}") from error
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise SourceError(f"{self.text}: {name} is not a regular file")
        return os.fdopen(descriptor, "rb")

    def _copy(self, name: str, size: int, write: _Write) -> None:
        with self._open(name) as file:
            before = os.fstat(file.fileno())
            left = size
            while left and (chunk := file.read(min(left, COPY_BYTES))):
                write(chunk)
                left -= len(chunk)
            after = os.fstat(file.fileno())
            if left or (after.st_size, after.st_mtime_ns) != (size, before.st_mtime_ns):
                raise SourceError(f"{self.text}: {name} changed while it was read; try again")


def archive_bytes(sizes: Iterable[int]) -> int:
    """Size in bytes of an archive of files of these sizes."""
    blocks = sum(len(member_header("", 0)) + size + len(member_padding(size)) for size in sizes)
    return blocks + len(ARCHIVE_END)


def member_header(name: str, size: int) -> bytes:
    """The archive's bytes in front of a file."""
    info = tarfile.TarInfo(name)
    info.size = size
    return info.tobuf(format=tarfile.GNU_FORMAT)


def member_padding(size: int) -> bytes:
    """The archive's bytes behind a file of `size` bytes."""
    return bytes(-size % _BLOCK_BYTES)
