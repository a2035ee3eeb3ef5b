"""The batches by scheme and condition, schemes against each other on the same prompts, and what a
sample of chats says of all chats: means, shares and ratios with 95 % intervals (pure).

Chats are what is drawn at random; tokens and characters of one chat are not independent. So
intervals come from resampling chats (bootstrap, percentiles), or from the number of chats.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import geometric_mean

import numpy as np

from bench.harness import interval, share_interval, show, told_quantile
from bench.relay.lane import Traffic
from bench.wan.plan import ALL_SCHEMES, PLAIN, Cell, Scheme
from bench.wan.samples import Batch, Sample

_DATAGRAM_BYTES = 28
"""UDP (8) and IPv4 (20) headers of a datagram."""
_SEGMENT_BYTES = 52
"""TCP (20, timestamps 12) and IPv4 (20) headers of a segment; a read counts as one. Pure
acknowledgements, which the relay does not see, are left out."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Which conditions; None: any."""

    rtt_ms: float | None = None
    sessions: int | None = None
    temperature: float | None = None

    def holds(self, cell: Cell) -> bool:
        """Whether a condition is one of these."""
        return (
            self.rtt_ms in (None, cell.rtt_ms)
            and self.sessions in (None, cell.sessions)
            and self.temperature in (None, cell.temperature)
        )


EVERYTHING = Selection()


class Results:
    """All batches of a run."""

    def __init__(self, batches: Sequence[Batch]) -> None:
        self._batches = {(b.scheme, b.cell, b.turn, b.first): b for b in batches}

    def batches(self, scheme: Scheme, where: Selection = EVERYTHING) -> list[Batch]:
        """A scheme's."""
        return [b for b in self._batches.values() if b.scheme == scheme and where.holds(b.cell)]

    def samples(self, scheme: Scheme, where: Selection = EVERYTHING) -> list[Sample]:
        """A scheme's chats."""
        return [sample for batch in self.batches(scheme, where) for sample in batch.samples]

    def rtts_ms(self) -> list[float]:
        """Those measured, rising."""
        return sorted({batch.cell.rtt_ms for batch in self._batches.values()})

    def session_counts(self) -> list[int]:
        """Sessions at once, rising."""
        return sorted({batch.cell.sessions for batch in self._batches.values()})

    def schemes(self) -> list[Scheme]:
        """Those measured, in the order of `ALL_SCHEMES`."""
        measured = {batch.scheme for batch in self._batches.values()}
        return [scheme for scheme in ALL_SCHEMES if scheme in measured]

    def temperatures(self) -> list[float]:
        """Those measured, rising."""
        return sorted({batch.cell.temperature for batch in self._batches.values()})

    def loads(self) -> list[tuple[int, float]]:
        """Sessions at once and temperature, those measured, rising."""
        return sorted({(b.cell.sessions, b.cell.temperature) for b in self._batches.values()})

    def pace_ratios(
        self, scheme: Scheme, where: Selection = EVERYTHING, over: Scheme = PLAIN
    ) -> list[float]:
        """Pace of final tokens over the other scheme's, chat by chat, where both had it; above 1
        is faster. Of chats at once, batch by batch: they share one fate."""
        return list(self._ratios(scheme, where, over, lambda sample: sample.token_ms))

    def _ratios(
        self,
        scheme: Scheme,
        where: Selection,
        over: Scheme,
        duration: Callable[[Sample], float | None],
    ) -> Iterator[float]:
        for batch, other in self._pairs(scheme, where, over):
            pairs = zip(batch.samples, other.samples, strict=True)
            times = [(duration(theirs), duration(ours)) for ours, theirs in pairs]
            ratios = [base / mine for base, mine in times if base and mine]
            if ratios:
                yield geometric_mean(ratios)

    def _pairs(
        self, scheme: Scheme, where: Selection, over: Scheme
    ) -> Iterator[tuple[Batch, Batch]]:
        """The same chats by both schemes, batch by batch."""
        for batch in self.batches(scheme, where):
            other = self._batches.get((over, batch.cell, batch.turn, batch.first))
            if other is not None:
                yield batch, other

    def sample_pairs(
        self, scheme: Scheme, over: Scheme, where: Selection = EVERYTHING
    ) -> Iterator[tuple[Sample, Sample]]:
        """The same chats by both schemes."""
        for batch, other in self._pairs(scheme, where, over):
            yield from zip(batch.samples, other.samples, strict=True)

    def paired_core_s(self, scheme: Scheme, with_: Scheme, where: Selection = EVERYTHING) -> float:
        """The same of those chats alone that the other scheme had, too."""
        return _per_core_s([batch for batch, _ in self._pairs(scheme, where, with_)])

    def capacity_ratio(self, scheme: Scheme, over: Scheme, where: Selection = EVERYTHING) -> float:
        """Tokens per core-second over the other scheme's on the same chats; 0 if there are
        none."""
        base = self.paired_core_s(over, scheme, where)
        return self.paired_core_s(scheme, over, where) / base if base else 0.0

    def cpu_ms_per_token(
        self, scheme: Scheme, where: Selection = EVERYTHING
    ) -> tuple[float, float]:
        """CPU time for a final token, of the region and of the edge; 0 without a token."""
        batches = self.batches(scheme, where)
        tokens = sum(batch.num_tokens for batch in batches) or 1
        region_s, edge_s = (
            sum(getattr(batch.spent, name) for batch in batches) for name in ("region_s", "edge_s")
        )
        return 1000 * region_s / tokens, 1000 * edge_s / tokens

    def bytes_per_token(self, scheme: Scheme, where: Selection = EVERYTHING) -> dict[str, float]:
        """On the long link, per final token: payload and estimated wire bytes, up and down. The
        opening of a chat, its prompt included, is in it."""
        batches = self.batches(scheme, where)
        tokens = sum(batch.num_tokens for batch in batches)
        header = _DATAGRAM_BYTES if scheme.is_at_region else _SEGMENT_BYTES
        ways = {"up": [b.up for b in batches], "down": [b.down for b in batches]}
        return {
            **{way: _payload(seen) / tokens for way, seen in ways.items()},
            **{f"{way} wire": _wire(seen, header) / tokens for way, seen in ways.items()},
        }

    def num_exact(
        self, scheme: Scheme, truth: Mapping[tuple[int, float, int], tuple[int, ...]]
    ) -> tuple[int, int]:
        """How many chats had the reference's ids, of how many; `truth` by round, temperature and
        number of the prompt."""
        checked = [
            sample.ids == truth[turn, batch.cell.temperature, number]
            for batch in self.batches(scheme)
            for (turn, number), sample in zip(batch.asked, batch.samples, strict=True)
        ]
        return sum(checked), len(checked)


def _per_core_s(batches: Sequence[Batch]) -> float:
    spent = sum(batch.spent.region_s for batch in batches)
    return sum(batch.num_tokens for batch in batches) / spent if spent else 0.0


def _payload(ways: Sequence[Traffic]) -> float:
    return float(sum(way.num_bytes for way in ways))


def _wire(ways: Sequence[Traffic], header: int) -> float:
    return _payload(ways) + header * sum(way.packets for way in ways)


MIN_FOR_P50 = 20
"""Chats below which a median is not told; other quantiles as in all benches (`told_quantile`)."""
_MIN_FOR_INTERVAL = 3
_NUM_RESAMPLES = 4000
_SEED = 1


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value with its 95 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        if not math.isfinite(self.high - self.low):
            return show(self.value)
        return interval(self.value, self.low, self.high)

    def rounded(self, digits: int = 3) -> list[float | None]:
        """Value, low and high for JSON, which knows no infinity."""
        values = (self.value, self.low, self.high)
        return [round(value, digits) if math.isfinite(value) else None for value in values]


def mean(values: Sequence[float]) -> Estimate:
    """Of independent values. Raises ValueError for none."""
    return ratio(values, [1.0] * len(values))


def ratio(above: Sequence[float], below: Sequence[float]) -> Estimate:
    """The sum of `above` over that of `below`, which is the ratio of their means; [n] belongs to
    chat n in both, and chats are drawn anew in pairs. Raises ValueError for no chats, or if `below`
    is nothing."""
    if not above or not sum(below):
        raise ValueError("nothing to divide by")
    value = sum(above) / sum(below)
    if len(above) < _MIN_FOR_INTERVAL:
        return Estimate(value, -math.inf, math.inf)
    drawn = np.random.default_rng(_SEED).integers(0, len(above), (_NUM_RESAMPLES, len(above)))
    sums, bases = (np.asarray(part, float)[drawn].sum(axis=1) for part in (above, below))
    found = sums[bases > 0] / bases[bases > 0]
    low, high = np.quantile(found, (0.025, 0.975))
    return Estimate(value, float(low), float(high))


def share(part: float, num: int) -> Estimate:
    """A share seen in `num` independent chats. Raises ValueError for none."""
    if not num:
        raise ValueError("no chats")
    return Estimate(part, *share_interval(round(part * num), num))


def quantile_over_chats(values: Sequence[float], at: float) -> float | None:
    """A quantile of one value a chat, where there are enough of them to tell it."""
    return told_quantile(values, at) if len(values) >= MIN_FOR_P50 else None
