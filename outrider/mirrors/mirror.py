"""A place that has models by digest, whichever protocol it speaks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Final, Protocol, runtime_checkable

READ_BYTES: Final = 256 << 10
"""Read from a source at a time."""
TIMEOUT_S: Final = 30.0
"""Timeout for connecting, and between two bytes of a connection."""


class LacksError(Exception):
    """The mirror does not have what was asked for."""


class RefusedError(Exception):
    """The mirror refuses the file for good; the text says what to do."""


class BrokeOffError(Exception):
    """The mirror could not be reached, or ended too soon: worth another attempt."""


class Mirror(Protocol):
    """A place to read shards from. Safe for several threads."""

    @property
    def text(self) -> str:
        """Its name in the configuration, without secrets."""
        ...

    def open(
        self, name: str, offset: int = 0
    ) -> AbstractContextManager[tuple[int, Iterator[bytes]]]:
        """A file's bytes from `offset` on, or from 0 if the mirror cannot skip: the offset at which
        they begin, and the bytes in pieces. The context, and reading, raise LacksError,
        RefusedError and BrokeOffError."""
        ...


@runtime_checkable
class WritableMirror(Mirror, Protocol):
    """A place to push models to."""

    def num_bytes(self, name: str) -> int | None:
        """Size of a file; None if it does not exist. Raises as `open` does."""
        ...

    def put(self, name: str, data: bytes) -> None:
        """Write a file, which appears whole or not at all. Raises as `open` does."""
        ...
