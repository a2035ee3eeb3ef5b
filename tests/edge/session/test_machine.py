"""The chat's state machine: every (state, input) pair, and the ways through it."""

from __future__ import annotations

import dataclasses
import typing

import pytest

from outrider.errors import (
    MalformedFrameError,
    NoReplicaError,
    OutriderError,
    OverloadedError,
    RateLimitedError,
)
from outrider.sampling.params import SamplingParams
from outrider.session.client import Accepted, Committed, Done, Failed, Provisional, Retracted
from outrider.session.region import Commit, Draft
from outrider.session.types import FinishReason, Speculation, Usage
from services.edge.session.events import (
    CancelAsked,
    CancelRegion,
    ChatAsked,
    ClientChanged,
    ClientFailed,
    ClientGone,
    DraftDropped,
    DraftsReady,
    Finish,
    Input,
    LeaveToRegion,
    OpenRegion,
    PromptFailed,
    PromptReady,
    RegionDone,
    RegionFailed,
    RegionMoved,
    RegionOpened,
    Tick,
    Tokenize,
)
from services.edge.session.machine import TABLE, ChatSession, SessionState
from tests.edge.session.toolkit import (
    DIGEST,
    EOS,
    IDENTITY,
    OPENED,
    PROMPT,
    ScriptedDrafter,
    drafting,
    in_state,
    policy,
    request,
    session,
    tools,
)

INPUTS: dict[type[Input], Input] = {
    ChatAsked: ChatAsked(request()),
    CancelAsked: CancelAsked(),
    ClientGone: ClientGone(),
    ClientChanged: ClientChanged(False),
    ClientFailed: ClientFailed(MalformedFrameError("bad")),
    PromptReady: PromptReady(PROMPT),
    PromptFailed: PromptFailed(OverloadedError("full")),
    RegionOpened: OPENED,
    Commit: Commit(0, 0, 0, (1,)),
    RegionDone: RegionDone(FinishReason.STOP, 0),
    RegionMoved: RegionMoved("replica-2", "us-west"),
    RegionFailed: RegionFailed(NoReplicaError("none")),
    DraftsReady: DraftsReady(),
    DraftDropped: DraftDropped(Draft(0, 0, (1,))),
    Tick: Tick(),
}


# What comes of each input in each state: the state after it, and the kinds of actions.
FAIL = ("CLOSED", (Failed, Finish))
FAIL_REGION = ("CLOSED", (CancelRegion, Failed, Finish))
LEAVE = ("CLOSED", (Finish,))
LEAVE_REGION = ("CLOSED", (CancelRegion, Finish))
NOTHING = None
EXPECTED: dict[type[Input], list[tuple[str, tuple[type, ...]] | None]] = {
    # input: AWAITING, TOKENIZING, OPENING, STREAMING, REOPENING, CLOSED
    ChatAsked: [("TOKENIZING", (Tokenize,)), FAIL, FAIL_REGION, FAIL_REGION, FAIL, NOTHING],
    CancelAsked: [
        FAIL,
        ("CLOSED", (Done, Finish)),
        ("CLOSED", (CancelRegion, Done, Finish)),
        ("CLOSED", (CancelRegion, Done, Finish)),
        ("CLOSED", (Done, Finish)),
        NOTHING,
    ],
    ClientGone: [LEAVE, LEAVE, LEAVE_REGION, LEAVE_REGION, LEAVE, NOTHING],
    ClientChanged: [NOTHING] * 6,
    ClientFailed: [FAIL, FAIL, FAIL_REGION, FAIL_REGION, FAIL, NOTHING],
    PromptReady: [NOTHING, ("OPENING", (OpenRegion, Accepted)), *[NOTHING] * 4],
    PromptFailed: [NOTHING, FAIL, *[NOTHING] * 4],
    RegionOpened: [FAIL, FAIL, ("STREAMING", ()), FAIL_REGION, FAIL, NOTHING],
    Commit: [FAIL, FAIL, FAIL_REGION, ("STREAMING", (Committed,)), FAIL, NOTHING],
    RegionMoved: [FAIL, FAIL, FAIL_REGION, ("STREAMING", ()), FAIL, NOTHING],
    RegionDone: [
        FAIL,
        FAIL,
        ("CLOSED", (Done, Finish)),
        ("CLOSED", (Done, Finish)),
        FAIL,
        NOTHING,
    ],
    RegionFailed: [FAIL, FAIL, FAIL, FAIL, NOTHING, NOTHING],
    DraftsReady: [NOTHING] * 6,
    DraftDropped: [NOTHING] * 6,
    Tick: [NOTHING] * 6,
}


def test_the_table_is_whole() -> None:
    kinds = typing.get_args(Input)
    assert set(TABLE) == set(SessionState)
    assert all(set(row) == set(kinds) for row in TABLE.values())
    assert set(EXPECTED) == set(INPUTS) == set(kinds)


@pytest.mark.parametrize("kind", INPUTS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("state", SessionState, ids=lambda state: state.name)
def test_every_state_and_input(state: SessionState, kind: type[Input]) -> None:
    chat = in_state(state)
    expected = EXPECTED[kind][list(SessionState).index(state)]
    actions = chat.handle(INPUTS[kind], 0.0)
    after, kinds = expected or (state.name, ())
    assert (chat.state.name, tuple(type(action) for action in actions)) == (after, kinds)
    if chat.state is SessionState.CLOSED:
        assert chat.next_deadline() is None
        assert all(chat.handle(item, 1.0) == [] for item in INPUTS.values())


@pytest.mark.parametrize(
    ("item", "reason"),
    [
        (RegionDone(FinishReason.STOP, 0), None),
        (RegionDone(FinishReason.LENGTH, 0), None),
        (RegionDone(FinishReason.DEADLINE, 0), "DEADLINE"),
        (RegionDone(FinishReason.CANCELLED, 0), "CANCELLED"),
        (CancelAsked(), "CANCELLED"),
        (ClientGone(), "CANCELLED"),
        (ClientFailed(OverloadedError("full")), "OVERLOADED"),
    ],
)
def test_it_knows_why_there_is_no_whole_reply(item: Input, reason: str | None) -> None:
    chat = in_state(SessionState.STREAMING)
    chat.handle(item, 0.0)
    assert chat.error_reason == reason


def test_a_whole_chat() -> None:
    chat = session(drafting(1, 2, 3, EOS))
    asked = request()
    assert chat.handle(ChatAsked(asked), 1.0) == [Tokenize(asked.messages)]
    assert chat.handle(PromptReady(PROMPT), 1.01) == [
        OpenRegion(asked, PROMPT, 0),
        Accepted("r-1", "m", 3, sampling=asked.sampling),
    ]
    assert chat.next_deadline() == 1.011
    drafts, shown = chat.handle(Tick(), 1.011)
    assert drafts == Draft(0, 0, (1, 2, 3, EOS))
    assert isinstance(shown, Provisional)
    assert (shown.base, shown.erase_to, shown.text) == (0, 0, " the cat sat")
    assert chat.handle(OPENED, 1.2) == []
    first = Committed(" the cat", (1, 2), 2, model_identity=IDENTITY)
    assert chat.handle(Commit(0, 0, 2, ()), 1.25) == [first]
    lossy = Commit(0, 2, 2, (), num_lossy=1)
    assert chat.handle(lossy, 1.26) == [Committed(" sat", (3, EOS), 4)]

    usage = Usage(3, 0, 4, 4, 4)
    done, finish = chat.handle(RegionDone(FinishReason.STOP, 4, usage), 1.27)
    assert finish == Finish()
    check_done(done, dataclasses.replace(usage, lossy_tokens=1))
    assert isinstance(done, Done) and (done.num_moves, done.max_drafts) == (0, OPENED.max_drafts)


def check_done(done: object, usage: Usage) -> None:
    assert isinstance(done, Done)
    assert (done.finish_reason, done.upto, done.usage) == (FinishReason.STOP, 4, usage)
    assert (done.region, done.replica) == ("us-east", "replica-1")
    assert done.edge_timings.queue_ms == pytest.approx(10)
    assert done.edge_timings.ttft_ms == pytest.approx(250)
    assert done.edge_timings.total_ms == pytest.approx(270)


def test_the_prompt_goes_up_before_any_draft_is_made() -> None:
    drafter = ScriptedDrafter([1, 2])
    in_state(SessionState.OPENING, drafter)
    assert drafter.learnt == []


def test_a_wrong_draft_is_taken_back_and_a_new_epoch_begins() -> None:
    chat = in_state(SessionState.STREAMING, drafting(1, 2, 3, 4, 5, 6))
    chat.handle(Tick(), 0.001)
    retract, commit = chat.handle(Commit(0, 0, 1, (5,)), 0.1)
    assert retract == Retracted(5)
    assert commit == Committed(" the mat", (1, 5), 2, model_identity=IDENTITY)
    assert chat.next_deadline() == pytest.approx(0.101)
    draft, shown = chat.handle(Tick(), 0.101)
    assert draft == Draft(1, 2, (3, 4, 5, 6))
    assert isinstance(shown, Provisional)


def test_commits_in_quick_succession_are_answered_by_one_draft_frame() -> None:
    chat = in_state(SessionState.STREAMING, drafting(1, 2, 3, 4, 5, 6, 7, 8, 9))
    chat.handle(Commit(0, 0, 0, (1,)), 0.1)
    chat.handle(Commit(0, 1, 0, (2,)), 0.1004)
    assert chat.next_deadline() == 0.001, "the drafts from the prompt are due since the opening"
    sent = [a for a in chat.handle(Tick(), 0.1005) if isinstance(a, Draft)]
    assert sent == [Draft(1, 2, (3, 4, 5, 6, 7, 8, 9))]


def test_drafts_that_could_not_be_sent_are_sent_again() -> None:
    chat = in_state(SessionState.STREAMING, drafting(1, 2, 3, 4))
    (frame,) = [a for a in chat.handle(Tick(), 0.001) if isinstance(a, Draft)]
    assert chat.handle(DraftDropped(frame), 0.001) == []
    chat.handle(DraftsReady(), 0.002)
    assert [a for a in chat.handle(Tick(), 0.002) if isinstance(a, Draft)] == [frame]
    assert chat.next_deadline() is None


@pytest.mark.parametrize(
    ("speculation", "provisional", "sends", "shows"),
    [
        (Speculation.ON, True, True, True),
        (Speculation.ON, False, True, False),
        (Speculation.REGION_ONLY, True, False, True),
        (Speculation.REGION_ONLY, False, False, False),
        (Speculation.OFF, True, False, False),
    ],
)
def test_who_gets_the_drafts(
    speculation: Speculation, provisional: bool, sends: bool, shows: bool
) -> None:
    drafter = drafting(1, 2, 3, 4)
    chat = session(drafter)
    asked = request(speculation=speculation, provisional=provisional)
    chat.handle(ChatAsked(asked), 0.0)
    chat.handle(PromptReady(PROMPT), 0.0)
    kinds = {type(action) for action in chat.handle(Tick(), 0.001)}
    assert kinds == ({Draft} if sends else set()) | ({Provisional} if shows else set())
    assert (drafter.learnt == list(PROMPT)) == (sends or shows), "no work for nobody"


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        (FinishReason.LENGTH, "ST"),
        (FinishReason.DEADLINE, ""),
        (FinishReason.CANCELLED, ""),
    ],
)
def test_what_is_held_back_comes_with_the_end_of_a_whole_reply_alone(
    reason: FinishReason, text: str
) -> None:
    chat = session(drafting(1, 2, 3, 4))
    chat.handle(ChatAsked(request(sampling=SamplingParams(stop=("STOP",)))), 0.0)
    chat.handle(PromptReady(PROMPT), 0.0)
    chat.handle(OPENED, 0.0)
    chat.handle(Commit(0, 0, 0, (1, 18)), 0.1)
    *commits, done, finish = chat.handle(RegionDone(reason, 2), 0.2)
    assert commits == ([Committed(text, (), 2)] if text else [])
    assert isinstance(done, Done) and finish == Finish()


def test_a_thin_chat_is_tokenized_by_the_region() -> None:
    chat = session()
    asked = request(thin=True)
    assert chat.handle(ChatAsked(asked), 0.0) == [OpenRegion(asked, None, 0)]
    opened = RegionOpened(17, 0, "replica-1", "us-east", DIGEST)
    assert chat.handle(opened, 0.1) == [Accepted("r-1", "m", 17, sampling=asked.sampling)]


def bailing_out() -> ChatSession:
    """A chat whose prompt may take 50 ms to tokenize."""
    return ChatSession(policy(bail_out_s=0.05), tools(), 0.0)


def test_a_prompt_that_takes_too_long_to_tokenize_is_left_to_the_region() -> None:
    chat, asked = bailing_out(), request(deadline_ms=1000)
    chat.handle(ChatAsked(asked), 1.0)
    assert chat.next_deadline() == pytest.approx(1.05)
    assert chat.handle(Tick(), 1.04) == [], "it may still be done here"
    assert chat.handle(Tick(), 1.06) == [LeaveToRegion()]
    assert chat.handle(Tick(), 1.07) == [], "once"
    thin = dataclasses.replace(asked, thin=True)
    assert chat.handle(PromptReady(None), 1.1) == [OpenRegion(thin, None, 900)]
    chat.handle(RegionOpened(17, 0, "replica-1", "us-east", DIGEST), 1.2)
    assert chat.num_prompt_tokens == 17


def test_ids_that_were_just_made_are_used_although_it_is_late() -> None:
    chat = bailing_out()
    chat.handle(ChatAsked(request()), 0.0)
    assert chat.handle(Tick(), 0.06) == [LeaveToRegion()]
    opening, *_ = chat.handle(PromptReady(PROMPT), 0.07)
    assert opening == OpenRegion(request(), PROMPT, 0)


def test_a_prompt_for_which_there_is_no_room_is_left_to_the_region_at_once() -> None:
    chat = bailing_out()
    chat.handle(ChatAsked(request()), 0.0)
    assert chat.handle(PromptFailed(OverloadedError("full")), 0.0) == [LeaveToRegion()]
    failed = chat.handle(PromptFailed(OverloadedError("full")), 0.1)
    assert isinstance(failed[0], Failed), "only once"


@pytest.mark.parametrize("error", [RateLimitedError("slower"), MalformedFrameError("bad")])
def test_limits_and_faults_of_a_prompt_are_no_reason_to_leave_it_to_the_region(
    error: OutriderError,
) -> None:
    chat = bailing_out()
    chat.handle(ChatAsked(request()), 0.0)
    assert chat.handle(PromptFailed(error), 0.01)[0] == Failed(error)


@pytest.mark.parametrize("fields", [{"raw_prompt": "once", "messages": ()}, {"prediction": "x"}])
def test_what_only_the_edge_can_tokenize_waits(fields: dict[str, typing.Any]) -> None:
    chat = bailing_out()
    chat.handle(ChatAsked(dataclasses.replace(request(), **fields)), 0.0)
    assert chat.next_deadline() is None
    assert chat.handle(Tick(), 60.0) == []


def test_a_cancelled_chat_ends_with_what_is_final() -> None:
    chat = session(drafting(1, 2, 3, 4))
    chat.handle(ChatAsked(request(sampling=SamplingParams(stop=("STOP",)))), 0.0)
    chat.handle(PromptReady(PROMPT), 0.0)
    chat.handle(OPENED, 0.0)
    chat.handle(Commit(0, 0, 0, (1, 18)), 0.1)
    cancel, done, finish = chat.handle(CancelAsked(), 0.2)
    assert cancel == CancelRegion("the client cancelled"), "ST may become STOP in another run"
    assert isinstance(done, Done)
    assert (done.finish_reason, done.upto) == (FinishReason.CANCELLED, 2)
    assert finish == Finish()
