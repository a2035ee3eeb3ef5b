"""What every engine gives."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from outrider.bulk.plan.results import ShardResult
from outrider.bulk.plan.shards import Shard


@dataclass(frozen=True, slots=True)
class GivenUp:
    """A shard that could not be done."""

    shard: Shard
    why: str


Outcome: TypeAlias = ShardResult | GivenUp


class Engine(Protocol):
    """Does shards with several workers."""

    def run(self, shards: list[Shard]) -> Generator[Outcome, None, None]:
        """What comes of each, in any order. Raises OutriderError where no worker could go on.
        Closing the iterator ends the workers."""
