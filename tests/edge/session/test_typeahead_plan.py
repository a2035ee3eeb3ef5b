"""Prefills of prompts being typed: what is stable, once, never two at a time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from outrider.models.chat import Message
from services.edge.session.typeahead_plan import TypeaheadPlan, TypeaheadPolicy

POLICY = TypeaheadPolicy(min_new_tokens=4, max_context_tokens=40)


def text(content: str) -> tuple[Message, ...]:
    return (Message("user", content),)


def ids(content: str) -> tuple[int, ...]:
    """A token per character, and a template's end."""
    return (*(ord(char) for char in content), 1, 2)


def test_what_stays_from_one_text_to_the_next_is_computed() -> None:
    plan = TypeaheadPlan(POLICY)
    assert plan.typed(text("hello")) == text("hello")
    assert plan.tokenized(ids("hello")) is None
    assert plan.next_prefill() is None, "nothing says yet what will stay"
    plan.typed(text("hello wor"))
    plan.tokenized(ids("hello wor"))
    assert plan.next_prefill() == tuple(map(ord, "hello"))
    assert plan.next_prefill() is None, "one at a time"
    plan.ended(well=True)
    assert plan.next_prefill() is None, "nothing new"
    plan.typed(text("hello world, how"))
    plan.tokenized(ids("hello world, how"))
    assert plan.next_prefill() == tuple(map(ord, "hello wor"))


def test_only_the_last_text_counts_while_one_is_tokenized() -> None:
    plan = TypeaheadPlan(POLICY)
    plan.typed(text("a"))
    assert plan.typed(text("ab")) is None
    assert plan.typed(text("abc")) is None
    assert plan.tokenized(ids("a")) == text("abc")
    assert plan.tokenized(ids("abc")) is None


def test_what_was_deleted_is_not_counted_as_computed() -> None:
    plan = TypeaheadPlan(POLICY)
    for content in ("abcdefgh", "abcdefghi"):
        plan.typed(text(content))
        plan.tokenized(ids(content))
    assert plan.next_prefill() is not None
    plan.ended(well=True)
    for content in ("abXXXXXX", "abXXXXXXY"):
        plan.typed(text(content))
        plan.tokenized(ids(content))
    assert plan.next_prefill() == tuple(map(ord, "abXXXXXX"))


def test_nothing_is_done_after_the_end() -> None:
    plan = TypeaheadPlan(POLICY)
    for content in ("abcdefgh", "abcdefghi"):
        plan.typed(text(content))
        plan.tokenized(ids(content))
    assert plan.next_prefill() is not None
    assert plan.close(), "there is something to cancel"
    assert not plan.close()
    assert plan.typed(text("more")) is None
    assert plan.next_prefill() is None


def test_a_region_that_refuses_is_not_asked_again() -> None:
    plan = TypeaheadPlan(POLICY)
    for content in ("abcdefgh", "abcdefghi"):
        plan.typed(text(content))
        plan.tokenized(ids(content))
    assert plan.next_prefill() is not None
    plan.ended(well=False)
    assert not plan.is_open
    assert plan.typed(text("abcdefghijklmnopq")) is None


texts = st.lists(st.text("ab ", max_size=60), max_size=12)


@given(texts, st.data())
def test_every_prefill_is_the_beginning_of_a_text(contents: list[str], data: st.DataObject) -> None:
    plan = TypeaheadPlan(POLICY)
    waiting: tuple[Message, ...] | None = None
    for content in contents:
        asked = plan.typed(text(content))
        assert (asked is None) == (waiting is not None)
        waiting = waiting or asked
        while waiting is not None and data.draw(st.booleans()):
            good = data.draw(st.integers(0, 9)) > 0
            tokens = ids(waiting[0].content) if good else None
            waiting = plan.tokenized(tokens)
            if (computed := plan.next_prefill()) is not None:
                assert tokens is not None
                assert computed == tokens[: len(computed)]
                assert 4 <= len(computed) < 40
        if plan.is_running and data.draw(st.booleans()):
            plan.ended(well=True)
