"""Names and help texts of metrics (pure)."""

from __future__ import annotations

import re
from typing import Final, Self

_NAME: Final = re.compile(r"(outrider|gen_ai)(_[a-z0-9]+)+")


class Family(str):
    """The name that Prometheus shows, without the `_total` of counters, with its HELP text.

    Prometheus's conventions hold: the prefix `outrider_` (`gen_ai_` for names of OpenTelemetry),
    only base units (`_seconds`, `_bytes`, `_ratio`), and states as labels instead of numbers.
    """

    __slots__ = ("help",)

    help: str
    """One sentence for operators: what is counted or measured, and in what unit."""

    def __new__(cls, name: str, help: str) -> Self:
        """Raises ValueError for a name against the conventions, or without a help text."""
        if not _NAME.fullmatch(name) or name.endswith("_total") or not help:
            raise ValueError(f"{name!r} is no name of a family of metrics, or says nothing")
        family = super().__new__(cls, name)
        family.help = help
        return family
