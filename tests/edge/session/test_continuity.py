"""The model behind a reply: what the client is told of it, and what the region when it is asked
again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from outrider.session.client import Committed, Done
from outrider.session.region import Commit
from outrider.session.types import FinishReason
from services.edge.session.continuity import SAME_ORIGIN, CommitOrigin, ModelContinuity
from services.edge.session.events import (
    Action,
    ChatAsked,
    OpenRegion,
    PromptReady,
    RegionDone,
    RegionMoved,
    ResumePoint,
    Tick,
)
from services.edge.session.machine import ChatSession, SessionState
from tests.edge.session.toolkit import (
    IDENTITY,
    LOST,
    OPENED,
    PROMPT,
    in_state,
    request,
    session,
)

OTHER = b"\x0b" * 32


def commit(chat: ChatSession, number: int) -> Committed:
    """One more token."""
    (told,) = chat.handle(Commit(0, number, 0, (1,)), 0.1)
    assert isinstance(told, Committed)
    return told


def done(actions: list[Action]) -> Done:
    (found,) = [action for action in actions if isinstance(action, Done)]
    return found


def test_the_model_is_told_once_and_named_when_the_region_is_asked_again() -> None:
    chat = in_state(SessionState.STREAMING)
    assert [commit(chat, n).model_identity for n in range(3)] == [IDENTITY, None, None]
    again, *_ = chat.handle(LOST, 0.5)
    assert isinstance(again, OpenRegion)
    assert again.request.resume.model_identity == IDENTITY
    chat.handle(OPENED, 0.6)
    assert commit(chat, 3) == Committed(" the", (1,), 4), "an equal replica is no news"
    assert not done(chat.handle(RegionDone(FinishReason.STOP, 4), 0.7)).inexact


@pytest.mark.parametrize("is_reopened", [False, True], ids=["moved", "reopened"])
def test_a_reply_that_goes_on_at_another_model_is_inexact(is_reopened: bool) -> None:
    chat = in_state(SessionState.STREAMING)
    commit(chat, 0)
    if is_reopened:
        chat.handle(LOST, 0.5)
        chat.handle(replace(OPENED, model_identity=OTHER), 0.6)
    else:
        chat.handle(RegionMoved("replica-2", "us-west", 0, OTHER), 0.6)
    first, second = commit(chat, 1), commit(chat, 2)
    assert (first.model_identity, first.inexact) == (OTHER, True)
    assert (second.model_identity, second.inexact) == (None, False)
    again, *_ = chat.handle(LOST, 0.7)
    assert isinstance(again, OpenRegion)
    assert again.request.resume.model_identity == OTHER, "that of the last token"
    chat.handle(replace(OPENED, model_identity=OTHER), 0.8)
    assert done(chat.handle(RegionDone(FinishReason.STOP, 3), 0.9)).inexact


def test_a_replica_that_uses_inexact_kv_says_so_once_and_the_reply_stays_inexact() -> None:
    chat = in_state(SessionState.STREAMING)
    assert not commit(chat, 0).inexact
    (first,) = chat.handle(Commit(0, 1, 0, (1,), is_inexact=True), 0.1)
    assert isinstance(first, Committed)
    assert (first.model_identity, first.inexact) == (None, True)
    assert not commit(chat, 2).inexact, "it was told"
    chat.handle(LOST, 0.5)
    chat.handle(OPENED, 0.6)
    assert not commit(chat, 3).inexact, "the next replica has exact KV"
    assert done(chat.handle(RegionDone(FinishReason.STOP, 4), 0.9)).inexact


def test_a_move_before_the_first_token_changes_no_model() -> None:
    chat = in_state(SessionState.STREAMING)
    chat.handle(RegionMoved("replica-2", "us-west", 0, OTHER), 0.1)
    assert commit(chat, 0) == Committed(" the", (1,), 1, model_identity=OTHER)


def test_a_replica_that_commits_nothing_leaves_no_trace() -> None:
    chat = in_state(SessionState.STREAMING)
    commit(chat, 0)
    chat.handle(RegionMoved("replica-2", "us-west", 0, OTHER), 0.1)
    chat.handle(RegionMoved("replica-1", "us-east", 0, IDENTITY), 0.2)
    assert not commit(chat, 1).inexact


def test_a_client_brings_the_model_of_its_tokens_from_another_edge() -> None:
    for identity, is_inexact in ((IDENTITY, False), (OTHER, True), (b"", True)):
        chat = session()
        resume = ResumePoint(upto=1, num_chars=4, ids=(1,), model_identity=identity)
        chat.handle(ChatAsked(replace(request(), resume=resume)), 0.0)
        opening, *_ = chat.handle(PromptReady(PROMPT), 0.0)
        assert isinstance(opening, OpenRegion)
        assert opening.request.resume.model_identity == identity
        chat.handle(Tick(), 0.001)
        chat.handle(OPENED, 0.1)
        assert commit(chat, 1).inexact is is_inexact


def test_an_unknown_model_is_told_as_such_and_equals_none() -> None:
    model = ModelContinuity(b"", has_tokens=False)
    model.placed(IDENTITY)
    assert model.committed() == CommitOrigin(IDENTITY)
    assert model.committed() == SAME_ORIGIN
    model.placed(b"")
    assert model.committed() == CommitOrigin(b"", is_inexact=True)
    model.placed(b"")
    assert model.committed() == CommitOrigin(None, is_inexact=True)
