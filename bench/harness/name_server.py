"""A DNS server that answers what it is told to answer. UDP alone, RFC 1035."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import dns.flags
import dns.message
import dns.name
import dns.rcode
import dns.rdataclass
import dns.rdatatype
import dns.rrset


class NameServer(asyncio.DatagramProtocol):
    """`records` maps (name, type) to texts; a name without any does not exist."""

    def __init__(self) -> None:
        self.records: dict[tuple[str, str], list[str]] = {}
        self.rcode = dns.rcode.NOERROR
        """Anything else is answered to all questions."""
        self.is_silent = False
        self.asked: list[tuple[str, str]] = []
        self.address = ""
        self._transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)
        host, port = transport.get_extra_info("sockname")
        self.address = f"{host}:{port}"

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        query = dns.message.from_wire(data)
        (question,) = query.question
        name = question.name.to_text(omit_final_dot=True)
        kind = dns.rdatatype.to_text(question.rdtype)
        self.asked.append((name, kind))
        if self.is_silent:
            return
        response = dns.message.make_response(query)
        response.flags |= dns.flags.RA
        response.set_rcode(self.rcode)
        if self.rcode == dns.rcode.NOERROR:
            self._answer(response, question.name, name, kind)
        assert self._transport is not None
        self._transport.sendto(response.to_wire(), addr)

    def _answer(
        self, response: dns.message.Message, asked: dns.name.Name, name: str, kind: str
    ) -> None:
        texts = self.records.get((name, kind))
        if texts:
            response.answer.append(dns.rrset.from_text_list(asked, 5, "IN", kind, texts))
        elif not any(known == name for known, _ in self.records):
            response.set_rcode(dns.rcode.NXDOMAIN)


@asynccontextmanager
async def running_name_server(host: str = "127.0.0.1") -> AsyncIterator[NameServer]:
    """A name server on a free port, stopped at the end."""
    loop = asyncio.get_running_loop()
    transport, server = await loop.create_datagram_endpoint(NameServer, local_addr=(host, 0))
    try:
        yield server
    finally:
        transport.close()
