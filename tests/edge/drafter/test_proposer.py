"""From a row of the draft model to a draft."""

from __future__ import annotations

import numpy as np
import pytest

from outrider.engines.draft_calibration import DraftCalibration
from outrider.errors import EngineError
from outrider.sampling.gumbel import group_size_of
from outrider.sampling.params import SamplingParams
from outrider.sampling.sampler import Sampler
from services.edge.drafter.proposer import Proposal, Proposer
from tools.train_draft.agreement import _choice
from tools.train_draft.replies import NUM_TOP, Reply

SIZE = 512
HEAD = np.arange(0, SIZE, 2, dtype=np.int32)
MAP = DraftCalibration(greedy=((0.0, 0.4, 0.8),), sampled=((0.1, 0.1, 0.1),))


def rows(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 3, (count, len(HEAD))).astype(np.float32)


def propose(params: SamplingParams, row: np.ndarray, position: int = 7) -> Proposal:
    return Proposer(params, SIZE, (), MAP).propose(row, HEAD, position, ())


def test_greedy_takes_the_best_two_and_calibrates_the_chance() -> None:
    row = np.zeros(len(HEAD), np.float32)
    row[10], row[20] = 5.0, 4.0
    mass = np.exp(row) / np.exp(row).sum()
    proposal = propose(SamplingParams(), row)
    chance = 0.8 * mass[10]
    assert proposal.best.token == 20 and proposal.best.probability == pytest.approx(
        chance, rel=1e-5
    )
    assert proposal.second is not None and proposal.second.token == 40
    share = mass[20] / (1 - mass[10])
    assert proposal.second.probability == pytest.approx((1 - chance) * share, rel=1e-4)


def test_sampled_choices_are_the_samplers_but_for_the_tail() -> None:
    params = SamplingParams(temperature=0.8, seed=5)
    sampler, same = Sampler(params, SIZE, ()), 0
    for position, row in enumerate(rows(300)):
        same += propose(params, row, position).best.token == sampler.choose(row, position, HEAD)
    assert same >= 291


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(repetition_penalty=1.5),
        SamplingParams(logit_bias={500: 90.0}),
        SamplingParams(temperature=0.9, seed=1, presence_penalty=1.0),
    ],
)
def test_changed_scores_are_chosen_from_in_full(params: SamplingParams) -> None:
    sampler = Sampler(params, SIZE, ())
    for position, row in enumerate(rows(20)):
        proposal = propose(params, row, position)
        assert proposal.best.token == sampler.choose(row, position, HEAD)
        assert proposal.second is None or proposal.second.token != proposal.best.token


def test_chances_are_those_of_the_place_in_the_reply() -> None:
    """Counted from the prompt's end, which is behind four tokens here."""
    by_place = DraftCalibration((0, 2), ((0.2, 0.2), (0.6, 0.6)), ((0.1, 0.1), (0.3, 0.3)))
    for params, chances in (
        (SamplingParams(), (0.2, 0.2, 0.6, 0.6)),
        (SamplingParams(temperature=0.8, seed=5), (0.1, 0.1, 0.3, 0.3)),
    ):
        proposer = Proposer(params, SIZE, (1, 2, 3, 4), by_place)
        found = [
            proposer.propose(row, HEAD, 4 + at, ()).best.probability
            for at, row in enumerate(rows(4))
        ]
        assert found == pytest.approx(chances)


def test_a_sampled_choice_is_as_sure_as_its_lead() -> None:
    """Of its score with noise over the next best; the scorer that calibrates says the same, but
    where the best or the next best is one of the tail that is not looked at here."""
    at_its_word, num_same = DraftCalibration(), 0
    for seed in range(40):
        params = SamplingParams(temperature=0.8, seed=seed)
        row = rows(1, seed)[0]
        best = Proposer(params, SIZE, (1, 2, 3), at_its_word).propose(row, HEAD, 3, ()).best
        one = np.zeros(1, np.int32)
        top = np.zeros((1, NUM_TOP))
        reply = Reply(
            0,
            0,
            "k",
            0.8,
            seed,
            np.array([1, 2, 3], np.int32),
            one,
            top.astype(np.int32),
            top.astype(np.float16),
        )
        token, confidence = _choice(row, HEAD, reply, 3, group_size_of(SIZE))
        assert 0 <= best.probability < 1
        assert best.token != token or best.probability >= confidence - 1e-5
        num_same += best.probability == pytest.approx(confidence, abs=1e-5)
    assert num_same >= 36


def test_a_certain_row_needs_no_alternative() -> None:
    row = np.zeros(len(HEAD), np.float32)
    row[3] = 50.0
    sure = Proposer(SamplingParams(), SIZE, (), DraftCalibration())
    assert sure.propose(row, HEAD, 0, ()).second is None


def test_scores_that_are_no_numbers_are_refused() -> None:
    with pytest.raises(EngineError, match="not finite"):
        propose(SamplingParams(), np.full(len(HEAD), np.nan, np.float32))
