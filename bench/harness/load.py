"""The one generator of load: chats that are asked for when they are due (open loop), or so many at
a time (closed loop), of any system that answers them.

A `System` answers `Work`. Its `Setup` is what `bench.tuning` chose for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol, TypeVar

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt to answer."""

    prompt: tuple[int, ...]
    max_tokens: int
    due_s: float = 0.0
    """When to ask, seconds after the work began."""
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Work:
    """Requests, sent when they fall due; with `concurrency`, never more than that many at once."""

    requests: tuple[Request, ...]
    concurrency: int = 0
    temperature: float = 0.0
    ignore_eos: bool = False
    """Whether replies continue to max_tokens."""
    num_background: int = 0
    """Number of leading requests that only keep the system busy: they are cut off once all others
    are answered."""
    least_s: float = 0.0
    """Seconds for which the background requests run at least."""


@dataclass(slots=True)
class Answer:
    """One reply. Times in seconds since the work began."""

    ids: list[int] = field(default_factory=list)
    asked_s: float = 0.0
    """When it got its turn; without a bound on concurrency, when it was due."""
    token_s: list[float] = field(default_factory=list)
    """When something arrived: one time per token, or per group of tokens that came together."""
    error: str = ""
    """Why the request failed; empty: it did not, or the system raised."""
    num_tokens: int = 0
    """Number of tokens, from systems that report it without the ids."""
    began_at: float = 0.0
    """The work's beginning, on time.perf_counter."""

    def take(self, ids: Sequence[int]) -> None:
        """These arrive now."""
        self.ids += ids
        self.token_s.append(time.perf_counter() - self.began_at)

    @property
    def ttft_ms(self) -> float:
        """Time to the first token."""
        return (self.token_s[0] - self.asked_s) * 1000

    def gaps_ms(self, begin_s: float = 0.0, end_s: float = float("inf")) -> list[float]:
        """Inter-token latency as the reader sees it: times between arrivals, of those gaps that
        end in [begin_s, end_s]. Tokens that come together leave no gap of zero between them."""
        pairs = itertools.pairwise(self.token_s)
        return [(after - before) * 1000 for before, after in pairs if begin_s <= after <= end_s]


@dataclass(frozen=True, slots=True)
class WorkResult:
    """All replies, in the order of the requests."""

    seconds: float
    answers: tuple[Answer, ...]

    @property
    def replies(self) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(answer.ids) for answer in self.answers)

    @property
    def tokens_per_s(self) -> float:
        return sum(it.num_tokens or len(it.ids) for it in self.answers) / self.seconds

    @property
    def requests_per_s(self) -> float:
        return len(self.answers) / self.seconds


class System(Protocol):
    """A system under test."""

    @property
    def settings(self) -> Mapping[str, object]:
        """How it was set up: version, threads, chunk size and the like, for the record."""

    async def run(self, work: Work) -> WorkResult:
        """Answer these requests."""


def to_json(work: Work, stop_ids: Sequence[int]) -> dict[str, Any]:
    """A job as the peers' processes read it."""
    return {
        **asdict(work),
        "requests": [asdict(request) for request in work.requests],
        "stop_ids": sorted(stop_ids),
    }


def from_json(answer: dict[str, Any]) -> WorkResult:
    """Read the answer of a peer's process."""
    return WorkResult(answer["seconds"], tuple(Answer(**row) for row in answer["answers"]))


WHOLE_TOKENS = 2048
"""A chunk that holds every prompt here whole."""


@dataclass(frozen=True, slots=True)
class Setup:
    """Settings of a peer, chosen by bench.tuning."""

    threads: int = 1
    chunk_tokens: int = 256
    """Tokens that one step computes at most, of all sequences together. Smaller chunks of a long
    prompt let the others' tokens come sooner, larger ones have it read sooner."""

    def __str__(self) -> str:
        plural = "" if self.threads == 1 else "s"
        return f"{self.threads} thread{plural}, chunks of {self.chunk_tokens}"

    def to_json(self) -> dict[str, int]:
        """The form that a record keeps."""
        return asdict(self)


async def send(
    requests: Sequence[R],
    ask: Callable[[R, Answer], Awaitable[None]],
    *,
    due_s: Sequence[float] = (),
    concurrency: int = 0,
    num_background: int = 0,
    least_s: float = 0.0,
) -> WorkResult:
    """Send every request when it is due and as `Work` says; `ask` fills the answer as it arrives.
    Raises the error of an `ask`, once no request is running any more."""
    slots = asyncio.Semaphore(concurrency) if concurrency else contextlib.nullcontext()
    began = time.perf_counter()
    answers = [Answer(began_at=began) for _ in requests]
    times = due_s or [0.0] * len(requests)

    async def one(number: int) -> None:
        await asyncio.sleep(max(0.0, began + times[number] - time.perf_counter()))
        async with slots:
            now_s = time.perf_counter() - began
            answers[number].asked_s = now_s if concurrency else times[number]
            await ask(requests[number], answers[number])

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(number)) for number in range(len(requests))]
        if num_background:
            await asyncio.gather(*tasks[num_background:], asyncio.sleep(least_s))
            for task in tasks[:num_background]:
                task.cancel()
    return WorkResult(time.perf_counter() - began, tuple(answers))


async def ask_all(work: Work, ask: Callable[[Request, Answer], Awaitable[None]]) -> WorkResult:
    """`send` for the requests of some work."""
    return await send(
        work.requests,
        ask,
        due_s=[request.due_s for request in work.requests],
        concurrency=work.concurrency,
        num_background=work.num_background,
        least_s=work.least_s,
    )


def poisson(count: int, rate: float, seed: int) -> list[float]:
    """Seconds at which `count` requests of a Poisson process of `rate` per second arrive.

    The same seed gives the same process on another time scale.
    """
    rng = random.Random(seed)
    gaps = (rng.expovariate(1.0) for _ in range(count))
    return [at / rate for at in itertools.accumulate(gaps)]
