"""A model's folder on this machine, as one artifact: a tar archive of the files that are used.

An archive has one digest, so that it is pinned, fetched and verified like any file. It depends on
the files' names and bytes alone: names in order, no times, owners or modes.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import BinaryIO, Final, TypeAlias

from outrider.errors import SourceError, UnsupportedModelError
from outrider.models.disk.fetch import COPY_BYTES, PartialFetch

GRAPH: Final = "openvino_model.xml"
WEIGHTS: Final = "openvino_model.bin"
CONFIG: Final = "config.json"
TOKENIZER: Final = "tokenizer.json"
TOKENIZER_CONFIG: Final = "tokenizer_config.json"
GENERATION_CONFIG: Final = "generation_config.json"
TEMPLATE: Final = "chat_template.jinja"
TEMPLATE_JSON: Final = "chat_template.json"
NEEDED: Final = frozenset({GRAPH, WEIGHTS, CONFIG, TOKENIZER})
OPTIONAL: Final = frozenset({TOKENIZER_CONFIG, GENERATION_CONFIG, TEMPLATE, TEMPLATE_JSON})
SERVED: Final = (
    f"what can be served is a GGUF file (file:PATH), or a folder (dir:PATH) with {GRAPH}, "
    f"{WEIGHTS}, {CONFIG} and {TOKENIZER}"
)
_Write: TypeAlias = Callable[[bytes], None]

_BLOCK_BYTES: Final = tarfile.BLOCKSIZE
_END_BYTES: Final = 2 * _BLOCK_BYTES


class FolderSource:
    """`dir:PATH`: a folder as OpenVINO's organisation publishes models."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def text(self) -> str:
        """The canonical text, with the absolute path."""
        return f"dir:{self._path}"

    def fetch(self, partial: PartialFetch, scratch: Path) -> str | None:
        """Write the archive. SourceError if a file is missing or changes meanwhile,
        UnsupportedModelError for a folder of another kind."""
        sizes = self._sizes()
        total_bytes = _END_BYTES + sum(_BLOCK_BYTES + _padded(size) for size in sizes.values())
        partial.begin("", offset=0, total_bytes=total_bytes)
        self._archive(sizes, partial.write)
        return None

    def sha256(self) -> str:
        """Of the archive that `fetch` would write now; nothing is written. Errors as of `fetch`."""
        digest = hashlib.sha256()
        self._archive(self._sizes(), digest.update)
        return digest.hexdigest()

    def _archive(self, sizes: Mapping[str, int], write: _Write) -> None:
        for name, size in sizes.items():
            write(_header(name, size))
            self._copy(name, size, write)
            write(bytes(_padded(size) - size))
        write(bytes(_END_BYTES))

    def _sizes(self) -> dict[str, int]:
        return {name: self._size(name) for name in self._names()}

    def _names(self) -> list[str]:
        try:
            there = {entry.name for entry in os.scandir(self._path)}
        except OSError as error:
            raise SourceError(f"{self.text} cannot be read: {error.strerror}") from error
        missing = sorted(NEEDED - there)
        if missing and any(name.endswith(".safetensors") for name in there):
            raise UnsupportedModelError(
                f"{self.text} holds safetensors, which cannot be served; {SERVED}"
            )
        if missing:
            raise SourceError(f"{self.text} lacks {', '.join(missing)}; {SERVED}")
        return sorted(there & (NEEDED | OPTIONAL))

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


def _padded(size: int) -> int:
    return -(-size // _BLOCK_BYTES) * _BLOCK_BYTES


def _header(name: str, size: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.size = size
    return info.tobuf(format=tarfile.GNU_FORMAT)
