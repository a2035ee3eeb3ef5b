"""What is measured: cells of a kind of prompt, a temperature and a number of sessions."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.contenders.lineup import FAST, FAST_SPEC, NAMES
from bench.contenders.work import Request, Work
from bench.workload.supply import KINDS, Supply
from outrider.models.chat import Message
from outrider.models.vocabulary import Vocabulary

CONCURRENCIES = (1, 2, 4, 8, 16, 32)
TEMPERATURES = (0.0, 0.8)
MAX_TOKENS = 64
MIN_REQUESTS = {"chat": 12, "code": 12, "document": 2}
QUICK_REQUESTS = {"chat": 4, "code": 4, "document": 2}
"""Requests of a cell are as many as its sessions, and no fewer than this: a cell ends with its
slowest reply, and the fewer there are the more that counts."""
ROUNDS = {"chat": 5, "code": 2, "document": 2}
"""Rounds unless told."""
CORE_CONCURRENCIES = (1, 8, 32)
CORE_ROUNDS = 5


@dataclass(frozen=True, slots=True)
class Cell:
    """One measurement of every contender."""

    kind: str
    temperature: float
    concurrency: int

    @property
    def sampling(self) -> str:
        return f"T={self.temperature:g}" if self.temperature else "greedy"

    def __str__(self) -> str:
        return f"{self.kind}, {self.sampling}, {self.concurrency} sessions"


def cells(arguments: argparse.Namespace) -> list[Cell]:
    """Those that the flags ask for."""
    if arguments.quick:
        few = [Cell(kind, 0.0, concurrency) for kind in KINDS for concurrency in (1, 8)]
        return [*few, Cell("chat", 0.0, 16), Cell("chat", 0.8, 8)]
    if arguments.core:
        return [Cell("chat", 0.0, concurrency) for concurrency in CORE_CONCURRENCIES]
    return [
        Cell(kind, temperature, concurrency)
        for temperature in arguments.temperatures
        for kind in arguments.kinds
        for concurrency in arguments.sessions
    ]


def rounds(arguments: argparse.Namespace) -> list[list[Cell]]:
    """The cells of each round."""
    asked = cells(arguments)
    count = 1 if arguments.quick else arguments.rounds or (CORE_ROUNDS if arguments.core else 0)
    turns = {cell: count or ROUNDS[cell.kind] for cell in asked}
    return [[c for c in asked if turn < turns[c]] for turn in range(max(turns.values()))]


def lineup(arguments: argparse.Namespace) -> list[str]:
    """The contenders a run starts; a quick or a core one leaves the inexact replicas out."""
    small = arguments.quick or arguments.core
    return [n for n in NAMES if not (small and n in (FAST, FAST_SPEC))]


def takes_part(name: str, cell: Cell) -> bool:
    """The inexact replicas are measured greedily alone: exactness costs the same at every T."""
    return not (cell.temperature and name in (FAST, FAST_SPEC))


class Prompts:
    """Makes the work of each cell from prompts not asked before."""

    def __init__(
        self, vocabulary: Vocabulary, min_requests: Mapping[str, int] = MIN_REQUESTS
    ) -> None:
        self._vocabulary = vocabulary
        self._min_requests = min_requests
        self._supplies: Mapping[str, Supply] = {kind: Supply(kind) for kind in KINDS}
        self._num_works = 0

    def work(self, cell: Cell) -> Work:
        """Raises RuntimeError when there are no more prompts of the kind."""
        self._num_works += 1
        count = max(cell.concurrency, self._min_requests[cell.kind])
        texts = self._supplies[cell.kind].take(count)
        system = Message("system", f"Work {self._num_works:04d}. You are a helpful assistant.")
        return Work(
            tuple(
                Request(tuple(self._ids([system, Message("user", text)])), MAX_TOKENS, seed=seed)
                for seed, text in enumerate(texts, self._num_works * 1000)
            ),
            cell.concurrency,
            cell.temperature,
        )

    def _ids(self, chat: Sequence[Message]) -> list[int]:
        return self._vocabulary.encode_chat(list(chat))
