"""Amounts of money. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

NANOS: Final = 10**9
MAX_AMOUNT_NANOS: Final = 2**63 - 1
MAX_CURRENCY_CHARS: Final = 16


@dataclass(frozen=True, slots=True)
class Cost:
    """An exact amount. Raises ValueError for one that no sender of ours would name."""

    amount_nanos: int
    """Billionths of the currency."""
    currency: str
    """The operator's name for it, for example USD."""

    def __post_init__(self) -> None:
        if not 0 <= self.amount_nanos <= MAX_AMOUNT_NANOS:
            raise ValueError(f"an amount of {self.amount_nanos} billionths")
        if not is_currency(self.currency):
            raise ValueError(f"a currency called {self.currency[: 2 * MAX_CURRENCY_CHARS]!r}")

    def __str__(self) -> str:
        """The amount with all its decimals, at least two: `0.00042 USD`."""
        whole, nanos = divmod(self.amount_nanos, NANOS)
        decimals = f"{nanos:09d}".rstrip("0").ljust(2, "0")
        return f"{whole}.{decimals} {self.currency}"


def is_currency(name: str) -> bool:
    """Whether it can be printed on any terminal, and is one word."""
    is_word = name.isprintable() and not any(char.isspace() for char in name)
    return 1 <= len(name) <= MAX_CURRENCY_CHARS and is_word
