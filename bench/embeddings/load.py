"""A closed loop: so many requests at a time, each of so many texts, for so long."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Vectors = npt.NDArray[np.float32]


class System(Protocol):
    """What makes vectors."""

    @property
    def settings(self) -> Mapping[str, Any]:
        """Version, threads and the like, for the record."""

    async def embed(self, texts: Sequence[str]) -> Vectors:
        """[n, d] the vectors of one request. Raises what goes wrong."""


@dataclass(slots=True)
class Measured:
    """One load."""

    num_texts: int = 0
    seconds: float = 0.0
    """From the first request to the last answer."""
    latencies_ms: list[float] = field(default_factory=list)
    """Of requests that were answered."""
    errors: Counter[str] = field(default_factory=Counter)
    """Of requests that were not."""

    @property
    def texts_per_s(self) -> float:
        return self.num_texts / self.seconds

    @property
    def num_errors(self) -> int:
        return self.errors.total()


async def closed_loop(
    system: System, texts: Sequence[str], *, concurrency: int, inputs: int, seconds: float
) -> Measured:
    """Requests begin for `seconds`, each place's at least one; all are awaited."""
    supply = _requests(texts, inputs)
    found = Measured()
    began = time.perf_counter()

    async def ask() -> None:
        while True:
            asked_at = time.perf_counter()
            try:
                vectors = await system.embed(next(supply))
                if len(vectors) != inputs:
                    raise ValueError(f"{len(vectors)} vectors for {inputs} texts")
            except Exception as error:
                found.errors[f"{type(error).__name__}: {error}"[:200]] += 1
            else:
                found.num_texts += inputs
                found.latencies_ms.append((time.perf_counter() - asked_at) * 1e3)
            if time.perf_counter() - began >= seconds:
                return

    await asyncio.gather(*(ask() for _ in range(concurrency)))
    found.seconds = time.perf_counter() - began
    return found


def _requests(texts: Sequence[str], inputs: int) -> Iterator[list[str]]:
    """Without an end."""
    supply = itertools.cycle(texts)
    while True:
        yield list(itertools.islice(supply, inputs))
