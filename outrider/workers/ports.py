"""Sockets of one address for several processes (SO_REUSEPORT, socket(7)).

The parent opens all of them and keeps those of a dead process open: the kernel numbers the sockets
of a port in the order in which they were bound or began to listen, and would otherwise renumber
them.
"""

from __future__ import annotations

import contextlib
import ctypes
import socket
import struct
import sys
from collections.abc import Sequence
from typing import Final

from outrider.errors import ConfigError
from outrider.workers.steering import Instruction, assembled

_SO_ATTACH_REUSEPORT_CBPF: Final = 51
"""asm-generic/socket.h; Python has no name for it."""
_BACKLOG: Final = 4096
_TRIES: Final = 50


def _check_platform() -> None:
    if sys.platform != "linux":
        raise ConfigError(
            "a service of several processes needs Linux; set processes to 1, and run one service "
            "for each core"
        )


def bind_group(kind: socket.SocketKind, host: str, port: int, count: int) -> list[socket.socket]:
    """`count` sockets of one port (0: any free one); those of TCP listen. Raises ConfigError if the
    port is taken, even by another group of this user."""
    _check_platform()
    transport = "UDP" if kind is socket.SOCK_DGRAM else "TCP"
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=kind)[0]
        with socket.socket(family, kind) as alone:
            if kind is socket.SOCK_STREAM:
                alone.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            alone.bind(address)  # who shares the port already, refuses
            port = alone.getsockname()[1]
        with contextlib.ExitStack() as opened:
            group = [
                opened.enter_context(_shared(family, kind, (address[0], port, *address[2:])))
                for _ in range(count)
            ]
            opened.pop_all()
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {transport} {host}:{port} ({error}); set another port, or 0 for any"
        ) from error
    return group


def _shared(
    family: socket.AddressFamily, kind: socket.SocketKind, address: tuple[object, ...]
) -> socket.socket:
    made = socket.socket(family, kind)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if kind is socket.SOCK_STREAM:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.setblocking(False)
        made.bind(address)
        if kind is socket.SOCK_STREAM:
            made.listen(_BACKLOG)
    except BaseException:
        made.close()
        raise
    return made


def steer(group: Sequence[socket.socket], program: Sequence[Instruction]) -> None:
    """Have the kernel choose one of the group by this program from now on. Raises ConfigError where
    it cannot."""
    code = ctypes.create_string_buffer(assembled(program))
    pointer = struct.pack("HP", len(program), ctypes.addressof(code))
    try:
        group[0].setsockopt(socket.SOL_SOCKET, _SO_ATTACH_REUSEPORT_CBPF, pointer)
    except OSError as error:
        raise ConfigError(
            f"this system cannot give datagrams to several processes by connection ID ({error}): "
            "set processes to 1"
        ) from error


def reserve_row(host: str, port: int, count: int) -> list[socket.socket]:
    """TCP sockets of `count` consecutive ports (0: any free ones). They do not listen, but are
    bound so that only this user's sockets that share ports can listen on them. Raises ConfigError
    if one is taken."""
    _check_platform()
    failure: OSError | None = None
    for _ in range(1 if port else _TRIES):
        try:
            return _row(host, port, count)
        except OSError as error:
            failure = error
    raise ConfigError(
        f"cannot listen on TCP {host}:{port} and the {count - 1} ports behind it ({failure}); set "
        "another port, or 0 for any"
    ) from failure


def _row(host: str, port: int, count: int) -> list[socket.socket]:
    family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    row: list[socket.socket] = []
    with contextlib.ExitStack() as opened:
        for number in range(count):
            wanted = row[0].getsockname()[1] + number if row else port
            with socket.socket(family, kind) as alone:
                alone.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                alone.bind((address[0], wanted, *address[2:]))
                wanted = alone.getsockname()[1]
            one = opened.enter_context(socket.socket(family, kind))
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            one.bind((address[0], wanted, *address[2:]))
            row.append(one)
        opened.pop_all()
    return row
