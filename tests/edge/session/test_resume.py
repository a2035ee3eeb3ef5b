"""Chats that go on: after ids of an earlier run, and before another audience."""

from __future__ import annotations

from dataclasses import replace

import pytest

from outrider.session.client import Accepted, Committed, Failed, Provisional
from outrider.session.region import Commit, Draft
from outrider.session.types import FinishReason
from services.edge.session.events import (
    ChatAsked,
    ClientChanged,
    Finish,
    OpenRegion,
    PromptReady,
    RegionDone,
    RegionOpened,
    ResumePoint,
    Tick,
)
from services.edge.session.machine import ChatSession, SessionState
from tests.edge.session.toolkit import (
    DIGEST,
    EOS,
    IDENTITY,
    OPENED,
    PROMPT,
    drafting,
    in_state,
    request,
    session,
)


def _first_commit(chat: ChatSession) -> float | None:
    return chat.milestones.committed


def test_a_reply_goes_on_after_ids_of_an_earlier_run() -> None:
    chat = session(drafting(1, 2, 3, 4, 5, EOS))
    asked = replace(request(), resume=ResumePoint("", 2, 8, (1, 2), IDENTITY))
    chat.handle(ChatAsked(asked), 0.0)
    assert chat.handle(PromptReady(PROMPT), 0.0) == [
        OpenRegion(asked, PROMPT, 0),
        Accepted("r-1", "m", 3, sampling=asked.sampling),
        Committed(" the cat", (1, 2), 2, model_identity=IDENTITY),
    ]
    assert _first_commit(chat) is None, "nothing new is final"
    drafts, shown = chat.handle(Tick(), 0.001)
    assert drafts == Draft(1, 2, (3, 4, 5, EOS)), "it continues no chain of this session"
    assert isinstance(shown, Provisional)
    assert (shown.base, shown.erase_to, shown.text) == (2, 0, " sat on mat")
    chat.handle(OPENED, 0.1)
    assert chat.handle(Commit(1, 2, 4, ()), 0.2) == [Committed(" sat on mat", (3, 4, 5, EOS), 6)]
    assert (chat.num_resumed, chat.num_tokens) == (2, 6)
    assert _first_commit(chat) == 0.2


def test_a_thin_reply_goes_on_once_the_region_has_opened_it() -> None:
    chat = session()
    asked = replace(request(thin=True), resume=ResumePoint(upto=1, ids=(1,)))
    assert chat.handle(ChatAsked(asked), 0.0) == [OpenRegion(asked, None, 0)]
    opened = RegionOpened(17, 0, "replica-1", "us-east", DIGEST)
    assert chat.handle(opened, 0.1) == [
        Accepted("r-1", "m", 17, sampling=asked.sampling),
        Committed(" the", (1,), 1),
    ]


def test_a_reply_that_had_ended_cannot_go_on() -> None:
    chat = session()
    asked = replace(request(), resume=ResumePoint(upto=2, ids=(EOS, 1)))
    chat.handle(ChatAsked(asked), 0.0)
    failed, finish = chat.handle(PromptReady(PROMPT), 0.0)
    assert isinstance(failed, Failed)
    assert "past its end" in failed.error.message
    assert finish == Finish()
    assert chat.num_resumed == chat.num_tokens == 0, "none of them count"


def test_a_reply_that_an_earlier_run_had_whole_is_drafted_no_further() -> None:
    chat = session(drafting(1, EOS, 5, 6, 7))
    asked = replace(request(), resume=ResumePoint(upto=2, num_chars=4, ids=(1, EOS)))
    chat.handle(ChatAsked(asked), 0.0)
    assert chat.handle(PromptReady(PROMPT), 0.0)[-1] == Committed(" the", (1, EOS), 2)
    assert chat.next_deadline() is None, "nothing is shown behind the end"
    chat.handle(OPENED, 0.1)
    done, finish = chat.handle(RegionDone(FinishReason.STOP, 2), 0.2)
    assert (done.upto, finish) == (2, Finish())  # type: ignore[union-attr]


@pytest.mark.parametrize("provisional", [True, False])
def test_another_audience_begins_with_nothing_shown(provisional: bool) -> None:
    chat = in_state(SessionState.STREAMING, drafting(1, 2, 3))
    shown = [a for a in chat.handle(Tick(), 0.001) if isinstance(a, Provisional)]
    assert [s.text for s in shown] == [" the cat"]
    assert chat.handle(ClientChanged(False), 0.01) == []
    assert chat.handle(Tick(), 0.01) == []
    first = Committed(" the", (1,), 1, model_identity=IDENTITY)
    assert chat.handle(Commit(0, 0, 0, (1,)), 0.02) == [first]
    chat.handle(ClientChanged(provisional), 0.03)
    again = [a for a in chat.handle(Tick(), 0.03) if isinstance(a, Provisional)]
    assert [(s.erase_to, s.text) for s in again] == ([(0, " cat")] if provisional else [])
