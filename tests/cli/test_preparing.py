"""What `outrider up` checks before it starts anything."""

from __future__ import annotations

import socket

import pytest

from outrider.cli.local.preparing import check_ports
from outrider.errors import UnavailableError

HOST = "127.0.0.1"


@pytest.mark.parametrize(
    ("kind", "flag"), [(socket.SOCK_DGRAM, "--port"), (socket.SOCK_STREAM, "--http-port")]
)
def test_a_port_that_is_taken_is_said_before_models_are_loaded(
    kind: socket.SocketKind, flag: str
) -> None:
    with socket.socket(socket.AF_INET, kind) as taken:
        taken.bind((HOST, 0))
        if kind is socket.SOCK_STREAM:
            taken.listen()
        port = taken.getsockname()[1]
        ports = (port, None) if flag == "--port" else (0, port)
        with pytest.raises(UnavailableError, match=f"port {port} .*another {flag},"):
            check_ports(HOST, *ports, count=1)
        with pytest.raises(UnavailableError, match=f"another {flag},"):
            check_ports(HOST, *(it and it - 1 for it in ports), count=2)  # the second edge's
    check_ports(HOST, *ports, count=1)
    check_ports(HOST, 0, None, count=2)
