"""Which process a datagram goes to: by the rule, and by the kernel that was told it."""

from __future__ import annotations

import os
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.workers import ports, steering

COUNTS = st.integers(1, steering.MAX_PROCESSES)


@given(COUNTS, st.data(), st.binary(min_size=8, max_size=8))
def test_a_name_names_its_process_and_keeps_the_rest(
    count: int, data: st.DataObject, random: bytes
) -> None:
    process = data.draw(st.integers(0, count - 1))
    name = steering.naming(process, count, random)
    assert steering.process_of(name, count) == process
    assert name[4:] == random[4:]
    assert abs(int.from_bytes(name[:4], "big") - int.from_bytes(random[:4], "big")) < 2 * count


def short(cid: bytes) -> bytes:
    """A packet of a connection."""
    return b"\x40" + cid + bytes(20)


def long(cid: bytes) -> bytes:
    """A first packet."""
    return b"\xc0" + bytes([0, 0, 0, 1, len(cid)]) + cid + bytes(20)


def arrived(group: list[socket.socket]) -> list[list[bytes]]:
    """What waits in each socket."""
    found: list[list[bytes]] = []
    for each in group:
        found.append([])
        while True:
            try:
                found[-1].append(each.recv(100))
            except BlockingIOError:
                break
    return found


@pytest.mark.parametrize("live", [frozenset(), frozenset(range(3)), frozenset({0, 2}), {1}])
def test_the_kernel_gives_each_datagram_to_the_process_that_its_id_names(
    live: frozenset[int],
) -> None:
    """Those of a process that does not run go to one that does, always to the same."""
    count = 3
    group = ports.bind_group(socket.SOCK_DGRAM, "127.0.0.1", 0, count)
    sent: dict[bytes, int] = {}
    try:
        ports.steer(group, steering.datagram_program(count, live))
        for number in range(40):
            cid = os.urandom(8)
            with socket.socket(type=socket.SOCK_DGRAM) as client:  # another port each time
                packet = (short if number % 2 else long)(cid)
                client.sendto(packet, group[0].getsockname())
                client.sendto(packet, group[0].getsockname())
            sent[packet] = steering.process_of(cid, count)
        found = arrived(group)
    finally:
        for each in group:
            each.close()
    for packet, process in sent.items():
        at = [number for number, packets in enumerate(found) if packet in packets]
        assert found[at[0]].count(packet) == 2, "both went the same way"
        if process in live or not live:
            assert at == [process]
        else:
            assert at[0] in live
    if len(live) == 2:
        assert all(found[number] for number in live), "they share what the third had"


def test_short_datagrams_go_to_the_first() -> None:
    group = ports.bind_group(socket.SOCK_DGRAM, "127.0.0.1", 0, 2)
    try:
        ports.steer(group, steering.datagram_program(2, {0, 1}))
        with socket.socket(type=socket.SOCK_DGRAM) as client:
            for data in (b"", b"\xc0", b"\x40abc"):
                client.sendto(data, group[0].getsockname())
        assert [len(found) for found in arrived(group)] == [3, 0]
    finally:
        for each in group:
            each.close()


def test_every_program_fits_into_its_jumps() -> None:
    most = steering.MAX_PROCESSES
    for live in (set(), {0}, {most - 1}, set(range(1, most)), set(range(most))):
        program = [*steering.datagram_program(most, live), *steering.connection_program(live)]
        assert all(jump.if_true <= 255 and jump.if_false <= 255 for jump in program)
        assert len(steering.assembled(program)) == 8 * len(program)


@pytest.mark.parametrize("live", [{0}, {1}, {0, 1}])
def test_connections_go_to_processes_that_run(live: set[int]) -> None:
    group = ports.bind_group(socket.SOCK_STREAM, "127.0.0.1", 0, 2)
    try:
        ports.steer(group, steering.connection_program(live))
        clients = [socket.create_connection(group[0].getsockname()) for _ in range(24)]
        taken = []
        for listener in group:
            taken.append(0)
            while True:
                try:
                    listener.accept()[0].close()
                except BlockingIOError:
                    break
                taken[-1] += 1
        for client in clients:
            client.close()
    finally:
        for each in group:
            each.close()
    assert sum(taken) == len(clients)
    assert {number for number, count in enumerate(taken) if count} == live
