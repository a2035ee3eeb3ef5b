"""Classes and prices by numbers of tokens."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.config import load
from outrider.errors import ConfigError
from services.router.admission.counting.lengths import LengthPolicy
from services.router.admission.counting.prices import FREE, Price, PriceTable
from services.router.admission.policy import Priority
from services.router.config import RouterConfig

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


@pytest.mark.parametrize(
    "wrong",
    [{"medium_above_tokens": -1}, {"medium_above_tokens": 9, "low_above_tokens": 8}],
)
def test_lengths_that_cannot_be_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigError):
        LengthPolicy(**wrong)


def test_the_nearest_row_applies() -> None:
    rows = {
        "both": Price(1, 1, "acme", "small"),
        "tenant": Price(2, 2, "acme"),
        "model": Price(3, 3, model="small"),
        "all": Price(4, 4),
    }
    table = PriceTable(rows.values())
    found = {
        "both": table.of("acme", "small"),
        "tenant": table.of("acme", "large"),
        "model": table.of("other", "small"),
        "all": table.of("other", "large"),
    }
    assert found == rows
    assert PriceTable().of("acme", "small") is FREE


@given(TOKENS, TOKENS, TOKENS)
def test_costs_add_up(prompt: int, reply: int, more: int) -> None:
    price = Price(0.5, 2.0)
    whole = price.cost(prompt, reply + more)
    assert whole == pytest.approx(price.cost(prompt, reply) + price.cost(0, more))
    assert price.cost(1_000_000, 500_000) == 1.5 and FREE.cost(prompt, reply) == 0.0


def test_prices_that_cannot_be_are_refused() -> None:
    with pytest.raises(ConfigError, match="cannot be negative"):
        Price(-1.0, 0.0)
    with pytest.raises(ConfigError, match="keep one"):
        PriceTable([Price(1.0, 1.0), Price(2.0, 2.0)])


def test_both_are_tables_of_the_routers_file(tmp_path: Path) -> None:
    file = tmp_path / "outrider.toml"
    file.write_text(
        "[router.lengths]\nlow_above_tokens = 9000\n"
        '[[router.prices]]\nprompt_per_million = 0.2\nreply_per_million = 0.8\ntenant = "acme"\n'
    )
    config = load(RouterConfig, "router", file=file, environ={})
    assert config.lengths == LengthPolicy(low_above_tokens=9000)
    assert config.prices == (Price(0.2, 0.8, "acme"),)
