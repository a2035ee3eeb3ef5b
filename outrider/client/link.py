"""Connecting to an edge, and again when the connection is lost."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from typing import Final

from outrider.client.address import EdgeAddress
from outrider.client.dialling import LIMITS, Dialled, dial, dial_quic
from outrider.client.known_edges import KnownEdges
from outrider.client.list_reader import ListReader
from outrider.client.protocol import CloseCode
from outrider.client.recovery import Attempts, ReconnectPolicy
from outrider.client.streams import Connection
from outrider.client.tickets import SessionTickets
from outrider.client.ways import Way
from outrider.errors import DrainingError, OutriderError, UnavailableError

log = logging.getLogger("outrider.client")
log.addHandler(logging.NullHandler())

_LEAST_SPREAD: Final = 0.5


def spread() -> float:
    """Random factor of a delay: clients that lost one edge do not reconnect at the same time."""
    return random.uniform(_LEAST_SPREAD, 1.0)


class Link:
    """Connects, and connects again when somebody needs it after a loss, or when the edge is being
    stopped: to the same edge first, which still has the chats, unless it is being stopped or did
    not answer, then to the others. `open_link` makes one."""

    def __init__(
        self,
        edges: KnownEdges,
        address: EdgeAddress,
        dialled: Dialled,
        tickets: SessionTickets,
        policy: ReconnectPolicy | None,
        lists: ListReader | None = None,
    ) -> None:
        """`lists` keeps the list of `edges`; None: they have none."""
        self._edges = edges
        self._lists = lists
        self._address = address
        """To which of them the present connection is."""
        self._tickets = tickets
        self._left: list[Connection] = []
        """Earlier connections, on which chats may still run."""
        self._redialling: asyncio.Task[Connection] | None = None
        self._better: asyncio.Task[Connection] | None = None
        """Of a connection that nobody has answered yet: the one to use instead (Dialled.better)."""
        self._trying_quic: asyncio.Task[None] | None = None
        self._quic_due_at = 0.0
        """Loop time from which QUIC is tried again beside a connection over TCP."""
        self._has_told = False
        """Whether it was logged that UDP does not get through."""
        self.policy = policy
        """How lost connections are replaced; None: they are not."""
        self.is_closed = False
        self._connection = dialled.connection
        self._use(dialled)

    @property
    def connection(self) -> Connection:
        """The present connection; it may be lost."""
        return self._connection

    async def usable(self) -> Connection:
        """The present connection, or another one if it is lost or leaving. Raises OutriderError if
        none can be made."""
        if self.is_closed:
            raise UnavailableError("the client is closed")
        if self._connection.lost is None and not self._connection.is_leaving:
            self._try_quic_again()
            self._look_at_list()
            return self._connection
        if self.policy is None:
            raise self._connection.lost or DrainingError("the edge is being stopped; connect again")
        if self._redialling is None or self._redialling.done():
            self._redialling = asyncio.create_task(self._redial(self.policy))
            self._redialling.add_done_callback(lambda task: task.cancelled() or task.exception())
        redialling = self._redialling
        try:
            return await asyncio.shield(redialling)
        except asyncio.CancelledError:
            if redialling.cancelled():  # by `close`: nobody cancelled who waits here
                raise UnavailableError("the client is closed") from None
            raise

    async def migrate(self) -> None:
        """Continue from another socket. Raises UnavailableError if the edge cannot be reached
        now."""
        await self._connection.migrate()

    def close(self) -> None:
        """Close all connections; their chats end."""
        self.is_closed = True
        for task in (self._redialling, self._better, self._trying_quic):
            if task is not None:
                task.cancel()
        if self._lists is not None:
            self._lists.close()
        for connection in (self._connection, *self._left):
            connection.shut()

    def _use(self, dialled: Dialled) -> None:
        """Make a connection the present one."""
        self._connection = dialled.connection
        self._better = dialled.better
        self._look_at_list()
        if self._better is not None:
            self._better.add_done_callback(self._settled)
        elif self._connection.way is Way.TCP:
            self._quic_due_at = asyncio.get_running_loop().time() + LIMITS.remembered_s
            self._tell_way()

    def _look_at_list(self) -> None:
        if self._lists is not None:
            self._lists.look(self._connection)

    def _settled(self, search: asyncio.Task[Connection]) -> None:
        """It is known which way leads to the edge of a connection that was used before. If that is
        another connection, the first one is lost, and its chats come back for this one."""
        if search is self._better:
            self._better = None
        if search.cancelled() or search.exception() is not None:
            return
        found = search.result()
        if found is self._connection:
            return
        if self.is_closed:
            found.shut(CloseCode.COMING_BACK)
        else:
            self._use(Dialled(found))

    def _tell_way(self) -> None:
        if not self._has_told:
            self._has_told = True
            log.info("QUIC does not get through to %s; chats go over TCP", self._address)

    def _try_quic_again(self) -> None:
        """Beside chats over TCP, now and then."""
        now = asyncio.get_running_loop().time()
        if self._connection.way is Way.TCP and self.policy is not None and now >= self._quic_due_at:
            self._quic_due_at = now + LIMITS.remembered_s
            self._trying_quic = asyncio.create_task(self._move_to_quic(self.policy))

    async def _move_to_quic(self, policy: ReconnectPolicy) -> None:
        before = self._connection
        try:
            found = await dial_quic(self._address, policy.attempt_timeout_s, self._tickets)
        except OutriderError:
            return  # not now
        if before is not self._connection or before.lost is not None:
            found.shut(CloseCode.COMING_BACK)  # another one was found meanwhile
            return
        self._leave(before)
        self._use(Dialled(found))

    async def _redial(self, policy: ReconnectPolicy) -> Connection:
        if self._better is not None:  # it has been searched for since before
            with contextlib.suppress(OutriderError):
                await asyncio.shield(self._better)
            if self._connection.lost is None:
                return self._connection
        attempts = Attempts(policy)
        loop = asyncio.get_running_loop()
        last, process_name = self._address, self._connection.process_name
        order = self._edges.in_order(time.time(), last)
        if self._connection.is_leaving or not self._connection.was_established:
            order = (*order[1:], last)
        self._leave(self._connection)
        while True:
            for address in order:
                try:
                    dialled = await dial(
                        address,
                        policy.attempt_timeout_s,
                        self._tickets,
                        early=True,
                        process_name=process_name if address == last else b"",
                    )
                except OutriderError as error:
                    failure = error
                    continue  # the others first
                self._address = address
                self._use(dialled)
                return self._connection
            delay_s = attempts.next_delay(loop.time(), spread(), failure.retry_delay_ms / 1000)
            if delay_s is None:
                raise failure
            await asyncio.sleep(delay_s)

    def _leave(self, connection: Connection) -> None:
        if connection not in self._left:
            self._left.append(connection)
        for left in self._left:
            if left.lost is not None or left.is_idle:
                # The edge keeps the chats: it may not have noticed yet, and this is no farewell.
                left.shut(CloseCode.COMING_BACK)
        self._left = [left for left in self._left if left.lost is None]


async def open_link(
    edges: KnownEdges,
    timeout_s: float,
    tickets: SessionTickets,
    policy: ReconnectPolicy | None,
    *,
    early: bool,
    lists: ListReader | None = None,
) -> Link:
    """Connect for the first time, to the first of the edges that answers. Raises as `dial` does."""
    if lists is not None:
        await lists.load()
    *others, last = edges.in_order(time.time())
    for address in others:
        with contextlib.suppress(OutriderError):
            dialled = await dial(address, timeout_s, tickets, early=early)
            return Link(edges, address, dialled, tickets, policy, lists)
    dialled = await dial(last, timeout_s, tickets, early=early)
    return Link(edges, last, dialled, tickets, policy, lists)
