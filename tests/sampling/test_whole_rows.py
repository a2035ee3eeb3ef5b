"""The choice from whole rows against the noise of every id; rows together against rows alone."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.errors import EngineError
from outrider.sampling.grammar import JSON_OBJECT
from outrider.sampling.gumbel import Noise, Scores, group_size_of, noise_of_rows, scaled
from outrider.sampling.params import SamplingParams
from outrider.sampling.sampler import Sampler
from outrider.sampling.whole_rows import choose, find_rivals

SIZES = st.sampled_from([1, 40, 1023, 1024, 1025, 3000, 4096])
PRECISIONS = st.sampled_from([np.float32, np.float64])
TEMPERATURES = st.sampled_from([1e-300, 1e-6, 0.3, 0.8, 1.0, 2.0])
SPREADS = st.sampled_from([0.0, 1e-3, 1.0, 6.0, 1e6, 1e37])
POSITIONS = st.integers(0, 5000)
SEEDS = st.integers(0, 2**64 - 1)


def row(size: int, spread: float, seed: int, precision: type[np.floating[Any]]) -> Scores:
    """A tenth of it cannot be chosen, but for the best."""
    chance = np.random.default_rng(seed)
    values = (chance.standard_normal(size) * spread).astype(precision)
    values[np.flatnonzero(chance.random(size) < 0.1)] = -np.inf
    values[chance.integers(size)] = spread
    return values


def naive_choice(scores: Scores, temperature: float, noise: Noise) -> int:
    everything = noise.of(np.arange(len(scores), dtype=np.int32))
    return int((scaled(scores, float(scores.max()), temperature) + everything).argmax())


@settings(max_examples=100)
@given(
    size=SIZES,
    precision=PRECISIONS,
    asked=st.lists(st.tuples(SPREADS, TEMPERATURES, SEEDS, POSITIONS), min_size=1, max_size=5),
)
def test_each_row_s_choice_is_the_best_of_all_its_ids(
    size: int, precision: type[np.floating[Any]], asked: list[tuple[float, float, int, int]]
) -> None:
    rows, expected = [], []
    for spread, temperature, seed, position in asked:
        scores = row(size, spread, seed % 1000, precision)
        noise = Noise(seed, position, group_size_of(size))
        rows.append(find_rivals(scores, temperature, noise))
        expected.append(naive_choice(scores, temperature, noise))
    assert choose(rows) == expected
    assert [choose([alone])[0] for alone in rows] == expected


@pytest.mark.parametrize("least", [np.finfo(np.float32).min, -1e30])
def test_ids_at_the_end_of_the_range_can_still_win(least: float) -> None:
    scores = np.full(2000, least, dtype=np.float32)
    noise = Noise(3, 7, group_size_of(2000))
    assert choose([find_rivals(scores, 2.0, noise)]) == [naive_choice(scores, 2.0, noise)]


def test_of_a_flat_row_few_ids_are_left() -> None:
    scores = np.zeros(49_152, dtype=np.float32)
    rivals = find_rivals(scores, 1.0, Noise(1, 2, group_size_of(49_152)))
    assert len(rivals.ids) < 1000, "noise is computed for these alone"


@given(seeds=st.lists(SEEDS, min_size=1, max_size=4), position=POSITIONS, data=st.data())
def test_noise_of_several_rows_is_that_of_each(
    seeds: list[int], position: int, data: st.DataObject
) -> None:
    noises = [Noise(seed, position, 8) for seed in seeds]
    drawn = st.sets(st.integers(0, 8191), max_size=50)
    parts = [np.array(sorted(data.draw(drawn)), dtype=np.int32) for _ in seeds]
    parts[0] = np.concatenate([parts[0], noises[0].group_argmaxes]).astype(np.int32)
    together = noise_of_rows(noises, [len(part) for part in parts], np.concatenate(parts))
    alone = [noise.of(part) for noise, part in zip(noises, parts, strict=True)]
    assert together.tolist() == np.concatenate(alone).tolist()


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(temperature=0.8, top_k=5),
        SamplingParams(temperature=0.8, top_p=0.9),
        SamplingParams(temperature=0.8, min_p=0.1),
        SamplingParams(temperature=0.8, repetition_penalty=1.2),
        SamplingParams(temperature=0.8, logit_bias={3: 1.0}),
    ],
)
def test_rows_of_which_more_than_noise_decides_go_alone(params: SamplingParams) -> None:
    sampler = Sampler(params, 40, [])
    assert not sampler.only_noise_decides
    assert sampler.rivals(np.zeros(40, dtype=np.float32), 0) is None


def test_rows_under_a_grammar_go_alone() -> None:
    class Anything:
        def allowed(self) -> Any:
            return np.ones(40, dtype=np.bool_)

    params = SamplingParams(temperature=0.8, grammar=JSON_OBJECT)
    sampler = Sampler(params, 40, [], Anything())  # type: ignore[arg-type]
    assert sampler.rivals(np.zeros(40, dtype=np.float32), 0) is None


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_a_row_that_is_not_finite_is_left_to_who_says_so(wrong: float) -> None:
    sampler = Sampler(SamplingParams(temperature=0.8), 2000, [])
    logits = np.full(2000, -np.inf, dtype=np.float32)
    logits[1500] = wrong
    assert sampler.rivals(logits, 0) is None
    with pytest.raises(EngineError, match="not finite"):
        sampler.choose(logits, 0)
    assert sampler.rivals(logits[:-1], 0) is None
    with pytest.raises(EngineError, match="expected a row of 2000"):
        sampler.choose(logits[:-1], 0)
