"""Which of several processes a QUIC datagram is for, and the BPF programs that tell the kernel
(pure).

The processes of an edge have one UDP port (SO_REUSEPORT, socket(7)), and by itself the kernel picks
one by a hash of both addresses: a client whose address changes would reach another one, which does
not know its connection. So connection IDs name their process (RFC 9000, section 5.1; as load
balancers do, draft-ietf-quic-load-balancers): the first four bytes, as a number, modulo the number
of processes. That holds for the IDs that the processes issue, and for those that clients choose for
their first packets too, which are random: they spread over all processes, and retransmissions reach
the same one. The kernel reads the rule out of a classic BPF program (SO_ATTACH_REUSEPORT_CBPF),
which needs no privileges.

An ID reveals no more than that remainder.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

PREFIX_BYTES: Final = 4
"""Leading bytes of a connection ID, or of a resume token, that name a process."""
MAX_PROCESSES: Final = 64
"""A jump of the program reaches 255 instructions."""
_RANGE: Final = 1 << 8 * PREFIX_BYTES

_DCID_AFTER_LONG: Final = 6
"""Offset of the destination connection ID in a packet with a long header: behind the first byte,
the version and the ID's length (RFC 9000, section 17.2)."""
_DCID_AFTER_SHORT: Final = 1
"""In one with a short header (section 17.3.1)."""
_LONG_HEADER: Final = 0x80

# Instructions of classic BPF (linux/filter.h).
_LOAD_BYTE: Final = 0x30
_LOAD_WORD: Final = 0x20
_JUMP: Final = 0x05
_JUMP_IF_EQUAL: Final = 0x15
_JUMP_IF_SET: Final = 0x45
_MODULO: Final = 0x94
_DIVIDE: Final = 0x34
_KEEP: Final = 0x07
_KEPT: Final = 0x87
_RETURN_CONSTANT: Final = 0x06
_RETURN: Final = 0x16
_RANDOM: Final = 0xFFFFF000 + 56
"""Loads of this offset give a random number (SKF_AD_OFF + SKF_AD_RANDOM)."""


class Instruction(NamedTuple):
    """`struct sock_filter`: the jumps skip so many instructions."""

    code: int
    if_true: int = 0
    if_false: int = 0
    value: int = 0


def process_of(name: bytes, num_processes: int) -> int:
    """The process that a connection ID names."""
    return int.from_bytes(name[:PREFIX_BYTES], "big") % num_processes


def naming(process: int, num_processes: int, random: bytes) -> bytes:
    """`random`, with its first four bytes changed as little as it takes to name the process."""
    number = int.from_bytes(random[:PREFIX_BYTES], "big")
    number += process - number % num_processes
    if number >= _RANGE:
        number -= num_processes
    return number.to_bytes(PREFIX_BYTES, "big") + random[PREFIX_BYTES:]


def datagram_program(num_processes: int, live: Collection[int]) -> list[Instruction]:
    """Program for the UDP sockets of the processes, in their order. Datagrams for a process that
    does not run go to the `live` ones, evenly: they begin its new connections, and reset its old
    ones. Datagrams too short to have an ID go to the first."""
    program = [
        Instruction(_LOAD_BYTE, value=0),
        Instruction(_JUMP_IF_SET, 0, 2, _LONG_HEADER),
        Instruction(_LOAD_WORD, value=_DCID_AFTER_LONG),
        Instruction(_JUMP, value=1),
        Instruction(_LOAD_WORD, value=_DCID_AFTER_SHORT),
        Instruction(_KEEP),
        Instruction(_MODULO, value=num_processes),
    ]
    dead = [process for process in range(num_processes) if process not in live]
    if dead and live:
        # Behind the comparisons stands the way out of those that are live.
        program += [
            Instruction(_JUMP_IF_EQUAL, len(dead) - place, 0, process)
            for place, process in enumerate(dead)
        ]
        program += [Instruction(_RETURN), Instruction(_KEPT)]
        program += [Instruction(_DIVIDE, value=num_processes)]
        return program + _one_of(sorted(live))
    return [*program, Instruction(_RETURN)]


def connection_program(live: Collection[int]) -> list[Instruction]:
    """For the listening TCP sockets: a new connection goes to any that is live."""
    return [Instruction(_LOAD_WORD, value=_RANDOM), *_one_of(sorted(live))]


def _one_of(processes: Sequence[int]) -> list[Instruction]:
    """By the number at hand."""
    if not processes:
        return [Instruction(_RETURN_CONSTANT, value=0)]
    program = [Instruction(_MODULO, value=len(processes))]
    for place, process in enumerate(processes):
        program += [
            Instruction(_JUMP_IF_EQUAL, 0, 1, place),
            Instruction(_RETURN_CONSTANT, value=process),
        ]
    return [*program, Instruction(_RETURN_CONSTANT, value=processes[0])]


def assembled(program: Sequence[Instruction]) -> bytes:
    """The program in the kernel's binary form."""
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)
