"""The signed list of the mesh's edges, which an edge has from a file and hands to its clients."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from outrider.config_following import ConfigSource, Configured, Update, following
from outrider.edge_list import MAX_BYTES, EdgeList, read
from outrider.errors import ConfigError, EdgeListError
from outrider.models.catalog import SHIPPED

_log = structlog.get_logger()

POLL_S: Final = 1.0
"""Time between two looks at the file; a change counts when two looks find the same."""


@dataclass(frozen=True, slots=True)
class StoredList:
    """Contents of the file."""

    text: bytes
    """As clients get it."""
    edges: EdgeList


class _ListSource(ConfigSource[StoredList]):
    def __init__(self, file: Path) -> None:
        super().__init__(StoredList, "", file)

    def read(self) -> Configured[StoredList]:
        """The list of the file, in the form of ConfigSource.read."""
        return Configured(_read(self.file), SHIPPED)


@contextlib.asynccontextmanager
async def list_followed(
    file: Path, set_list: Callable[[StoredList], None], poll_s: float = POLL_S
) -> AsyncIterator[None]:
    """Call `set_list` with the list of the file, now and whenever it has changed. Clients check the
    signature; here a list only has to be one, and not older than the one before. Another one is
    logged, and the list stays as it is. Raises ConfigError."""
    running = await asyncio.to_thread(_read, file)
    _take(file, running, set_list)

    async def apply(update: Update[StoredList]) -> None:
        nonlocal running
        new = update.config
        if new.edges.version < running.edges.version:
            raise EdgeListError(
                f"{file} has version {new.edges.version}, and {running.edges.version} is served, "
                "so clients would refuse it; sign the list anew"
            )
        running = new
        _take(file, new, set_list)

    async with following(
        *(_ListSource(file), running, SHIPPED),
        live_keys={"text", "edges"},
        apply=apply,
        poll_s=poll_s,
    ):
        yield


def _take(file: Path, stored: StoredList, set_list: Callable[[StoredList], None]) -> None:
    edges = stored.edges
    told = {"version": edges.version, "num_edges": len(edges.edges), "ends_at": edges.valid_until}
    if edges.has_ended(time.time()):
        _log.warning("edge_list_ended", file=str(file), effect="clients refuse it", **told)
    else:
        _log.info("edge_list", file=str(file), **told)
    set_list(stored)


def _read(file: Path) -> StoredList:
    try:
        with file.open("rb") as source:
            text = source.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"cannot read the list of edges in {file}: {error.strerror}") from error
    try:
        return StoredList(text, read(text).edges)
    except EdgeListError as error:
        raise EdgeListError(f"{file}: {error.message}") from error
