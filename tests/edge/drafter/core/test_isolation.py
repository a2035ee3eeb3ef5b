"""What sessions learn from each other, and that they do not where chats are to be isolated."""

from __future__ import annotations

import pytest

from outrider.engines.draft.calibration import DraftCalibration
from outrider.engines.fake import FakeEngine, FakeOptions
from outrider.sampling.params import SamplingParams
from outrider.speculation.phrases import Phrases
from services.edge.drafter.core.drafter import Drafter
from services.edge.drafter.messages import Commit, Guess, Open
from services.edge.drafter.settings import DrafterLimits

SECRET = [7, 8, 9, 10, 11, 12]


@pytest.mark.parametrize("isolated", [True, False])
def test_the_words_of_one_chat_are_guesses_for_another_unless_they_are_isolated(
    isolated: bool,
) -> None:
    # Without room for the model: what is guessed was read.
    info = FakeEngine(FakeOptions(vocabulary_size=32, block_tokens=2, num_blocks=1)).info
    drafter = Drafter(
        info, DrafterLimits(min_survival=0.05), DraftCalibration(), Phrases(), isolated=isolated
    )
    for number in range(1, 21):
        said(drafter, number, SECRET)
        drafter.close(number)
    guesses = said(drafter, 21, SECRET[:3])
    assert bool(guesses) is not isolated
    for guess in guesses:
        assert list(guess.ids) == SECRET[guess.base :][: len(guess.ids)]


def said(drafter: Drafter, number: int, reply: list[int]) -> list[Guess]:
    """A chat, whose reply is this so far: what was guessed of it."""
    drafter.open(Open(number, (1, 2, 3), (), SamplingParams()), 0.0)
    guesses: list[Guess] = []
    for token in reply:
        assert drafter.decide(0.0) is None
        guesses += drafter.take_guesses(0.0)
        drafter.commit(Commit(number, (token,)), 0.0)
    return guesses
