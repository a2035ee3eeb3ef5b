"""Bounds in the types of fields, checked through tables."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated

import pytest

from outrider.bounds import (
    NonNegativeFloat,
    NonNegativeInt,
    Port,
    PositiveFloat,
    PositiveInt,
    above,
    at_least,
    between,
    check_bounds,
)
from outrider.errors import ConfigError


@dataclass(frozen=True)
class Table:
    share: Annotated[float, above(0, 1)] = 0.5
    least: Annotated[float | None, at_least(2)] = None
    wait_s: PositiveFloat = 1.0


@dataclass(frozen=True)
class Settings:
    name: str = "a"
    port: Port = 0
    count: PositiveInt = 1
    spare: NonNegativeInt = 0
    grace_s: NonNegativeFloat = 0.0
    bits: Annotated[int, between(8, 32)] = 8
    table: Table = field(default_factory=Table)


def test_what_lies_on_a_bound_is_within_it() -> None:
    check_bounds(Settings())
    check_bounds(Settings(port=65535, bits=32, table=Table(share=1.0, least=2.0)))


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (Settings(port=65536), "port is 65536; use 0 to 65535"),
        (Settings(count=0), "count is 0; use 1 or more"),
        (Settings(spare=-1), "spare is -1; use 0 or more"),
        (Settings(grace_s=-0.5), "grace_s is -0.5; use 0 or more"),
        (Settings(grace_s=math.nan), "grace_s is nan; use 0 or more"),
        (Settings(grace_s=math.inf), "grace_s is inf; use 0 or more"),
        (Settings(bits=7), "bits is 7; use 8 to 32"),
        (Settings(table=Table(wait_s=0.0)), "table.wait_s is 0; use more than 0"),
        (Settings(table=Table(share=0.0)), "table.share is 0; use more than 0, at most 1"),
        (Settings(table=Table(share=1.5)), "table.share is 1.5; use more than 0, at most 1"),
        (Settings(table=Table(least=1.0)), "table.least is 1; use 2 or more"),
    ],
)
def test_what_lies_beyond_is_refused_by_name(settings: Settings, told: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check_bounds(settings)
    assert refused.value.message == told
