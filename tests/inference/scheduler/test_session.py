"""One session: its state machine, and what it counts."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from outrider.engines.base import LogitsRows
from outrider.errors import InvalidRequestError
from outrider.sampling.params import SamplingParams
from outrider.sampling.sampler import Sampler
from outrider.session.region import Commit, Draft
from outrider.session.types import FinishReason
from services.inference.scheduler.draft_sources import DraftSources, EdgeAcceptance, EdgeChain
from services.inference.scheduler.session import TRANSITIONS, SchedulingState, Session, SessionInput
from services.inference.scheduler.types import OpenRequest, SessionCommit
from tests.inference.letters import STOP_ID, VOCABULARY_SIZE, new_reply

WAYS = {
    SchedulingState.WAITING: (),
    SchedulingState.PREFILLING: (SessionInput.ADMIT,),
    SchedulingState.DECODING: (SessionInput.ADMIT, SessionInput.COMMIT),
    SchedulingState.PAUSED: (SessionInput.ADMIT, SessionInput.COMMIT, SessionInput.PAUSE),
    SchedulingState.ENDED: (SessionInput.END,),
}


def session(
    *,
    resume: tuple[int, ...] = (),
    context_limit: int = 100,
    edge: bool = True,
    sampling: SamplingParams | None = None,
) -> Session:
    request = OpenRequest(1, (3, 4, 5), sampling or SamplingParams(max_tokens=5), resume=resume)
    return Session(
        request,
        rank=(0.0, 1),
        sampler=Sampler(request.sampling, VOCABULARY_SIZE, request.prompt),
        reply=new_reply(request.sampling),
        sources=DraftSources(EdgeChain(0, 8) if edge else None, None, EdgeAcceptance(0.5)),
        context_limit=context_limit,
        now=10.0,
    )


def rows(*favourites: int) -> LogitsRows:
    logits = np.zeros((len(favourites), VOCABULARY_SIZE), np.float32)
    logits[np.arange(len(favourites)), favourites] = 1.0
    return LogitsRows(logits)


def commit(
    live: Session,
    answer: LogitsRows,
    drafts: tuple[int, ...],
    now: float = 11.0,
    drafts_ms: float = 0.0,
) -> SessionCommit:
    return live.committed(
        live.verify(answer, drafts, len(drafts)),
        started_at=now - 0.5,
        row_ms=1.5,
        now=now,
        drafts_ms=drafts_ms,
    )


@pytest.mark.parametrize(("state", "what"), list(product(SchedulingState, SessionInput)))
def test_every_state_answers_every_input(state: SchedulingState, what: SessionInput) -> None:
    live = session()
    for step in WAYS[state]:
        live.transition(step)
    assert live.state is state
    target = TRANSITIONS[state].get(what)
    if target is not None:
        live.transition(what)
        assert live.state is target
    else:
        with pytest.raises(RuntimeError, match=f"cannot {what.name} while {state.name}"):
            live.transition(what)
        assert live.state is state


def test_the_end_is_final() -> None:
    assert not TRANSITIONS[SchedulingState.ENDED]
    assert all(
        targets[SessionInput.END] is SchedulingState.ENDED
        for state, targets in TRANSITIONS.items()
        if state is not SchedulingState.ENDED
    )


def test_commits_what_the_drafts_got_right_and_one_more() -> None:
    live = session()
    live.admit(1, 0, 10.2)
    live.sources.chain.receive(Draft(0, 0, (7, 8, 9)), [])  # type: ignore[union-attr]
    event = commit(live, rows(7, 8, 30, 31), (7, 8, 9))
    assert event.commit == Commit(0, 0, 2, (30,), accepted_ids=(7, 8))
    assert event.commit.upto == 3
    assert live.ids[3:] == [7, 8, 30]
    assert (live.num_computed, live.num_uncomputed) == (5, 1)
    assert event.row_ms == 1.5
    assert event.interval_ms == pytest.approx(500.0)


def test_a_draft_of_the_region_that_the_edge_has_too_is_not_echoed() -> None:
    live = session()
    live.admit(1, 0, 10.0)
    live.sources.chain.receive(Draft(0, 0, (7,)), [])  # type: ignore[union-attr]
    event = commit(live, rows(7, 8), (7,))
    assert (event.commit.accepted, event.commit.ids) == (1, (8,))


def test_a_reply_ends_at_its_stop_id_within_the_drafts() -> None:
    live = session()
    live.admit(1, 0, 10.0)
    event = commit(live, rows(7, STOP_ID, 9), (7, STOP_ID))
    assert event.commit.ids == (7, STOP_ID)
    assert live.finished is FinishReason.STOP
    assert live.num_computed < len(live.ids)


def test_the_context_ends_a_reply() -> None:
    live = session(context_limit=5)
    live.admit(1, 0, 10.0)
    assert live.max_drafts == 1
    event = commit(live, rows(7, 8, 9), (7, 8))
    assert event.commit.ids == (7, 8)
    assert live.finished is FinishReason.LENGTH


def test_resumed_tokens_count_as_reply() -> None:
    live = session(resume=(7, 8, 9))
    assert live.num_reply == 3
    assert live.max_drafts == 1
    live.admit(1, 0, 10.0)
    event = commit(live, rows(7, 8), (7,))
    assert (event.commit.base, event.commit.upto) == (3, 5)
    assert live.finished is FinishReason.LENGTH


@pytest.mark.parametrize(
    ("resume", "reason"),
    [((7, STOP_ID), FinishReason.STOP), ((7, 8, 9, 10, 11), FinishReason.LENGTH)],
)
def test_resume_may_complete_the_reply_but_not_go_on(
    resume: tuple[int, ...], reason: FinishReason
) -> None:
    assert session(resume=resume).finished is reason
    with pytest.raises(InvalidRequestError, match=f"ended after {len(resume)}"):
        session(resume=(*resume, 7))


def test_padding_is_no_drafts() -> None:
    live = session(edge=False)
    live.admit(1, 0, 10.0)
    live.verify(rows(7, 8), (7,), 0)
    usage = live.usage()
    assert (usage.draft_tokens, usage.accepted_tokens, usage.completion_tokens) == (0, 0, 2)


def test_drafts_without_a_row_were_not_verified() -> None:
    live = session()
    live.admit(1, 0, 10.0)
    commit(live, rows(7, 8), (7, 8, 9, 10))
    assert (live.usage().draft_tokens, live.usage().accepted_tokens) == (2, 2)
    assert live.usage().acceptance == ((2, 2, 1),)


def test_lossy_tokens_are_named_by_their_number_in_the_reply() -> None:
    live = session(resume=(20,), sampling=SamplingParams(max_tokens=9, acceptance_threshold=1e-4))
    live.admit(1, 0, 10.0)
    event = commit(live, rows(7, 8, 9), (7, 33))
    assert live.ids[3:] == [20, 7, 33, 9]
    assert event.commit.num_lossy == 1


def test_cached_tokens_are_those_of_the_prompt_before_the_first_commit() -> None:
    live = session()
    live.admit(1, 1, 10.0)
    live.reuse(2)
    assert live.cached_tokens == 2
    live.preempt()
    live.admit(2, 1, 10.1)
    assert live.cached_tokens == 1
    commit(live, rows(7, 8), (9,))
    live.preempt()
    live.admit(3, 2, 10.2)
    assert (live.cached_tokens, live.num_computed) == (1, 2)


def test_times_run_from_the_opening() -> None:
    live = session()
    assert live.timings(10.5).queue_ms == pytest.approx(500.0)
    live.admit(1, 0, 10.2)
    commit(live, rows(7), (), now=10.6)
    commit(live, rows(7), (), now=10.7)
    timings = live.timings(11.0)
    measured = (timings.queue_ms, timings.prefill_ms, timings.ttft_ms, timings.total_ms)
    assert measured == pytest.approx((200.0, 400.0, 600.0, 1000.0))


def test_what_drafts_of_the_edge_add_is_no_part_of_the_interval() -> None:
    live = session(sampling=SamplingParams(max_tokens=200))
    live.admit(1, 0, 10.0)
    chain = live.sources.chain
    assert chain is not None
    now = 10.0
    for at in range(0, 80, 2):
        now += 0.05
        chain.receive(Draft(at + 1, at, (7,)), live.ids, 3)
        proposal = live.sources.propose(1)
        event = commit(live, rows(7, 8), proposal.ids, now=now, drafts_ms=20.0)
    assert event.interval_ms == pytest.approx(30.0, rel=0.01)
    for _ in range(40):
        now += 0.05
        event = commit(live, rows(7), (), now=now, drafts_ms=20.0)
    assert event.interval_ms == pytest.approx(50.0, rel=0.02), "the region's own count"


def test_the_interval_between_commits_is_smoothed() -> None:
    live = session(sampling=SamplingParams(max_tokens=90))
    live.admit(1, 0, 10.0)
    now = 10.0
    for _ in range(40):
        now += 0.02
        event = commit(live, rows(7), (), now=now)
    assert event.interval_ms == pytest.approx(20.0, rel=0.01)
