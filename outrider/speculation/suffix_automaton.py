"""An online suffix automaton over token ids, built for looking up what came next.

Blumer et al., "The smallest automaton recognizing the subwords of a text" (1985): O(1)
amortised per token, at most 2n states and 3n edges. As a drafter: SuffixDecoding, arXiv
2411.04975.
"""

from __future__ import annotations

ROOT = 0
_NONE = -1
_REFRESHED_LINKS = 2
"""How far up the suffix links the latest occurrence is noted. On real replies one is worth 3 % of
the tokens per step over none, more are worth nothing, and neither is the most frequent one."""


class SuffixAutomaton:
    """Knows, after each token, the longest suffix of the text that occurred before.

    Most states have one edge, so the first is kept in two flat lists and only branching states
    own a dict; a token costs about 300 bytes.
    """

    def __init__(self) -> None:
        self.text: list[int] = []
        self.match_end = _NONE
        """Index in `text` of the last token of an earlier occurrence of the longest suffix."""
        self.match_state = ROOT
        """State of the longest suffix that occurred before; ROOT if none did."""
        self.match_length = 0
        """Length of that suffix in tokens."""
        self._last = ROOT
        self._length = [0]
        self._link = [_NONE]
        self._token = [_NONE]
        self._target = [_NONE]
        self._more: list[dict[int, int] | None] = [None]
        self._end = [_NONE]

    def end_of(self, state: int) -> int:
        """Index in `text` of the last token of a recent occurrence of the state's strings."""
        return self._end[state]

    def step(self, state: int, length: int, token: int) -> tuple[int, int]:
        """The longest suffix of (string of `length` at `state`) + token that is in the text."""
        target = self._next(state, token)
        while target == _NONE and state != ROOT:
            state = self._link[state]
            length = self._length[state]
            target = self._next(state, token)
        return (target, length + 1) if target != _NONE else (ROOT, 0)

    def append(self, token: int) -> None:
        """Extend the text by one token."""
        at = len(self.text)
        self.text.append(token)
        new = self._new_state(self._length[self._last] + 1, ROOT, at)
        state, target = self._add_edges(token, new)
        if state != _NONE:
            self._link[new] = self._suffix_state(state, token, target)
        self._last = new
        self._note_occurrence(at)

    def _add_edges(self, token: int, new: int) -> tuple[int, int]:
        """From the whole text's state up the links, give those without an edge for `token` one to
        `new`. Returns the first that has one, and where it leads; _NONE if none has."""
        first, targets, branches, links = self._token, self._target, self._more, self._link
        state = self._last
        while state != _NONE:
            if first[state] == token:
                return state, targets[state]
            more = branches[state]
            if more is not None:
                if token in more:
                    return state, more[token]
                more[token] = new
            elif first[state] == _NONE:
                first[state], targets[state] = token, new
            else:
                branches[state] = {token: new}
            state = links[state]
        return _NONE, _NONE

    def _suffix_state(self, state: int, token: int, target: int) -> int:
        """The state of exactly (longest string of `state`) + token, split off if need be."""
        length = self._length[state] + 1
        if self._length[target] == length:
            return target
        clone = self._new_state(length, self._link[target], self._end[target])
        self._token[clone], self._target[clone] = self._token[target], self._target[target]
        more = self._more[target]
        self._more[clone] = None if more is None else dict(more)
        self._link[target] = clone
        while state != _NONE and self._next(state, token) == target:
            self._redirect(state, token, clone)
            state = self._link[state]
        return clone

    def _note_occurrence(self, at: int) -> None:
        state = self.match_state = max(self._link[self._last], ROOT)
        self.match_length = self._length[state]
        self.match_end = self._end[state]
        for _ in range(_REFRESHED_LINKS):
            if state == ROOT:
                break
            self._end[state] = at
            state = self._link[state]

    def _new_state(self, length: int, link: int, end: int) -> int:
        self._length.append(length)
        self._link.append(link)
        self._token.append(_NONE)
        self._target.append(_NONE)
        self._more.append(None)
        self._end.append(end)
        return len(self._length) - 1

    def _next(self, state: int, token: int) -> int:
        if self._token[state] == token:
            return self._target[state]
        more = self._more[state]
        return _NONE if more is None else more.get(token, _NONE)

    def _redirect(self, state: int, token: int, target: int) -> None:
        if self._token[state] == token:
            self._target[state] = target
        else:
            more = self._more[state]
            assert more is not None
            more[token] = target
