"""Ports that a process can be started with again: nobody takes them while it is down.

A port that the system gives for port 0 comes from the range from which it also takes the source
ports of outgoing connections (RFC 6056 calls them ephemeral). While a service restarts, any
connection of any process may take its port. So ports are chosen outside that range, and kept: two
processes that choose at the same time never get the same one.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Final

_LOWEST: Final = 20_000
"""Below are the ports that services are known by."""
_IANA_EPHEMERAL: Final = (49_152, 65_535)
"""RFC 6335, section 6: used if the system does not report its range."""
_ATTEMPTS: Final = 200
_SETTINGS: Final = Path("/proc/sys/net/ipv4")

_random = random.SystemRandom()
_kept: list[socket.socket] = []
"""Sockets that reserve ports for this process until it ends."""


def free_tcp_port(host: str = "127.0.0.1") -> int:
    """A TCP port that no process listens on. While this process lives, neither outgoing connections
    nor other callers of this function take it. Raises OSError if no port is left."""
    return _keep(host, socket.SOCK_STREAM)


def free_udp_port(host: str = "127.0.0.1") -> int:
    """The same for UDP."""
    return _keep(host, socket.SOCK_DGRAM)


def candidates(ephemeral: tuple[int, int], reserved: Iterable[range] = ()) -> list[int]:
    """Ports outside the ephemeral range (both ends are in it) and those that an administrator has
    reserved for somebody; with none left, as where every port is ephemeral, all from 20,000 on."""
    low, high = ephemeral
    taken = {port for ports in reserved for port in ports}
    every = range(_LOWEST, 1 << 16)
    return [port for port in every if not low <= port <= high and port not in taken] or list(every)


def port_ranges(text: str) -> list[range]:
    """Port ranges in the format of `ip_local_reserved_ports`, such as "8080,9000-9010"."""
    found = []
    for part in text.strip().split(","):
        if part:
            first, _, last = part.partition("-")
            found.append(range(int(first), int(last or first) + 1))
    return found


def _keep(host: str, kind: socket.SocketKind) -> int:
    ports = candidates(_ephemeral(), _reserved())
    for port in _random.sample(ports, min(_ATTEMPTS, len(ports))):
        mark = _mark(port, kind)
        if mark is None:
            continue
        if _is_free(host, port, kind):
            _kept.append(mark)
            return port
        mark.close()
    raise OSError(f"no free port on {host} among {_ATTEMPTS} that were tried")


def _mark(port: int, kind: socket.SocketKind) -> socket.socket | None:
    """Holds the port's name among this machine's processes, or None if another holds it. The name
    is an abstract socket's (unix(7)): gone with the process, and one for each network namespace,
    like ports."""
    mark = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        mark.bind(f"\0outrider-port-{kind.name}-{port}")
    except OSError:
        mark.close()
        return None
    return mark


def _is_free(host: str, port: int, kind: socket.SocketKind) -> bool:
    family, _, _, _, address = socket.getaddrinfo(host, port, type=kind)[0]
    with socket.socket(family, kind) as probe:
        try:
            probe.bind(address)
        except OSError:
            return False
    return True


def _ephemeral() -> tuple[int, int]:
    try:
        low, high = (_SETTINGS / "ip_local_port_range").read_text(encoding="ascii").split()
    except OSError:
        return _IANA_EPHEMERAL
    return int(low), int(high)


def _reserved() -> list[range]:
    try:
        return port_ranges((_SETTINGS / "ip_local_reserved_ports").read_text(encoding="ascii"))
    except OSError:
        return []
