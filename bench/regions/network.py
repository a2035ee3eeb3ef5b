"""The network between hosts: `python -m bench.regions.network`, a process that carries IP packets.

A host is a network namespace whose only way out is a TUN device (Linux, networking/tuntap). What
its processes send is read here as IP packets, and what is written here arrives there. In between a
packet is delayed, lost or dropped as the way from its host to the other one has it. TCP and UDP at
both ends are the kernel's own: what is lost, they send again, and where a way is cut they wait.

Commands come as JSON lines on standard input, and each is answered with a line. The process ends
with its input; so do the devices.

{"add": HOST, "pid": PID, "address": IPV4}   give the namespace of this process a device, DEVICE
{"set": [HOST, HOST], "conditions": {...}}   of the way from the first to the second
{"cut": [[HOST, HOST], ...], "is_cut": BOOL} these ways carry nothing, or as before
{"traffic": null}                            packets and losses of each way since the last time
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import fcntl
import json
import os
import struct
import sys
from ipaddress import IPv4Address
from typing import Any, Final, TypeAlias

from bench.relay.lane import Conditions, Pump

DEVICE: Final = "net0"
"""Name of the device in each host."""
_TUNSETIFF: Final = 0x400454CA
_IFF_TUN: Final = 0x0001
_IFF_NO_PI: Final = 0x1000
_CLONE_NEWNET: Final = 0x40000000
_MAX_PACKET_BYTES: Final = 65535
_BATCH: Final = 64
"""Packets read of one host before the others have their turn."""

Way: TypeAlias = tuple[str, str]
"""From a host to another one."""


def destination(packet: bytes) -> bytes | None:
    """The address to which an IPv4 packet goes (RFC 791, section 3.1), 4 bytes; None: it is no such
    packet."""
    return packet[16:20] if len(packet) >= 20 and packet[0] >> 4 == 4 else None


class Network:
    """All hosts, and the ways between them."""

    def __init__(self) -> None:
        self._devices: dict[str, int] = {}
        self._hosts: dict[bytes, str] = {}
        """By address."""
        self._pumps: dict[Way, Pump[bytes]] = {}
        self._cut: set[Way] = set()

    def add(self, host: str, pid: int, address: str) -> None:
        """Give a host a device. Raises OSError where that is not allowed."""
        device = _open_device(pid)
        self._devices[host] = device
        self._hosts[IPv4Address(address).packed] = host
        asyncio.get_running_loop().add_reader(device, self._read, host, device)

    def set(self, way: Way, conditions: Conditions) -> None:
        """From the next packet on."""
        self._pump(way).lane.conditions = conditions

    def cut(self, ways: list[Way], *, is_cut: bool) -> None:
        """Cut these ways, or carry what comes from now on. What is under way arrives."""
        if is_cut:
            self._cut.update(ways)
        else:
            self._cut.difference_update(ways)

    def take_traffic(self) -> list[dict[str, Any]]:
        """A row for each way that had any."""
        rows = []
        for (source, target), pump in self._pumps.items():
            traffic = pump.lane.take_traffic()
            counts = {"packets": traffic.packets, "lost": traffic.lost}
            rows.append({"from": source, "to": target, **counts})
        return rows

    def close(self) -> None:
        """Take the devices away."""
        for pump in self._pumps.values():
            pump.close()
        for device in self._devices.values():
            asyncio.get_running_loop().remove_reader(device)
            os.close(device)

    def _pump(self, way: Way) -> Pump[bytes]:
        if way not in self._pumps:

            def deliver(packet: bytes) -> None:
                with contextlib.suppress(OSError):  # the host is gone, or takes no more
                    os.write(self._devices[way[1]], packet)

            self._pumps[way] = Pump(deliver, len(self._pumps), ordered=False)
        return self._pumps[way]

    def _read(self, host: str, device: int) -> None:
        for _ in range(_BATCH):
            try:
                packet = os.read(device, _MAX_PACKET_BYTES)
            except BlockingIOError:
                return
            except OSError:  # its namespace is gone
                asyncio.get_running_loop().remove_reader(device)
                return
            target = self._hosts.get(destination(packet) or b"")
            if target is None:
                continue  # IPv6 router solicitations, and addresses that nobody has
            way = (host, target)
            if way not in self._cut:
                self._pump(way).send(packet, len(packet))


def _open_device(pid: int) -> int:
    home = os.open("/proc/self/ns/net", os.O_RDONLY)
    there = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
    try:
        _set_namespace(there)
        try:
            device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        finally:
            _set_namespace(home)
    finally:
        os.close(there)
        os.close(home)
    request = struct.pack("16sH22x", DEVICE.encode(), _IFF_TUN | _IFF_NO_PI)
    fcntl.ioctl(device, _TUNSETIFF, request)
    return device


def _set_namespace(descriptor: int) -> None:
    # os.setns comes with Python 3.12.
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, _CLONE_NEWNET) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def answer(network: Network, command: dict[str, Any]) -> dict[str, Any]:
    """Do what a command says. Raises KeyError and ValueError for one that makes no sense, OSError
    where this machine allows no devices."""
    if "add" in command:
        network.add(command["add"], command["pid"], command["address"])
    elif "set" in command:
        source, target = command["set"]
        network.set((source, target), Conditions(**command["conditions"]))
    elif "cut" in command:
        ways = [(source, target) for source, target in command["cut"]]
        network.cut(ways, is_cut=command["is_cut"])
    else:
        return {"ways": network.take_traffic()}
    return {}


async def main() -> None:
    network, reader = Network(), asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    try:
        while line := await reader.readline():
            print(json.dumps(answer(network, json.loads(line))), flush=True)
    finally:
        network.close()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C reaches the parent too, which says so
        asyncio.run(main())
