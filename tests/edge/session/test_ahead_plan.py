"""When a reply is begun before its prompt is sent, in virtual time."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.edge.session.ahead_plan import AheadPlan, AheadPolicy, TypingRhythm

POLICY = AheadPolicy()
QUESTION = "Why is the sky blue?"
KEYS_S = st.floats(0.02, 3.0)


def typed(plan: AheadPlan, text: str, now: float = 100.0, key_s: float = 0.2) -> float:
    """Type a text at this rhythm; returns when its last key was pressed."""
    for num_chars in range(1, len(text) + 1):
        now += key_s
        plan.typed(text[:num_chars], now)
    return now


def pause_s(text: str, key_s: float = 0.2) -> float:
    """After which pause a text typed like this is answered."""
    plan = AheadPlan(POLICY)
    at = typed(plan, text, key_s=key_s)
    assert plan.due_at is not None
    return plan.due_at - at


def test_a_finished_text_is_answered_sooner_than_an_open_one() -> None:
    finished, open_, dangling = (
        pause_s(QUESTION),
        pause_s("Why is the sky blue"),
        pause_s("Why is the sky blue,"),
    )
    assert finished < open_ < dangling


@pytest.mark.parametrize(
    ("text", "like"),
    [
        ('Say "Why is it blue?"', QUESTION),
        ("(Why is the sky blue?)", QUESTION),
        ("\u7a7a\u306f\u306a\u305c\u9752\u3044\u306e\u3067\u3059\u304b\uff1f", QUESTION),
        ("Explain this: ```x = 1?", "Why is the sky blue,"),
        ("Why is the sky \u201c", "Why is the sky blue,"),
    ],
)
def test_what_looks_finished(text: str, like: str) -> None:
    assert pause_s(text) == pytest.approx(pause_s(like), rel=0.2)


def test_who_types_slowly_is_waited_for_longer() -> None:
    assert pause_s(QUESTION, key_s=0.1) < pause_s(QUESTION, key_s=0.4)


def test_in_vain_makes_patient_and_distance_makes_hasty() -> None:
    patient, other = AheadPlan(POLICY), AheadPlan(POLICY)
    for plan in (patient, other):
        at = typed(plan, QUESTION)
        if plan is patient:
            plan.begun(at)
        typed(plan, QUESTION + " And why is grass green?", at)
    assert patient.due_at is not None and other.due_at is not None
    assert patient.due_at > other.due_at
    far, near = AheadPlan(POLICY), AheadPlan(POLICY)
    for each, answer_s in ((far, 0.6), (near, 0.06)):
        each.typed(QUESTION, 1.0)
        each.begun(2.0)
        each.answered(2.0 + answer_s)
        each.typed(QUESTION + "?", 3.0)
    assert far.due_at is not None and near.due_at is not None
    assert far.due_at < near.due_at


def test_where_answers_are_at_once_nothing_is_begun() -> None:
    plan = AheadPlan(POLICY)
    plan.typed(QUESTION, 1.0)
    plan.begun(2.0)
    plan.answered(2.0 + POLICY.min_wait_ms / 2e3)
    plan.typed(QUESTION + "?", 3.0)
    assert plan.due_at is None


def test_as_many_tokens_wait_as_are_read_until_the_next_come() -> None:
    """At five tokens a second, the first word apart."""
    plan = AheadPlan(POLICY, round_trip_s=0.19)
    assert plan.num_tokens == POLICY.min_tokens + 1
    plan.typed(QUESTION, 1.0)
    plan.begun(2.0)
    plan.answered(2.9)
    assert plan.num_tokens == POLICY.min_tokens + 5
    assert AheadPlan(POLICY, round_trip_s=60.0).num_tokens == POLICY.max_tokens
    assert AheadPlan(POLICY).num_tokens == POLICY.min_tokens + 2, "about an ocean away"
    assert AheadPlan(AheadPolicy(max_tokens=1), round_trip_s=1.0).num_tokens == 1


def test_a_refusal_is_heeded_and_a_failure_final() -> None:
    plan = AheadPlan(POLICY)
    plan.typed(QUESTION, 1.0)
    plan.begun(2.0)
    plan.refused(30.0, 2.1)
    assert plan.due_at == pytest.approx(32.1)
    plan.begun(40.0)
    plan.failed()
    assert plan.due_at is None
    plan.typed(QUESTION + " Tell me.", 41.0)
    assert plan.due_at is not None


@given(
    policy=st.builds(
        AheadPolicy,
        max_tokens=st.integers(0, 64),
        min_chars=st.integers(1, 20),
        min_pause_ms=st.floats(1.0, 500.0),
        max_pause_ms=st.floats(500.0, 5000.0),
        max_openings=st.integers(1, 6),
    ),
    steps=st.lists(st.tuples(st.text(max_size=30), KEYS_S, st.booleans()), max_size=60),
    answer_s=st.floats(0.01, 2.0),
)
def test_its_bounds(
    policy: AheadPolicy, steps: list[tuple[str, float, bool]], answer_s: float
) -> None:
    """Whatever is typed: nothing sooner than the least pause, nothing for a short text, no text
    twice, and no more often than is allowed."""
    plan, now, last_key, text, begun = AheadPlan(policy), 100.0, -math.inf, "", set[str]()
    num_begun = 0
    for said, key_s, waits in steps:
        now += key_s
        if plan.typed(said, now):
            text, last_key = said, now
        due = plan.due_at
        if due is None:
            continue
        assert policy.max_tokens and len(text.strip()) >= policy.min_chars
        assert due >= last_key + policy.min_pause_ms / 1e3 - 1e-9
        assert due <= last_key + policy.max_pause_ms / 1e3 + 1e-9, "nobody refused"
        if waits:
            now = max(now, due)
            plan.begun(now)
            num_begun += 1
            assert plan.due_at is None, "not the same text again"
            plan.answered(now + answer_s)
            begun.add(text)
    assert num_begun <= policy.max_openings


@given(intervals=st.lists(st.floats(0.01, 4.0), min_size=1, max_size=200))
def test_a_rhythm_lies_between_its_prior_and_what_was_typed(intervals: list[float]) -> None:
    rhythm, now = TypingRhythm(), 1.0
    rhythm.key(now)
    for interval in intervals:
        now += interval
        rhythm.key(now)
    low, high = min(0.24, *intervals), max(0.24, *intervals)
    assert low - 1e-6 <= rhythm.pause_s(0.0) <= high + 1e-6
    assert rhythm.pause_s(0.0) <= rhythm.pause_s(1.0)


def test_absences_are_no_rhythm() -> None:
    rhythm = TypingRhythm()
    before = rhythm.pause_s(1.0)
    rhythm.key(1.0)
    rhythm.key(600.0)
    rhythm.key(600.0)
    assert rhythm.pause_s(1.0) == before
