"""Starts processes again that have ended, and watches what they hold and log."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import time
from collections import Counter
from pathlib import Path
from typing import Final

from bench.chaos.growth import Held, Life
from bench.chaos.ledger import Ledger
from bench.harness.mesh import Service
from outrider.cli.local.supervisor import tail

_POLL_S: Final = 0.1
_RESTART_S: Final = 1.0
"""From a process's end to its next start."""
_SAMPLE_S: Final = 5.0
_MAX_LINE_BYTES: Final = 4000
_BAD: Final = re.compile(
    rb"Traceback|never retrieved|never awaited|Segmentation|Fatal Python|core dumped|"
    rb'"level": ?"(error|critical)"'
)
"""Lines of logs that mean a bug."""


class Supervisor:
    """Keeps services running, as a supervisor of processes does."""

    def __init__(self, services: list[Service], ledger: Ledger) -> None:
        """The services run already."""
        self._services = services
        self._ledger = ledger
        self._expected: set[str] = set()
        """Names of services that were ended on purpose."""
        self._held: Counter[str] = Counter()
        """Names of services that stay ended, with how many hold them."""
        self._ended_at: dict[str, float] = {}
        self._read_bytes: dict[Path, int] = {}
        self._sample_due_at = 0.0
        self.lives: dict[tuple[str, int], Life] = {
            (it.name, it.pid): Life(time.monotonic()) for it in services
        }
        """By name and process id."""
        self.num_restarts: Counter[str] = Counter()
        """By role."""

    def expect_end(self, service: Service) -> None:
        """Its process is ended on purpose, now."""
        self._expected.add(service.name)

    def hold(self, services: tuple[Service, ...]) -> None:
        """They stay ended, if they end, until `release`."""
        self._held.update(it.name for it in services)

    def release(self, services: tuple[Service, ...]) -> None:
        """The inverse of `hold`."""
        self._held.subtract(it.name for it in services)

    async def keep(self) -> None:
        """Do so until cancelled."""
        while True:
            now = time.monotonic()
            for service in self._services:
                if not service.is_running:
                    self._ended(service, now)
            if now >= self._sample_due_at:
                self._sample_due_at = now + _SAMPLE_S
                await asyncio.to_thread(self.look, now)
            await asyncio.sleep(_POLL_S)

    def _ended(self, service: Service, now: float) -> None:
        name = service.name
        if name not in self._ended_at:
            self._ended_at[name] = now
            if name not in self._expected:
                self._ledger.violation(
                    f"{name} ended by itself with status {service.status}; its log ends with:\n"
                    f"{tail(service.log)}",
                    now - _RESTART_S,
                )
        if self._held[name] <= 0 and now >= self._ended_at[name] + _RESTART_S:
            del self._ended_at[name]
            self._expected.discard(name)
            service.spawn()
            self.num_restarts[service.role] += 1
            self.lives[name, service.pid] = Life(now)

    def look(self, now: float) -> None:
        """Sample what all processes hold, and read what they have logged since."""
        for service in self._services:
            life = self.lives.get((service.name, service.pid))
            with contextlib.suppress(OSError):  # it ends just now
                if life is not None and service.is_running:
                    life.add(now, held_by(service.pid))
            self._read(service, now)

    def _read(self, service: Service, now: float) -> None:
        """Whole lines alone: the rest is read next time."""
        with service.log.open("rb") as log:
            log.seek(self._read_bytes.get(service.log, 0))
            for line in log:
                if not line.endswith(b"\n"):
                    break
                self._read_bytes[service.log] = self._read_bytes.get(service.log, 0) + len(line)
                if _BAD.search(line):
                    text = line[:_MAX_LINE_BYTES].decode(errors="replace").rstrip()
                    self._ledger.violation(f"{service.name} logged {text}", now - _SAMPLE_S)


def held_by(pid: int) -> Held:
    """What a process and its descendants hold. Raises OSError once it has ended."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    found = re.search(r"^VmRSS:\s+(\d+) kB", status, re.MULTILINE)
    memory_mb = int(found[1]) / 1024 if found else 0.0
    num_files = len(os.listdir(f"/proc/{pid}/fd"))
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii")
    for child in map(int, children.split()):
        with contextlib.suppress(OSError):
            more = held_by(child)
            memory_mb, num_files = memory_mb + more.memory_mb, num_files + more.num_files
    return Held(memory_mb, num_files)
