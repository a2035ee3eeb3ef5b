"""Resources shared by the processes of an edge, opened by their parent."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
from typing import Final

from outrider.process import Ports
from outrider.workers import ports, steering
from outrider.workers.worker import Worker
from services.edge.config import EdgeConfig
from services.edge.processes.usage import SharedUsage, make_memory
from services.edge.quic import certificate

_SECRET_BYTES: Final = 32


class EdgeGroup:
    """One UDP port and one TCP port, a certificate, a secret, and the memory to count in."""

    def __init__(self, config: EdgeConfig) -> None:
        """Raises ConfigError."""
        self.count = config.processes
        if config.certificate is None:
            # Made before there are several who would make it.
            certificate.ensure(config.tls_folder, config.server_names, certificate.utc_now())
        self._secret = secrets.token_hex(_SECRET_BYTES)
        self._connections: list[socket.socket] = []
        with contextlib.ExitStack() as opened:
            self._datagrams = ports.bind_group(
                socket.SOCK_DGRAM, config.host, config.port, self.count
            )
            opened.callback(_close, self._datagrams)
            if config.http.port is not None:
                http = config.http
                self._connections = ports.bind_group(
                    socket.SOCK_STREAM, http.host, http.port or 0, self.count
                )
                opened.callback(_close, self._connections)
            self._memory = make_memory(self.count)
            opened.callback(os.close, self._memory)
            self.set_live(frozenset())
            self._opened = opened.pop_all()
        self._usage = SharedUsage(self._memory, 0, self.count)

    @property
    def ports(self) -> Ports:
        """Ports of all processes together."""
        http = self._connections[0].getsockname()[1] if self._connections else 0
        return Ports(main=self._datagrams[0].getsockname()[1], admin=0, http=http)

    @property
    def kept(self) -> list[int]:
        """The UDP sockets: as long as all of them are open, the kernel numbers them as it did."""
        return [each.fileno() for each in self._datagrams]

    def worker(self, index: int) -> Worker:
        """Configuration passed to process `index`."""
        return Worker(
            index,
            self.count,
            self._secret,
            datagrams=self._datagrams[index].fileno(),
            connections=self._connections[index].fileno() if self._connections else -1,
            usage=self._memory,
        )

    def set_live(self, live: frozenset[int]) -> None:
        """New connections go to these, and datagrams of processes that do not run."""
        ports.steer(self._datagrams, steering.datagram_program(self.count, live))
        if self._connections:
            ports.steer(self._connections, steering.connection_program(live))

    def ended(self, index: int) -> None:
        """A process is gone: what its clients held counts no more."""
        self._usage.clear(index)

    def stop_listening(self) -> None:
        """No TCP connection is taken any more. Datagrams still are, for chats under way."""
        _close(self._connections)
        self._connections.clear()

    def close(self) -> None:
        """All processes have ended."""
        self._opened.close()


def _close(sockets: list[socket.socket]) -> None:
    for each in sockets:
        each.close()


def open_group(config: EdgeConfig) -> EdgeGroup:
    """Raises ConfigError."""
    return EdgeGroup(config)
