"""Sources of a chat's drafts: copies of its own text, and the drafter process.

`CombinedDrafter` puts both together. While the drafter process keeps up, its chain counts, and
copies are added only where they are nearly certain: the drafter process weighs the same copies
against its model, and drafts that were sent cannot be taken back without loss. When it has not
reported for `PATIENCE_TOKENS`, copies are used as if there were no other source.

While its first report is awaited, nothing is copied for the first tokens of a reply: what a prompt
repeats is seldom how its answer begins.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol, TypeAlias

from outrider.speculation.ngram_store import NgramStatistics
from outrider.speculation.suffix_drafter import SuffixDrafter
from services.edge.session.events import DrafterReport

SURE: Final = 0.9
"""Copies of at least this probability are used even while a report is awaited."""
PHRASE_SOURCE: Final = "phrase"
"""The name of copies and frequent n-grams together. In the drafter process they are "suffix", whose
confidences arrive calibrated."""
PATIENCE_TOKENS: Final = 8
"""Final tokens without a report after which the drafter process is not waited for."""


class Guess(NamedTuple):
    """A continuation; empty when nothing is known."""

    ids: tuple[int, ...] = ()
    survival: tuple[float, ...] = ()
    """Per id, the estimated probability that it and all before it are right; never rising."""
    sources: tuple[str, ...] = ()
    """Per id, who guessed it: acceptance is counted by these names, of which there are few."""
    took_s: float = 0.0
    """Time that making them took; 0: next to none."""
    ended: bool = True
    """Whether the drafter knows nothing further; False: it only had no time for more yet."""


Wanted: TypeAlias = Callable[[str, float], bool]
"""Whether a first guess of this source and survival is of use: if not, those behind it are none."""


def always(source: str, survival: float) -> bool:
    """Whatever is guessed is wanted."""
    return True


class Drafter(Protocol):
    """Guesses at the reply of one chat, from whatever sources."""

    def extend(self, ids: Sequence[int]) -> None:
        """Learn ids that are final."""

    def draft_after(
        self, tentative_ids: Sequence[int], max_tokens: int, wanted: Wanted = always
    ) -> Guess:
        """Guess on after the final ids and these; returns at once. More than the first guess is
        made only if that is `wanted`, where making them costs something."""


@dataclass(frozen=True, slots=True)
class DrafterNeeds:
    """Facts about a chat that its drafter is made from."""

    group: bytes = b""
    """The trust group whose replies teach each other; empty: none."""
    num_prompt: int = 0
    """Tokens of the prompt, the first that are final."""
    is_sampled: bool = False
    """Whether the reply is sampled rather than greedy."""


class CopyDrafter:
    """Copies what followed the longest repeated suffix of prompt and reply; with `statistics` also
    what often followed the last few tokens in the group's other replies."""

    SOURCE = "copy"
    """The source without statistics."""

    def __init__(
        self,
        max_context: int,
        needs: DrafterNeeds | None = None,
        statistics: NgramStatistics | None = None,
    ) -> None:
        """At least the last half of `max_context` tokens is known."""
        needs = needs or DrafterNeeds()
        self._source = self.SOURCE if statistics is None else PHRASE_SOURCE
        self._suffixes = SuffixDrafter(
            max_context, statistics, num_prompt=needs.num_prompt, sampled=needs.is_sampled
        )

    def extend(self, ids: Sequence[int]) -> None:
        """Learn ids that are final."""
        self._suffixes.extend(ids)
        self._suffixes.update_statistics()

    def draft_after(
        self, tentative_ids: Sequence[int], max_tokens: int, wanted: Wanted = always
    ) -> Guess:
        """See `Drafter.draft_after`. One guess is tried first: a chain takes some eight look-ups,
        and most chains begin with a guess that is not wanted."""
        guess = self._suffixes.draft_after(tentative_ids, 1)
        if max_tokens > 1 and guess.ids and wanted(self._source, guess.survival[0]):
            guess = self._suffixes.draft_after(tentative_ids, max_tokens)
        ended = len(guess.ids) < max_tokens
        return Guess(guess.ids, guess.survival, (self._source,) * len(guess.ids), ended=ended)


class NoDrafter:
    """Guesses nothing: for chats whose drafts all come from elsewhere."""

    def extend(self, ids: Sequence[int]) -> None:
        """Nothing is learnt."""

    def draft_after(
        self, tentative_ids: Sequence[int], max_tokens: int, wanted: Wanted = always
    ) -> Guess:
        """See `Drafter.draft_after`."""
        return Guess()


class CombinedDrafter:
    """Drafts from the drafter process's reports and from a drafter in this process."""

    def __init__(
        self, own: Drafter, num_prompt: int, *, awaited: bool = False, first_tokens: int = 0
    ) -> None:
        """`own`: the one in this process. `awaited`: a first report is expected soon, and the
        reply's first `first_tokens` are left to it until it comes, or until `await_no_longer`."""
        self._own = own
        self._num_prompt = num_prompt
        self._final: list[int] = []
        self._report: DrafterReport | None = None
        self._reported_at = num_prompt if awaited else None
        """Final tokens, the prompt's included, at the last report; None: there was none."""
        self._own_from = num_prompt + first_tokens if awaited else 0
        """Positions before this one, the prompt's included, are left to the drafter process."""

    def take_report(self, report: DrafterReport) -> None:
        """The drafter process proposes this chain."""
        self._report = report
        self._reported_at = len(self._final)
        self._own_from = 0

    def await_no_longer(self) -> None:
        """The first report is late."""
        self._own_from = 0

    def extend(self, ids: Sequence[int]) -> None:
        """Learn ids that are final."""
        self._final += ids
        self._own.extend(ids)

    def draft_after(
        self, tentative_ids: Sequence[int], max_tokens: int, wanted: Wanted = always
    ) -> Guess:
        """See `Drafter.draft_after`."""
        guess = self._reported(tentative_ids, max_tokens)
        if guess is not None:
            return guess
        if len(self._final) + len(tentative_ids) < self._own_from:
            return Guess(ended=False)
        own = self._own.draft_after(tentative_ids, max_tokens, wanted)
        return _sure_part(own) if self._is_kept_up else own

    @property
    def _is_kept_up(self) -> bool:
        """Whether the drafter process is worth waiting for."""
        at = self._reported_at
        return at is not None and len(self._final) - at <= PATIENCE_TOKENS

    def _reported(self, tentative_ids: Sequence[int], max_tokens: int) -> Guess | None:
        """The part of the last report that continues these ids, if any. A late report still counts
        if what became final since agrees with it."""
        report = self._report
        if report is None:
            return None
        begin = self._num_prompt + report.base
        final = tuple(self._final[begin:])
        if begin > len(self._final) or report.ids[: len(final)] != final:
            self._report = None
            return None
        passed = (*final, *tentative_ids)
        if report.ids[: len(passed)] != passed:
            return None  # of use again if it is the chain that proves wrong
        rest = slice(len(passed), len(passed) + max_tokens)
        if not report.ids[rest]:
            return None
        given = report.survival[len(passed) - 1] if passed else 1.0
        survival = tuple(min(1.0, chance / given) if given else 0.0 for chance in report.survival)
        return Guess(
            report.ids[rest],
            survival[rest],
            report.sources[rest],
            took_s=len(report.ids[rest]) * report.draft_s,
            ended=False,
        )


def _sure_part(guess: Guess) -> Guess:
    """The guesses before the first whose own probability is below SURE."""
    before, count = 1.0, 0
    for chance in guess.survival:
        if chance < SURE * before:
            break
        before, count = chance, count + 1
    return guess._replace(
        ids=guess.ids[:count],
        survival=guess.survival[:count],
        sources=guess.sources[:count],
        ended=False,
    )
