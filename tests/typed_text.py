"""Typing until an edge has read enough of it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle

from outrider.client.client import Typing
from outrider.testing import eventually


async def type_until(is_enough: Callable[[], bool], typing: Typing, text: str) -> None:
    """Type the text, then its end again and again. Of texts that come together an edge reads the
    last one alone, so how many it reads of a few that are sent at once is a matter of chance."""
    texts = cycle((text[:-8], text))

    def typed() -> bool:
        typing.update(next(texts))
        return is_enough()

    await eventually(typed)
