"""Bounds of settings, written in the types of their fields.

    threads: PositiveInt = 1
    share: Annotated[float, between(0.0, 1.0)] = 0.5

`check_bounds` checks the settings of a service, with those of its tables.
"""

from __future__ import annotations

import dataclasses
import typing
from math import inf, isfinite
from typing import Annotated, NamedTuple, TypeAlias

from outrider.errors import ConfigError


class Bounds(NamedTuple):
    """The least and most that a finite number may be; `is_open` leaves out the least itself."""

    least: float
    most: float = inf
    is_open: bool = False
    """Whether `least` itself is too little."""

    def allow(self, value: float) -> bool:
        """Whether the number is within them."""
        is_enough = value > self.least if self.is_open else value >= self.least
        return is_enough and value <= self.most and isfinite(value)

    def __str__(self) -> str:
        if self.most == inf:
            return f"more than {self.least:g}" if self.is_open else f"{self.least:g} or more"
        if self.is_open:
            return f"more than {self.least:g}, at most {self.most:g}"
        return f"{self.least:g} to {self.most:g}"


def at_least(least: float) -> Bounds:
    """No less than this."""
    return Bounds(least)


def above(least: float, most: float = inf) -> Bounds:
    """More than this, and at most `most`."""
    return Bounds(least, most, is_open=True)


def between(least: float, most: float) -> Bounds:
    """From one to the other, both included."""
    return Bounds(least, most)


PositiveInt: TypeAlias = Annotated[int, at_least(1)]
NonNegativeInt: TypeAlias = Annotated[int, at_least(0)]
PositiveFloat: TypeAlias = Annotated[float, above(0)]
NonNegativeFloat: TypeAlias = Annotated[float, at_least(0)]
Port: TypeAlias = Annotated[int, between(0, 65535)]
"""TCP or UDP; 0: any free one."""


def check_bounds(settings: object, where: str = "") -> None:
    """Raises ConfigError for a number out of its bounds in a dataclass, or in a dataclass that is
    one of its fields; it names the field behind `where`. None is no number."""
    for name, bounds in _bounds(type(settings)):
        value = getattr(settings, name)
        if value is not None and not bounds.allow(value):
            raise ConfigError(f"{where}{name} is {value:.15g}; use {bounds}")
    for field in dataclasses.fields(settings):  # type: ignore[arg-type]
        value = getattr(settings, field.name)
        if dataclasses.is_dataclass(value):
            check_bounds(value, f"{where}{field.name}.")


def _bounds(cls: type) -> list[tuple[str, Bounds]]:
    """By the fields of a dataclass that have any."""
    return [
        (name, extra)
        for name, kind in typing.get_type_hints(cls, include_extras=True).items()
        for extra in getattr(kind, "__metadata__", ())
        if isinstance(extra, Bounds)
    ]
