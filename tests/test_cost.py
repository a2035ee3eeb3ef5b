"""Amounts of money: exact, and fit to be printed."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.cost import MAX_AMOUNT_NANOS, NANOS, Cost


@given(st.integers(0, MAX_AMOUNT_NANOS))
def test_an_amount_is_printed_whole(amount_nanos: int) -> None:
    text, currency = str(Cost(amount_nanos, "USD")).split()
    assert currency == "USD"
    assert Decimal(text) * NANOS == amount_nanos
    assert 2 <= len(text.partition(".")[2]) <= 9


def test_as_people_write_it() -> None:
    amounts = {0: "0.00", 1: "0.000000001", 420_000: "0.00042", 1_500_000_000: "1.50"}
    for nanos, text in amounts.items():
        assert str(Cost(nanos, "credits")) == f"{text} credits"


@pytest.mark.parametrize("currency", ["USD", "€", "kVND", "tokens/1e6", "x" * 16])
def test_any_word_is_a_currency(currency: str) -> None:
    assert Cost(1, currency).currency == currency


@pytest.mark.parametrize(
    ("amount_nanos", "currency"),
    [
        (-1, "USD"),
        (MAX_AMOUNT_NANOS + 1, "USD"),
        (1, ""),
        (1, "x" * 17),
        (1, "US D"),
        (1, "US\nD"),
        (1, "\x1b[31mUSD"),
        (1, "\u202eDSU"),
    ],
)
def test_what_could_not_be_meant_is_refused(amount_nanos: int, currency: str) -> None:
    with pytest.raises(ValueError, match=r"billionths|currency"):
        Cost(amount_nanos, currency)
