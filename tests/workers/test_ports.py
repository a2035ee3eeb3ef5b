"""Ports of several processes: theirs alone."""

from __future__ import annotations

import socket

import pytest

from outrider.errors import ConfigError
from outrider.workers import ports


@pytest.mark.parametrize("kind", [socket.SOCK_DGRAM, socket.SOCK_STREAM])
def test_a_second_group_does_not_join_the_first_at_its_port(kind: socket.SocketKind) -> None:
    group = ports.bind_group(kind, "127.0.0.1", 0, 2)
    port = group[0].getsockname()[1]
    assert group[1].getsockname()[1] == port
    with pytest.raises(ConfigError, match=f":{port}"):
        ports.bind_group(kind, "127.0.0.1", port, 2)
    for each in group:
        each.close()
    for each in ports.bind_group(kind, "127.0.0.1", port, 2):
        each.close()


def test_a_row_of_ports_is_kept_for_who_shares_them() -> None:
    row = ports.reserve_row("127.0.0.1", 0, 3)
    numbers = [each.getsockname()[1] for each in row]
    assert numbers == list(range(numbers[0], numbers[0] + 3))
    with socket.socket() as stranger, pytest.raises(OSError):
        stranger.bind(("127.0.0.1", numbers[1]))
    with socket.socket() as ours:
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        ours.bind(("127.0.0.1", numbers[1]))
        ours.listen()
        with socket.create_connection(("127.0.0.1", numbers[1])):
            ours.accept()[0].close()
        with pytest.raises(ConfigError, match="ports behind it"):
            ports.reserve_row("127.0.0.1", numbers[0], 3)
    for each in row:
        each.close()
