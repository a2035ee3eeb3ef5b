"""Prices of tokens, and what of them is charged."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from outrider.cost import MAX_AMOUNT_NANOS, Cost
from outrider.errors import ConfigError
from services.router.admission.pricing import ChatCharges, Price, PriceTable
from services.router.config import RouterConfig

TOKENS = st.integers(0, 10**6)
PRICES = st.decimals(0, 10**4, places=6).map(str)
"""As an operator writes them."""


def test_the_nearest_row_applies() -> None:
    rows = {
        "both": Price(1, 1, "acme", "small"),
        "tenant": Price(2, 2, "acme"),
        "model": Price(3, 3, model="small"),
        "all": Price(4, 4),
    }
    table = PriceTable(rows.values(), "USD")
    found = {
        "both": table.of("acme", "small"),
        "tenant": table.of("acme", "large"),
        "model": table.of("other", "small"),
        "all": table.of("other", "large"),
    }
    assert found == rows
    assert PriceTable().of("acme", "small") is None
    assert PriceTable([rows["both"]], "USD").cost("acme", "large", 1, 1) is None


@given(TOKENS, TOKENS, PRICES, PRICES)
@example(3, 3, "0.1", "0.7")  # no sum of floats is exact
@example(1, 0, "0.0005", "0")  # half a nano
@example(3, 0, "0.0005", "0")
def test_amounts_are_the_exact_sum_rounded_once(
    prompt: int, reply: int, prompt_price: str, reply_price: str
) -> None:
    price = Price(float(prompt_price), float(reply_price))
    exact = prompt * Fraction(prompt_price) + reply * Fraction(reply_price)  # in millionths
    assert price.nanos(prompt, reply) == math.floor(exact * 1000 + Fraction(1, 2))


def test_tokens_that_were_made_up_cost_what_an_amount_can_hold() -> None:
    table = PriceTable([Price(1e9, 1e9)], "USD")
    assert table.cost("", "m", 2**33, 2**33) == Cost(MAX_AMOUNT_NANOS, "USD")
    assert table.cost("", "m", 1, 0) == Cost(1000 * 10**9, "USD")


@pytest.mark.parametrize("wrong", [-1.0, math.nan, math.inf, 1e10, 0.0000001, 0.1 + 0.2])
def test_prices_that_cannot_be_are_refused(wrong: float) -> None:
    with pytest.raises(ConfigError, match="reply_per_million of tenant"):
        Price(1.0, wrong)


def test_a_table_has_one_row_for_each_and_a_currency() -> None:
    with pytest.raises(ConfigError, match="keep one"):
        PriceTable([Price(1.0, 1.0), Price(2.0, 2.0)], "USD")
    for currency in ("", "US Dollars", "x" * 17):
        with pytest.raises(ConfigError, match=r"router\.currency"):
            PriceTable([Price(1.0, 1.0)], currency)
    with pytest.raises(ConfigError, match=r"router\.currency"):
        RouterConfig(prices=(Price(1.0, 1.0),))


@given(st.lists(st.tuples(st.sampled_from([b"", b"one", b"two"]), st.integers(0, 100))))
def test_together_they_are_charged_the_most_of_them(runs: list[tuple[bytes, int]]) -> None:
    charges, charged = ChatCharges(), {b"": 0, b"one": 0, b"two": 0}
    for chat, amount in runs:
        part = charges.charge(chat, amount)
        assert part >= 0
        charged[chat] += part
    for chat in (b"one", b"two"):
        assert charged[chat] == max((a for c, a in runs if c == chat), default=0)
    assert charged[b""] == sum(a for c, a in runs if c == b""), "who says nothing has no other run"


def test_only_the_last_chats_are_known() -> None:
    charges = ChatCharges(max_chats=4)
    for number in range(100):
        charges.charge(bytes([number + 1]), 10)
    assert charges.charge(bytes([100]), 15) == 5
    assert charges.charge(bytes([1]), 15) == 15
