"""Texts as they are read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from outrider.bulk.plan.results import Problem
from outrider.bulk.plan.settings import Settings
from outrider.bulk.plan.sources import Slice
from outrider.tokenization.cuts import CutRule


@dataclass(frozen=True, slots=True)
class Document:
    """One row of the output before it is encoded: a text, or a part of a long one."""

    source: str
    record: int
    text: str
    num_bytes: int
    """Of the text, in UTF-8."""
    part: int = 0
    is_last: bool = True
    """Whether the document ends with it."""
    byte_offset: int = 0
    """Of its first byte in the document."""


@dataclass(frozen=True, slots=True)
class Reading:
    """How texts are read."""

    settings: Settings
    rule: CutRule | None
    """Where texts may be cut; None: nowhere."""


Found: TypeAlias = Document | Problem
Reader: TypeAlias = Callable[[Slice, Reading], Iterator[Found]]
