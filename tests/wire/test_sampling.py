"""Sampling values mean the same on both ends."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.errors import InvalidSamplingError
from outrider.sampling.params import SamplingParams
from outrider.v1 import common_pb2
from outrider.wire.sampling import from_proto, to_proto


@given(
    st.builds(
        SamplingParams,
        temperature=st.floats(0, 2),
        top_k=st.integers(0, 2**31 - 1),
        top_p=st.floats(0, 1, exclude_min=True),
        min_p=st.floats(0, 1),
        repetition_penalty=st.floats(0, 10, exclude_min=True),
        presence_penalty=st.floats(-2, 2),
        frequency_penalty=st.floats(-2, 2),
        logit_bias=st.dictionaries(st.integers(0, 2**32 - 1), st.floats(-99, 99), max_size=4),
        seed=st.integers(0, 2**64 - 1),
        max_tokens=st.integers(1, 2**31 - 1),
        stop=st.lists(st.text(min_size=1, max_size=9), max_size=3).map(tuple),
        stop_ids=st.lists(st.integers(0, 2**32 - 1), max_size=3).map(tuple),
        ignore_eos=st.booleans(),
        acceptance_threshold=st.floats(0, 1),
    )
)
def test_round_trip(params: SamplingParams) -> None:
    wire = to_proto(params).SerializeToString()
    assert from_proto(common_pb2.Sampling.FromString(wire)) == params


def test_an_empty_message_is_the_defaults() -> None:
    assert from_proto(common_pb2.Sampling()) == SamplingParams()


def test_explicit_zero_is_not_a_default() -> None:
    with pytest.raises(InvalidSamplingError, match="top_p"):
        from_proto(common_pb2.Sampling(top_p=0.0))


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": math.nan},
        {"temperature": -0.5},
        {"temperature": math.inf},
        {"top_p": 1.5},
        {"min_p": math.nan},
        {"repetition_penalty": -1.0},
        {"presence_penalty": 1e30},
        {"frequency_penalty": -math.inf},
        {"top_k": 2**32 - 1},
        {"max_tokens": 2**32 - 1},
        {"stop": [""]},
        {"stop": ["x" * 9999]},
        {"stop_ids": list(range(99))},
        {"acceptance_threshold": 2.0},
        {"logit_bias": [common_pb2.LogitBias(id=1, bias=math.nan)]},
    ],
)
def test_absurd_values_are_refused(fields: dict[str, object]) -> None:
    with pytest.raises(InvalidSamplingError):
        from_proto(common_pb2.Sampling(**fields))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "sampling",
    [
        common_pb2.Sampling(stop=["x"] * 17),
        common_pb2.Sampling(stop_ids=[1] * 17),
        # As many as the limit allows once they are put together by id.
        common_pb2.Sampling(logit_bias=[common_pb2.LogitBias(id=1, bias=1.0)] * 1025),
    ],
    ids=["stop", "stop_ids", "logit_bias"],
)
def test_entries_are_counted_before_they_are_read(sampling: common_pb2.Sampling) -> None:
    with pytest.raises(InvalidSamplingError, match="at most"):
        from_proto(sampling)
