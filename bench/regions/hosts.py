"""Hosts on one machine: network namespaces, and a network between them (bench.regions.network).

Needs root, `unshare` and `nsenter` of util-linux, and `ip` of iproute2. Nothing outlives the
process: the namespaces have no names, and end with the processes in them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from bench.harness.processes import child, read_json, write_json
from bench.regions.network import DEVICE, Way
from bench.relay.lane import Conditions
from outrider import children
from outrider.children import PipedProcess

_INSIDE: Final = "OUTRIDER_OWN_NETWORK"
"""Variable of a process that has a network of its own."""
_POLL_S: Final = 0.01
_PREFIX_BITS: Final = 16


def enter_own_network() -> None:
    """Execute this program anew, as a host of its own without any network; what it mounts ends with
    it. Returns in that process. Raises PermissionError for users who may not."""
    if os.environ.get(_INSIDE):
        return
    if os.geteuid() != 0:
        raise PermissionError("hosts are network namespaces: run this as root")
    command = ("unshare", "--net", "--mount", sys.executable, *sys.orig_argv[1:])
    os.execvpe(command[0], command, {**os.environ, _INSIDE: "1"})


@dataclass(frozen=True, slots=True)
class Host:
    """A machine of its own, as far as the network goes."""

    name: str
    address: str
    """IPv4; every host reaches every other one."""
    pid: int
    """A process in its namespace that does nothing, or this process."""

    @property
    def within(self) -> tuple[str, ...]:
        """What stands before a command that is to run there."""
        return ("nsenter", "--target", str(self.pid), "--net")

    def kill_all(self) -> None:
        """SIGKILL for every process there, at once: the machine has no power any more. It stays a
        host, and processes can be started there again."""
        here = os.readlink(f"/proc/{self.pid}/ns/net")
        for entry in Path("/proc").iterdir():
            if not entry.name.isdecimal() or int(entry.name) == self.pid:
                continue
            with contextlib.suppress(OSError):  # it has ended, or is none of ours
                if os.readlink(entry / "ns" / "net") == here:
                    os.kill(int(entry.name), signal.SIGKILL)


@dataclass(slots=True)
class Hosts:
    """The hosts, and the network that carries what they send each other."""

    by_name: Mapping[str, Host]
    _network: PipedProcess
    _asking: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __getitem__(self, name: str) -> Host:
        return self.by_name[name]

    async def set(self, one: str, other: str, conditions: Conditions) -> None:
        """The same conditions both ways between two hosts."""
        for way in ((one, other), (other, one)):
            await self._ask({"set": way, "conditions": asdict(conditions)})

    async def cut(self, ways: Iterable[Way]) -> None:
        """Carry nothing any more from the first to the second host of each; nobody is told."""
        await self._ask({"cut": list(ways), "is_cut": True})

    async def mend(self, ways: Iterable[Way]) -> None:
        """Carry again what comes from now on."""
        await self._ask({"cut": list(ways), "is_cut": False})

    def around(self, *names: str) -> list[Way]:
        """All ways between these hosts and the others."""
        others = [it for it in self.by_name if it not in names]
        return [way for it in names for other in others for way in ((it, other), (other, it))]

    async def take_traffic(self) -> dict[Way, dict[str, int]]:
        """`packets`, and of these `lost`, by way, since the last time."""
        answer = await self._ask({"traffic": None})
        return {
            (row["from"], row["to"]): {name: row[name] for name in ("packets", "lost")}
            for row in answer["ways"]
        }

    async def _ask(self, command: dict[str, Any]) -> dict[str, Any]:
        async with self._asking:
            write_json(self._network, command)
            return await read_json(self._network)


@contextlib.asynccontextmanager
async def hosts(me: str, others: Iterable[str]) -> AsyncIterator[Hosts]:
    """This process's own host, which it is in (`enter_own_network`), and others. They reach each
    other without delay at first. Raises RuntimeError and OSError where that is not possible."""
    names = (me, *others)
    if not os.environ.get(_INSIDE):
        raise RuntimeError("this process has no network of its own: enter_own_network() first")
    async with contextlib.AsyncExitStack() as stack:
        process = child(sys.executable, "-m", "bench.regions.network")
        network = await stack.enter_async_context(process)
        made: dict[str, Host] = {}
        for number, name in enumerate(names):
            pid = os.getpid()
            if name != me:
                holder = children.start(
                    ("unshare", "--net", "sleep", "infinity"),
                    stdin=subprocess.DEVNULL,
                    ends_with_parent=signal.SIGKILL,
                )
                stack.callback(holder.join)
                stack.callback(holder.kill)
                pid = holder.pid
                await _until_apart(pid)
            made[name] = Host(name, f"10.77.{number}.1", pid)
        it = Hosts(made, network)
        for host in made.values():
            await it._ask({"add": host.name, "pid": host.pid, "address": host.address})
            _configure(host)
        yield it


async def _until_apart(pid: int) -> None:
    """Return once a process has its own namespace."""
    mine = os.readlink("/proc/self/ns/net")
    while os.readlink(f"/proc/{pid}/ns/net") == mine:  # noqa: ASYNC110 - nobody else tells of it
        await asyncio.sleep(_POLL_S)


def _configure(host: Host) -> None:
    steps = (
        "link set lo up",
        f"addr add {host.address}/{_PREFIX_BITS} dev {DEVICE}",
        f"link set {DEVICE} up",
    )
    done = subprocess.run(
        (*host.within, "ip", "-batch", "-"),
        input="\n".join(steps),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{host.name} has no network: {done.stderr.strip()}")
