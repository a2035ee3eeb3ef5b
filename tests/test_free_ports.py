"""Ports that nobody takes while a service restarts."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider import free_ports
from outrider.free_ports import candidates, free_tcp_port, free_udp_port, port_ranges


@given(st.tuples(st.integers(1, 65535), st.integers(1, 65535)).map(sorted))
def test_candidates_are_never_a_connections_own_port(ends: list[int]) -> None:
    low, high = ends
    reserved = [range(30_000, 30_011)]
    found = candidates((low, high), reserved)
    assert found
    if len(found) < 65_536 - 20_000:
        assert not [port for port in found if low <= port <= high or port in reserved[0]]


def test_without_a_port_beyond_the_range_any_will_do() -> None:
    assert candidates((1024, 65_535)) == list(range(20_000, 65_536))


def test_what_an_administrator_has_reserved() -> None:
    assert port_ranges("\n") == []
    assert port_ranges("8080,9000-9010\n") == [range(8080, 8081), range(9000, 9011)]


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM])
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_port_can_be_bound(kind: socket.SocketKind, host: str) -> None:
    port = free_tcp_port(host) if kind is socket.SOCK_STREAM else free_udp_port(host)
    low, high = free_ports._ephemeral()
    assert not low <= port <= high
    family, _, _, _, address = socket.getaddrinfo(host, port, type=kind)[0]
    with socket.socket(family, kind) as sock:
        sock.bind(address)


def test_no_port_is_given_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    ports = [free_tcp_port(), free_tcp_port()]
    monkeypatch.setattr(free_ports, "candidates", lambda *_: list(ports))
    with pytest.raises(OSError, match="no free port"):
        free_tcp_port()
    # Nor by another process, as long as this one lives.
    other = f"""
from outrider import free_ports
free_ports.candidates = lambda *_: {ports}
try:
    free_ports.free_tcp_port()
except OSError:
    print("none")
print(free_ports.free_udp_port() in {ports})
"""
    done = subprocess.run([sys.executable, "-c", other], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["none", "True"]


def test_a_port_that_somebody_listens_on_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr(free_ports, "candidates", lambda *_: [port])
        with pytest.raises(OSError, match="no free port"):
            free_tcp_port()
