"""A place that has models by digest, whichever protocol it speaks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Final, Protocol, runtime_checkable

READ_BYTES: Final = 256 << 10
"""Read from a source at a time."""
TIMEOUT_S: Final = 30.0
"""Of a connection, and between two of its bytes."""


class LacksError(Exception):
    """The mirror does not have what was asked for."""


class RefusedError(Exception):
    """The mirror will not give it, however often it is asked; the text says what to do."""


class BrokeOffError(Exception):
    """The mirror could not be reached, or ended too soon: worth another attempt."""


class Mirror(Protocol):
    """Where shards are read. Safe for several threads."""

    @property
    def text(self) -> str:
        """What it was called in the configuration, without secrets."""
        ...

    def open(
        self, name: str, offset: int = 0
    ) -> AbstractContextManager[tuple[int, Iterator[bytes]]]:
        """A file's bytes from `offset` on, or from 0 where the mirror cannot do better: where they
        begin, and what there is, in pieces. The context, and reading, raise LacksError,
        RefusedError and BrokeOffError."""
        ...


@runtime_checkable
class WritableMirror(Mirror, Protocol):
    """Where models are pushed to."""

    def num_bytes(self, name: str) -> int | None:
        """Of a file that is there; None without one. Raises as `open` does."""
        ...

    def put(self, name: str, data: bytes) -> None:
        """Write a file, which appears whole or not at all. Raises as `open` does."""
        ...
