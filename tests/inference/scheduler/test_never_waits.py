"""Whatever becomes of the edge's drafts, a session commits as if there were none, or sooner.

Real scheduler, fake engine, virtual time. Draft arrive while calls run, as they do in life.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

import pytest

from outrider.engines.fake import FakeOptions
from outrider.sampling.params import SamplingParams
from outrider.session.region import Draft
from services.inference.scheduler.limits import SchedulerLimits
from services.inference.scheduler.types import OpenRequest
from tests.inference.scheduler.driver import PROMPT, Driver, reference

FIXED_MS, ROW_MS = 10.0, 0.5
LEAD = 8
SAMPLING = SamplingParams(max_tokens=120, ignore_eos=True)


@dataclass
class Stream:
    """An edge's drafts for one session: a chain of LEAD behind each commit, `delay` calls old when
    it comes."""

    truth: Sequence[int]
    right: Callable[[int, int], bool]
    """Whether the draft for a token is the token, by its number and its depth in the chain. That
    of depth 0 is for the token that the call under way commits."""
    delay: int = 0
    epoch: int = 0
    _known: list[int] = field(default_factory=list)

    def next(self, num_committed: int) -> Draft | None:
        """What arrives now, `num_committed` tokens being final."""
        self._known.append(num_committed)
        if len(self._known) <= self.delay:
            return None
        base = self._known[-1 - self.delay]
        self.epoch += 1
        places = range(base, min(base + LEAD, len(self.truth)))
        ids = tuple(
            self.truth[n] if self.right(n, n - base) else 3 + (self.truth[n] + 1) % 60
            for n in places
        )
        return Draft(self.epoch, base, ids)


@dataclass
class Run:
    """When each commit came, in ms, and how much was final by then."""

    commits: list[tuple[float, int]]
    num_calls: int

    @property
    def total_ms(self) -> float:
        return self.commits[-1][0]


def run(repetition: float, make: Callable[[Sequence[int]], Stream] | None = None) -> Run:
    """One session, alone."""
    options = FakeOptions(
        repetition=repetition, fixed_ms=FIXED_MS, row_ms=ROW_MS, num_blocks=1024, min_rows=1
    )
    driver = Driver(options, SchedulerLimits(fixed_ms=FIXED_MS, row_ms=ROW_MS))
    request = OpenRequest(1, PROMPT, SAMPLING)
    truth = reference(request, options)
    stream = make(truth) if make else None
    begin = driver.now
    peer = driver.open(request)
    commits: list[tuple[float, int]] = []
    while (batch := driver.schedule()) is not None:
        if stream is not None and (drafts := stream.next(len(peer.reply))) is not None:
            driver.draft(1, drafts)
        driver.run(batch)
        commits.append(((driver.now - begin) * 1e3, len(peer.reply)))
    driver.finish()
    assert tuple(peer.reply) == truth
    return Run(commits, len(driver.batches))


REPETITIONS = pytest.mark.parametrize("repetition", [0.0, 0.75, 1.0])


@REPETITIONS
@pytest.mark.parametrize("delay", [1, 5, 50])
def test_drafts_that_come_too_late_change_nothing(repetition: float, delay: int) -> None:
    """But for those that are ahead all the same, which are right or soon known as wrong."""
    late = run(repetition, lambda truth: Stream(truth, lambda n, depth: depth < 1 + n % 3, delay))
    assert late.commits == run(repetition).commits or late.total_ms < run(repetition).total_ms


@REPETITIONS
def test_a_stream_that_never_arrives_changes_nothing(repetition: float) -> None:
    lost = run(repetition, lambda truth: Stream(truth, lambda n, depth: True, delay=10_000))
    assert lost == run(repetition)


@REPETITIONS
def test_garbage_costs_a_few_rows_until_it_is_known(repetition: float) -> None:
    without = run(repetition)
    garbage = run(repetition, lambda truth: Stream(truth, lambda n, depth: depth == 0))
    assert garbage.num_calls <= without.num_calls + 2
    assert garbage.total_ms <= without.total_ms + 3 * (FIXED_MS + LEAD * ROW_MS)


@REPETITIONS
@pytest.mark.parametrize("accuracy", [0.2, 0.5, 0.8, 1.0])
def test_drafts_only_ever_help(repetition: float, accuracy: float) -> None:
    rng = Random(5)
    luck = [rng.random() < accuracy for _ in range(SAMPLING.max_tokens)]
    without, ours = (
        run(repetition),
        run(repetition, lambda truth: Stream(truth, lambda n, depth: luck[n])),
    )
    assert ours.total_ms <= without.total_ms * 1.02 + 2 * (FIXED_MS + LEAD * ROW_MS)
    if accuracy == 1.0:
        assert ours.total_ms < 0.5 * run(0.0).total_ms
