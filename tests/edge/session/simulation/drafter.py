"""A drafter that takes its time, in virtual time."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Protocol

from services.edge.session.draft_sources import Guess, Wanted, always
from tests.edge.session.simulation.circumstances import PROMPT, Circumstances


class Host(Protocol):
    """Whose time it is."""

    at: Circumstances
    now: float

    def wake(self, at: float) -> None: ...

    def confidence(self, rng: Random) -> float: ...


class VirtualDrafter:
    """A drafter that takes `draft_s` per token and is right with a chance that it knows."""

    def __init__(self, host: Host, truth: Sequence[int], *, boast: float = 1.0) -> None:
        """Promises are the chances to the power of `boast`."""
        self._host, self._truth, self._boast = host, truth, boast
        self._num_final = -len(PROMPT)
        self._chain: list[int] = []
        self._busy_since: float | None = None

    def extend(self, ids: Sequence[int]) -> None:
        at = self._num_final
        self._num_final += len(ids)
        kept = self._chain[: len(ids)] == list(ids[: len(self._chain)]) and at >= 0
        self._chain = self._chain[len(ids) :] if kept else []
        if not kept or not self._chain:
            self._busy_since = None

    def draft_after(
        self, tentative_ids: Sequence[int], max_tokens: int, wanted: Wanted = always
    ) -> Guess:
        host, draft_s = self._host, self._host.at.draft_s
        if self._busy_since is None:
            self._busy_since = host.now
        count = max_tokens
        if draft_s:
            count = min(max_tokens, int((host.now - self._busy_since) / draft_s + 1e-6))
            self._busy_since += count * draft_s
        ids, survival = self._guesses(tentative_ids, count)
        self._chain = [*tentative_ids, *ids]
        if count < max_tokens:
            host.wake(self._busy_since + draft_s)
        else:
            self._busy_since = None
        return Guess(ids, survival, ("model",) * count, count * draft_s, ended=False)

    def _guesses(
        self, ahead: Sequence[int], count: int
    ) -> tuple[tuple[int, ...], tuple[float, ...]]:
        begin = self._num_final + len(ahead)
        alive = list(ahead) == list(self._truth[self._num_final : begin])
        ids, survival, chance = list[int](), list[float](), 1.0
        for place in range(begin, begin + count):
            # Of the place alone: who is asked again says the same.
            rng = Random(place * 1009 + self._host.at.seed)
            confidence = self._host.confidence(rng)
            chance *= confidence
            alive = alive and place < len(self._truth) and rng.random() < confidence
            ids.append(self._truth[place] if alive else rng.randrange(30, 60))
            survival.append(chance**self._boast)
        return tuple(ids), tuple(survival)
