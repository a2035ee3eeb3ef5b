"""The sampler against the naive definition, and against softmax by chi-squared."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.errors import EngineError, InvalidRequestError, InvalidSamplingError
from outrider.sampling.constraint import Mask
from outrider.sampling.grammar import JSON_OBJECT
from outrider.sampling.params import SamplingParams
from outrider.sampling.sampler import Sampler
from tests.sampling import naive

VOCABULARY = 40
ROWS = st.lists(
    st.one_of(st.floats(-30, 30, width=32), st.sampled_from([0.0, 1.0, -1.0])),
    min_size=VOCABULARY,
    max_size=VOCABULARY,
)
TOKENS = st.lists(st.integers(0, VOCABULARY - 1), max_size=12)
PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 1e-300, 0.3, 0.8, 1.0, 2.0]),
    top_k=st.sampled_from([0, 1, 2, 7, 40, 100]),
    top_p=st.sampled_from([1e-6, 0.3, 0.9, 0.95, 1.0]),
    min_p=st.sampled_from([0.0, 0.05, 0.5, 1.0]),
    repetition_penalty=st.sampled_from([0.5, 1.0, 1.3]),
    presence_penalty=st.sampled_from([-1.0, 0.0, 2.0]),
    frequency_penalty=st.sampled_from([0.0, 0.5]),
    # Rounded: what a score's rounding swallows has no rank that two ways of adding agree on.
    logit_bias=st.dictionaries(
        st.integers(0, VOCABULARY - 1),
        st.floats(-100, 100).map(lambda bias: round(bias, 6)),
        max_size=3,
    ),
    seed=st.integers(0, 2**64 - 1),
)


def row(values: list[float]) -> Any:
    return np.array(values, dtype=np.float32)


@settings(max_examples=100)
@given(params=PARAMS, logits=ROWS, prompt=TOKENS, reply=TOKENS, position=st.integers(0, 5000))
def test_choice_and_probability_are_the_naive_ones(
    params: SamplingParams, logits: list[float], prompt: list[int], reply: list[int], position: int
) -> None:
    sampler = Sampler(params, VOCABULARY, prompt)
    for token in reply:
        sampler.observe(token)
    scores = naive.adjusted(dict(enumerate(row(logits).tolist())), params, prompt, reply)
    chosen = sampler.choose(row(logits), position)
    expected = naive.distribution(scores, params)
    if _no_edge_in_reach(scores, params):
        assert chosen == naive.choose(scores, params, position, VOCABULARY)
        for token in range(VOCABULARY):
            given_ = sampler.probability(row(logits), token)
            assert given_ == pytest.approx(expected.get(token, 0.0), abs=1e-9)


class Only:
    """Always allows the same ids."""

    def __init__(self, ids: Sequence[int]) -> None:
        self._mask = np.isin(np.arange(VOCABULARY), ids)
        self.advanced: list[int] = []
        self.allows_all = False

    def allowed(self) -> Mask:
        return self._mask

    def advance(self, token: int) -> None:
        if not self._mask[token]:
            raise InvalidRequestError("not allowed")
        self.advanced.append(token)

    def prepare(self, drafts: Sequence[int]) -> None:
        pass

    def num_valid(self, drafts: Sequence[int]) -> int:
        return len(drafts)

    def forced(self, max_tokens: int) -> tuple[int, ...]:
        return ()


@settings(max_examples=100)
@given(
    params=PARAMS,
    logits=ROWS,
    prompt=TOKENS,
    allowed=st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=30, unique=True),
    position=st.integers(0, 5000),
    data=st.data(),
)
def test_ids_that_a_grammar_forbids_might_as_well_not_be_there(
    params: SamplingParams,
    logits: list[float],
    prompt: list[int],
    allowed: list[int],
    position: int,
    data: st.DataObject,
) -> None:
    params = replace(params, grammar=JSON_OBJECT)
    reply = data.draw(st.lists(st.sampled_from(allowed), max_size=8))
    only = Only(allowed)
    sampler = Sampler(params, VOCABULARY, prompt, only)
    for token in reply:
        sampler.observe(token)
    assert only.advanced == reply
    scores = naive.adjusted(dict(enumerate(row(logits).tolist())), params, prompt, reply)
    scores = {token: scores[token] for token in allowed}
    chosen = sampler.choose(row(logits), position)
    assert chosen in allowed
    if _no_edge_in_reach(scores, params):
        assert chosen == naive.choose(scores, params, position, VOCABULARY)
        expected = naive.distribution(scores, params)
        for token in range(VOCABULARY):
            given_ = sampler.probability(row(logits), token)
            assert given_ == pytest.approx(expected.get(token, 0.0), abs=1e-9)


def test_a_grammar_and_its_constraint_belong_together() -> None:
    with pytest.raises(InvalidSamplingError, match="compiled"):
        Sampler(SamplingParams(grammar=JSON_OBJECT), VOCABULARY, [])
    with pytest.raises(InvalidSamplingError, match="compiled"):
        Sampler(SamplingParams(), VOCABULARY, [], Only([1]))


def test_candidates_are_not_enough_for_a_grammar() -> None:
    sampler = Sampler(SamplingParams(grammar=JSON_OBJECT), VOCABULARY, [], Only([1]))
    with pytest.raises(EngineError, match="every id"):
        sampler.choose(row([1.0, 2.0]), 0, np.array([1, 2], dtype=np.int32))


def test_a_row_whose_best_is_not_finite_is_refused_though_the_grammar_forbids_that_id() -> None:
    logits = row([0.0] * VOCABULARY)
    logits[7] = math.nan
    for temperature in (0.0, 0.8):
        params = SamplingParams(temperature=temperature, grammar=JSON_OBJECT)
        with pytest.raises(EngineError, match="finite"):
            Sampler(params, VOCABULARY, [], Only([1])).choose(logits, 0)


def _no_edge_in_reach(scores: dict[int, float], params: SamplingParams) -> bool:
    """Whether rounding could not move an id across the edge of min_p or top_p."""
    nudged = [
        SamplingParams(
            temperature=params.temperature,
            top_k=params.top_k,
            top_p=min(1.0, params.top_p * factor) if params.top_p < 1.0 else 1.0,
            min_p=min(1.0, params.min_p * factor),
        )
        for factor in (1 - 1e-9, 1 + 1e-9)
    ]
    first, second = (naive.distribution(scores, edge).keys() for edge in nudged)
    return first == second


@settings(max_examples=100)
@given(
    params=PARAMS,
    logits=ROWS,
    first=st.integers(0, 50),
    counts=st.lists(st.integers(0, 6), max_size=3),
    position=st.integers(0, 60),
)
def test_noise_drawn_before_changes_nothing(
    params: SamplingParams, logits: list[float], first: int, counts: list[int], position: int
) -> None:
    sampler = Sampler(params, VOCABULARY, [])
    for count in counts:
        sampler.prepare(first, count)
    expected = Sampler(params, VOCABULARY, []).choose(row(logits), position)
    assert sampler.choose(row(logits), position) == expected


def test_noise_drawn_before_is_drawn_once_and_kept_for_its_positions() -> None:
    sampler = Sampler(SamplingParams(temperature=0.8), VOCABULARY, [])
    sampler.prepare(5, 3)
    drawn = {at: sampler._noise(at) for at in (5, 6, 7)}
    sampler.prepare(6, 3)  # the draft behind position 5 was wrong
    assert all(sampler._noise(at) is drawn[at] for at in (6, 7))
    assert sampler._noise(5) is not drawn[5], "what is behind is forgotten"
    greedy = Sampler(SamplingParams(), VOCABULARY, [])
    greedy.prepare(5, 3)
    assert not greedy._drawn


@settings(max_examples=100)
@given(
    params=PARAMS,
    logits=ROWS,
    reply=TOKENS,
    ids=st.permutations(range(VOCABULARY)),
    size=st.integers(1, VOCABULARY),
    position=st.integers(0, 99),
)
def test_candidate_lists_are_a_set(
    params: SamplingParams,
    logits: list[float],
    reply: list[int],
    ids: list[int],
    size: int,
    position: int,
) -> None:
    """The order of columns never matters, and the full list equals the full row."""
    sampler = Sampler(params, VOCABULARY, [])
    for token in reply:
        sampler.observe(token)
    full, order = row(logits), np.array(ids, dtype=np.int32)
    assert sampler.choose(full[order], position, order) == sampler.choose(full, position)
    some, ascending = order[:size], np.sort(order[:size])
    chosen = sampler.choose(full[some], position, some)
    assert chosen == sampler.choose(full[ascending], position, ascending)
    assert chosen in some
    assert sampler.probability(full[some], chosen, some) == sampler.probability(
        full[ascending], chosen, ascending
    )


@pytest.mark.parametrize("spread", [0.0, 0.01, 1.0, 4.0, 12.0, 1e30])
@pytest.mark.parametrize("temperature", [1e-300, 0.05, 0.8, 2.0])
@pytest.mark.parametrize("size", [3, 700, 1024, 5003, 9216])
def test_pruning_never_changes_the_winner(spread: float, temperature: float, size: int) -> None:
    rng = np.random.default_rng(size)
    for seed in range(12):
        logits = (rng.standard_normal(size) * spread).astype(np.float32)
        if seed % 3 == 0:
            logits = np.round(logits)
        params = SamplingParams(temperature=temperature, seed=seed)
        scores = dict(enumerate(logits.tolist()))
        expected = naive.choose(scores, params, seed, size)
        assert Sampler(params, size, []).choose(logits, seed) == expected
        bias = SamplingParams(temperature=temperature, seed=seed, logit_bias={1: 0.0})
        assert Sampler(bias, size, []).choose(logits, seed) == expected


@pytest.mark.parametrize("extra", [{}, {"top_k": 30}], ids=str)
@pytest.mark.parametrize("by", ["seed", "position"])
def test_ids_that_share_groups_follow_softmax_too(extra: dict[str, Any], by: str) -> None:
    """5,000 ids are 5 to a group: the likeliest here are all those of six groups, so that maxima,
    argmaxes and truncated noise decide among them."""
    likely = (np.arange(5)[:, None] * 1024 + [0, 1, 2, 500, 776, 1000]).ravel()
    likely = likely[likely < 5000]
    logits = np.full(5000, -30.0, dtype=np.float32)
    logits[likely] = np.random.default_rng(6).standard_normal(len(likely)) * 1.5
    counts: Counter[int] = Counter()
    for draw in range(6000):
        seed, position = (draw, 17) if by == "seed" else (17, draw)
        params = SamplingParams(temperature=0.9, seed=seed, **extra)
        counts[Sampler(params, 5000, []).choose(logits, position)] += 1
    expected = naive.distribution(dict(enumerate(logits.tolist())), params)
    assert _chi_squared_z(counts, expected, 6000) < 4.0


def _chi_squared_z(counts: Counter[int], expected: dict[int, float], draws: int) -> float:
    """Wilson and Hilferty's normal score of the chi-squared statistic, rare ids pooled."""
    cells: list[tuple[float, float]] = []
    rare, rare_count = 0.0, 0.0
    for token, probability in expected.items():
        if probability * draws < 5:
            rare, rare_count = rare + probability * draws, rare_count + counts[token]
        else:
            cells.append((probability * draws, counts[token]))
    if rare >= 5:
        cells.append((rare, rare_count))
    statistic = sum((seen - want) ** 2 / want for want, seen in cells)
    degrees = max(len(cells) - 1, 1)
    spread = 2 / (9 * degrees)
    return float(((statistic / degrees) ** (1 / 3) - (1 - spread)) / math.sqrt(spread))


def test_a_shared_seed_couples_two_models_better_than_chance() -> None:
    """Daliri et al.: agreement is at least (1 - TV) / (1 + TV)."""
    rng = np.random.default_rng(1)
    target = (rng.standard_normal(60) * 2).astype(np.float32)
    draft = (target + rng.standard_normal(60) * 0.5).astype(np.float32)
    p, q = (np.exp(row - row.max()) for row in (target, draft))
    p, q = p / p.sum(), q / q.sum()
    variation = float(abs(p - q).sum() / 2)
    agreed = 0
    for seed in range(2000):
        sampler = Sampler(SamplingParams(temperature=1.0, seed=seed), 60, [])
        agreed += sampler.choose(target, 3) == sampler.choose(draft, 3)
    assert agreed / 2000 >= (1 - variation) / (1 + variation) - 0.03


LEVELS = st.lists(st.sampled_from([0.0, 1.0, 2.5]), min_size=VOCABULARY, max_size=VOCABULARY)


@given(levels=LEVELS, top_p=st.floats(0.05, 0.99), min_p=st.sampled_from([0.0, 0.1, 0.3]))
def test_of_equal_scores_at_the_edge_of_top_p_the_first_ids_stay(
    levels: list[float], top_p: float, min_p: float
) -> None:
    params = SamplingParams(temperature=1.0, top_p=top_p, min_p=min_p)
    sampler, scores = Sampler(params, VOCABULARY, []), dict(enumerate(levels))
    expected = naive.distribution(scores, params)
    if _no_edge_in_reach(scores, params):
        for token in range(VOCABULARY):
            found = sampler.probability(row(levels), token)
            assert found == pytest.approx(expected.get(token, 0.0), abs=1e-9)


@pytest.mark.parametrize(
    ("top_p", "num_kept"), [(0.25, 1), (0.26, 2), (0.5, 2), (0.51, 3), (0.75, 3), (0.76, 4)]
)
def test_top_p_keeps_no_id_beyond_the_one_that_reaches_it(top_p: float, num_kept: int) -> None:
    """Four ids of a quarter each, whose sums are exact."""
    levels = [1.0 if token in (3, 7, 20, 31) else -math.inf for token in range(VOCABULARY)]
    sampler = Sampler(SamplingParams(temperature=1.0, top_p=top_p), VOCABULARY, [])
    kept = [token for token in range(VOCABULARY) if sampler.probability(row(levels), token)]
    assert kept == [3, 7, 20, 31][:num_kept]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("column", [0, 3, 7])
def test_logits_that_are_not_finite_are_refused(
    bad: float, temperature: float, column: int
) -> None:
    logits = row([0.0] * 8)
    logits[column] = bad
    sampler = Sampler(SamplingParams(temperature=temperature), 8, [])
    with pytest.raises(EngineError, match="finite"):
        sampler.choose(logits, 0)
    with pytest.raises(EngineError, match="finite"):
        sampler.probability(logits, 1)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_an_id_whose_logit_is_minus_infinity_is_never_chosen(temperature: float) -> None:
    logits = row([-math.inf] * 8)
    for seed in range(20):
        sampler = Sampler(SamplingParams(temperature=temperature, seed=seed), 8, [])
        with pytest.raises(EngineError, match="finite"):
            sampler.choose(logits, 0)
        some = logits.copy()
        some[[2, 5]] = 1.0
        assert sampler.choose(some, 0) in (2, 5)
        assert sampler.probability(some, 5) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("width", "ids"), [(7, None), (9, None), (2, [0]), (0, []), (2, [0, 8]), (2, [-1, 3])]
)
def test_rows_of_another_vocabulary_are_refused(width: int, ids: list[int] | None) -> None:
    columns = None if ids is None else np.array(ids, dtype=np.int32)
    with pytest.raises(EngineError):
        Sampler(SamplingParams(), 8, []).choose(row([0.0] * width), 0, columns)


@pytest.mark.parametrize("token", [-1, 8, 10**6])
def test_ids_outside_the_vocabulary_are_refused(token: int) -> None:
    with pytest.raises(InvalidSamplingError, match="logit_bias"):
        Sampler(SamplingParams(logit_bias={token: 1.0}), 8, [])
    with pytest.raises(InvalidSamplingError, match="stop_ids"):
        Sampler(SamplingParams(stop_ids=(token,)), 8, [])


def test_a_sampler_ahead_counts_what_is_not_final_and_leaves_no_trace() -> None:
    params = SamplingParams(repetition_penalty=10.0)
    sampler = Sampler(params, 3, prompt=())
    logits = row([1.0, 0.9, 0.8])
    assert sampler.after([0]).choose(logits, 0) == 1
    assert sampler.after([0, 1]).choose(logits, 0) == 2
    assert sampler.choose(logits, 0) == 0
    plain = Sampler(SamplingParams(), 3, prompt=())
    assert plain.after([0]) is plain
