"""Finding stop strings in text that arrives in pieces.

Knuth, Morris, Pratt, "Fast pattern matching in strings" (1977), one automaton per stop string:
O(1) amortised per character, and the same answer however the text was cut into pieces.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopMatcher:
    """Releases text that no stop string can begin in any more.

    The text ends before the stop string that is completed first; of those completed by the
    same character, before the longest.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._borders = tuple(_borders(stop) for stop in self._stops)
        self._matched = [0] * len(self._stops)
        self._held = ""
        self.found = False

    def push(self, text: str) -> str:
        """Text that is now final. Once `found`, everything is, and nothing more is taken."""
        if not self._stops:
            return text
        held = self._held + text
        for end, char in enumerate(text, len(self._held) + 1):
            length = self._advance(char)
            if length:
                self.found, self._held = True, ""
                return held[: end - length]
        keep = max(self._matched)
        self._held = held[len(held) - keep :]
        return held[: len(held) - keep]

    def flush(self) -> str:
        """The text held back, when no more will come."""
        held, self._held = self._held, ""
        self._matched = [0] * len(self._stops)
        return held

    def _advance(self, char: str) -> int:
        """Length of the longest stop string this character completes, or 0."""
        longest = 0
        for which, stop in enumerate(self._stops):
            matched = self._matched[which]
            while matched and stop[matched] != char:
                matched = self._borders[which][matched - 1]
            matched += stop[matched] == char
            self._matched[which] = matched
            if matched == len(stop):
                longest = max(longest, matched)
        return longest


def _borders(stop: str) -> list[int]:
    """For each prefix, the length of its longest proper prefix that is also its suffix."""
    borders = [0] * len(stop)
    length = 0
    for index in range(1, len(stop)):
        while length and stop[index] != stop[length]:
            length = borders[length - 1]
        length += stop[index] == stop[length]
        borders[index] = length
    return borders
