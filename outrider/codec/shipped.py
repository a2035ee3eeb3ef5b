"""Rank tables that this package ships, in `data/`."""

from __future__ import annotations

from functools import cache
from importlib import resources

from outrider.codec.ranks import RankTable


@cache
def shipped_table(vocabulary_digest: bytes) -> RankTable | None:
    """The table in this package for a vocabulary, if there is one."""
    for entry in resources.files("outrider.codec").joinpath("data").iterdir():
        if entry.name.endswith(".bin"):
            table = RankTable.from_bytes(entry.read_bytes())
            if table.vocabulary_digest == vocabulary_digest:
                return table
    return None
