"""What rewriting keeps, and that it ends."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.errors import ConfigError
from outrider.models.chat import Message
from outrider.tokenization.rewriting import Rewriter, RewritingPolicy, TooLong

MESSAGES = st.builds(Message, st.sampled_from(["user", "assistant"]), st.text(max_size=80))
CHATS = st.tuples(
    st.lists(st.builds(Message, st.just("system"), st.text(max_size=20)), max_size=1),
    st.lists(MESSAGES, min_size=1, max_size=8),
).map(lambda parts: [*parts[0], *parts[1]])


def rewriter(too_long: TooLong, **settings: object) -> Rewriter:
    return Rewriter(RewritingPolicy(too_long=too_long.value, min_reply_tokens=1, **settings))  # type: ignore[arg-type]


def tokens(messages: object) -> int:
    """A tokenizer of a character a token, and three for every message."""
    assert isinstance(messages, list)
    return sum(len(message.content) + 3 for message in messages)


def fitted(one: Rewriter, chat: list[Message], max_tokens: int) -> list[Message] | None:
    """What is let through, counted anew after every rewriting."""
    while tokens(chat) > max_tokens:
        found = one.shorter(chat, tokens(chat), max_tokens)
        if found is None:
            return None
        before = sum(len(m.content) for m in chat)
        chat = list(found)
        assert sum(len(m.content) for m in chat) < before, "or it would never end"
    return chat


@given(CHATS, st.sampled_from(list(TooLong)), st.integers(1, 200), st.sampled_from(["", "[...]"]))
def test_what_is_let_through_fits_and_keeps_what_it_must(
    chat: list[Message], too_long: TooLong, max_tokens: int, mark: str
) -> None:
    found = fitted(rewriter(too_long, mark=mark), chat, max_tokens)
    if tokens(chat) <= max_tokens:
        assert found == chat
    if found is None:
        return
    assert tokens(found) <= max_tokens
    systems = [message for message in chat if message.role == "system"]
    assert [message for message in found if message.role == "system"] == systems
    assert found[-1].role == chat[-1].role
    if too_long is TooLong.KEEP_TURNS:
        assert found[-1] == chat[-1] and found[len(systems)] == chat[len(systems)]
        assert (
            found == chat or found[len(systems) + 1 :] == chat[-(len(found) - len(systems) - 1) :]
        )
    else:
        assert [message.role for message in found] == [message.role for message in chat]


def test_nothing_is_shortened_unless_it_is_asked_for() -> None:
    assert Rewriter().shorter([Message("user", "x" * 100)], 100, 10) is None


LETTERS = "abcdefghijklmnopqrstuvwxyz" * 4


@pytest.mark.parametrize(
    ("too_long", "starts", "ends"),
    [
        (TooLong.CUT_HEAD, "|", "xyz"),
        (TooLong.CUT_TAIL, "abc", "|"),
        (TooLong.CUT_MIDDLE, "abc", "xyz"),
    ],
)
def test_which_part_goes(too_long: TooLong, starts: str, ends: str) -> None:
    chat = [Message("system", "s" * 200), Message("user", LETTERS), Message("user", "why?")]
    found = rewriter(too_long, mark="|").shorter(chat, 308, 250)
    assert found is not None
    text = found[1].content
    assert text.startswith(starts) and text.endswith(ends) and text.count("|") == 1
    assert 30 < len(text) < 60 and (found[0], found[2]) == (chat[0], chat[2])


def test_a_chat_of_a_long_system_prompt_cannot_be_cut() -> None:
    chat = [Message("system", "s" * 500), Message("user", "short")]
    assert rewriter(TooLong.CUT_TAIL).shorter(chat, 505, 50) is None
    assert rewriter(TooLong.CUT_TAIL).shorter(chat[:1], 500, 50) is None


def test_turns_in_the_middle_go_first() -> None:
    chat = [Message("system", "be brief"), *(Message("user", f"{n}" * 10) for n in range(9))]
    found = rewriter(TooLong.KEEP_TURNS, keep_turns=3).shorter(chat, 98, 60)
    assert found == [*chat[:2], *chat[-3:]]


def test_room_for_a_reply_is_left() -> None:
    policy = RewritingPolicy(too_long="cut_tail", min_reply_tokens=40, mark="")
    found = Rewriter(policy).shorter([Message("user", "x" * 200)], 200, 99)
    assert found is not None and 50 < len(found[0].content) <= 62


def test_a_prefix_comes_before_the_system_prompt_or_makes_one() -> None:
    one = Rewriter(RewritingPolicy(system_prefix="House rules."))
    user = Message("user", "hi")
    assert one.prepare([user]) == [Message("system", "House rules."), user]
    assert one.prepare([Message("system", "Be brief."), user]) == [
        *(Message("system", "House rules.\n\nBe brief."), user)
    ]
    assert one.prepare([]) == [] and Rewriter().prepare([user]) == [user]


@pytest.mark.parametrize(
    "wrong", [{"too_long": "summarise"}, {"keep_turns": 0}, {"min_reply_tokens": 0}]
)
def test_policies_that_cannot_be_are_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        RewritingPolicy(**wrong)  # type: ignore[arg-type]
