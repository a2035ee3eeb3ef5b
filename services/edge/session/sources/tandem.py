"""Two drafters for one reply: one in this process, and one beside it that is heard of late.

While the one beside keeps up, its chain counts, and the own drafter adds only what it is sure of:
the other weighs the same copies against its model, and what was sent cannot be taken back without
loss. When it has not been heard of for a while, the own drafter works as if it were alone.

Of a reply's first tokens the own drafter says nothing at all while the first word of the one beside
is awaited: what a prompt repeats is seldom how its answer begins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from services.edge.session.inputs import Heard
from services.edge.session.sources.base import Drafter, Guess

SURE: Final = 0.9
"""A guess this likely is not put off for the other drafter's."""
PATIENCE_TOKENS: Final = 8
"""Final tokens without a word from the drafter beside after which it is not waited for."""


class TandemDrafter:
    """Implements Drafter."""

    def __init__(
        self, own: Drafter, num_prompt: int, *, awaited: bool = False, first_tokens: int = 0
    ) -> None:
        """`awaited`: the one beside is expected to be heard of before long, and nothing is said of
        the reply's first `first_tokens` before it is, or before `await_no_longer`."""
        self._own = own
        self._num_prompt = num_prompt
        self._final: list[int] = []
        self._heard: Heard | None = None
        self._heard_at = num_prompt if awaited else None
        """Final tokens when it was last heard of; None: never."""
        self._leave_until = num_prompt + first_tokens if awaited else 0
        """Places before this one are left to the one beside."""

    def hear(self, heard: Heard) -> None:
        """The drafter beside says this."""
        self._heard = heard
        self._heard_at = len(self._final)
        self._leave_until = 0

    def await_no_longer(self) -> None:
        """The one beside is late with its first word."""
        self._leave_until = 0

    def extend(self, ids: Sequence[int]) -> None:
        """Learn ids that are final."""
        self._final += ids
        self._own.extend(ids)

    def draft_after(self, tentative_ids: Sequence[int], max_tokens: int) -> Guess:
        """Guess on after the final ids and these."""
        guess = self._beside(tentative_ids, max_tokens)
        if guess is not None:
            return guess
        if len(self._final) + len(tentative_ids) < self._leave_until:
            return Guess(ended=False)
        own = self._own.draft_after(tentative_ids, max_tokens)
        return _sure_part(own) if self._is_kept_up else own

    @property
    def _is_kept_up(self) -> bool:
        """Whether the drafter beside is worth waiting for."""
        at = self._heard_at
        return at is not None and len(self._final) - at <= PATIENCE_TOKENS

    def _beside(self, tentative_ids: Sequence[int], max_tokens: int) -> Guess | None:
        """What was heard, if it goes on where this begins. A chain heard late is as good as one in
        time if what became final meanwhile is what it said."""
        heard = self._heard
        if heard is None:
            return None
        begin = self._num_prompt + heard.base
        passed = (*self._final[begin:], *tentative_ids)
        if begin > len(self._final) or heard.ids[: len(passed)] != passed:
            self._heard = None
            return None
        rest = slice(len(passed), len(passed) + max_tokens)
        if not heard.ids[rest]:
            return None
        given = heard.survival[len(passed) - 1] if passed else 1.0
        survival = tuple(min(1.0, chance / given) if given else 0.0 for chance in heard.survival)
        count = len(heard.ids[rest])
        return Guess(
            heard.ids[rest],
            survival[rest],
            heard.sources[rest],
            took_s=count * heard.draft_s,
            ended=False,
        )


def _sure_part(guess: Guess) -> Guess:
    """The guesses up to the first that is not sure in itself."""
    before, count = 1.0, 0
    for chance in guess.survival:
        if chance < SURE * before:
            break
        before, count = chance, count + 1
    return replace(
        guess,
        ids=guess.ids[:count],
        survival=guess.survival[:count],
        sources=guess.sources[:count],
        ended=False,
    )
