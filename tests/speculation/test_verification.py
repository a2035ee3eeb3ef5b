"""Verification: any drafts, the same text."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.errors import EngineError
from outrider.sampling.params import SamplingParams
from outrider.sampling.sampler import Sampler
from outrider.sampling.whole_rows import choose
from outrider.speculation.verification import Verification, common_prefix_length, verify

VOCABULARY = 9
PROMPT = [1, 2, 3]
PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.8, 1.5]),
    top_p=st.sampled_from([0.7, 1.0]),
    repetition_penalty=st.sampled_from([1.0, 1.4]),
    frequency_penalty=st.sampled_from([0.0, 0.8]),
    seed=st.integers(0, 50),
)


def model(sequence: list[int]) -> Any:
    """A row that depends on the whole sequence."""
    rng = np.random.default_rng([7, *(token + 1 for token in sequence)])
    return (rng.standard_normal(VOCABULARY) * 2).astype(np.float32)


def rows_for(sequence: list[int], drafts: list[int]) -> Any:
    return np.stack([model(sequence + drafts[:at]) for at in range(len(drafts) + 1)])


def plain(params: SamplingParams, length: int) -> list[int]:
    """The reply token by token, with no drafts at all."""
    sampler, reply = Sampler(params, VOCABULARY, PROMPT), list[int]()
    for _ in range(length):
        chosen = sampler.choose(model(PROMPT + reply), len(PROMPT) + len(reply))
        sampler.observe(chosen)
        reply.append(chosen)
    return reply


def chosen_together(sampler: Sampler, rows: Any, position: int) -> list[int]:
    """What is known of the choices before verification, where anything can be."""
    found = [sampler.rivals(row, at) for at, row in enumerate(rows, position)]
    return choose([rivals for rivals in found if rivals is not None])


@settings(max_examples=150, deadline=None)
@given(params=PARAMS, data=st.data())
def test_the_text_is_the_model_s_whatever_the_drafts(
    params: SamplingParams, data: st.DataObject
) -> None:
    expected = plain(params, 24)
    sampler, reply = Sampler(params, VOCABULARY, PROMPT), list[int]()

    while len(reply) < len(expected):
        right = data.draw(st.integers(0, 5))
        garbage = data.draw(st.lists(st.integers(-1, VOCABULARY), max_size=3))
        drafts = expected[len(reply) : len(reply) + right] + garbage

        def push(token: int) -> bool:
            reply.append(token)
            return len(reply) == len(expected)

        start = len(reply)
        position = len(PROMPT) + start
        rows = rows_for(PROMPT + reply, drafts)
        known = chosen_together(sampler, rows[: data.draw(st.integers(0, len(rows)))], position)
        verdict = verify(sampler, rows, None, drafts, position, push, known)
        assert verdict.ids == tuple(reply[start:])
        assert verdict.num_lossy == 0
        assert verdict.ids[: verdict.accepted] == tuple(drafts[: verdict.accepted])
        assert len(verdict.ids) - verdict.accepted in (0, 1)
        if len(verdict.ids) == verdict.accepted:
            assert len(reply) == len(expected)
    assert reply == expected


def never(token: int) -> bool:
    return False


def one_hot(*winners: int) -> Any:
    rows = np.zeros((len(winners), VOCABULARY), dtype=np.float32)
    rows[range(len(winners)), winners] = 10.0
    return rows


def greedy(**extra: Any) -> Sampler:
    return Sampler(SamplingParams(**extra), VOCABULARY, PROMPT)


def test_every_row_has_the_noise_of_its_own_position() -> None:
    params = SamplingParams(temperature=1.5, seed=11)
    drafts = plain(params, 8)
    sampler = Sampler(params, VOCABULARY, PROMPT)
    verdict = verify(sampler, rows_for(PROMPT, drafts[:7]), None, drafts[:7], len(PROMPT), never)
    assert (list(verdict.ids), verdict.accepted) == (drafts, 7)


@pytest.mark.parametrize(
    ("choices", "expected"),
    [((7,), Verification((7, 4), 1, 0)), ((7, 8, 5), Verification((7, 8, 5), 2, 0))],
)
def test_choices_that_are_known_are_not_made_again(
    choices: tuple[int, ...], expected: Verification
) -> None:
    assert verify(greedy(), one_hot(3, 4, 5), None, [7, 8], 3, never, choices) == expected
    known = verify(greedy(), one_hot(3), None, [], 3, never, choices[:1])
    assert known == Verification((7,), 0, 0)


def test_candidate_lists_name_the_columns() -> None:
    ids = np.array([[8, 2], [5, 1]], dtype=np.int32)
    rows = np.array([[1.0, 3.0], [4.0, 0.0]], dtype=np.float32)
    assert verify(greedy(), rows, ids, [2], 3, never) == Verification((2, 5), 1, 0)


def test_lossy_mode_lets_likely_drafts_through_and_marks_them() -> None:
    rows = np.zeros((3, VOCABULARY), dtype=np.float32)
    rows[:, 4], rows[:, 5] = 10.0, 9.9
    verdict = verify(greedy(acceptance_threshold=0.4), rows, None, [5, 4], 3, never)
    assert verdict == Verification((5, 4, 4), 2, 1)
    exact = verify(greedy(), rows, None, [5, 4], 3, never)
    assert exact == Verification((4,), 0, 0)
    strict = verify(greedy(acceptance_threshold=0.6), rows, None, [5, 4], 3, never)
    assert strict == Verification((4,), 0, 0)


def test_lossy_mode_takes_a_draft_exactly_as_likely_as_the_threshold() -> None:
    rows = np.full((2, VOCABULARY), -np.inf, dtype=np.float32)
    rows[:, 4] = rows[:, 5] = 1.0  # one half each, exactly
    verdict = verify(greedy(acceptance_threshold=0.5), rows, None, [5], 3, never)
    assert verdict == Verification((5, 4), 1, 1)
    above = np.nextafter(0.5, 1.0)
    strict = verify(greedy(acceptance_threshold=float(above)), rows, None, [5], 3, never)
    assert strict == Verification((4,), 0, 0)


def test_lossy_mode_refuses_what_the_filters_drop() -> None:
    rows = np.zeros((2, VOCABULARY), dtype=np.float32)
    rows[:, 4], rows[:, 5] = 10.0, 9.9
    sampler = greedy(acceptance_threshold=0.1, top_k=1)
    assert verify(sampler, rows, None, [5], 3, never) == Verification((4,), 0, 0)
    assert verify(greedy(acceptance_threshold=0.1), rows, None, [99], 3, never).accepted == 0


@pytest.mark.parametrize(
    ("winners", "expected"),
    [
        ([1], Verification((1,), 1, 0)),
        ([3], Verification((3,), 0, 0)),
        ([1, 2], Verification((1, 2), 2, 0)),
        ([1, 2, 3], Verification((1, 2, 3), 3, 0)),
    ],
)
def test_the_first_rows_alone_void_the_drafts_behind(
    winners: list[int], expected: Verification
) -> None:
    assert verify(greedy(), one_hot(*winners), None, [1, 2, 3], 3, never) == expected


@pytest.mark.parametrize("num_rows", [0, 3])
def test_rows_must_match_the_drafts(num_rows: int) -> None:
    with pytest.raises(EngineError, match="1 to 2 rows"):
        verify(greedy(), one_hot(*[1] * num_rows), None, [1], 3, never)


IDS = st.lists(st.integers(0, 2), max_size=6)


@given(IDS, IDS)
def test_the_common_beginning_is_as_long_as_can_be(left: list[int], right: list[int]) -> None:
    count = common_prefix_length(left, right)
    assert left[:count] == right[:count]
    assert left[: count + 1] != right[: count + 1] or count == min(len(left), len(right))
