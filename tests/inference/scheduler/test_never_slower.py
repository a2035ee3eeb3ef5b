"""With drafts on, no engine and no text makes replies arrive later than with drafts off."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from outrider.engines.base import LogitsRows, OverlappedWork, SequenceSlice, no_work
from outrider.engines.fake import FakeEngine, FakeOptions
from outrider.sampling.params import SamplingParams
from services.inference.scheduler.limits import SchedulerLimits
from services.inference.scheduler.scheduler import Scheduler
from services.inference.scheduler.types import OpenRequest
from tests.inference.letters import new_reply
from tests.inference.scheduler.driver import Driver

NUM_BEFORE = 8
USELESS, MIXED, CYCLES = 0.0, 0.75, 1.0
"""Share of tokens that follow from the one before."""


class SteepEngine(FakeEngine):
    """A call costs 10 ms up to 4 rows, 3 ms more for each further one."""

    def step(
        self, slices: Sequence[SequenceSlice], overlapped_work: OverlappedWork = no_work
    ) -> list[LogitsRows]:
        rows = super().step(slices, overlapped_work)
        self.step_ms = 10.0 + 3.0 * max(0, sum(len(part.tokens) for part in slices) - 4)
        return rows


class ReadingEngine(FakeEngine):
    """A call costs 10 ms, 0.8 ms for each row, and 1 ms for each hundred tokens of context: most of
    what one more session costs is read once for all of its rows."""

    def step(
        self, slices: Sequence[SequenceSlice], overlapped_work: OverlappedWork = no_work
    ) -> list[LogitsRows]:
        rows = super().step(slices, overlapped_work)
        num_rows = sum(len(part.tokens) for part in slices)
        self.step_ms = 10.0 + 0.8 * num_rows + 0.01 * sum(part.past for part in slices)
        return rows


def seconds(
    kind: type[FakeEngine],
    options: FakeOptions,
    num_sessions: int,
    *,
    drafts: bool,
    salt: bytes = b"known",
) -> tuple[float, list[list[int]]]:
    """How long so many replies of 120 tokens take, and the replies, on a replica that has served
    NUM_BEFORE others, of the trust group "known"."""
    limits = SchedulerLimits()
    driver = Driver(options, limits)
    driver.engine = kind(options)
    driver.scheduler = Scheduler(driver.engine.info, limits, new_reply)
    sampling = SamplingParams(max_tokens=120, ignore_eos=True)
    begin = driver.now
    for number in range(NUM_BEFORE + num_sessions):
        if number == NUM_BEFORE:
            driver.finish()
            begin = driver.now
        prompt = (3 + number, *range(3, 20))
        group = b"known" if number < NUM_BEFORE else salt
        request = OpenRequest(number + 1, prompt, sampling, region_drafts=drafts, cache_salt=group)
        driver.open(request)
    driver.finish()
    return driver.now - begin, [peer.reply for peer in driver.peers.values()]


@pytest.mark.parametrize("repetition", [USELESS, MIXED, CYCLES])
@pytest.mark.parametrize(("fixed_ms", "row_ms"), [(10.0, 1.0), (0.5, 5.0)])
@pytest.mark.parametrize("num_sessions", [1, 8])
def test_drafts_cost_at_most_one_part_in_a_hundred(
    num_sessions: int, fixed_ms: float, row_ms: float, repetition: float
) -> None:
    options = FakeOptions(
        repetition=repetition, fixed_ms=fixed_ms, row_ms=row_ms, num_blocks=1024, min_rows=1
    )
    off_s, truth = seconds(FakeEngine, options, num_sessions, drafts=False)
    on_s, replies = seconds(FakeEngine, options, num_sessions, drafts=True)
    assert replies == truth
    assert on_s <= off_s / 0.99


@pytest.mark.parametrize("repetition", [USELESS, MIXED, CYCLES])
@pytest.mark.parametrize("num_sessions", [1, 8])
def test_a_group_that_is_heard_of_first_pays_little_for_what_it_may_not_know(
    num_sessions: int, repetition: float
) -> None:
    """What drafts were worth to others is theirs, so it finds out for itself."""
    options = FakeOptions(
        repetition=repetition, fixed_ms=10.0, row_ms=1.0, num_blocks=1024, min_rows=1
    )
    off_s, truth = seconds(FakeEngine, options, num_sessions, drafts=False, salt=b"new")
    on_s, replies = seconds(FakeEngine, options, num_sessions, drafts=True, salt=b"new")
    assert replies == truth
    assert on_s <= off_s / 0.98


@pytest.mark.parametrize("repetition", [USELESS, MIXED, CYCLES])
@pytest.mark.parametrize("num_sessions", [1, 6])
def test_nor_does_an_engine_that_no_line_describes(num_sessions: int, repetition: float) -> None:
    options = FakeOptions(repetition=repetition, num_blocks=1024, min_rows=1)
    off_s, truth = seconds(SteepEngine, options, num_sessions, drafts=False)
    on_s, replies = seconds(SteepEngine, options, num_sessions, drafts=True)
    assert replies == truth
    assert on_s <= off_s / 0.99


@pytest.mark.parametrize("repetition", [USELESS, MIXED])
def test_nor_do_they_where_contexts_cost_most(repetition: float) -> None:
    options = FakeOptions(repetition=repetition, num_blocks=1024, min_rows=1)
    off_s, truth = seconds(ReadingEngine, options, 16, drafts=False)
    on_s, replies = seconds(ReadingEngine, options, 16, drafts=True)
    assert replies == truth
    assert on_s <= off_s / 0.99


def test_text_that_repeats_itself_comes_faster() -> None:
    options = FakeOptions(repetition=CYCLES, fixed_ms=10.0, row_ms=1.0, min_rows=1)
    off_s, _ = seconds(FakeEngine, options, 4, drafts=False)
    on_s, _ = seconds(FakeEngine, options, 4, drafts=True)
    assert on_s < off_s / 2
