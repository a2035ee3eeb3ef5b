"""With drafts on, no engine and no text makes replies arrive later than with drafts off."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from outrider.engines.base import SequenceSlice
from outrider.engines.fake import FakeEngine, FakeOptions
from outrider.sampling.params import SamplingParams
from services.inference.scheduler.types import OpenRequest
from tests.engines.hooked import HookedEngine
from tests.inference.scheduler.driver import Driver

NUM_BEFORE = 8
USELESS, MIXED, CYCLES = 0.0, 0.75, 1.0
"""Share of tokens that follow from the one before."""
LINE: dict[str, Any] = {"fixed_ms": 10.0, "row_ms": 1.0}
DEAR_ROWS: dict[str, Any] = {"fixed_ms": 0.5, "row_ms": 5.0}


class SteepEngine(HookedEngine):
    """A call costs 10 ms up to 4 rows, 3 ms more for each further one."""

    def after(self, slices: Sequence[SequenceSlice]) -> None:
        self.step_ms = 10.0 + 3.0 * max(0, sum(len(part.tokens) for part in slices) - 4)


class ReadingEngine(HookedEngine):
    """A call costs 10 ms, 0.8 ms for each row, and 1 ms for each hundred tokens of context: most of
    what one more session costs is read once for all of its rows."""

    def after(self, slices: Sequence[SequenceSlice]) -> None:
        num_rows = sum(len(part.tokens) for part in slices)
        self.step_ms = 10.0 + 0.8 * num_rows + 0.01 * sum(part.past for part in slices)


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
    driver = Driver(options, engine=kind(options))
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
@pytest.mark.parametrize(
    ("kind", "times", "num_sessions", "salt", "share"),
    [
        (FakeEngine, LINE, 1, b"known", 0.99),
        (FakeEngine, LINE, 8, b"known", 0.99),
        (FakeEngine, DEAR_ROWS, 1, b"known", 0.99),
        (FakeEngine, DEAR_ROWS, 8, b"known", 0.99),
        (SteepEngine, {}, 1, b"known", 0.99),
        (SteepEngine, {}, 6, b"known", 0.99),
        (ReadingEngine, {}, 16, b"known", 0.99),
        # What drafts were worth to others is theirs, so a new group finds out for itself.
        (FakeEngine, LINE, 1, b"new", 0.98),
        (FakeEngine, LINE, 8, b"new", 0.98),
    ],
)
def test_drafts_cost_next_to_nothing_and_change_no_text(
    kind: type[FakeEngine],
    times: dict[str, Any],
    num_sessions: int,
    salt: bytes,
    share: float,
    repetition: float,
) -> None:
    options = FakeOptions(repetition=repetition, num_blocks=1024, min_rows=1, **times)
    off_s, truth = seconds(kind, options, num_sessions, drafts=False, salt=salt)
    on_s, replies = seconds(kind, options, num_sessions, drafts=True, salt=salt)
    assert replies == truth
    assert on_s <= off_s / share


def test_text_that_repeats_itself_comes_faster() -> None:
    options = FakeOptions(repetition=CYCLES, min_rows=1, **LINE)
    off_s, _ = seconds(FakeEngine, options, 4, drafts=False)
    on_s, _ = seconds(FakeEngine, options, 4, drafts=True)
    assert on_s < off_s / 2
