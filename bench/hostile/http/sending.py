"""How many requests an attack sends, from where, and what it notes of the answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.hostile.target import Findings, Target

SOURCE: Final = "127.0.9.9"
"""An address other than the bystanders': limits per address then hit the attacker alone."""
ANSWER_S: Final = 3.0
"""How long an answer is waited for. Requests that are not whole, or that the edge computes for
long, have none by then."""
_NOT_FAULTS: Final = frozenset((501, 505))
"""What HTTP prescribes for a method, a transfer coding or a version that a server does not have
(RFC 9110, sections 15.6.2 and 15.6.6). They are counted, and are no failures of the edge."""


class Ration:
    """The requests that one attack may still send, and the time it may take for them."""

    def __init__(self, num_requests: int, end: float, findings: Findings) -> None:
        """`end`: on time.monotonic()."""
        self._left = num_requests
        self._end = end
        self._findings = findings
        self._taken = 0

    def take(self) -> int | None:
        """The number of the next request, from 0; None: that was all, or the time is over."""
        if not self._left or time.monotonic() > self._end:
            return None
        self._left -= 1
        self._taken += 1
        self._findings.count("requests")
        return self._taken - 1

    def take_up_to(self, most: int) -> list[int]:
        """The numbers of the next few requests; none: that was all, or the time is over."""
        taken: list[int] = []
        while len(taken) < most and (number := self.take()) is not None:
            taken.append(number)
        return taken

    @property
    def num_left(self) -> int:
        """Requests that were not sent."""
        return self._left

    @property
    def left_s(self) -> float:
        """Of its time; below 0 when it is over."""
        return self._end - time.monotonic()


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer, as far as attacks look at it."""

    status: int
    request_id: str = ""
    """As the answer tells it: that of the request, where it named one."""
    body: bytes = b""


def note(findings: Findings, answer: Answer) -> None:
    """Count an answer by its status. A failure of the edge, or words of its inside, is a missed
    aim."""
    status = answer.status
    findings.count(f"answered {status}")
    if status >= 500 and status not in _NOT_FAULTS:
        missed(findings, f"a request was answered with {status}: {_begin(answer.body)}")
    if b"Traceback (most recent" in answer.body:
        missed(findings, "an answer has a traceback in it")


def missed(findings: Findings, what: str) -> None:
    """Note an aim that was missed, once, however often it was."""
    findings.count("aims missed")
    if what not in findings.broken and len(findings.broken) < 10:
        findings.broken.append(what)


def key_of(target: Target) -> str:
    """The attacker's own API key, which is valid: some attacks have to be let in."""
    return Path(target.key_file).read_text(encoding="utf-8").strip()


async def crowd(
    ration: Ration, send: Callable[[int], Awaitable[None]], num_senders: int = 8
) -> None:
    """Call `send` with the number of each request, for so many at a time."""

    async def go_on() -> None:
        while (number := ration.take()) is not None:
            await send(number)

    async with asyncio.TaskGroup() as group:
        for _ in range(num_senders):
            group.create_task(go_on())


def _begin(body: bytes) -> str:
    return body[:200].decode("utf-8", "replace")
