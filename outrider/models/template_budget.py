"""What one rendering of a chat template may take: steps, computing time and memory.

Steps are charged for every iteration, call and value, and for the bytes that are worked on. Memory
is that of all values together which the rendering made and can still reach, and of what the next
operation needs on the way, computed before it runs. A value that nothing reaches any more is found
by its reference count and no longer counts.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from jinja2 import TemplateRuntimeError
from jinja2.utils import Namespace
from markupsafe import Markup

MAX_STEPS: Final = 1 << 19
MAX_JOB_S: Final = 1.8
"""Most computing time of all renderings of one chat in their thread, whatever their steps."""
MAX_BYTES: Final = 40 << 20
"""Most memory of the values that one rendering holds, and of the operation under way."""
MAX_EXTENT: Final = 1 << 23
"""Most characters and items in all that is in a value, as often as it is."""
MAX_ITEMS: Final = 1 << 17
"""Most items of one list, tuple or dictionary, and of all in one that is written, compared or
sorted."""
MAX_BITS: Final = 1 << 12
"""Most bits of an integer."""
MAX_OTHER_KEYS: Final = 1 << 12
"""Most keys of a dictionary that are no texts: numbers and tuples can be chosen so that they
collide, and texts cannot."""

_STEP_BYTES: Final = 1 << 11
"""Bytes worked on that cost one step."""
_STEP_ITEMS: Final = 1 << 4
"""Items of a value made that cost one step."""
_CLOCK_CHECK_STEPS: Final = 16
"""Steps between two readings of the clock."""
_VALUE_BYTES: Final = 128
"""What the budget itself keeps for each value it counts, at most."""
_OBJECT_BYTES: Final = 1 << 10
"""Size of a value that is neither text, number nor container, such as a macro or an iterator: with
everything it is made of, at most."""
_NUMBER_BYTES: Final = 32
_SWEEP_BYTES: Final = 4 << 20
"""How much is made before what is still reachable is counted again."""

View: Final[tuple[type[Any], ...]] = (type({}.keys()), type({}.values()), type({}.items()))
SIZED: Final[tuple[type[Any], ...]] = (str, bytes, list, tuple, dict, set, range, *View)
_NESTING: Final[tuple[type[Any], ...]] = (list, tuple, dict, set, *View, Namespace)
_CONTAINERS: Final = (list, tuple, dict, set)


class BudgetSpentError(TemplateRuntimeError):
    """A rendering took too many steps, too long or too much memory."""


class Extent(NamedTuple):
    """All that is in a value, as often as it is."""

    size: int
    """Characters, and items of containers."""
    char_bytes: int
    """Bytes of its widest character: 1, 2 or 4."""
    is_nested: bool
    """It is a container."""
    is_markup: bool
    """It has a text that escapes others which are joined to it."""

    def text_bytes(self, growth: int = 1) -> int:
        """Memory of the value as one text, at most. `growth`: characters that come of one."""
        if self.is_nested:  # as a literal: \\x00, \\u0000, \\U00000000
            growth *= {1: 4, 2: 6, 4: 10}[self.char_bytes]
        return self.size * self.char_bytes * growth * (5 if self.is_markup else 1)


@dataclass(slots=True)
class RenderBudget:
    """Steps, time and memory that one rendering has left. `clock`, in seconds, is that of the
    calling thread's computing time."""

    clock: Callable[[], float]
    ends_at: float
    steps: int = MAX_STEPS
    _held: dict[int, object] = field(default_factory=dict)
    """Values made, by their ids: what is in here keeps its id."""
    _held_bytes: int = 0
    _sweep_at: int = _SWEEP_BYTES

    def spend(self, steps: int = 1) -> None:
        """Raises BudgetSpentError when steps or time are used up."""
        before = self.steps
        self.steps = before - steps
        if self.steps < 0:
            raise BudgetSpentError(f"it takes more than {MAX_STEPS} steps")
        is_check_due = before // _CLOCK_CHECK_STEPS != self.steps // _CLOCK_CHECK_STEPS
        if is_check_due and self.clock() > self.ends_at:
            raise BudgetSpentError(f"it takes more than {MAX_JOB_S:g} s of computing")

    def need(self, num_bytes: int, num_items: int = 0) -> None:
        """An operation is about to take so much memory, and to make a value of so many items.
        Raises BudgetSpentError if there is no room for it."""
        self.room(num_bytes, num_items)
        self.spend((num_bytes + num_items * _NUMBER_BYTES) // _STEP_BYTES)

    def room(self, num_bytes: int, num_items: int = 0) -> None:
        """As `need`, for what costs nothing yet."""
        if num_items > MAX_ITEMS:
            raise BudgetSpentError(f"something has more than {MAX_ITEMS} items")
        num_bytes += num_items * _NUMBER_BYTES
        if self._held_bytes + num_bytes > MAX_BYTES:
            self._sweep()
        if self._held_bytes + num_bytes > MAX_BYTES:
            raise BudgetSpentError(f"it holds more than {MAX_BYTES >> 20} MiB")

    def hold(self, value: object) -> None:
        """A value was made. It counts for as long as it can be reached; of a container, its items
        count with it. Raises BudgetSpentError if it is too much."""
        if isinstance(value, _CONTAINERS):
            self.need(0, len(value))
            self.spend(len(value) // _STEP_ITEMS)
            for item in value.values() if isinstance(value, dict) else value:
                if not _is_small(item):
                    self._hold(item)
        self._hold(value)

    def _hold(self, value: object) -> None:
        key = id(value)
        if key in self._held:
            return
        self._held[key] = value
        self._held_bytes += _bytes_of(value)
        if self._held_bytes > self._sweep_at:
            self._sweep()
            if self._held_bytes > MAX_BYTES:
                raise BudgetSpentError(f"it holds more than {MAX_BYTES >> 20} MiB")

    def _sweep(self) -> None:
        """Forget values that nothing else reaches; the newest first, which may hold older ones."""
        self.spend(len(self._held) // _STEP_ITEMS)
        for key in reversed(list(self._held)):
            if _num_references(self._held, key) == _REFERENCES_OF_HELD:
                self._held_bytes -= _bytes_of(self._held.pop(key))
        self._sweep_at = min(MAX_BYTES, 2 * self._held_bytes + _SWEEP_BYTES)

    def release(self) -> None:
        """Forget what was held: the rendering is over."""
        self._held.clear()

    def extent(self, *values: Any) -> Extent:
        """Raises BudgetSpentError if they have too much."""
        if len(values) == 1 and isinstance(values[0], str):
            text = values[0]
            return Extent(len(text), char_bytes(text), False, isinstance(text, Markup))
        size, num_inside, width, is_nested, is_markup = 0, 0, 1, False, False
        left = list(values)
        while left:
            one = left.pop()
            if isinstance(one, str):
                size += len(one) + 2
                width = max(width, char_bytes(one))
                is_markup = is_markup or isinstance(one, Markup)
            elif isinstance(one, _NESTING):
                is_nested = True
                one = one._Namespace__attrs if isinstance(one, Namespace) else one
                size += 2 + 4 * len(one)
                self.spend(1 + len(one))
                num_inside += len(one)
                if num_inside > MAX_ITEMS:
                    raise BudgetSpentError(f"something has more than {MAX_ITEMS} items")
                left += [*one.keys(), *one.values()] if isinstance(one, dict) else one
            else:
                # A number is as long as its digits: schemas have bounds such as 2^53 - 1.
                size += bits(one) // 3 + 24
            if size > MAX_EXTENT:
                raise BudgetSpentError(f"something has more than {MAX_EXTENT} characters or items")
        return Extent(size, width, is_nested, is_markup)


def char_bytes(text: str) -> int:
    """Bytes that a text takes for each of its characters: 1, 2 or 4."""
    if text.isascii():
        return 1
    # A copy in UTF-8, which a text may have beside it, makes it look wider.
    each = (sys.getsizeof(text) - _TEXT_HEAD_BYTES) // (len(text) + 1)
    return each if each < 3 else 4


def bits(number: Any) -> int:
    return number.bit_length() if isinstance(number, int) else 0


def _is_small(value: object) -> bool:
    return (
        value is None or isinstance(value, float) or (isinstance(value, int) and bits(value) < 64)
    )


def _bytes_of(value: object) -> int:
    if isinstance(value, _CONTAINERS):
        return sys.getsizeof(value) + _VALUE_BYTES + _NUMBER_BYTES * len(value)
    if isinstance(value, str | int):
        return sys.getsizeof(value) + _VALUE_BYTES
    return _OBJECT_BYTES


def _num_references(held: dict[int, object], key: int) -> int:
    return sys.getrefcount(held[key])


_TEXT_HEAD_BYTES: Final = sys.getsizeof("\u4e00") - 4
_REFERENCES_OF_HELD: Final = _num_references({0: object()}, 0)
"""Of a value that only the budget holds."""
