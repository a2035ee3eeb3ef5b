"""A chat with a drafter in another process: what it is told, and what becomes of its guesses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.sampling.params import SamplingParams
from outrider.session.client import Committed, Provisional
from outrider.session.region import Commit, Draft
from outrider.session.types import FinishReason, Speculation
from services.edge.session.events import (
    Action,
    ChatAsked,
    ChatRequest,
    DrafterReport,
    DraftsReady,
    Input,
    OpenDrafter,
    OpenRegion,
    PromptReady,
    RegionDone,
    TellDrafter,
    Tick,
)
from services.edge.session.machine import ChatSession, SessionState
from tests.edge.session.toolkit import (
    EOS,
    OPENED,
    PROMPT,
    ScriptedDrafter,
    policy,
    reference_text,
    request,
    tools,
)

REPLY = (1, 2, 3, 4, 1, 5, 6, EOS)


class Chat:
    """A session with a drafter process, and all that it wanted done."""

    def __init__(
        self,
        asked: ChatRequest,
        drafter: ScriptedDrafter | None = None,
        first_guess_s: float | None = None,
    ) -> None:
        with_one = replace(
            tools(drafter), has_drafter=True, first_guess_s=lambda num_tokens: first_guess_s
        )
        self.session = ChatSession(policy(), with_one, 0.0)
        self.now = 0.0
        self.actions: list[Action] = []
        self.feed(ChatAsked(asked), PromptReady(PROMPT), OPENED)

    def feed(self, *items: Input) -> None:
        for item in items:
            self.actions += self.session.handle(item, self.now)

    def settle(self) -> None:
        while (at := self.session.next_deadline()) is not None and at <= self.now + 0.5:
            self.now = max(self.now, at)
            self.feed(Tick())

    def advance(self, until: float) -> None:
        """Let time pass."""
        while (at := self.session.next_deadline()) is not None and at <= until:
            self.now = max(self.now, at)
            self.feed(Tick())
        self.now = until

    def done(self, kind: type[Action]) -> Iterator[Action]:
        return (action for action in self.actions if isinstance(action, kind))

    @property
    def text(self) -> str:
        return "".join(a.text for a in self.actions if isinstance(a, Committed))

    def commit(self, count: int) -> None:
        """The region commits the next tokens; those that the edge sent count as accepted."""
        assert self.session.reply is not None
        chain = self.session.reply.chain
        base, right = chain.committed, 0
        final = REPLY[base : base + count]
        sent = chain.ids[: chain.num_sent]
        while right < len(final) - 1 and right < len(sent) and sent[right] == final[right]:
            right += 1
        self.feed(Commit(chain.epoch, base, right, final[right:]))


def heard(base: int, *ids: int, chance: float = 0.9) -> DraftsReady:
    survival = tuple(chance ** (n + 1) for n in range(len(ids)))
    return DraftsReady(DrafterReport(base, ids, survival, ("model",) * len(ids), 0.001))


def test_it_is_told_the_prompt_and_what_becomes_final() -> None:
    params = SamplingParams(temperature=0.5, seed=9, stop_ids=(5,))
    chat = Chat(request(sampling=params))
    (opening,) = chat.done(OpenDrafter)
    assert isinstance(opening, OpenDrafter)
    assert (opening.prompt, opening.reply, opening.params) == (PROMPT, (), params)
    assert opening.ends == {EOS, 5} and opening.lead == 8
    chat.commit(2)
    chat.commit(1)
    assert [action.ids for action in chat.done(TellDrafter)] == [(1, 2), (3,)]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "asked",
    [
        request(speculation=Speculation.OFF),
        request(speculation=Speculation.REGION_ONLY, provisional=False),
        request(thin=True),
    ],
)
def test_it_is_not_asked_where_there_is_no_use_for_it(asked: ChatRequest) -> None:
    chat = Chat(asked)
    assert not list(chat.done(OpenDrafter)) and not list(chat.done(TellDrafter))


def test_its_guesses_go_up_and_are_shown() -> None:
    chat = Chat(request())
    chat.settle()
    chat.feed(heard(0, *REPLY[:4]))
    chat.settle()
    sent = [action.ids for action in chat.done(Draft)]  # type: ignore[union-attr]
    assert sent == [REPLY[:4]]
    chat.commit(3)
    chat.feed(heard(3, *REPLY[3:6]))
    chat.settle()
    sent = [action.ids for action in chat.done(Draft)]  # type: ignore[union-attr]
    assert sent == [REPLY[:4], REPLY[4:6]]


def test_it_is_asked_in_the_turn_in_which_the_prompt_is_ready() -> None:
    session = ChatSession(policy(), replace(tools(), has_drafter=True), 0.0)
    session.handle(ChatAsked(request()), 0.0)
    kinds = [type(action) for action in session.handle(PromptReady(PROMPT), 0.0)]
    assert kinds[:2] == [OpenRegion, OpenDrafter], "the region first: it decides"


def test_copies_of_the_first_tokens_wait_for_its_first_guess() -> None:
    chat = Chat(request(), ScriptedDrafter([9, 9, 9, 9, 9]), first_guess_s=0.1)
    chat.advance(0.05)
    assert not list(chat.done(Draft)) and not list(chat.done(Provisional))
    chat.feed(heard(0, *REPLY[:4]))
    chat.advance(0.06)
    assert [action.ids for action in chat.done(Draft)] == [REPLY[:4]]  # type: ignore[union-attr]


def test_copies_wait_no_longer_than_it_may_take() -> None:
    """And whatever the region says in the meantime is passed on at once."""
    chat = Chat(request(), ScriptedDrafter(REPLY[:5]), first_guess_s=0.1)
    chat.advance(0.05)
    chat.commit(1)
    assert chat.text == reference_text(REPLY[:1])
    chat.advance(0.099)
    assert not list(chat.done(Draft))
    chat.advance(0.11)
    assert [action.base for action in chat.done(Draft)]  # type: ignore[union-attr]


@given(data=st.data())
def test_no_guess_ever_changes_the_text(data: st.DataObject) -> None:
    """Guesses right and wrong, late, for another place, at any time, and after the end."""
    chat = Chat(request(), ScriptedDrafter(data.draw(st.lists(st.integers(0, 21), max_size=8))))
    guesses = st.builds(
        lambda base, ids, chance: heard(base, *ids, chance=chance),
        st.integers(0, 9),
        st.lists(st.integers(0, 21), max_size=9),
        st.sampled_from([0.0, 0.5, 1.0]),
    )
    while chat.session.num_tokens < len(REPLY):
        for guess in data.draw(st.lists(guesses, max_size=3)):
            chat.feed(guess)
            if data.draw(st.booleans()):
                chat.settle()
        chat.commit(data.draw(st.integers(1, 3)))
    chat.feed(RegionDone(FinishReason.STOP, len(REPLY)))
    assert chat.session.state is SessionState.CLOSED and chat.session.error is None
    chat.feed(heard(0, 1, 2))
    assert chat.text == reference_text(REPLY)
