"""Tables as plain text: columns as wide as their widest cell. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def columns(rows: Sequence[Sequence[str]], *, num_names: int, indent: str = "") -> Iterator[str]:
    """A line for each row, all of one length: the first `num_names` cells to the left, numbers to
    the right."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [
            cell.ljust(width) if at < num_names else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield (indent + "  ".join(cells)).rstrip()
