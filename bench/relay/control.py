"""Starts the relay and commands it."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import AsyncIterator, Collection
from dataclasses import asdict, dataclass
from typing import Any, Literal

from bench.harness.processes import child, read_json, write_json
from bench.relay.lane import Conditions, Traffic
from outrider.children import PipedProcess


@dataclass(frozen=True, slots=True)
class LinkTraffic:
    """What went over all links since the last time."""

    links: dict[str, tuple[Traffic, Traffic]]
    """By name of link: up (towards the region), down."""
    cpu_s: float
    """CPU time of the relay's process since it started."""


class RelayControl:
    """A relay that runs."""

    def __init__(self, process: PipedProcess) -> None:
        self._process = process

    async def add(self, name: str, kind: Literal["udp", "tcp"], target: tuple[str, int]) -> int:
        """A new link without delay; the local port that leads to `target`."""
        answer = await self._ask({"add": name, "kind": kind, "target": target})
        return int(answer["port"])

    async def set(self, name: str, conditions: Conditions) -> None:
        """The same conditions both ways."""
        way = asdict(conditions)
        await self._ask({"set": name, "up": way, "down": way})

    def cut(self) -> None:
        """Deliver nothing, refuse nothing: the relay's process is stopped."""
        self._process.send_signal(signal.SIGSTOP)

    def heal(self) -> None:
        """Deliver again, first what was in flight."""
        self._process.send_signal(signal.SIGCONT)

    async def take_traffic(self) -> LinkTraffic:
        """What went over the links since the last call."""
        answer = await self._ask({"traffic": None})
        links = {
            name: (Traffic.from_json(up), Traffic.from_json(down))
            for name, (up, down) in answer["links"].items()
        }
        return LinkTraffic(links, answer["cpu_s"])

    async def _ask(self, command: dict[str, Any]) -> dict[str, Any]:
        write_json(self._process, command)
        return await read_json(self._process)


@contextlib.asynccontextmanager
async def relay(cores: Collection[int] = ()) -> AsyncIterator[RelayControl]:
    """A relay in a process of its own, on these cores."""
    async with child(sys.executable, "-m", "bench.relay", cores=cores) as process:
        control = RelayControl(process)
        try:
            yield control
        finally:
            control.heal()
