"""What sessions cost their tenants. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from outrider.errors import ConfigError

ANY: Final = "*"


@dataclass(frozen=True, slots=True)
class Price:
    """One row of the table (`[[router.prices]]`), in the operator's currency. Raises
    ConfigError."""

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
            if not (math.isfinite(value) and value >= 0):
                where = f"of tenant {self.tenant} and model {self.model}"
                raise ConfigError(f"{name} {where} is {value}: it cannot be negative.")

    def cost(self, prompt_tokens: int, reply_tokens: int) -> float:
        """Of so many tokens."""
        return (
            prompt_tokens * self.prompt_per_million + reply_tokens * self.reply_per_million
        ) / 1e6


FREE: Final = Price(0.0, 0.0)


class PriceTable:
    """The price of every tenant and model: the row for both, else the tenant's, else the model's,
    else that of all; without any nothing costs anything."""

    def __init__(self, prices: Iterable[Price] = ()) -> None:
        """Raises ConfigError for two rows of the same."""
        self._rows: dict[tuple[str, str], Price] = {}
        for price in prices:
            key = price.tenant, price.model
            if key in self._rows:
                raise ConfigError(
                    f"Two prices are for tenant {price.tenant} and model {price.model}: keep one."
                )
            self._rows[key] = price

    def of(self, tenant: str, model: str) -> Price:
        """The row that applies."""
        for key in ((tenant, model), (tenant, ANY), (ANY, model), (ANY, ANY)):
            if (price := self._rows.get(key)) is not None:
                return price
        return FREE
