"""What is read in replies: calls as each family writes them, the same however the text was cut,
and nothing of it lost."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from outrider.reply_parsing.call_object import MAX_HELD_CHARS
from outrider.reply_parsing.calls import MAX_SPACES, call_id_of
from outrider.reply_parsing.events import (
    ArgumentsDelta,
    ContentDelta,
    ReasoningDelta,
    ReplyEvent,
    ToolCallBegun,
    ToolCallEnded,
)
from outrider.reply_parsing.formats import REASONING_TAGS, CallSyntax, ReplyFormat
from outrider.reply_parsing.parser import MAX_CALLS, ReadReply, ReplyParser, read_reply

TOOLS = ("get_weather", "now")
HERMES = ReplyFormat(CallSyntax.HERMES, tool_names=TOOLS)
THINK = REASONING_TAGS[0]
THINKING = ReplyFormat(CallSyntax.HERMES, THINK, tool_names=TOOLS)
ONLY_THINKING = ReplyFormat(reasoning=THINK)
SQUARE = ReplyFormat(reasoning=REASONING_TAGS[1])
FORCED = ReplyFormat(CallSyntax.HERMES, THINK, True, TOOLS)
LLAMA3 = ReplyFormat(CallSyntax.LLAMA3_JSON, tool_names=TOOLS)
MISTRAL = ReplyFormat(CallSyntax.MISTRAL, tool_names=TOOLS)
MISTRAL_ARGS = ReplyFormat(CallSyntax.MISTRAL_ARGS, tool_names=TOOLS)
FORMATS = (HERMES, THINKING, FORCED, ONLY_THINKING, LLAMA3, MISTRAL, MISTRAL_ARGS)
SEED = "request-1"


def merged(events: Iterable[ReplyEvent]) -> list[ReplyEvent]:
    """With neighbouring pieces of one kind joined."""
    found: list[ReplyEvent] = []
    for event in events:
        match found[-1] if found else None, event:
            case ContentDelta(before), ContentDelta(text):
                found[-1] = ContentDelta(before + text)
            case ReasoningDelta(before), ReasoningDelta(text):
                found[-1] = ReasoningDelta(before + text)
            case ArgumentsDelta(index, before), ArgumentsDelta(same, text) if index == same:
                found[-1] = ArgumentsDelta(index, before + text)
            case _:
                found.append(event)
    return found


def events_of(pieces: Iterable[str], reply_format: ReplyFormat) -> list[ReplyEvent]:
    parser = ReplyParser(reply_format, SEED)
    events = [event for piece in pieces for event in parser.push(piece)]
    return merged([*events, *parser.finish()])


def calls_of(reply: ReadReply) -> list[tuple[str, str]]:
    return [(call.name, call.arguments) for call in reply.calls]


WEATHER = ("get_weather", '{"city": "Zürich", "days": 3}')
NOW = ("now", "{}")
WRITTEN = {
    HERMES: [
        (
            'Let me look.\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Zürich", '
            '"days": 3}}\n</tool_call>\n<tool_call>\n{"name": "now", "arguments": {}}\n'
            "</tool_call>\n",
            "Let me look.",
            [WEATHER, NOW],
        ),
        # Hermes' own order; no line breaks; no arguments at all.
        (
            '<tool_call>{"arguments": {"city": "Zürich", "days": 3}, "name": "get_weather"}'
            '</tool_call><tool_call>{"name":"now"}</tool_call>',
            "",
            [WEATHER, NOW],
        ),
        # The end is missing, or the last brace.
        ('<tool_call>{"name": "now", "arguments": {}}', "", [NOW]),
        ('<tool_call>{"name": "now", "arguments": {}\n</tool_call>', "", [NOW]),
        # JSON within JSON; null; a key that means nothing here.
        (
            '<tool_call>{"id": [7], "name": "get_weather", "arguments": "{\\"city\\": 1}"}'
            "</tool_call> ok",
            " ok",
            [("get_weather", '{"city": 1}')],
        ),
        ('<tool_call>{"name": "now", "arguments": null}</tool_call>', "", [NOW]),
        ('<tool_call>{"name": "now", "arguments": ""}</tool_call>', "", [NOW]),
    ],
    LLAMA3: [
        ('{"name": "get_weather", "parameters": {"city": "Zürich", "days": 3}}', "", [WEATHER]),
        ('\n\n{"type": "function", "name": "now", "parameters": {}}', "", [NOW]),
        ('<|python_tag|>{"name": "now", "parameters": {}}', "", [NOW]),
        ('I look.\n<|python_tag|> {"name": "now", "arguments": {}}', "I look.", [NOW]),
        (
            '{"name": "now", "parameters": {}}; {"name": "now", "parameters": {}}',
            "",
            [NOW, NOW],
        ),
    ],
    MISTRAL: [
        (
            '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Zürich", "days": 3}}, '
            '{"name": "now", "arguments": {}, "id": "abcdefghi"}]',
            "",
            [WEATHER, NOW],
        ),
        ('Hm. [TOOL_CALLS]{"name": "now", "arguments": {}}', "Hm.", [NOW]),
    ],
    MISTRAL_ARGS: [
        (
            '[TOOL_CALLS]get_weather[ARGS]{"city": "Zürich", "days": 3}'
            "[TOOL_CALLS]now[CALL_ID]abcdefghi[ARGS]{}",
            "",
            [WEATHER, NOW],
        ),
        ("[TOOL_CALLS]now{}", "", [NOW]),
    ],
}


@pytest.mark.parametrize(
    ("reply_format", "text", "content", "calls"),
    [(f, *case) for f, cases in WRITTEN.items() for case in cases],
)
def test_calls_are_read_as_each_family_writes_them(
    reply_format: ReplyFormat, text: str, content: str, calls: list[tuple[str, str]]
) -> None:
    reply = read_reply(text, reply_format, SEED)
    assert (reply.content, calls_of(reply)) == (content, calls)
    assert [call.id for call in reply.calls] == [
        call_id_of(SEED, n, 9 if reply_format in (MISTRAL, MISTRAL_ARGS) else 0)
        for n in range(len(calls))
    ]


NO_CALLS = {
    HERMES: [
        "plain text < tool_call",
        "<tool_call>",
        "<tool_call>no</tool_call>",
        '<tool_call>{"arguments": {}}</tool_call>',
        '<tool_call>{"name": "", "arguments": {}}</tool_call>',
        '<tool_call>{"name": 3}</tool_call>',
        '<tool_call>{"name": "now", "name": "now"}</tool_call>',
        '<tool_call>{"name": "now", "arguments": [1]}</tool_call>',
        '<tool_call>{"name": "now", "arguments": "[1]"}</tool_call>',
        '<tool_call>{"name": "now", "arguments": "{\\ud800}"}</tool_call>',
        '<tool_call>{"name": "\\ud800", "arguments": {}}</tool_call>',
        # What is no JSON where it stands by itself is none within a string.
        '<tool_call>{"name": "now", "arguments": "{\\"a\\": NaN}"}</tool_call>',
        '<tool_call>{"name": "now", "arguments": "{\\"a\\": -Infinity}"}</tool_call>',
        '<tool_call>{"name": "now", "arguments": "{} {}"}</tool_call>',
        '<tool_call>{"name": "now", "arguments": "{\\"a\\": '
        + "[" * 65
        + "]" * 65
        + '}"}</tool_call>',
        # Told as a call already, and no whole one at the end.
        '<tool_call>{"name": "now", "arguments": {"a": ]}}</tool_call>',
        '<tool_call>{"name": "now", "arguments": {"a": "b',
        '<tool_call>{"name": "now", "arguments": {"a\n": 1}}</tool_call>',
    ],
    LLAMA3: [
        'An object: {"name": "now", "parameters": {}}',
        '{"name": "Bob", "parameters": {"age": 3}}',
        '{"answer": 42}',
        "{",
        '<|python_tag|>brave_search.call(query="x")',
        '<|python_tag|>{"name": "other", "parameters": {}}',
    ],
    MISTRAL: [
        "[TOOL_CALLS] Sure, I can.",
        "[TOOL_CALLS] [1, 2]",
        '[TOOL_CALLS]two words{"a": 1}',
        "[TOOL_CALLS]" + "x" * 2000 + "[ARGS]{}",
        "[TOOL_CALLS][]",
        "[TOOL_CALLS]",
    ],
}


@pytest.mark.parametrize(
    ("reply_format", "text"), [(f, text) for f, texts in NO_CALLS.items() for text in texts]
)
def test_what_is_no_call_is_content(reply_format: ReplyFormat, text: str) -> None:
    reply = read_reply(text, reply_format, SEED)
    assert (reply.content, reply.calls) == (text, ())


def test_a_call_is_told_as_it_comes() -> None:
    parser = ReplyParser(HERMES, SEED)
    call_id = call_id_of(SEED, 0)
    told = [
        parser.push(piece)
        for piece in (
            "Yes.",
            "\n<tool",
            '_call>\n{"name": "now",',
            ' "arguments"',
            ': {"a',
            '": 1}}',
            "\n</",
        )
    ]
    assert told == [
        [ContentDelta("Yes.")],
        [],
        [],
        [],
        [ToolCallBegun(0, call_id, "now", 4), ArgumentsDelta(0, '{"a')],
        [ArgumentsDelta(0, '": 1}'), ToolCallEnded(0, True, 55)],
        [],
    ]
    assert parser.push("tool_call>\n") == parser.finish() == []


@pytest.mark.parametrize(
    ("reply_format", "text", "reasoning", "content"),
    [
        (THINKING, "<think>\nHm, 5?\n\n</think>\n\nFive.", "Hm, 5?", "Five."),
        (THINKING, "\n<think></think>Five.", "", "Five."),
        (THINKING, "Five. <think>no</think>", "", "Five. <think>no</think>"),
        (THINKING, "<think>\nnever", "never", ""),
        (THINKING, "<thin", "", "<thin"),
        (THINKING, "<think>a</thin", "a</thin", ""),
        (FORCED, "\nHm.\n</think>\n\nFive.", "Hm.", "Five."),
        (HERMES, "<think>a</think>b", "", "<think>a</think>b"),
        (ONLY_THINKING, "<think>a</think>b<tool_call>", "a", "b<tool_call>"),
        (ONLY_THINKING, "b", "", "b"),
        (SQUARE, "[THINK]a [/THIN[/THINK]b [THINK]", "a [/THIN", "b [THINK]"),
        (SQUARE, "<think>a</think>b", "", "<think>a</think>b"),
        (ReplyFormat(), "<think>a</think>b", "", "<think>a</think>b"),
    ],
)
def test_reasoning_stands_apart(
    reply_format: ReplyFormat, text: str, reasoning: str, content: str
) -> None:
    reply = read_reply(text, reply_format, SEED)
    assert (reply.reasoning, reply.content) == (reasoning, content)


def test_of_one_call_at_a_time_the_others_are_not_told() -> None:
    text, content, (first, _) = WRITTEN[HERMES][0]
    only = ReplyFormat(CallSyntax.HERMES, tool_names=TOOLS, single_call=True)
    reply = read_reply(text, only, SEED)
    assert (reply.content, calls_of(reply)) == (content, [first])


def test_calls_without_end_are_bounded() -> None:
    text = '<tool_call>{"name": "now"}</tool_call>' * (MAX_CALLS + 5)
    assert len(read_reply(text, HERMES, SEED).calls) == MAX_CALLS


ATOMS = (
    *("<tool_call>", "</tool_call>", "<think>", "</think>", "<|python_tag|>", "[TOOL_CALLS]"),
    *("[ARGS]", "[CALL_ID]", '{"name": "now", ', '"arguments": {', '"parameters": {', '"a": 1'),
    *("}}", "}", "]", "[", ", ", "; ", "\n", " ", " " * 70, "<", "[TOOL", "now", "猫", '"', "{"),
    *('{"name": "get_weather", "arguments": {"city": "x"}}', '"arguments": "{}"', "text"),
)
REPLIES = st.lists(st.sampled_from(ATOMS), max_size=14).map("".join)


def cut(text: str, places: Sequence[int]) -> list[str]:
    ends = sorted({place % (len(text) + 1) for place in places} | {0, len(text)})
    return [text[begin:end] for begin, end in itertools.pairwise(ends)]


@pytest.mark.parametrize(
    "reply_format",
    FORMATS,
    ids=lambda it: f"{it.call_syntax}{it.reasoning is not None}{it.begins_in_reasoning}",
)
def test_where_a_text_was_cut_makes_no_difference(reply_format: ReplyFormat) -> None:
    @given(REPLIES, st.lists(st.integers(0, 1000), max_size=8))
    @example('\n<tool_call>\n{"name": "now", "arguments": {"a": 1}}\n</tool_call> \n x', [])
    def check(text: str, places: list[int]) -> None:
        whole = events_of([text], reply_format)
        assert events_of(cut(text, places), reply_format) == whole
        assert events_of(list(text), reply_format) == whole

    check()


@pytest.mark.parametrize(
    "reply_format",
    FORMATS,
    ids=lambda it: f"{it.call_syntax}{it.reasoning is not None}{it.begins_in_reasoning}",
)
def test_nothing_is_lost_but_markup(reply_format: ReplyFormat) -> None:
    """What is told, in its order, is the text without markup: nothing is told twice, nothing
    invented, and what is left out is a call's own JSON or a marker."""

    @given(REPLIES)
    def check(text: str) -> None:
        reply = read_reply(text, reply_format, SEED)
        at = 0
        for char in reply.content if not reply.reasoning else "":
            at = text.index(char, at) + 1
        if not reply.calls and not reply.reasoning and "think>" not in text:
            assert reply.content == text
        for event in events_of([text], reply_format):
            if isinstance(event, ToolCallBegun):
                assert text[event.begin : event.begin + 1] in ("<", "[", "{", ";", ",", " ", "\n")
        for call in reply.calls:
            assert isinstance(json.loads(call.arguments), dict)

    check()


@pytest.mark.parametrize(
    ("reply_format", "begin", "more"),
    [
        (HERMES, '<tool_call>{"x": "', "a"),
        (HERMES, '<tool_call>{"name": "now", "arguments": "', "a"),
        (HERMES, "<tool_call>", " "),
        (HERMES, '<tool_call>{"name": "now", "arguments": {"a": "', "a"),
        (HERMES, '<tool_call>{"name": "now"}', "\n"),
        (HERMES, "", " "),
        (HERMES, "", "<tool_call"),
        (LLAMA3, "", " "),
        (LLAMA3, '{"arguments": {"a": "', "a"),
        (MISTRAL, "[TOOL_CALLS]", "a"),
        (MISTRAL, "[TOOL_CALLS][", " "),
        (THINKING, "<think>", "\n"),
        (THINKING, "", "\n"),
    ],
)
def test_what_is_held_back_is_bounded(reply_format: ReplyFormat, begin: str, more: str) -> None:
    parser = ReplyParser(reply_format, SEED)
    parser.push(begin)
    most = 0
    for _ in range(3 * MAX_HELD_CHARS // 1000):
        parser.push(more * (1000 // len(more)))
        most = max(most, parser.num_held)
    assert most <= 2 * MAX_HELD_CHARS
    if begin != '<tool_call>{"x": "':
        assert parser.num_held <= MAX_HELD_CHARS


def test_many_spaces_before_a_call_are_content() -> None:
    text = "a" + " " * (MAX_SPACES + 3) + '<tool_call>{"name": "now"}'
    assert read_reply(text, HERMES, SEED).content == "a   "


def test_ids_are_a_function_of_request_and_number() -> None:
    ids = {call_id_of(seed, number) for seed in ("a", "b") for number in range(3)}
    assert len(ids) == 6 and ids == {call_id_of(s, n) for s in ("a", "b") for n in range(3)}
    assert all(len(it) == 29 and it.startswith("call_") and it[5:].isalnum() for it in ids)
    short = call_id_of("a", 0, 9)
    assert len(short) == 9 and short.isalnum()
