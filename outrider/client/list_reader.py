"""Asks edges for the signed list of edges, keeps it in a file, and measures how far they are."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from hashlib import sha256
from pathlib import Path
from typing import Final

from outrider.client.dialling import dial
from outrider.client.known_edges import KnownEdges
from outrider.client.question import answer
from outrider.client.streams import Connection
from outrider.client.tickets import SessionTickets
from outrider.client.wire import DESCRIBE, read_description
from outrider.durable_files import write_atomic
from outrider.edge_list import MAX_BYTES
from outrider.errors import EdgeListError, OutriderError

log = logging.getLogger("outrider.client")

ASK_AGAIN_S: Final = 600.0
"""So long after an answer the edge is asked again, when the connection is used."""
MEASURE_AFTER_S: Final = 5.0
"""A program that ends within this time of its connecting makes no handshakes with other edges."""
MAX_MEASURED: Final = 16
"""Edges of one list with which a handshake is made; the rest comes after them, as listed."""
_HANDSHAKE_S: Final = 3.0


class ListReader:
    """Keeps the list of a client as new as its edges have it."""

    def __init__(
        self,
        known: KnownEdges,
        file: Path | None = None,
        *,
        measure_after_s: float = MEASURE_AFTER_S,
    ) -> None:
        """`file`: keeps the list for the next start of the program."""
        self._known = known
        self._file = file
        self._measure_after_s = measure_after_s
        self._asking: asyncio.Task[None] | None = None
        self._asked: Connection | None = None
        """The connection on which the edge was asked last."""
        self._due_at = 0.0
        """Loop time from which it is asked again."""
        self._refused = b""
        """Digest of the last list that was refused: each is told once."""

    async def load(self) -> None:
        """Take the list of the file, if it has one."""
        if self._file is None:
            return
        try:
            self._known.take_kept(await asyncio.to_thread(_contents, self._file))
        except FileNotFoundError:
            pass  # this is the first start
        except (OSError, EdgeListError) as error:
            log.warning("the list of edges in %s is not used: %s", self._file, error)

    def look(self, connection: Connection) -> None:
        """Ask the edge of a connection that is about to be used, if that is due."""
        now = asyncio.get_running_loop().time()
        if connection is self._asked and now < self._due_at:
            return
        self._asked, self._due_at = connection, now + ASK_AGAIN_S
        self.close()
        self._asking = asyncio.create_task(self._ask(connection))

    def close(self) -> None:
        """End what is under way."""
        if self._asking is not None:
            self._asking.cancel()

    async def _ask(self, connection: Connection) -> None:
        try:
            edge = await answer(connection, DESCRIBE, read_description)
        except OutriderError:
            return  # the edge of the next connection is asked
        if edge.edge_list:
            await self._take(edge.name, edge.edge_list)
        await self._measure()

    async def _take(self, edge: str, text: bytes) -> None:
        try:
            is_newer = self._known.take(text, time.time())
        except EdgeListError as error:
            digest = sha256(text).digest()
            if digest != self._refused:
                self._refused = digest
                log.warning("the list of edges that %s has is not used: %s", edge, error)
            return
        if not is_newer or self._file is None:
            return
        try:
            await asyncio.to_thread(write_atomic, self._file, text)
        except OSError as error:
            log.warning("the list of edges is not kept in %s: %s", self._file, error)

    async def _measure(self) -> None:
        """One handshake with each edge, one after the other."""
        edges = self._known.unmeasured(time.time())[:MAX_MEASURED]
        if not edges:
            return
        await asyncio.sleep(self._measure_after_s)
        loop = asyncio.get_running_loop()
        for edge in edges:
            began = loop.time()
            try:
                # No ticket is used up for it.
                dialled = await dial(edge, _HANDSHAKE_S, SessionTickets())
            except OutriderError:
                self._known.measured(edge, math.inf)
                continue
            self._known.measured(edge, loop.time() - began)
            dialled.connection.shut()


def _contents(file: Path) -> bytes:
    with file.open("rb") as source:
        return source.read(MAX_BYTES + 1)
