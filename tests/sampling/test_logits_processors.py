"""The counts that penalties use, past every growth of their store."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.sampling.logits_processors import History
from outrider.sampling.params import SamplingParams
from tests.sampling import naive

VOCABULARY = 400
PENALTIES = SamplingParams(repetition_penalty=1.3, presence_penalty=0.5, frequency_penalty=0.25)
TOKENS = st.lists(st.integers(0, VOCABULARY - 1), max_size=300)


def penalized(prompt: list[int], reply: list[int]) -> list[float]:
    history = History(prompt)
    for token in reply:
        history.add(token)
    scores = np.linspace(-4.0, 4.0, VOCABULARY)
    history.penalize(scores, PENALTIES, None)
    return [float(score) for score in scores]


def expected(prompt: list[int], reply: list[int]) -> list[float]:
    scores = dict(enumerate(np.linspace(-4.0, 4.0, VOCABULARY).tolist()))
    adjusted = naive.adjusted(scores, PENALTIES, prompt, reply)
    return [adjusted[token] for token in range(VOCABULARY)]


@pytest.mark.parametrize("num_known", [0, 1, 63, 64, 65, 127, 128])
def test_a_reply_may_have_any_number_of_distinct_ids(num_known: int) -> None:
    prompt, reply = list(range(num_known)), [*range(num_known, 300), 299]
    assert penalized(prompt, reply) == pytest.approx(expected(prompt, reply))


@given(prompt=TOKENS, reply=TOKENS)
def test_counts_are_the_replys(prompt: list[int], reply: list[int]) -> None:
    assert penalized(prompt, reply) == pytest.approx(expected(prompt, reply))
