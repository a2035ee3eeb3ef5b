"""A chat whose router or replica is lost is opened anew, from its last token."""

from __future__ import annotations

from dataclasses import replace

import pytest

from outrider.errors import (
    DeadlineError,
    DrainingError,
    DuplicateSessionError,
    InvalidRequestError,
    NoReplicaError,
    OutriderError,
    OverloadedError,
    ReplicaLostError,
    UnavailableError,
)
from outrider.session.client import Committed, Done, Failed, Provisional
from outrider.session.region import Commit, Draft
from outrider.session.runs import check_run, replaced_error
from outrider.session.types import FinishReason
from services.edge.session.events import (
    ChatAsked,
    ClientChanged,
    DraftsReady,
    Finish,
    OpenRegion,
    PromptReady,
    RegionDone,
    RegionFailed,
    RegionMoved,
    Tick,
)
from services.edge.session.machine import ChatSession, SessionState
from tests.edge.session.toolkit import (
    EOS,
    IDENTITY,
    LOST,
    OPENED,
    PROMPT,
    drafting,
    in_state,
    request,
    session,
)


def opened(chat: ChatSession, loss: RegionFailed, now: float) -> OpenRegion:
    """What the loss is answered with."""
    (again,) = chat.handle(loss, now)
    assert isinstance(again, OpenRegion)
    return again


def test_a_lost_stream_is_opened_again_at_once_behind_the_last_token() -> None:
    chat = in_state(SessionState.STREAMING)
    chat.handle(Commit(0, 0, 0, (1, 2)), 1.0)
    again = opened(chat, LOST, 1.5)
    assert (again.prompt, again.request.resume.ids) == (PROMPT, (1, 2))
    assert again.request.resume.model_identity == IDENTITY
    assert chat.state is SessionState.OPENING
    assert chat.handle(replace(OPENED, replica="replica-9"), 1.6) == [], "accepted is said once"
    assert chat.handle(Commit(0, 2, 0, (3, EOS)), 1.7) == [Committed(" sat", (3, EOS), 4)]
    done, finish = chat.handle(RegionDone(FinishReason.STOP, 4), 1.8)
    assert isinstance(done, Done)
    assert (done.replica, done.upto, finish) == ("replica-9", 4, Finish())
    assert chat.num_resumed == 0, "no other client had any of it"


def test_it_is_said_whether_the_one_that_is_lost_had_committed_anything() -> None:
    """If it had, it was not lost because of the request, which need not be computed alone."""
    chat = in_state(SessionState.OPENING)
    assert not opened(chat, LOST, 0.5).is_proven
    chat.handle(OPENED, 0.6)
    chat.handle(Commit(0, 0, 0, (1, 2)), 1.0)
    assert opened(chat, LOST, 1.5).is_proven
    (again,) = chat.handle(LOST, 1.6) or chat.handle(Tick(), 1.7)
    assert isinstance(again, OpenRegion) and not again.is_proven
    chat.handle(OPENED, 1.8)
    chat.handle(Commit(0, 2, 0, (1,)), 1.9)
    chat.handle(RegionMoved("replica-2", "us-west"), 2.0)
    assert not opened(chat, LOST, 2.1).is_proven, "the next replica had committed nothing yet"


def test_final_tokens_never_follow_another_prompt_than_before() -> None:
    """Messages that a region tokenizes may be made shorter there by other limits."""
    for has_tokens in (False, True):
        chat = session()
        chat.handle(ChatAsked(request(thin=True)), 0.0)
        chat.handle(OPENED, 0.0)
        if has_tokens:
            chat.handle(Commit(0, 0, 0, (1, 2)), 1.0)
        opened(chat, LOST, 1.5)
        actions = chat.handle(replace(OPENED, prompt_tokens=2), 1.6)
        failed = [action.error.message for action in actions if isinstance(action, Failed)]
        assert len(failed) == has_tokens
        assert all("had 3 tokens, but has 2 where" in message for message in failed)


def test_before_the_first_token_too_where_the_region_did_not_say_no() -> None:
    assert opened(in_state(SessionState.OPENING), LOST, 0.5).request.resume.ids == ()
    stopping = RegionFailed(DrainingError("this router stops"))
    assert opened(in_state(SessionState.OPENING), stopping, 0.5).prompt == PROMPT


@pytest.mark.parametrize(
    "error", [NoReplicaError("none"), OverloadedError("full"), UnavailableError("no")]
)
def test_a_refusal_before_the_first_token_is_the_clients(error: OutriderError) -> None:
    chat = in_state(SessionState.OPENING)
    assert chat.handle(RegionFailed(error), 0.5) == [Failed(error), Finish()]


def test_an_error_of_the_request_is_the_clients_at_any_time() -> None:
    error = InvalidRequestError("bad")
    chat = in_state(SessionState.STREAMING)
    chat.handle(Commit(0, 0, 0, (1,)), 1.0)
    assert chat.handle(RegionFailed(error), 1.5) == [Failed(error), Finish()]


def test_the_pauses_double_and_the_tries_end() -> None:
    chat = in_state(SessionState.STREAMING)
    chat.handle(Commit(0, 0, 0, (1,)), 0.0)
    now, times = 1.0, []
    opened(chat, LOST, now)
    actions = chat.handle(RegionFailed(UnavailableError("no router")), now)
    while not actions:
        assert chat.state is SessionState.REOPENING
        at: float | None = now
        while at is not None and not (asked := chat.handle(Tick(), at)):
            at = chat.next_deadline()
        assert at is not None and [type(action) for action in asked] == [OpenRegion]
        times.append(round(at - now, 3))
        now = at
        actions = chat.handle(RegionFailed(OverloadedError("full")), now)
    assert times[:6] == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0]
    assert [type(action) for action in actions] == [Failed, Finish]
    assert 20.0 < now < 21.0


def test_drafts_made_between_two_regions_go_to_the_next_one() -> None:
    chat = in_state(SessionState.STREAMING, drafting(1, 2, 3, 4, 1, 2, 3, 4))
    sent = [it for it in chat.handle(Tick(), 0.1) if isinstance(it, Draft)]
    chat.handle(Commit(0, 0, 1, (2,)), 0.2)
    full = RegionFailed(OverloadedError("full", retry_delay_ms=500))
    assert {type(it) for it in chat.handle(full, 0.3)} <= {Provisional}
    chat.handle(DraftsReady(None), 0.3)
    while (at := chat.next_deadline()) is not None and at < 0.8:
        assert not any(isinstance(it, Draft) for it in chat.handle(Tick(), at)), "to whom?"
    assert at is not None
    assert [type(it) for it in chat.handle(Tick(), at)] == [OpenRegion]
    chat.handle(OPENED, 0.9)
    again = [it for it in chat.handle(Tick(), 1.0) if isinstance(it, Draft)]
    assert again and again[0].base == 2 and not again[0].continues
    assert again[0].epoch > sent[-1].epoch


def test_a_chat_that_has_tokens_goes_on_where_this_edge_read_too_late() -> None:
    chat = in_state(SessionState.STREAMING)
    chat.handle(Commit(0, 0, 0, (1,)), 1.0)
    assert chat.handle(RegionFailed(OverloadedError("not read")), 1.5) == []
    at = chat.next_deadline()
    assert at is not None
    assert [type(action) for action in chat.handle(Tick(), at)] == [OpenRegion]


def test_time_for_which_this_edge_stalled_is_no_time_to_give_up() -> None:
    chat = in_state(SessionState.STREAMING)
    chat.handle(Commit(0, 0, 0, (1,)), 0.0)
    opened(chat, LOST, 1.0)
    late = replace(LOST, late_s=100.0)
    assert chat.handle(late, 101.0) == []
    again_at = chat.next_deadline()
    assert again_at is not None
    assert 101.0 < again_at < 101.1
    assert [type(action) for action in chat.handle(Tick(), 121.1)] == [OpenRegion]
    actions = chat.handle(late, 121.1)
    assert [type(action) for action in actions] == [Failed, Finish]


def test_a_token_begins_the_count_anew() -> None:
    chat = in_state(SessionState.STREAMING)
    for number in range(20):
        now = 10.0 * number
        chat.handle(Commit(0, number, 0, (1,)), now)
        opened(chat, RegionFailed(ReplicaLostError("gone")), now + 5.0)
        chat.handle(OPENED, now + 6.0)


def test_an_overloaded_region_is_asked_when_it_says() -> None:
    chat = in_state(SessionState.STREAMING)
    chat.handle(Commit(0, 0, 0, (1,)), 0.0)
    opened(chat, LOST, 1.0)
    assert chat.handle(RegionFailed(OverloadedError("full", retry_delay_ms=700)), 1.0) == []
    assert chat.next_deadline() == 1.7


def test_the_deadline_holds_on() -> None:
    chat = session()
    chat.handle(ChatAsked(request(deadline_ms=2000)), 0.0)
    chat.handle(PromptReady(PROMPT), 0.0)
    assert opened(chat, LOST, 0.5).deadline_ms == 1500
    assert chat.handle(LOST, 2.1) == []
    failed, finish = chat.handle(Tick(), 2.2)
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, DeadlineError)
    assert finish == Finish(), "there is nothing to cancel"


def test_a_thin_chat_is_accepted_once() -> None:
    chat = session()
    chat.handle(ChatAsked(request(thin=True)), 0.0)
    assert len(chat.handle(OPENED, 0.1)) == 1
    assert opened(chat, LOST, 0.2).prompt is None
    assert chat.handle(OPENED, 0.3) == []


def test_drafts_go_to_the_next_region_in_another_epoch_and_stay_shown() -> None:
    chat = in_state(SessionState.STREAMING, drafting(1, 2, 3, EOS))
    sent, shown = chat.handle(Tick(), 0.001)
    assert sent == Draft(0, 0, (1, 2, 3, EOS))
    assert isinstance(shown, Provisional)
    opened(chat, LOST, 0.5)
    chat.handle(OPENED, 0.6)
    chat.handle(Commit(0, 0, 0, (1,)), 0.7)
    again = chat.handle(Tick(), 0.8)
    assert again[0] == Draft(1, 1, (2, 3, EOS))
    assert not any(isinstance(action, Provisional) for action in again), "it stands there"


def test_a_session_that_moved_begins_another_epoch() -> None:
    chat = in_state(SessionState.STREAMING, drafting(1, 2, 3, EOS))
    chat.handle(Tick(), 0.001)
    assert chat.handle(RegionMoved("replica-2", "us-west", 0), 0.5) == []
    chat.handle(Commit(0, 0, 0, (1,)), 0.6)
    drafts = [a for a in chat.handle(Tick(), 0.7) if isinstance(a, Draft)]
    assert drafts == [Draft(1, 1, (2, 3, EOS))]
    (done,) = [
        action
        for action in chat.handle(RegionDone(FinishReason.STOP, 1), 0.8)
        if isinstance(action, Done)
    ]
    assert (done.replica, done.region) == ("replica-2", "us-west")
    assert done.num_moves == 1 and chat.done == done


def test_a_chat_that_was_opened_again_has_moved() -> None:
    chat = in_state(SessionState.STREAMING)
    chat.handle(Commit(0, 0, 0, (1,)), 0.1)
    opened(chat, LOST, 0.5)
    chat.handle(OPENED, 0.6)
    chat.handle(RegionMoved("replica-2", "us-west", 0), 0.7)
    done = chat.handle(RegionDone(FinishReason.STOP, 1), 0.8)[-2]
    assert isinstance(done, Done) and done.num_moves == 2


def test_an_epoch_begun_since_a_session_moved_goes_on() -> None:
    chat = in_state(SessionState.STREAMING, drafting(2, 2, 3, EOS))
    chat.handle(Tick(), 0.001)
    chat.handle(Commit(0, 0, 0, (1,)), 0.1)
    sent = [a for a in chat.handle(Tick(), 0.2) if isinstance(a, Draft)]
    assert sent == [Draft(1, 1, (2, 3, EOS))]
    chat.handle(RegionMoved("replica-2", "us-west", 0, IDENTITY), 0.3)
    assert chat.handle(Commit(1, 1, 2, ()), 0.4)[0] == Committed(" cat sat", (2, 3), 3)


def refused(run: int, running: int) -> RegionFailed:
    """The answer to an earlier run."""
    with pytest.raises(DuplicateSessionError) as caught:
        check_run(run, running)
    return RegionFailed(caught.value)


def is_over(chat: ChatSession, loss: RegionFailed, now: float) -> bool:
    """Whether the loss ends the chat, with that error."""
    failed, finish = chat.handle(loss, now)
    is_failed = isinstance(failed, Failed) and failed.error is loss.error
    return is_failed and finish == Finish() and chat.state is SessionState.CLOSED


def asked_as(run: int, *, is_ours: bool = False) -> ChatSession:
    """A chat whose region was asked for this run."""
    chat = session()
    chat.handle(ChatAsked(replace(request(), run=run, is_run_ours=is_ours)), 0.0)
    opened_as = chat.handle(PromptReady(PROMPT), 0.0)[0]
    assert isinstance(opened_as, OpenRegion) and opened_as.request.run == run
    return chat


@pytest.mark.parametrize("is_opened", [False, True])
@pytest.mark.parametrize("loss", [refused(5, 6), RegionFailed(replaced_error())])
def test_a_chat_that_its_client_reads_elsewhere_is_over(
    loss: RegionFailed, is_opened: bool
) -> None:
    chat = asked_as(5)
    if is_opened:
        chat.handle(OPENED, 0.1)
        chat.handle(Commit(0, 0, 0, (1,)), 0.2)
        assert opened(chat, LOST, 0.3).request.run == 5, "the same run"
    assert is_over(chat, loss, 0.4)


@pytest.mark.parametrize("loss", [refused(5, 6), RegionFailed(replaced_error())])
def test_a_chat_whose_client_is_back_is_opened_as_its_later_run(loss: RegionFailed) -> None:
    chat = asked_as(5)
    chat.handle(OPENED, 0.1)
    chat.handle(Commit(0, 0, 0, (1, 2)), 0.2)
    chat.handle(ClientChanged(False), 0.3)
    chat.handle(ClientChanged(True, 7), 0.4)
    chat.handle(ClientChanged(True, 4), 0.5)
    again = opened(chat, loss, 0.6)
    assert (again.request.run, again.request.resume.ids) == (7, (1, 2))
    assert is_over(chat, refused(7, 8), 0.7)


def test_a_run_that_this_edges_clock_numbered_too_low_is_asked_for_once_more() -> None:
    chat = asked_as(5, is_ours=True)
    assert opened(chat, refused(5, 9), 0.1).request.run == 10
    assert is_over(chat, refused(10, 11), 0.2)


def test_a_run_that_this_edge_numbered_ends_where_its_client_went_on() -> None:
    """It was asked for before: nothing says that its client is still here."""
    chat = asked_as(5, is_ours=True)
    chat.handle(OPENED, 0.1)
    assert opened(chat, LOST, 0.2).request.run == 5
    assert is_over(chat, refused(5, 9), 0.3)
    replaced = asked_as(5, is_ours=True)
    assert is_over(replaced, RegionFailed(replaced_error()), 0.1)
