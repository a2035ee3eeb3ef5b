"""Two drafters for one reply: whose guesses count, and when reports are not waited for."""

from __future__ import annotations

import pytest

from services.edge.session.draft_sources import (
    PATIENCE_TOKENS,
    CombinedDrafter,
    CopyDrafter,
    Guess,
    Wanted,
    always,
)
from services.edge.session.events import DrafterReport
from tests.edge.session.toolkit import ScriptedDrafter

PROMPT = (7, 7, 7)
REPORT = DrafterReport(
    base=1,
    ids=(11, 12, 13, 14),
    survival=(0.8, 0.6, 0.4, 0.2),
    sources=("model", "both", "model", "suffix"),
    draft_s=0.002,
)
OWN = Guess((21, 22, 23), (0.95, 0.9, 0.5), ("suffix",) * 3)


class Own(ScriptedDrafter):
    """Always the same guess."""

    def draft_after(self, tentative_ids: object, max_tokens: int, wanted: Wanted = always) -> Guess:
        return OWN


def combined(*final: int) -> CombinedDrafter:
    drafter = CombinedDrafter(Own(), len(PROMPT))
    drafter.extend(PROMPT)
    drafter.extend(final)
    return drafter


def test_without_reports_the_own_drafter_works_alone() -> None:
    assert combined(10).draft_after((), 8) == OWN


def test_one_that_is_up_is_waited_for_from_the_start() -> None:
    drafter = CombinedDrafter(Own(), len(PROMPT), awaited=True)
    drafter.extend(PROMPT)
    assert drafter.draft_after((), 8).ids == (21, 22)
    drafter.extend(range(50, 51 + PATIENCE_TOKENS))
    assert drafter.draft_after((), 8) == OWN


def test_the_first_tokens_are_left_to_one_that_is_awaited() -> None:
    """Copies are sure of themselves there, and mostly wrong."""
    drafter = CombinedDrafter(Own(), len(PROMPT), awaited=True, first_tokens=2)
    drafter.extend(PROMPT)
    assert drafter.draft_after((), 8) == Guess(ended=False)
    assert drafter.draft_after((50,), 8) == Guess(ended=False)
    assert drafter.draft_after((50, 51), 8).ids == (21, 22), "those behind are not"
    drafter.take_report(DrafterReport(0, (), (), ()))
    assert drafter.draft_after((), 8).ids == (21, 22), "it had its say"


def test_one_that_is_late_is_not_left_the_first_tokens() -> None:
    drafter = CombinedDrafter(Own(), len(PROMPT), awaited=True, first_tokens=2)
    drafter.extend(PROMPT)
    drafter.await_no_longer()
    assert drafter.draft_after((), 8).ids == (21, 22)


def test_nothing_is_left_to_one_that_is_not_there() -> None:
    drafter = CombinedDrafter(Own(), len(PROMPT), first_tokens=2)
    drafter.extend(PROMPT)
    assert drafter.draft_after((), 8) == OWN


def test_what_is_heard_counts() -> None:
    drafter = combined(10)
    drafter.take_report(REPORT)
    guess = drafter.draft_after((), 3)
    assert guess.ids == (11, 12, 13) and guess.survival == (0.8, 0.6, 0.4)
    assert guess.sources == ("model", "both", "model")
    assert guess.took_s == 0.006 and not guess.ended


SURE = (21, 22)
"""With a report only sure guesses of the own drafter are taken."""


@pytest.mark.parametrize(
    ("final", "late", "tentative", "ids"),
    [
        ((10,), (), (11, 12), (13, 14)),  # behind a chain that agrees
        ((10,), (11, 12), (), (13, 14)),  # late, and right
        ((10,), (11, 99), (), SURE),  # late, and wrong
        ((), (), (), SURE),  # ahead of what is final
        ((10,), (), (11, 12, 13, 14), SURE),  # where it ends
    ],
)
def test_what_of_a_chain_counts(
    final: tuple[int, ...], late: tuple[int, ...], tentative: tuple[int, ...], ids: tuple[int, ...]
) -> None:
    drafter = combined(*final)
    drafter.extend(late)
    drafter.take_report(REPORT)
    guess = drafter.draft_after(tentative, 8)
    assert guess.ids == ids
    if tentative == (11, 12):
        assert guess.survival == (0.4 / 0.6, 0.2 / 0.6)
    if late == (11, 99):
        assert not guess.ended


def test_a_silent_one_is_not_waited_for() -> None:
    drafter = combined(10)
    drafter.take_report(REPORT)
    drafter.extend(range(50, 50 + PATIENCE_TOKENS))
    assert drafter.draft_after((), 8).ids == (21, 22)
    drafter.extend((60,))
    assert drafter.draft_after((), 8) == OWN


def test_a_hopeless_chain_is_no_division_by_zero() -> None:
    drafter = combined(10)
    drafter.take_report(DrafterReport(1, (11, 12), (0.0, 0.0), ("model", "model")))
    assert drafter.draft_after((11,), 8).survival == (0.0,)


def test_behind_a_copy_that_is_not_wanted_no_other_is_looked_for() -> None:
    drafter = CopyDrafter(64)
    drafter.extend((1, 2, 3, 4, 5, 1, 2, 3))
    whole, asked = drafter.draft_after((), 8), list[tuple[str, float]]()

    def noted(source: str, survival: float) -> bool:
        asked.append((source, survival))
        return len(asked) > 1

    assert drafter.draft_after((), 8, noted).ids == whole.ids[:1]
    assert asked == [(whole.sources[0], whole.survival[0])]
    assert drafter.draft_after((), 8, noted) == whole and len(whole.ids) > 1
