"""Work for a system under test, its result, and how a system is set up.

A `System` answers `Work`: requests that are sent when they are due, at most `concurrency` at a
time. Its `Setup` is what `bench.tuning` chose for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol


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
    """Requests, asked as they fall due; with `concurrency`, never more than so many at once."""

    requests: tuple[Request, ...]
    concurrency: int = 0
    temperature: float = 0.0
    ignore_eos: bool = False
    """Whether replies go on to max_tokens."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One reply. Times in seconds since the work began."""

    ids: tuple[int, ...]
    asked_s: float
    """When it got its turn; without a bound on concurrency, when it was due."""
    token_s: tuple[float, ...]
    """When something arrived: one time per token, or per group of tokens that came together."""

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
        return tuple(answer.ids for answer in self.answers)

    @property
    def tokens_per_s(self) -> float:
        return sum(map(len, self.replies)) / self.seconds

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
        "requests": [
            {"prompt": r.prompt, "max_tokens": r.max_tokens, "due_s": r.due_s, "seed": r.seed}
            for r in work.requests
        ],
        "concurrency": work.concurrency,
        "temperature": work.temperature,
        "ignore_eos": work.ignore_eos,
        "stop_ids": sorted(stop_ids),
    }


def from_json(answer: dict[str, Any]) -> WorkResult:
    """What a peer's process answered."""
    return WorkResult(
        answer["seconds"],
        tuple(
            Answer(tuple(row["ids"]), row["asked_s"], tuple(row["token_s"]))
            for row in answer["answers"]
        ),
    )


WHOLE_TOKENS = 2048
"""A chunk that holds every prompt here whole."""


@dataclass(frozen=True, slots=True)
class Setup:
    """What bench.tuning chooses for a peer."""

    threads: int = 1
    chunk_tokens: int = 256
    """Tokens that one step computes at most, of all sequences together. Smaller chunks of a long
    prompt let the others' tokens come sooner, larger ones have it read sooner."""

    def __str__(self) -> str:
        plural = "" if self.threads == 1 else "s"
        return f"{self.threads} thread{plural}, chunks of {self.chunk_tokens}"

    def to_json(self) -> dict[str, int]:
        """As a record keeps it."""
        return asdict(self)


async def ask_all(work: Work, ask: Callable[[Request, float], Awaitable[Answer]]) -> WorkResult:
    """`ask` gets a request and the work's beginning on time.perf_counter, and returns its answer
    with `asked_s` as the time it was called; of requests without a bound on concurrency, the
    wait since they fell due counts too."""
    slots = asyncio.Semaphore(work.concurrency) if work.concurrency else contextlib.nullcontext()
    begin = time.perf_counter()

    async def one(request: Request) -> Answer:
        await asyncio.sleep(max(0.0, begin + request.due_s - time.perf_counter()))
        async with slots:
            answer = await ask(request, begin)
        if work.concurrency:
            return answer
        return Answer(answer.ids, request.due_s, answer.token_s)

    answers = await asyncio.gather(*(one(request) for request in work.requests))
    return WorkResult(time.perf_counter() - begin, tuple(answers))
