"""What is attacked, what an attack found, and how an attack goes on for its time."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from bench.harness.local_mesh import LocalMesh

SOURCE: Final = "127.0.9.9"
"""The attacker's address, other than the bystanders': limits per address hit him alone."""
_NOT_FAULTS: Final = frozenset((501, 505))
"""What HTTP prescribes for a method, a transfer coding or a version that a server does not have
(RFC 9110, sections 15.6.2 and 15.6.6)."""


@dataclass(frozen=True, slots=True)
class Target:
    """A mesh, as a stranger can know it: addresses, and the certificate that everybody has."""

    host: str
    port: int
    """UDP port of the edge."""
    ca: str
    """PEM file of the edge's certificate."""
    http_port: int = 0
    """TCP port of the edge's HTTP door; 0: it has none."""
    key: str = ""
    """The attacker's own API key, which is valid: some attacks have to be let in."""

    @property
    def address(self) -> tuple[str, int]:
        """Of the edge, over UDP."""
        return self.host, self.port

    def to_json(self) -> str:
        """For an attacker's standard input."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Target:
        """What `to_json` made."""
        return cls(**json.loads(text))


def target_of(mesh: LocalMesh, key: str = "") -> Target:
    """A mesh that is up."""
    http_port = mesh.state.service("edge").get("http_port") or 0
    return Target(*mesh.edge, str(mesh.ca), http_port, key)


def certificate_of(target: Target) -> Path:
    """What clients of the edge trust."""
    return Path(target.ca)


@dataclass(slots=True)
class Findings:
    """What an attack was answered, in numbers, and what it saw that it should not have seen."""

    done: dict[str, int] = field(default_factory=dict)
    """How often what was sent or answered, by word."""
    broken: list[str] = field(default_factory=list)
    """Aims that were missed, a sentence each."""

    def count(self, what: str, times: int = 1) -> None:
        """Note that something happened."""
        self.done[what] = self.done.get(what, 0) + times

    def missed(self, what: str) -> None:
        """Note an aim that was missed, once, however often it was."""
        if what not in self.broken and len(self.broken) < 10:
            self.broken.append(what)

    def answered(self, status: int, body: bytes = b"") -> None:
        """Count an answer over HTTP. A failure of the edge, or words of its inside, is a missed
        aim."""
        self.count(f"answered {status}")
        if status >= 500 and status not in _NOT_FAULTS:
            self.missed(f"a request was answered with {status}: {body[:200]!r}")
        if b"Traceback (most recent" in body:
            self.missed("an answer has a traceback in it")


def turns(seconds: float) -> Iterator[int]:
    """0, 1, 2 and so on until the time is over."""
    end, number = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        yield number
        number += 1


async def crowd(
    seconds: float, send: Callable[[int], Awaitable[None]], num_senders: int = 8
) -> None:
    """Call `send` with one number after the other, so many at a time, until the time is over."""
    numbers = turns(seconds)

    async def go_on() -> None:
        for number in numbers:
            await send(number)

    async with asyncio.TaskGroup() as group:
        for _ in range(num_senders):
            group.create_task(go_on())
