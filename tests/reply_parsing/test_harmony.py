"""Replies in gpt-oss's messages."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from outrider.models.stop_tokens import stop_ids_of
from outrider.reply_parsing.events import ToolCallBegun, ToolCallEnded
from outrider.reply_parsing.formats import HARMONY_TAGS, CallSyntax, ReplyFormat
from outrider.reply_parsing.harmony import MAX_HEADER_CHARS
from outrider.reply_parsing.parser import MAX_CALLS, ReplyParser, read_reply
from tests.models import tool_templates
from tests.reply_parsing.test_parser import SEED, TOOLS, calls_of, cut, events_of

HARMONY = ReplyFormat(CallSyntax.HARMONY, HARMONY_TAGS, tool_names=TOOLS)
THOUGHT = "<|channel|>analysis<|message|>Hm.<|end|>"
FINAL = "<|start|>assistant<|channel|>final<|message|>"
CALL = (
    "<|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>"
)
WEATHER = ("get_weather", '{"city": "Rome"}')


@pytest.mark.parametrize(
    ("text", "reasoning", "content", "calls"),
    [
        (f"{THOUGHT}{FINAL}It rains.<|return|>", "Hm.", "It rains.", []),
        ("<|channel|>final<|message|>It rains.", "", "It rains.", []),
        (f"{THOUGHT}{FINAL}It <|rains|> <", "Hm.", "It <|rains|> <", []),
        (f'{THOUGHT}{CALL}{{"city": "Rome"}}<|call|>', "Hm.", "", [WEATHER]),
        # The recipient before the channel, as a template shows calls; no type; spaces.
        (
            "<|start|>assistant to=functions.get_weather<|channel|>commentary json<|message|> "
            '{"city": "Rome"} \n<|call|>',
            "",
            "",
            [WEATHER],
        ),
        # A preamble, which is content; the end is missing.
        (
            f"{THOUGHT}<|start|>assistant<|channel|>commentary<|message|>I look.<|end|>"
            f'{CALL}{{"city": "Rome"}}',
            "Hm.",
            "I look.",
            [WEATHER],
        ),
        # Reasoning again; two calls.
        (
            f"{THOUGHT}<|start|>assistant{THOUGHT}"
            f'{CALL}{{"city": "Rome"}}<|call|>{CALL}{{"city": "Rome"}}<|call|>',
            "Hm.Hm.",
            "",
            [WEATHER, WEATHER],
        ),
        # A tool of its makers' is none of ours.
        ("<|channel|>analysis to=python code<|message|>1+1<|call|>", "1+1", "", []),
        # No JSON object; a header that does not end; text without any header.
        (f"{CALL}Rome<|call|>", "", "Rome", []),
        (f"{FINAL}a<|end|><|start|>assist", "", "a", []),
        ("Rome, Oslo", "", "Rome, Oslo", []),
        ("<|channel|>ana", "", "", []),
        ("<|channel|>analysis<|message|>never", "never", "", []),
        (f"<|start|>{'x' * 600}", "", f"<|start|>{'x' * 600}", []),
    ],
)
def test_messages_are_told_apart_by_their_headers(
    text: str, reasoning: str, content: str, calls: list[tuple[str, str]]
) -> None:
    reply = read_reply(text, HARMONY, SEED)
    assert (reply.reasoning, reply.content, calls_of(reply)) == (reasoning, content, calls)


@pytest.mark.parametrize("end", ["", "<|call|>", "]"])
def test_a_call_that_did_not_become_whole_is_content(end: str) -> None:
    text = f'{CALL}{{"city": '
    reply = read_reply(f"{text}{end}", HARMONY, SEED)
    assert (reply.content, reply.calls) == (text + ("]" if end == "]" else ""), ())


def test_without_tools_nothing_is_a_call() -> None:
    alone = HARMONY.without_calls
    assert alone.call_syntax is CallSyntax.HARMONY and not alone.tool_names
    reply = read_reply(f'{THOUGHT}{CALL}{{"city": "Rome"}}<|call|>', alone, SEED)
    assert (reply.reasoning, reply.content, reply.calls) == ("Hm.", '{"city": "Rome"}', ())
    assert ReplyFormat(CallSyntax.HERMES, tool_names=TOOLS).without_calls == ReplyFormat()


def test_calls_are_told_where_they_stand() -> None:
    text = f'{THOUGHT}{CALL}{{"city": "Rome"}}<|call|>'
    begun, _, ended = events_of([text], HARMONY)[1:]
    assert isinstance(begun, ToolCallBegun) and isinstance(ended, ToolCallEnded)
    assert text[begun.begin : ended.end] == f'{CALL}{{"city": "Rome"}}'


def test_calls_without_end_are_bounded() -> None:
    text = f'{CALL}{{"city": "Rome"}}<|call|>' * (MAX_CALLS + 5)
    assert len(read_reply(text, HARMONY, SEED).calls) == MAX_CALLS


ATOMS = (
    *("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>"),
    *("<|constrain|>", "assistant", "analysis", "commentary", "final", " to=functions.now", "json"),
    *('{"a": 1}', "{", "}", '"', "<", "<|", "<|en", " ", "\n", "\u732b", "x" * 300, "text"),
    *(THOUGHT, FINAL, CALL),
)


@given(
    st.lists(st.sampled_from(ATOMS), max_size=14).map("".join),
    st.lists(st.integers(0, 2000), max_size=8),
)
@example(f"{CALL}{{}}<|call|>  x", [])
@example(f"<|start|>{'x' * MAX_HEADER_CHARS}<|message|>a", [500])
@example(f"<|start|>{'x' * (MAX_HEADER_CHARS + 1)}<|message|>a", [500])
def test_where_a_text_was_cut_makes_no_difference(text: str, places: list[int]) -> None:
    whole = events_of([text], HARMONY)
    assert events_of(cut(text, places), HARMONY) == whole
    assert events_of(list(text), HARMONY) == whole
    reply = read_reply(text, HARMONY, SEED)
    for call in reply.calls:
        assert isinstance(json.loads(call.arguments), dict)
    at = 0
    for char in reply.content:
        at = text.index(char, at) + 1


def test_what_is_held_back_is_bounded() -> None:
    for begin, more in (("<|start|>", "a"), ("", "<|start"), (f"{CALL}{{", " "), (FINAL, "<")):
        parser = ReplyParser(HARMONY, SEED)
        parser.push(begin)
        for _ in range(100):
            parser.push(more * 100)
            assert parser.num_held <= 2 * MAX_HEADER_CHARS


def test_a_message_ends_without_ending_the_turn() -> None:
    tokens = [*tool_templates.CONTROL[tool_templates.HARMONY], "a"]
    control = range(len(tokens) - 1)
    for named in ("<|return|>", "<|end|>"):
        ends = stop_ids_of(tokens, control, [tokens.index(named)])
        assert {tokens[i] for i in ends} == {"<|return|>", "<|call|>"}
    assert stop_ids_of(["a", "<|end|>"], [1], []) == [1]
