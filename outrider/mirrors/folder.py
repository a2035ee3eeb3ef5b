"""`file:PATH`: a folder of this machine as a mirror, or one that a web server or a network disk
shows to others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from outrider.durable_files import write_atomic
from outrider.mirrors.mirror import READ_BYTES, BrokeOffError, LacksError


class FolderMirror:
    """Files below one folder."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def text(self) -> str:
        return f"file:{self._path}"

    @contextmanager
    def open(self, name: str, offset: int = 0) -> Iterator[tuple[int, Iterator[bytes]]]:
        try:
            file = (self._path / name).open("rb")
        except FileNotFoundError as error:
            raise LacksError from error
        except OSError as error:
            raise BrokeOffError(str(error)) from error
        with file:
            file.seek(offset)
            yield offset, iter(lambda: file.read(READ_BYTES), b"")

    def num_bytes(self, name: str) -> int | None:
        try:
            return (self._path / name).stat().st_size
        except FileNotFoundError:
            return None

    def put(self, name: str, data: bytes) -> None:
        try:
            write_atomic(self._path / name, data, mode=0o644)  # a web server has to read it
        except OSError as error:
            raise BrokeOffError(str(error)) from error
