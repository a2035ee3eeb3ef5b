"""Chats whose client drafts itself: its drafts go up, the edge's own sources are left alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from outrider.errors import InvalidRequestError, VocabularyMismatchError
from outrider.session.client import Accepted, DraftingTerms
from outrider.session.region import Commit, Draft, Pace
from services.edge.session.events import ChatAsked, DrafterReport, DraftsReady, PromptReady, Tick
from services.edge.session.machine import ChatSession, SessionState
from services.edge.session.reply import ReplyTools
from tests.edge.session.toolkit import DIGEST, OPENED, PROMPT, policy, request, tools

ASKED = replace(request(provisional=False), drafts_itself=True, vocabulary_digest=DIGEST)


def refusing(name: str) -> ReplyTools:
    """Tools that fail a chat which asks for what its group taught."""

    def taught(group: bytes) -> object:
        raise AssertionError(f"{name} of the group was asked for")

    return replace(tools(), averages=taught, new_drafter=taught)  # type: ignore[arg-type]


def streaming() -> ChatSession:
    chat = ChatSession(policy(), refusing("what is learnt"), 0.0)
    chat.handle(ChatAsked(ASKED), 0.0)
    actions = chat.handle(PromptReady(PROMPT), 0.0)
    terms = [it.drafting for it in actions if isinstance(it, Accepted)]
    assert terms == [DraftingTerms(DIGEST, PROMPT, 8)]
    chat.handle(OPENED, 0.0)
    return chat


def drafted(chat: ChatSession, base: int, *ids: int, now: float = 1.0) -> list[Draft]:
    report = DrafterReport(base, ids, (1.0,) * len(ids), ("client",) * len(ids))
    chat.handle(DraftsReady(report), now)
    return [it for it in chat.handle(Tick(), now) if isinstance(it, Draft)]


def test_a_client_s_drafts_go_up_as_they_come() -> None:
    chat = streaming()
    assert drafted(chat, 0, 1, 2, 3) == [Draft(0, 0, (1, 2, 3))]
    assert drafted(chat, 0, 1, 2, 3, 4) == [Draft(0, 3, (4,), continues=True)]
    chat.handle(Commit(0, 0, 3, (4,), pace=Pace(max_lead=8)), 2.0)
    assert drafted(chat, 4, 5, now=3.0) == [Draft(0, 4, (5,), continues=True)]


def test_a_changed_mind_counts_once_the_chain_before_it_was_wrong() -> None:
    chat = streaming()
    drafted(chat, 0, 1, 2, 3)
    assert drafted(chat, 0, 1, 7, 8) == [], "what was sent cannot be taken back"
    chat.handle(Commit(0, 0, 1, (7,)), 2.0)
    sent = [it for it in chat.handle(Tick(), 3.0) if isinstance(it, Draft)]
    assert sent == [Draft(1, 2, (8,))]


def test_ids_outside_the_vocabulary_end_the_chat() -> None:
    chat = streaming()
    report = DrafterReport(0, (1, 9999), (1.0,) * 2, ("client",) * 2)
    chat.handle(DraftsReady(report), 1.0)
    assert chat.state is SessionState.CLOSED
    assert isinstance(chat.error, InvalidRequestError) and "9999" in chat.error.message


@pytest.mark.parametrize("digest", [b"x" * 32, b"short"])
def test_another_vocabulary_is_refused_before_anything_is_asked(digest: bytes) -> None:
    chat = ChatSession(policy(), tools(), 0.0)
    chat.handle(ChatAsked(replace(ASKED, vocabulary_digest=digest)), 0.0)
    assert isinstance(chat.error, VocabularyMismatchError)
    assert digest.hex() in chat.error.message and DIGEST.hex() in chat.error.message
