"""What is asked of a contender and what it made of it."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from outrider.v1 import common_pb2

HIGH = common_pb2.PRIORITY_HIGH
LOW = common_pb2.PRIORITY_LOW


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt to answer."""

    prompt: tuple[int, ...]
    max_tokens: int
    due_s: float = 0.0
    """When to ask, seconds after the work began."""
    seed: int = 0
    priority: common_pb2.Priority.ValueType = common_pb2.PRIORITY_MEDIUM
    """Only our own replicas know priorities."""


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
class Outcome:
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


class Contender(Protocol):
    """A system under test."""

    @property
    def settings(self) -> Mapping[str, object]:
        """How it was set up: version, threads, chunk size and the like, for the record."""

    async def run(self, work: Work) -> Outcome:
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


def from_json(answer: dict[str, Any]) -> Outcome:
    """What a peer's process answered."""
    return Outcome(
        answer["seconds"],
        tuple(
            Answer(tuple(row["ids"]), row["asked_s"], tuple(row["token_s"]))
            for row in answer["answers"]
        ),
    )
