"""When an edge had the first text of a reply: provisional, staying, final, and by the region
alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from outrider.session.client import Done, Provisional
from outrider.session.client_wire import read, write
from outrider.session.region import Commit
from outrider.session.types import FinishReason, FirstText, Timings
from services.edge.session.events import (
    Action,
    CancelAsked,
    ChatAsked,
    Input,
    OpenRegion,
    PromptReady,
    RegionDone,
    Tick,
)
from services.edge.session.machine import ChatSession
from tests.edge.session.toolkit import (
    EOS,
    OPENED,
    PROMPT,
    ScriptedDrafter,
    drafting,
    policy,
    request,
    tools,
)

ASKED_AT, OPENED_AT, SHOWN_AT, COMMITTED_AT = 1.0, 1.01, 1.02, 1.1
TTFT_MS = 40.0


class Chat:
    def __init__(self, drafter: ScriptedDrafter, *, provisional: bool = True) -> None:
        self.session = ChatSession(policy(), tools(drafter), 0.0)
        self.actions: list[Action] = []
        self.feed(ChatAsked(request(provisional=provisional)), ASKED_AT)
        self.feed(PromptReady(PROMPT), OPENED_AT)
        opening = next(it for it in self.actions if isinstance(it, OpenRegion))
        self.feed(Tick(), SHOWN_AT)
        # The round trip took 30 ms: the frame came back 35 ms later, and was held for 5.
        opened = replace(OPENED, echo=opening.echo, ack_delay_s=0.005)
        self.feed(opened, OPENED_AT + 0.035)

    def feed(self, item: Input, now: float) -> None:
        self.actions += self.session.handle(item, now)

    def end(self, *ids: int) -> FirstText:
        """The region commits these tokens, and the chat ends."""
        self.feed(Commit(0, 0, 0, (*ids, EOS)), COMMITTED_AT)
        timings = Timings(ttft_ms=TTFT_MS)
        self.feed(RegionDone(FinishReason.STOP, len(ids) + 1, timings=timings), 2.0)
        return self.ended()

    def ended(self) -> FirstText:
        return next(it for it in self.actions if isinstance(it, Done)).first_text

    @property
    def was_shown(self) -> bool:
        return any(isinstance(it, Provisional) for it in self.actions)


def approx(*times_ms: float) -> Any:
    times: list[Any] = [pytest.approx(it) for it in times_ms]
    return FirstText(*times)


def test_a_word_that_was_right_stays_from_when_it_was_shown() -> None:
    chat = Chat(drafting(1, 2, 3, 4))
    assert chat.was_shown
    assert chat.end(1, 2, 3) == approx(20, 20, 100, 10 + 30 + TTFT_MS)


def test_a_word_that_was_wrong_stays_from_when_another_was_final() -> None:
    chat = Chat(drafting(5, 4, 3, 2))
    assert chat.was_shown
    assert chat.end(1, 2, 3) == approx(20, 100, 100, 80)


def test_without_provisional_text_the_first_is_final() -> None:
    chat = Chat(drafting(1, 2, 3, 4), provisional=False)
    assert not chat.was_shown
    assert chat.end(1, 2, 3) == approx(0, 100, 100, 80)


def test_a_chat_that_is_cancelled_without_text_has_no_times_but_of_what_was_shown() -> None:
    chat = Chat(drafting(1, 2, 3, 4))
    chat.feed(CancelAsked(), 1.05)
    assert chat.ended() == approx(20, 0, 0, 0)


def test_a_client_reads_them() -> None:
    chat = Chat(drafting(1, 2, 3, 4))
    told = chat.end(1, 2, 3)
    done = next(it for it in chat.actions if isinstance(it, Done))
    found = read(write(done))
    assert isinstance(found, Done)
    assert found.first_text == approx(
        told.provisional_ms, told.staying_ms, told.committed_ms, told.region_ms
    )
