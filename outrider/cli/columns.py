"""Tables as plain text: columns as wide as their widest cell. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

_GAP: Final = "  "


def columns(
    rows: Sequence[Sequence[str]],
    *,
    num_names: int,
    indent: str = "",
    num_keys: int = 1,
    max_chars: int | None = None,
) -> Iterator[str]:
    """A line for each row, all of one length: the first `num_names` cells to the left, numbers to
    the right. Columns that would make lines longer than `max_chars` come below, as further lines
    for all rows, behind the first `num_keys` cells again; a line is longer only where these and one
    more cell are."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    room = None if max_chars is None else max_chars - len(indent)
    for group in _groups(widths, num_keys, room):
        for row in rows:
            cells = [
                row[at].ljust(widths[at]) if at < num_names else row[at].rjust(widths[at])
                for at in group
            ]
            yield (indent + _GAP.join(cells)).rstrip()


def _groups(widths: Sequence[int], num_keys: int, room: int | None) -> Iterator[list[int]]:
    """The columns that stand beside each other."""
    if room is None:
        yield list(range(len(widths)))
        return
    keys = list(range(num_keys))
    taken, size = keys, _size(widths[:num_keys])
    for at in range(num_keys, len(widths)):
        if len(taken) > num_keys and size + len(_GAP) + widths[at] > room:
            yield taken
            taken, size = keys, _size(widths[:num_keys])
        taken, size = [*taken, at], size + len(_GAP) + widths[at]
    yield taken


def _size(widths: Sequence[int]) -> int:
    return sum(widths) + len(_GAP) * (len(widths) - 1)
