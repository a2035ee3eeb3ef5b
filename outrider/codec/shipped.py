"""Rank tables that this package ships, in `data/`."""

from __future__ import annotations

from functools import cache
from importlib import resources

from outrider.codec.ranks import RankTable


@cache
def shipped_table(tokens_digest: bytes) -> RankTable | None:
    """The table in this package for a vocabulary with these tokens (`Vocabulary.tokens_digest`);
    None without one. Chat template and stop tokens make no difference."""
    for entry in resources.files("outrider.codec").joinpath("data").iterdir():
        if entry.name.endswith(".bin"):
            table = RankTable.from_bytes(entry.read_bytes())
            if table.tokens_digest == tokens_digest:
                return table
    return None
