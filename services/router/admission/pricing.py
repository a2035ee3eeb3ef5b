"""The price of a session's tokens, and the part that is charged to its tenant. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from outrider.cost import MAX_AMOUNT_NANOS, MAX_CURRENCY_CHARS, Cost, is_currency
from outrider.errors import ConfigError
from outrider.lru_map import LruMap

ANY: Final = "*"
MAX_CHATS: Final = 4096
"""Most chats whose charge is remembered."""
MAX_PER_MILLION: Final = 1e9
"""Largest price, in units of any currency: at it, nine million tokens cost as much as a Cost can
hold."""
DECIMALS: Final = 6
"""Decimals of a price for a million tokens: one token costs a whole number of 10^-12 units."""


@dataclass(frozen=True, slots=True)
class Price:
    """One row of the table (`[[router.prices]]`), in `router.currency`. Raises ConfigError."""

    prompt_per_million: float
    """For a million tokens of prompts."""
    reply_per_million: float
    """For a million tokens of replies."""
    tenant: str = ANY
    """"*": every tenant without a row of its own."""
    model: str = ANY
    """"*": every model without a row of its own."""

    def __post_init__(self) -> None:
        for name in ("prompt_per_million", "reply_per_million"):
            value = getattr(self, name)
            what = f"{name} of tenant {self.tenant} and model {self.model} is {value}"
            if not 0 <= value <= MAX_PER_MILLION:
                raise ConfigError(f"{what}; use 0 to {MAX_PER_MILLION:g}")
            if not _is_whole(_per_token(value)):
                raise ConfigError(f"{what}; use {DECIMALS} decimals at most")

    def nanos(self, prompt_tokens: int, reply_tokens: int) -> int:
        """The price of so many tokens in billionths of a unit: the exact sum, rounded once to the
        nearest, halves up."""
        prompt, reply = _per_token(self.prompt_per_million), _per_token(self.reply_per_million)
        trillionths = prompt_tokens * int(prompt) + reply_tokens * int(reply)
        return (trillionths + 500) // 1000


class PriceTable:
    """Prices by tenant and model: the row for both, else the tenant's, else the model's, else the
    row without either."""

    def __init__(self, prices: Iterable[Price] = (), currency: str = "") -> None:
        """Raises ConfigError for two rows of the same, and for rows in no currency."""
        self._rows: dict[tuple[str, str], Price] = {}
        self._currency = currency
        for price in prices:
            key = price.tenant, price.model
            if key in self._rows:
                raise ConfigError(
                    f"two prices are for tenant {price.tenant} and model {price.model}; keep one"
                )
            self._rows[key] = price
        if (self._rows or currency) and not is_currency(currency):
            raise ConfigError(
                f"the currency of the prices is {currency!r}; set router.currency to a word of at "
                f'most {MAX_CURRENCY_CHARS} characters, e.g. "USD"'
            )

    def of(self, tenant: str, model: str) -> Price | None:
        """The row that applies to a tenant and a model; None if no row does."""
        for key in ((tenant, model), (tenant, ANY), (ANY, model), (ANY, ANY)):
            if (price := self._rows.get(key)) is not None:
                return price
        return None

    def cost(self, tenant: str, model: str, prompt_tokens: int, reply_tokens: int) -> Cost | None:
        """The price of so many tokens; None if no row applies. Counts are peers' input: the amount
        is cut off at the most that a Cost can hold."""
        price = self.of(tenant, model)
        if price is None:
            return None
        nanos = price.nanos(prompt_tokens, reply_tokens)
        return Cost(min(nanos, MAX_AMOUNT_NANOS), self._currency)


class ChatCharges:
    """Charges of recent chats: the runs of one chat together cost as much as its most expensive
    run.

    A chat runs more than once if its edge was lost or its client changed to another edge. Each run
    sends the tokens that the client already has and is priced as if it were the only one; all runs
    return the same text.
    """

    def __init__(self, max_chats: int = MAX_CHATS) -> None:
        self._charged: LruMap[bytes, int] = LruMap(max_chats)

    def charge(self, chat_digest: bytes, amount_nanos: int) -> int:
        """A run of the chat ended and costs so much; returns the part of it not charged before. An
        empty digest stands for an unknown chat."""
        if not chat_digest:
            return amount_nanos
        before = self._charged.get(chat_digest) or 0
        self._charged.put(chat_digest, max(before, amount_nanos))
        return max(0, amount_nanos - before)


def _per_token(per_million: float) -> Decimal:
    """The price of a token in 10^-12 units, by the decimals that the operator wrote."""
    return Decimal(repr(per_million)).scaleb(DECIMALS)


def _is_whole(value: Decimal) -> bool:
    return value == value.to_integral_value()
