"""What sessions of one trust group learn from each other, and those of two groups do not."""

from __future__ import annotations

import pytest

from outrider.engines.draft_calibration import DraftCalibration
from outrider.engines.fake import FakeEngine, FakeOptions
from outrider.sampling.params import SamplingParams
from services.edge.drafter.core.drafter import Drafter
from services.edge.drafter.core.learned import LearnedByGroup
from services.edge.drafter.messages import Commit, Guess, Open, Source
from services.edge.drafter.settings import DrafterLimits

SECRET = [7, 8, 9, 10, 11, 12]
# Without room for the model: what is guessed was read.
INFO = FakeEngine(FakeOptions(vocabulary_size=32, block_tokens=2, num_blocks=1)).info


@pytest.mark.parametrize(
    ("teller", "listener", "hears"), [(b"a", b"a", True), (b"a", b"b", False), (b"", b"", False)]
)
def test_the_words_of_a_chat_are_guesses_within_its_group_alone(
    teller: bytes, listener: bytes, hears: bool
) -> None:
    limits = DrafterLimits(min_survival=0.05)
    drafter = Drafter(INFO, limits, DraftCalibration(), LearnedByGroup())
    for number in range(1, 21):
        said(drafter, number, SECRET, teller)
        drafter.close(number)
    guesses = said(drafter, 21, SECRET[:3], listener)
    assert bool(guesses) is hears
    for guess in guesses:
        assert list(guess.ids) == SECRET[guess.base :][: len(guess.ids)]


def test_how_often_guesses_are_right_is_known_within_a_group_alone() -> None:
    learned = LearnedByGroup(max_groups=2)
    fresh = learned.of(b"", are_sampled=False)[1].chance(Source.MODEL, 0, 0.5)
    for _ in range(50):
        learned.of(b"a", are_sampled=False)[1].observe(Source.MODEL, 0, 0.5, hit=False)
        learned.of(b"", are_sampled=False)[1].observe(Source.MODEL, 0, 0.5, hit=False)

    def chance(group: bytes) -> float:
        return learned.of(group, are_sampled=False)[1].chance(Source.MODEL, 0, 0.5)

    assert chance(b"a") < fresh == chance(b"b") == chance(b"")
    for group in range(10):
        learned.of(b"%d" % group, are_sampled=group % 2 > 0)
    assert len(learned._rates) <= 4 and len(learned._books) <= 2, "bounded"
    assert chance(b"a") == fresh


def said(drafter: Drafter, number: int, reply: list[int], group: bytes) -> list[Guess]:
    """A chat, whose reply is this so far: what was guessed of it."""
    drafter.open(Open(number, (1, 2, 3), (), SamplingParams(), group=group), 0.0)
    guesses: list[Guess] = []
    for token in reply:
        assert drafter.decide(0.0) is None
        guesses += drafter.take_guesses(0.0)
        drafter.commit(Commit(number, (token,)), 0.0)
    return guesses
