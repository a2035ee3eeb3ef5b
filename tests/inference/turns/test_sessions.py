"""The sessions of a turn engine: what is committed, who waits, how each ends."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.engine_calls import sessions_in_call
from outrider.engines.turn.base import NOT_GIVEN, Ability, TurnEngineInfo, TurnLoad, TurnPiece
from outrider.errors import (
    DeadlineError,
    EngineError,
    InvalidRequestError,
    InvalidSamplingError,
    OverloadedError,
    ReplicaLostError,
    UnavailableError,
)
from outrider.sampling.grammar import Grammar, GrammarKind
from outrider.sampling.params import SamplingParams
from outrider.session.types import FinishReason, Priority
from services.inference.scheduler.types import (
    Begun,
    Event,
    Failed,
    Finished,
    Opened,
    OpenRequest,
    SessionCommit,
)
from services.inference.turns.sessions import TurnLimits, TurnSessions
from tests.inference.letters import STOP_ID, VOCABULARY_SIZE, new_reply

INFO = TurnEngineInfo("stock", 64, 2, 100, frozenset({Ability.JSON_OBJECT}), num_blocks=50)
LIMITS = TurnLimits(2, 3, 100, VOCABULARY_SIZE)
PROMPT = tuple(range(10, 20))


def sessions(**limits: int) -> TurnSessions:
    return TurnSessions(INFO, replace(LIMITS, **limits), new_reply, frozenset({STOP_ID}))


def request(number: int, **fields: Any) -> OpenRequest:
    names = ("priority", "deadline", "resume", "epoch", "cache_salt", "goes_alone")
    own = {name: fields.pop(name) for name in names if name in fields}
    return OpenRequest(number, PROMPT, SamplingParams(**{"max_tokens": 20, **fields}), **own)


def committed(events: list[Event]) -> tuple[int, ...]:
    return tuple(it for one in events if isinstance(one, SessionCommit) for it in one.commit.ids)


def opened(table: TurnSessions, number: int = 1, **fields: Any) -> None:
    table.open(request(number, **fields), 0.0)
    table.begin(0.0)


def test_a_reply_from_its_opening_to_its_end() -> None:
    table = sessions()
    assert table.open(request(1, epoch=4), 1.0) == [Opened(1, 10, 0)]
    (turn,), events = table.begin(2.0)
    assert events == [Begun(1)]
    assert (turn.ids, turn.max_tokens, turn.end_ids) == (PROMPT, 20, (STOP_ID,))
    (commit,) = table.take(1, TurnPiece((30, 31)), 3.0)
    assert isinstance(commit, SessionCommit)
    assert (commit.commit.base, commit.commit.ids, commit.commit.epoch) == (0, (30, 31), 4)
    commit, done = table.take(1, TurnPiece((32, STOP_ID), FinishReason.STOP, (), 5), 4.0)
    assert isinstance(commit, SessionCommit) and commit.commit.base == 2
    assert isinstance(done, Finished) and done.reason is FinishReason.STOP
    assert (done.upto, done.usage.completion_tokens, done.usage.cached_tokens) == (4, 4, 5)
    assert (done.timings.queue_ms, done.timings.prefill_ms) == (1000.0, 1000.0)
    assert len(table) == 0 and table.take(1, TurnPiece((1,)), 5.0) == []


def test_what_the_engine_writes_behind_the_end_is_left_out() -> None:
    table = sessions()
    opened(table, stop=("bc",))
    events = table.take(1, TurnPiece((0, 1, 2, 5, 6)), 1.0)
    # Id 2 is the model's end of a reply, before "bc" is whole.
    assert committed(events) == (0, 1, 2)
    assert isinstance(events[-1], Finished) and events[-1].reason is FinishReason.STOP


def test_a_stop_string_ends_a_reply_that_the_engine_would_go_on_with() -> None:
    table = sessions()
    opened(table, stop=("fgh",))
    events = table.take(1, TurnPiece((4, 5, 6, 7, 8)), 1.0)
    assert committed(events) == (4, 5, 6, 7)
    assert isinstance(events[-1], Finished) and events[-1].reason is FinishReason.STOP


def test_a_reply_goes_on_behind_what_is_committed() -> None:
    table = sessions()
    table.open(request(1, resume=(30, 31, 32), seed=9, temperature=1.0), 0.0)
    (turn,), _ = table.begin(0.0)
    assert (turn.ids, turn.max_tokens) == ((*PROMPT, 30, 31, 32), 17)
    assert turn.seed != 9, "the engine would draw again what it drew for the first tokens"
    (commit,) = table.take(1, TurnPiece((33,)), 1.0)
    assert isinstance(commit, SessionCommit) and commit.commit.base == 3
    (done,) = table.cancel(1, 2.0)
    assert isinstance(done, Finished) and (done.upto, done.usage.uncounted_tokens) == (4, 3)


def test_a_reply_that_was_complete_ends_at_once() -> None:
    table = sessions()
    _, done = table.open(request(1, resume=(30, STOP_ID)), 0.0)
    assert isinstance(done, Finished) and done.reason is FinishReason.STOP
    assert len(table) == 0
    with pytest.raises(InvalidRequestError, match="ended after 2"):
        table.open(request(2, resume=(30, STOP_ID, 31)), 0.0)


def test_the_context_ends_a_reply() -> None:
    table = sessions(context_limit=13)
    table.open(request(1), 0.0)
    (turn,), _ = table.begin(0.0)
    assert turn.max_tokens == 3
    events = table.take(1, TurnPiece((30, 31, 32), FinishReason.LENGTH), 1.0)
    assert isinstance(events[-1], Finished) and events[-1].reason is FinishReason.LENGTH


def test_no_more_than_the_engine_has_room_for_and_the_most_urgent_first() -> None:
    table = sessions()
    for number in (1, 2, 3, 4):
        table.open(request(number), 0.0)
    table.open(request(5, priority=Priority.HIGH), 0.0)
    assert [turn.number for turn in table.begin(0.0)[0]] == [5, 1]
    assert table.begin(0.0) == ([], [])
    table.cancel(1, 1.0)
    assert [turn.number for turn in table.begin(1.0)[0]] == [2]


def test_a_full_queue_refuses_and_lower_classes_do_not_fill_it() -> None:
    table = sessions()
    for number in range(1, 6):
        table.open(request(number, priority=Priority.LOW), 0.0)
        table.begin(0.0)
    with pytest.raises(OverloadedError) as refused:
        table.open(request(6, priority=Priority.LOW), 0.0)
    assert refused.value.retry_delay_ms > 0
    table.open(request(7), 0.0)
    assert len(table) == 6


def test_what_the_engine_does_not_know_is_refused_by_name() -> None:
    table = sessions()
    for fields in ({"presence_penalty": 0.5}, {"logit_bias": {3: 1.0}}, {"num_logprobs": 0}):
        with pytest.raises(InvalidSamplingError, match=next(iter(fields)).removeprefix("num_")):
            table.open(request(1, **fields), 0.0)
    regex = Grammar(GrammarKind.REGEX, "a+")
    with pytest.raises(InvalidSamplingError, match="regex"):
        table.open(request(1, grammar=regex), 0.0)
    grammar = Grammar(GrammarKind.JSON_OBJECT)
    table.open(request(1, grammar=grammar), 0.0)
    with pytest.raises(UnavailableError, match="continue"):
        table.open(request(2, grammar=grammar, resume=(30,)), 0.0)


def test_deadlines() -> None:
    table = sessions()
    with pytest.raises(DeadlineError):
        table.open(request(1, deadline=1.0), 1.0)
    opened(table, 2, deadline=5.0)
    table.open(request(3, deadline=3.0), 0.0)
    assert table.next_deadline() == 3.0
    assert table.expire(2.9) == []
    ended = table.expire(5.0)
    assert {it.session_id for it in ended if isinstance(it, Finished)} == {2, 3}
    assert all(isinstance(it, Finished) and it.reason is FinishReason.DEADLINE for it in ended)


def test_ids_of_another_vocabulary_end_the_session() -> None:
    table = sessions()
    opened(table)
    (failed,) = table.take(1, TurnPiece((3, VOCABULARY_SIZE)), 1.0)
    assert isinstance(failed, Failed) and isinstance(failed.error, EngineError)
    assert len(table) == 0


def test_an_engine_that_ends_a_reply_without_a_reason_fails_it() -> None:
    table = sessions()
    opened(table)
    (failed,) = table.over(1, None)
    assert isinstance(failed, Failed) and "without saying why" in failed.error.message
    assert table.over(1, None) == []


def test_a_lost_engine_ends_all_sessions() -> None:
    table = sessions()
    for number in (1, 2, 3):
        opened(table, number)
    lost = table.fail_all(ReplicaLostError("gone"))
    assert {it.session_id for it in lost if isinstance(it, Failed)} == {1, 2, 3}
    assert len(table) == 0 and table.begin(1.0) == ([], [])


def lost_with(table: TurnSessions, **metadata: str) -> dict[int, int | None]:
    """By session, how many sessions were in the call that failed; None: it is not to blame."""
    failed = table.fail_all(ReplicaLostError("gone", metadata=metadata))
    found: dict[int, int | None] = {}
    for event in failed:
        assert isinstance(event, Failed)
        is_suspect = isinstance(event.error, EngineError)
        assert is_suspect or isinstance(event.error, ReplicaLostError)
        found[event.session_id] = sessions_in_call(event.error) if is_suspect else None
    return found


def test_those_without_a_token_may_be_what_the_engine_was_lost_by() -> None:
    table = sessions(max_sessions=3)
    for number in (1, 2, 3, 4):
        opened(table, number)
    table.take(2, TurnPiece((30,)), 1.0)
    assert lost_with(table) == {1: 2, 2: None, 3: 2, 4: None}


def test_nobody_is_to_blame_for_an_engine_that_was_gone_before() -> None:
    table = sessions()
    opened(table, 1)
    assert lost_with(table, **{NOT_GIVEN: "1"}) == {1: None}


def begun(table: TurnSessions) -> list[int]:
    return [it.number for it in table.begin(1.0)[0]]


def test_who_goes_alone_is_the_only_one_without_a_token() -> None:
    table = sessions(max_sessions=8, max_queue=8)
    opened(table, 1)
    table.open(request(2, goes_alone=True), 0.0)
    table.open(request(3), 0.0)
    assert begun(table) == [] and table.is_held
    table.take(1, TurnPiece((30,)), 1.0)
    assert begun(table) == [2] and table.is_held
    table.take(2, TurnPiece((30,)), 1.0)
    assert begun(table) == [3] and not table.is_held


@given(st.lists(st.tuples(st.sampled_from(["open", "alone", "token", "end"]), st.integers(0, 9))))
def test_nobody_waits_for_ever_for_who_goes_alone(steps: list[tuple[str, int]]) -> None:
    table = sessions(max_sessions=4, max_queue=100)
    running: dict[int, bool] = {}
    """Whether it has a token."""
    alone: set[int] = set()
    waiting: set[int] = set()
    for number, (what, which) in enumerate(steps):
        if what in ("open", "alone"):
            table.open(request(number, goes_alone=what == "alone"), 0.0)
            waiting.add(number)
            alone |= {number} if what == "alone" else set()
        elif running:
            chosen = sorted(running)[which % len(running)]
            if what == "token":
                running[chosen] = True
                table.take(chosen, TurnPiece((30,)), 1.0)
            else:
                del running[chosen]
                table.cancel(chosen, 1.0)
        for new in begun(table):
            running[new] = False
            waiting.remove(new)
        unproven = {it for it, has_token in running.items() if not has_token}
        assert not alone & unproven or len(unproven) == 1
        assert not waiting or unproven or len(running) == 4


def test_load_counts_what_others_gave_the_engine() -> None:
    table = sessions()
    for number in (1, 2, 3):
        opened(table, number)
    table.engine_said(TurnLoad(running=6, waiting=1, free_blocks=7))
    load = table.load()
    assert (load.running_sessions, load.queued_sessions) == (6, 2)
    assert (load.kv_blocks_total, load.kv_blocks_free, load.max_sessions) == (50, 7, 2)
    assert load.queued_prompt_tokens == 30 and load.is_cost_guessed
    assert load.medium.sessions == 3
    table.engine_said(None)
    alone = table.load()
    assert (alone.running_sessions, alone.queued_sessions, alone.kv_blocks_free) == (2, 1, 50)


def test_replies_that_have_ended_are_not_taken_for_those_of_others() -> None:
    table = sessions()
    for number in (1, 2):
        opened(table, number)
    table.engine_said(TurnLoad(running=2, waiting=0, free_blocks=None))
    full = [table.is_full_of_others]
    for number in (1, 2):
        table.cancel(number, 1.0)
    assert table.load().running_sessions == 0
    table.engine_said(TurnLoad(running=2, waiting=0, free_blocks=None))
    full.append(table.is_full_of_others)
    assert table.load().running_sessions == 2 and full == [False, True]
    opened(table, 3)
    assert table.load().running_sessions == 3
    table.engine_said(TurnLoad(running=2, waiting=0, free_blocks=None))
    assert table.load().running_sessions == 2


def test_costs_are_learnt_from_replies() -> None:
    table = sessions()
    opened(table)
    table.take(1, TurnPiece((30,)), 0.12)
    assert not table.load().is_cost_guessed
    assert table.load().row_ms == pytest.approx(10.0)
    for count in range(1, 19):
        table.take(1, TurnPiece((30,)), 0.12 + count * 0.05)
    assert 35.0 < table.load().fixed_ms <= 50.0


@given(
    st.lists(st.lists(st.integers(3, 63), min_size=1, max_size=5), min_size=1, max_size=8),
    st.integers(1, 25),
    st.integers(0, 10),
)
def test_cut_and_continued_anywhere_the_tokens_are_the_same(
    pieces: list[list[int]], max_tokens: int, num_moved: int
) -> None:
    """Whatever a reply's pieces are, and wherever it moves, each token is committed once."""
    written = [it for piece in pieces for it in piece]
    before = tuple(written[: min(num_moved, max_tokens - 1, len(written) - 1)])
    table = sessions()
    table.open(request(1, resume=before, max_tokens=max_tokens), 0.0)
    table.begin(0.0)
    seen, rest = list(before), written[len(before) :]
    for ids in (rest[n : n + 3] for n in range(0, len(rest), 3)):
        for event in table.take(1, TurnPiece(tuple(ids)), 1.0):
            if isinstance(event, SessionCommit):
                assert event.commit.base == len(seen)
                seen += event.commit.ids
            elif isinstance(event, Finished):
                assert event.upto == len(seen) == max_tokens
    assert seen == written[:max_tokens]
