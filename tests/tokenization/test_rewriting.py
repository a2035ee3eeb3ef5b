"""What rewriting keeps, and that it ends."""

from __future__ import annotations

from array import array
from collections.abc import Generator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.errors import ConfigError, PromptTooLongError
from outrider.models.chat import Message
from outrider.models.tools import ToolCall
from outrider.tokenization.encoder import completed
from outrider.tokenization.rewriting import Rewriter, RewritingPolicy, TooLong

MESSAGES = st.builds(Message, st.sampled_from(["user", "assistant"]), st.text(max_size=80))
CHATS = st.tuples(
    st.lists(st.builds(Message, st.just("system"), st.text(max_size=20)), max_size=1),
    st.lists(MESSAGES, min_size=1, max_size=8),
).map(lambda parts: [*parts[0], *parts[1]])


def rewriter(too_long: TooLong, **settings: object) -> Rewriter:
    return Rewriter(RewritingPolicy(too_long=too_long.value, min_reply_tokens=1, **settings))  # type: ignore[arg-type]


def tokens(messages: Sequence[Message]) -> int:
    """A tokenizer of a character a token, and three for every message."""
    return sum(len(message.content) + 3 for message in messages)


def fitted(one: Rewriter, chat: Sequence[Message], max_tokens: int) -> Sequence[Message] | None:
    """What is let through, None if nothing is."""
    asked: list[Sequence[Message]] = [chat]

    def encode(messages: Sequence[Message]) -> Generator[int, None, array[int]]:
        yield from ()
        before = sum(len(m.content) for m in asked[-1])
        assert sum(len(m.content) for m in messages) < before, "or it would never end"
        asked.append(messages)
        return array("I", [0]) * tokens(messages)

    if tokens(chat) <= max_tokens:
        return chat
    try:
        ids = completed(one.fitted(chat, tokens(chat), max_tokens, encode))
    except PromptTooLongError as error:
        assert f"in {tokens(chat)} tokens, and at most {max_tokens} fit" in error.message
        return None
    assert len(ids) == tokens(asked[-1])
    return asked[-1]


@given(
    CHATS,
    st.sampled_from(list(TooLong)),
    st.integers(1, 200),
    st.sampled_from(["", "[...]", "[{turns} left out]"]),
    st.integers(1, 9),
)
def test_what_is_let_through_fits_and_keeps_what_it_must(
    chat: list[Message], too_long: TooLong, max_tokens: int, mark: str, drop_turns: int
) -> None:
    one = rewriter(too_long, mark=mark, omitted=mark, drop_turns=drop_turns)
    found = fitted(one, chat, max_tokens)
    if found is None or found is chat:
        return
    assert tokens(found) <= max_tokens, "what is said of the rest is counted too"
    num_systems = sum(message.role == "system" for message in chat)
    assert found[:num_systems] == chat[:num_systems]
    if too_long is not TooLong.KEEP_TURNS:
        assert [message.role for message in found] == [message.role for message in chat]
        return
    num_omitted = len(chat) - len(found)
    first = chat[num_systems]
    told = first.content + mark.replace("{turns}", str(num_omitted))
    assert num_omitted > 0 and found[num_systems] == Message(first.role, told)
    assert found[num_systems + 1 :] == chat[num_systems + 1 + num_omitted :] != []


def test_nothing_is_shortened_unless_it_is_asked_for() -> None:
    assert fitted(Rewriter(), [Message("user", "x" * 100)], 10) is None


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
    found = fitted(rewriter(too_long, mark="|"), chat, 250)
    assert found is not None
    text = found[1].content
    assert text.startswith(starts) and text.endswith(ends) and text.count("|") == 1
    assert 30 < len(text) < 60 and (found[0], found[2]) == (chat[0], chat[2])


def test_a_chat_of_a_long_system_prompt_cannot_be_cut() -> None:
    chat = [Message("system", "s" * 500), Message("user", "short")]
    for too_long in TooLong:
        assert fitted(rewriter(too_long), chat, 50) is None
        assert fitted(rewriter(too_long), chat[:1], 50) is None


def turns(count: int, num_chars: int = 10) -> list[Message]:
    roles = ("user", "assistant")
    return [Message(roles[n % 2], f"{n:0{num_chars}}") for n in range(count)]


def test_turns_in_the_middle_go_first_and_it_is_said_how_many() -> None:
    chat = [Message("system", "be brief"), *turns(9)]
    one = rewriter(TooLong.KEEP_TURNS, keep_turns=3, drop_turns=1, omitted=" [{turns} omitted]")
    first = Message("user", "0000000000 [5 omitted]")
    assert fitted(one, chat, 90) == [chat[0], first, *chat[-3:]]
    one = rewriter(TooLong.KEEP_TURNS, keep_turns=3, drop_turns=1, omitted="")
    assert fitted(one, chat, 90) == [*chat[:2], *chat[-3:]]


def test_what_is_said_of_turns_left_out_takes_their_place_once() -> None:
    """Three times the first try is too long: later ones go by the whole chat again."""
    chat, counts = turns(40, num_chars=100), iter([110, 105, 102, 100])
    asked: list[Sequence[Message]] = []

    def encode(messages: Sequence[Message]) -> Generator[int, None, array[int]]:
        yield from ()
        asked.append(messages)
        return array("I", [0]) * next(counts)

    one = rewriter(TooLong.KEEP_TURNS, keep_turns=30, drop_turns=1)
    assert len(completed(one.fitted(chat, 400, 100, encode))) == 100
    assert len(asked) == 4
    for found in asked:
        told = f"\n\n[earlier conversation omitted: {len(chat) - len(found)} messages]"
        assert found[0].content == chat[0].content + told


def test_a_chat_that_grows_keeps_the_beginning_of_its_prompt_for_some_turns() -> None:
    """Sixty questions: each prompt is compared with the one before it."""

    def num_kept(drop_turns: int) -> int:
        one = rewriter(TooLong.KEEP_TURNS, keep_turns=16, drop_turns=drop_turns)
        before, kept = fitted(one, turns(39), 300), 0
        for count in range(41, 161, 2):
            found = fitted(one, turns(count), 300)
            assert found and before and found[-1].content == f"{count - 1:010}"
            assert [m.role for m in found] == [m.role for m in turns(len(found))], "in turns"
            kept += found[: len(before)] == before
            before = found
        return kept

    assert num_kept(8) == 45, "three of four"
    assert num_kept(4) == 30, "every other one"
    assert num_kept(2) == 0


def test_turns_of_short_chats_go_in_smaller_steps() -> None:
    one = rewriter(TooLong.KEEP_TURNS, drop_turns=4, omitted="")
    chat = turns(6, num_chars=100)
    assert fitted(one, chat, 520) == [chat[0], *chat[3:]]
    found = fitted(one, chat, 300)
    assert found == [chat[0], chat[5]]


def test_room_for_a_reply_is_left() -> None:
    policy = RewritingPolicy(too_long="cut_tail", min_reply_tokens=40, mark="")
    found = fitted(Rewriter(policy), [Message("user", "x" * 200)], 99)
    assert found is not None and 50 < len(found[0].content) <= 57
    no_room = RewritingPolicy(too_long="cut_tail", min_reply_tokens=100)
    assert fitted(Rewriter(no_room), [Message("user", "x" * 200)], 99) is None


def test_a_prefix_comes_before_the_system_prompt_or_makes_one() -> None:
    one = Rewriter(RewritingPolicy(system_prefix="House rules."))
    user = Message("user", "hi")
    assert one.prepare([user]) == [Message("system", "House rules."), user]
    assert one.prepare([Message("system", "Be brief."), user]) == [
        *(Message("system", "House rules.\n\nBe brief."), user)
    ]
    assert one.prepare([]) == [] and Rewriter().prepare([user]) == [user]
    empty = [Message("user", "")]
    assert one.prepare(empty) == empty, "there is still nothing to answer"
    assert one.has_prefix and not Rewriter().has_prefix


@pytest.mark.parametrize(
    "wrong",
    [
        {"too_long": "summarise"},
        {"system_prefix": "é" * 16_385},
    ],
)
def test_policies_that_cannot_be_are_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        RewritingPolicy(**wrong)  # type: ignore[arg-type]


def test_the_result_of_a_tool_goes_with_its_call() -> None:
    """An agent's chat: one question, then calls and results alone."""
    call = ToolCall("call00001", "f", "{}")
    steps = [
        message
        for number in range(6)
        for message in (
            Message("assistant", f"{number:010}", (call,)),
            Message("tool", f"{number:010}", tool_call_id="call00001"),
        )
    ]
    chat = [Message("developer", "Be brief."), Message("user", "0" * 10), *steps]
    for keep_turns in range(1, 8):
        one = rewriter(TooLong.KEEP_TURNS, keep_turns=keep_turns, drop_turns=1, omitted="")
        found = fitted(one, chat, 150)
        assert found is not None and list(found[:2]) == chat[:2]
        assert found[2].role == "assistant" and list(found[2:]) == chat[-len(found) + 2 :]
    assert len(fitted(one, chat, 55) or ()) == 4, "the last call and its result"


def test_tools_take_room_that_no_message_can_make() -> None:
    chat = [Message("user", "x" * 100)]
    asked: list[int] = []

    def encode(messages: Sequence[Message]) -> Generator[int, None, array[int]]:
        yield from ()
        asked.append(len(messages[0].content))
        return array("I", [0]) * (500 + len(messages[0].content))

    one = rewriter(TooLong.CUT_MIDDLE, mark="")
    ids = completed(one.fitted(chat, 600, 550, encode, num_fixed_chars=500))
    assert len(ids) <= 550
    with pytest.raises(PromptTooLongError):
        completed(one.fitted(chat, 600, 450, encode, num_fixed_chars=500))
    assert len(asked) < 5, "found out soon"


def test_a_prefix_joins_a_developers_message_and_keeps_what_else_it_has() -> None:
    one = Rewriter(RewritingPolicy(system_prefix="House rules."))
    told = Message("developer", "Be brief.", name="app")
    assert one.prepare([told]) == [Message("developer", "House rules.\n\nBe brief.", name="app")]
    call = Message("assistant", "", (ToolCall("a", "f"),))
    assert one.prepare([call]) == [Message("system", "House rules."), call]
