"""What sources guess on recorded replies, and the lines fitted to their confidence."""

from __future__ import annotations

import numpy as np
import pytest

from outrider.engines.draft_calibration import DraftCalibration
from outrider.engines.fake import FakeEngine, FakeOptions
from outrider.speculation.calibration import Platt
from outrider.speculation.ngrams import NgramPrior
from tools.train_draft.replies import NUM_TOP, Reply
from tools.train_draft.source_calibration import (
    GuessReader,
    SourceGuess,
    fit_platt,
    fit_sources,
    sources_table,
)

OPTIONS = FakeOptions(vocabulary_size=64, repetition=0.0)


def reply(prompt: list[int], ids: list[int], temperature: float = 0.0) -> Reply:
    top = np.zeros((len(ids), NUM_TOP), np.int32)
    return Reply(
        number=0,
        turn=0,
        kind="k",
        temperature=temperature,
        seed=1,
        prompt=np.array(prompt, np.int32),
        ids=np.array(ids, np.int32),
        top_ids=top,
        top_logprobs=top.astype(np.float16),
    )


def guesses(*replies: Reply) -> list[SourceGuess]:
    reader = GuessReader(FakeEngine(OPTIONS), DraftCalibration(), NgramPrior([{}, {}, {}]))
    return list(reader.guesses(replies))


def test_every_source_is_asked_for_every_token() -> None:
    """A text that repeats itself: copies know all of the reply, and are right but for the last."""
    found = guesses(reply([1, 2, 3, 4, 5, 1, 2], [3, 4, 5, 1, 9]))
    copied = [guess for guess in found if guess.source == "copy"]
    assert [(p.position, p.right) for p in copied] == [
        *((at, True) for at in range(4)),
        (4, False),
    ]
    beside = [guess for guess in found if guess.source != "copy"]
    assert {p.source for p in beside} <= {"suffix", "model", "both"}
    by_place = [{p.source for p in beside if p.position == at} for at in range(5)]
    assert all(sources in ({"both"}, {"suffix", "model"}) for sources in by_place)
    assert all(not p.are_sampled and 0 <= p.confidence <= 1 for p in found)


def test_nothing_is_carried_from_one_reply_to_the_next() -> None:
    one, other = reply([1, 2, 3], [7, 8, 9, 7, 8]), reply([4, 5, 6], [7, 8, 9], 0.8)
    assert guesses(one, one, other)[-len(guesses(other)) :] == guesses(other)


def test_a_line_is_found_and_drawn_to_its_prior_where_little_was_seen() -> None:
    rng, truth = np.random.default_rng(0), Platt(-1.0, 0.6)
    odds = rng.normal(0, 2, 20_000)
    right = rng.random(20_000) < 1 / (1 + np.exp(-(truth.shift + truth.slope * odds)))
    found = fit_platt(odds, right, Platt(), 4.0)
    assert found.shift == pytest.approx(truth.shift, abs=0.1)
    assert found.slope == pytest.approx(truth.slope, abs=0.05)
    few = fit_platt(odds[:4], right[:4], Platt(0.5, 1.2), 40.0)
    assert few.shift == pytest.approx(0.5, abs=0.15)
    assert fit_platt(odds[:0], right[:0], Platt(0.5, 1.2), 4.0) == Platt(0.5, 1.2)


def test_sources_and_places_are_fitted_apart() -> None:
    rng = np.random.default_rng(1)
    seen = [
        SourceGuess("copy", sampled, position, 0.5, bool(rng.random() < chance))
        for sampled, position, chance in (
            *[(False, 0, 0.05)] * 400,
            *[(False, 20, 0.6)] * 400,
            *[(True, 20, 0.3)] * 400,
        )
    ]
    fitted = fit_sources(seen)
    assert set(fitted.greedy) == set(fitted.sampled) == {"copy"}
    greedy, sampled = (fitted.of("copy", are_sampled=kind) for kind in (False, True))
    assert greedy[0].chance(0.5) == pytest.approx(0.05, abs=0.05)
    assert greedy[4].chance(0.5) == pytest.approx(0.6, abs=0.08)
    assert sampled[4].chance(0.5) == pytest.approx(0.3, abs=0.08)
    table = sources_table(seen, fitted)
    assert "| copy | greedy | 1 | 400 | 0.50 |" in table
    assert "| copy | sampled | 9+ | 400 | 0.50 |" in table
