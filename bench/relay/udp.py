"""A UDP link: datagrams of any number of clients to one server and back."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Any, TypeAlias

from bench.relay.lane import Conditions, Pump, Traffic

Address: TypeAlias = tuple[str, int]
_MAX_FLOWS = 256
"""Clients at once; a new one beyond replaces the least recently active one."""


class UdpLink:
    """Listens for clients; each gets a socket of its own towards the server."""

    def __init__(self, target: Address) -> None:
        self._target = target
        self._front: asyncio.DatagramTransport | None = None
        self._flows: OrderedDict[Address, asyncio.DatagramTransport] = OrderedDict()
        self._up: Pump[tuple[bytes, Address]] = Pump(self._to_server, ordered=False)
        self._down: Pump[tuple[bytes, Address]] = Pump(self._to_client, 1, ordered=False)
        self._opening: dict[Address, asyncio.Task[None]] = {}

    async def start(self) -> int:
        """The port to send to."""
        loop = asyncio.get_running_loop()
        self._front, _ = await loop.create_datagram_endpoint(
            lambda: _Front(self), local_addr=("127.0.0.1", 0)
        )
        return int(self._front.get_extra_info("sockname")[1])

    def set(self, up: Conditions, down: Conditions) -> None:
        """From the next datagram on."""
        self._up.lane.conditions, self._down.lane.conditions = up, down

    def take_traffic(self) -> tuple[Traffic, Traffic]:
        """Up and down since the last time."""
        return self._up.lane.take_traffic(), self._down.lane.take_traffic()

    async def stop(self) -> None:
        """Close every socket."""
        self._up.close()
        self._down.close()
        for task in self._opening.values():
            task.cancel()
        await asyncio.gather(*self._opening.values(), return_exceptions=True)
        for transport in (self._front, *self._flows.values()):
            if transport is not None:
                transport.close()

    def from_client(self, data: bytes, client: Address) -> None:
        """A datagram came in at the front."""
        self._up.send((data, client), len(data))

    def from_server(self, data: bytes, client: Address) -> None:
        """A datagram came back for this client."""
        self._down.send((data, client), len(data))

    def _to_server(self, packet: tuple[bytes, Address]) -> None:
        data, client = packet
        flow = self._flows.get(client)
        if flow is not None:
            self._flows.move_to_end(client)
            flow.sendto(data)
        elif client not in self._opening:
            self._opening[client] = asyncio.create_task(self._open(client, data))
        # else: lost, as while a path comes up; QUIC sends it again

    async def _open(self, client: Address, first: bytes) -> None:
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_datagram_endpoint(
            lambda: _Back(self, client), remote_addr=self._target
        )
        del self._opening[client]
        if len(self._flows) >= _MAX_FLOWS:
            self._flows.popitem(last=False)[1].close()
        self._flows[client] = transport
        transport.sendto(first)

    def _to_client(self, packet: tuple[bytes, Address]) -> None:
        assert self._front is not None
        self._front.sendto(*packet)


class _Front(asyncio.DatagramProtocol):
    def __init__(self, link: UdpLink) -> None:
        self._link = link

    def datagram_received(self, data: bytes, addr: tuple[str | Any, int]) -> None:
        self._link.from_client(data, (addr[0], addr[1]))


class _Back(asyncio.DatagramProtocol):
    def __init__(self, link: UdpLink, client: Address) -> None:
        self._link = link
        self._client = client

    def datagram_received(self, data: bytes, addr: tuple[str | Any, int]) -> None:
        self._link.from_server(data, self._client)
