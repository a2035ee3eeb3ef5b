"""Perplexity, divergence and agreement: cases by hand, and what holds of any rows."""

from __future__ import annotations

import math
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.fidelity.measure import SERVED, Bounds, Fidelity, Tally

Rows: TypeAlias = npt.NDArray[np.floating]


def measured(reference: Rows, engine: Rows, following: list[int]) -> Fidelity:
    tally = Tally()
    tally.add(reference, engine, following)
    return tally.figures()


@st.composite
def cases(draw: st.DrawFn) -> tuple[Rows, Rows, list[int]]:
    """Logits of reference and engine at the same positions, and what follows."""
    count, size = draw(st.integers(1, 6)), draw(st.integers(2, 9))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    spread = draw(st.sampled_from([0.01, 1.0, 8.0]))
    reference = rng.standard_normal((count, size)) * spread
    engine = reference + rng.standard_normal((count, size)) * draw(st.sampled_from([0.01, 1.0]))
    return reference, engine, rng.integers(0, size, count).tolist()


def test_two_tokens_by_hand() -> None:
    reference, engine = np.log([[0.75, 0.25]]), np.log([[0.5, 0.5]])
    found = measured(reference, engine, [1])
    assert found.num_positions == 1
    assert found.reference_perplexity == pytest.approx(4)
    assert found.perplexity == pytest.approx(2)
    assert found.ppl_ratio == pytest.approx(0.5)
    assert found.kl == pytest.approx(0.75 * math.log(1.5) + 0.25 * math.log(0.5))
    assert found.argmax_agreement == 1  # Of equal scores, the first is the likeliest.


@given(cases())
def test_equal_rows_are_faithful(case: tuple[Rows, Rows, list[int]]) -> None:
    reference, _, following = case
    found = measured(reference, reference, following)
    assert (found.kl, found.argmax_agreement, found.ppl_ratio) == (0, 1, 1)
    assert SERVED.broken_by(found) == []


@given(cases(), st.floats(-50, 50))
def test_adding_the_same_to_a_row_changes_nothing(
    case: tuple[Rows, Rows, list[int]], added: float
) -> None:
    reference, engine, following = case
    moved, found = measured(reference, engine + added, following), measured(*case)
    assert moved.kl == pytest.approx(found.kl, abs=1e-9)
    assert moved.perplexity == pytest.approx(found.perplexity)


@given(cases())
def test_divergence_is_never_negative_and_agreement_a_share(
    case: tuple[Rows, Rows, list[int]],
) -> None:
    found = measured(*case)
    assert found.kl >= -1e-12
    assert 0 <= found.argmax_agreement <= 1
    assert found.perplexity >= 1
    same = (case[0].argmax(1) == case[1].argmax(1)).mean()
    assert found.argmax_agreement == pytest.approx(same)


@given(cases(), st.data())
def test_parts_add_up_to_the_whole(case: tuple[Rows, Rows, list[int]], data: st.DataObject) -> None:
    reference, engine, following = case
    at = data.draw(st.integers(0, len(following)))
    tally = Tally()
    tally.add(reference[:at], engine[:at], following[:at])
    tally.add(reference[at:], engine[at:], following[at:])
    whole, found = measured(*case), tally.figures()
    assert found.num_positions == whole.num_positions
    for name in ("reference_perplexity", "perplexity", "kl", "argmax_agreement"):
        assert getattr(found, name) == pytest.approx(getattr(whole, name), rel=1e-9, abs=1e-12)


def test_large_scores_overflow_nowhere() -> None:
    rows = np.array([[3e4, -3e4, 0]], np.float32)
    found = measured(rows, rows, [0])
    assert (found.perplexity, found.kl) == (1, 0)


def test_rows_that_do_not_fit_are_refused() -> None:
    rows = np.zeros((2, 3))
    for engine, following in ((np.zeros((2, 4)), [0, 0]), (rows, [0]), (rows[:1], [0, 0])):
        with pytest.raises(ValueError, match="logits for"):
            Tally().add(rows, engine, following)


def test_nothing_compared_is_no_result() -> None:
    with pytest.raises(ValueError, match="no position"):
        Tally().figures()


def test_each_broken_bound_is_told() -> None:
    bounds = Bounds(max_ppl_ratio=1.01, max_kl=0.015, min_argmax_agreement=0.94)
    within = Fidelity(10, 10.0, 10.1, 0.015, 0.94)
    assert bounds.broken_by(within) == []
    outside = Fidelity(10, 10.0, 12.0, 0.39, 0.706)
    assert bounds.broken_by(outside) == [
        "1.200 times the perplexity (at most 1.01)",
        "a KL of 0.3900 (at most 0.015)",
        "the same likeliest token at 70.6% of positions (at least 94%)",
    ]
