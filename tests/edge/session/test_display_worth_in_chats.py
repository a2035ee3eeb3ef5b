"""Chats of groups whose provisional text brings nothing are not drafted for; others' are."""

from __future__ import annotations

from dataclasses import replace

import pytest

from outrider.session.region import Commit, Pace
from outrider.session.types import FinishReason
from services.edge.session.acceptance import GroupAverages
from services.edge.session.display_worth import Drafting
from services.edge.session.events import (
    ChatAsked,
    ChatRequest,
    PromptReady,
    RegionDone,
    Tick,
)
from services.edge.session.machine import ChatSession
from services.edge.session.reply import ReplyFlow, ReplyPolicy, ReplyTools
from services.edge.session.upload_control import DraftMode, UploadPolicy, Uploads
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

WORDS = (1, 2, 3, 4) * 12
FOR_DISPLAY = replace(policy(), reply=ReplyPolicy(upload=UploadPolicy(uploads=Uploads.NEVER)))


def chat(
    averages: GroupAverages, drafter: ScriptedDrafter, asked: ChatRequest | None = None
) -> ReplyFlow:
    """A reply of 48 words, one in 40 ms, to a chat of this group."""
    made = tools(drafter)
    own: ReplyTools = replace(made, averages=averages.of)
    asked = asked or replace(request(), group=b"mine")
    session = ChatSession(FOR_DISPLAY, own, 0.0)
    session.handle(ChatAsked(asked), 0.0)
    session.handle(PromptReady(PROMPT), 0.0)
    session.handle(replace(OPENED, echo=1), 0.1)
    now = 0.1
    for base, token in enumerate((*WORDS, EOS)):
        session.handle(Tick(), now + 0.002)
        now += 0.04
        pace = Pace(0.04, 0.001, 64)
        session.handle(Commit(0, base, 0, (token,), pace=pace), now)
    session.handle(RegionDone(FinishReason.STOP, len(WORDS) + 1), now)
    assert session.done is not None and session.reply is not None
    return session.reply


def test_a_bad_drafter_stops_and_a_good_one_stays() -> None:
    good, bad = GroupAverages(), GroupAverages()
    for _ in range(12):
        well = chat(good, drafting(*WORDS))
        poor = chat(bad, drafting(*(token ^ 7 for token in WORDS)))
    assert well.drafting is Drafting.ON and well.stats().shown_tokens > 20
    assert well.display.sooner_s > 0.04 * 20
    assert well.controller.mode is DraftMode.DISPLAY_ONLY
    assert poor.drafting is Drafting.OFF
    assert poor.controller.mode is DraftMode.SERVER_ONLY and poor.controller.lead == 0
    assert poor.stats().drafted_tokens == 0


def test_what_one_group_s_texts_brought_is_nothing_to_another() -> None:
    averages = GroupAverages()
    for _ in range(12):
        chat(averages, drafting(*(token ^ 7 for token in WORDS)))
    theirs = chat(averages, drafting(*WORDS), replace(request(), group=b"theirs"))
    assert theirs.drafting is Drafting.ON and theirs.stats().shown_tokens > 20
    mine = chat(averages, drafting(*WORDS))
    assert mine.drafting is Drafting.OFF


@pytest.mark.parametrize("provisional", [True, False])
def test_chats_without_provisional_text_say_nothing_of_it(provisional: bool) -> None:
    averages = GroupAverages()
    silent = replace(request(provisional=False), group=b"mine")
    for _ in range(30):
        reply = chat(averages, drafting(*WORDS), silent)
        assert reply.drafting is Drafting.OFF and reply.stats().drafted_tokens == 0
    asked = replace(request(provisional=provisional), group=b"mine")
    shown = chat(averages, drafting(*WORDS), asked).stats().shown_tokens
    assert bool(shown) is provisional
