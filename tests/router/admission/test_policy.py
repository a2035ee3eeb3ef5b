"""Settings of admission control."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.errors import ConfigError
from outrider.session.types import Priority
from services.router.admission.policy import AdmissionPolicy, LengthPolicy

TOKENS = st.integers(0, 10**6)


@given(TOKENS, TOKENS, st.integers(1, 10**6), st.integers(0, 10**6))
def test_longer_prompts_never_have_a_higher_class(
    short: int, more: int, medium: int, further: int
) -> None:
    policy = LengthPolicy(medium, medium + further)
    assert policy.highest(short + more) <= policy.highest(short)
    assert policy.highest(medium) is Priority.HIGH
    assert policy.highest(medium + further + 1) is Priority.LOW


def test_without_limits_length_says_nothing() -> None:
    assert LengthPolicy().highest(10**9) is Priority.HIGH
    assert LengthPolicy(low_above_tokens=10).highest(11) is Priority.LOW
    assert LengthPolicy(low_above_tokens=10).highest(10) is Priority.HIGH


def test_lengths_that_cannot_be_are_refused() -> None:
    with pytest.raises(ConfigError, match="no prompt would be MEDIUM"):
        LengthPolicy(medium_above_tokens=9, low_above_tokens=8)


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ({"slo_ttft_high_ms": 2000.0}, "larger than slo_ttft_medium_ms"),
        ({"slo_ttft_medium_ms": 9000.0}, "larger than slo_ttft_low_ms"),
    ],
)
def test_targets_that_cannot_work_are_refused(policy: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        AdmissionPolicy(**policy)
