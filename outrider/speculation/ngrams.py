"""Which token followed the last few tokens before: counts shared by many replies.

A table maps a context of 1 to 4 or of 12 tokens to one successor with a confidence, which a hit
raises and a miss lowers until another token takes its place (the saturating counter of branch
predictors: Smith, ISCA 1981). Lookups back off from the longest context (Katz, IEEE TASSP 1987).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import TypeAlias

MAX_ORDER = 4
"""Each context length up to this has a table, and so does LONG_CONTEXT."""
LONG_CONTEXT = 12
"""Replies that share this many tokens, for example from one template or document, mostly continue
alike: one sighting is enough."""
NUM_TABLES = MAX_ORDER + 1
NUM_BINS = 3
"""Classes of confidence per order: 1, 2 to 3, and more."""
_TOKEN_BITS = 20
"""Room for vocabularies of a million ids."""
_LONG_MASK = (1 << _TOKEN_BITS * LONG_CONTEXT) - 1
_MAX_CONFIDENCE = 15
_CONFIDENCE_BITS = 4
_BIN_OF_CONFIDENCE = (0, 0, 1, 1, *[2] * 12)

Table: TypeAlias = dict[int, int]
"""A context's key to its successor and confidence, packed by `pack`."""


def pack(token: int, confidence: int) -> int:
    """A table's value; confidence is 1 .. 15."""
    return token << _CONFIDENCE_BITS | confidence


def unpack(value: int) -> tuple[int, int]:
    """Token and confidence of a table's value."""
    return value >> _CONFIDENCE_BITS, value & _MAX_CONFIDENCE


def keys(context: Sequence[int]) -> list[int]:
    """The keys of the last 1, 2, ... MAX_ORDER and LONG_CONTEXT tokens of `context`, as far as it
    has so many."""
    key = 0
    made = []
    for order, token in enumerate(islice(reversed(context), LONG_CONTEXT)):
        key |= token << _TOKEN_BITS * order
        if order < MAX_ORDER:
            made.append(key)
    if len(context) >= LONG_CONTEXT:
        made.append(key)
    return made


def extended(contexts: Sequence[int], token: int) -> list[int]:
    """The contexts' keys after one more token; LONG_CONTEXT's only if `contexts` has it."""
    if len(contexts) == NUM_TABLES:  # nearly all: written out, it takes half as long
        one, two, three, _, long = contexts
        return [
            token,
            one << _TOKEN_BITS | token,
            two << _TOKEN_BITS | token,
            three << _TOKEN_BITS | token,
            (long << _TOKEN_BITS | token) & _LONG_MASK,
        ]
    return [token, *[key << _TOKEN_BITS | token for key in contexts[: MAX_ORDER - 1]]]


class NgramMemory:
    """Learns from committed tokens; knows at least the last `max_entries` contexts of each order
    and at most twice as many: a full table becomes the old one, and used entries of the old one
    move back."""

    def __init__(self, max_entries: int = 16_384) -> None:
        self._max_entries = max_entries
        self._young: list[Table] = [{} for _ in range(NUM_TABLES)]
        self._old: list[Table] = [{} for _ in range(NUM_TABLES)]

    @property
    def num_entries(self) -> int:
        return sum(map(len, (*self._young, *self._old)))

    def tables(self, num_orders: int = NUM_TABLES) -> list[Table]:
        """Copies of the tables of the first orders; entries only in the older part of the memory
        come first."""
        parts = zip(self._old, self._young, strict=True)
        return [old | young for old, young in islice(parts, num_orders)]

    def restore(self, tables: Sequence[Table]) -> None:
        """Start with these tables of the first orders; unused entries are dropped first."""
        for order, table in enumerate(tables[:NUM_TABLES]):
            self._old[order] = dict(table)

    def find(self, contexts: Sequence[int]) -> tuple[int, int] | None:
        """The successor of the longest known of these contexts (`keys`) and its bin."""
        young, old = self._young, self._old
        for order in range(len(contexts) - 1, -1, -1):
            key = contexts[order]
            value = young[order].get(key)
            if value is None and old[order]:
                value = old[order].get(key)
            if value is not None:
                return _found(value, order)
        return None

    def learn(self, contexts: Sequence[int], token: int) -> tuple[int, int] | None:
        """Learn that `token` followed these contexts. Returns what `find` would have returned
        before: one lookup serves both."""
        new = token << _CONFIDENCE_BITS | 1
        longest, longest_order = 0, 0
        order = 0
        for key, young, old in zip(contexts, self._young, self._old, strict=False):
            value = young.get(key) or (old.get(key, 0) if old else 0)
            if not value:
                young[key] = new
            else:
                longest, longest_order = value, order
                if value >> _CONFIDENCE_BITS == token:
                    young[key] = value + (value & _MAX_CONFIDENCE < _MAX_CONFIDENCE)
                else:
                    young[key] = value - 1 if value & _MAX_CONFIDENCE > 1 else new
            if len(young) >= self._max_entries:
                self._old[order], self._young[order] = young, {}
            order += 1
        return _found(longest, longest_order) if longest else None


class NgramPrior:
    """Tables that do not change."""

    def __init__(self, tables: Sequence[Table]) -> None:
        """One table per order, from 1 on."""
        self.tables = tuple(tables)

    def find(self, contexts: Sequence[int]) -> tuple[int, int] | None:
        """See NgramMemory.find."""
        tables = self.tables
        for order in range(min(len(contexts), len(tables)) - 1, -1, -1):
            value = tables[order].get(contexts[order])
            if value is not None:
                return _found(value, order)
        return None


def _found(value: int, order: int) -> tuple[int, int]:
    return (
        value >> _CONFIDENCE_BITS,
        order * NUM_BINS + _BIN_OF_CONFIDENCE[value & _MAX_CONFIDENCE],
    )
