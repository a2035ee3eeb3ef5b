"""Parts of replies: when each begins, grows and ends."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from outrider.reply_parsing.formats import CallSyntax, ReplyFormat
from outrider.session.client import Accepted, Committed
from services.edge.http.reply_parts import (
    PartBegun,
    PartEnded,
    PartEvent,
    PartGrew,
    PartKind,
    PartReader,
    PlainText,
    ReplyContent,
    parser_of,
)
from services.edge.http.sse import Position
from tests.edge.http.scripted_parser import BracketParser

ACCEPTED = Accepted("r1", "small", 5)


def told(reader: PartReader, *texts: str) -> list[PartEvent]:
    events = [event for text in texts for event in reader.push(text)]
    return events + reader.finish()


def shape_of(events: list[PartEvent]) -> list[tuple[str, int, str]]:
    return [
        (
            type(it).__name__.removeprefix("Part"),
            it.part.index,
            it.text if isinstance(it, PartGrew) else "",
        )
        for it in events
    ]


def test_plain_text_is_one_part_that_grows_with_each_commit() -> None:
    reader = PartReader(PlainText())
    assert shape_of(told(reader, "He", "", "llo")) == [
        ("Begun", 0, ""),
        ("Grew", 0, "He"),
        ("Grew", 0, "llo"),
        ("Ended", 0, ""),
    ]
    assert [it.text for it in reader.parts] == ["Hello"]
    assert reader.is_plain and not reader.has_calls


def test_a_reply_without_text_has_no_parts() -> None:
    assert told(PartReader(PlainText()), "") == []


def test_thoughts_text_and_calls_are_parts_of_their_own() -> None:
    reader = PartReader(BracketParser(ACCEPTED))
    events = told(reader, "(hm)Let me see", '.[look]{"at": 1}[/][look]{}[/]')
    assert [it.kind for it in reader.parts] == [
        PartKind.REASONING,
        PartKind.TEXT,
        PartKind.CALL,
        PartKind.CALL,
    ]
    assert [it.text for it in reader.parts] == ["hm", "Let me see.", '{"at": 1}', "{}"]
    assert [(it.call_id, it.name) for it in reader.parts[2:]] == [
        ("call_0", "look"),
        ("call_1", "look"),
    ]
    assert reader.has_calls and not reader.is_plain
    open_parts: list[int] = []
    for event in events:
        match event:
            case PartBegun(part):
                assert not open_parts, "one at a time"
                open_parts.append(part.index)
            case PartGrew(part):
                assert open_parts == [part.index]
            case PartEnded(part):
                assert open_parts.pop() == part.index
    assert not open_parts


def test_a_call_that_is_cut_off_says_what_the_model_wrote() -> None:
    reader = PartReader(BracketParser(ACCEPTED))
    told(reader, 'ok[look]{"at"')
    assert not reader.has_calls
    call = reader.parts[-1]
    assert (call.is_whole, call.text, call.source) == (False, '{"at"', '[look]{"at"')


@given(st.lists(st.text("ab", max_size=3)))
def test_nothing_of_plain_text_is_lost(texts: list[str]) -> None:
    reader = PartReader(PlainText())
    events = told(reader, *texts)
    grown = "".join(it.text for it in events if isinstance(it, PartGrew))
    assert grown == "".join(texts) == "".join(it.text for it in reader.parts)


CALLS = Accepted("r1", "small", 5, reply_format=ReplyFormat(CallSyntax.HERMES, tool_names=("f",)))
CALLING = 'I look.\n<tool_call>\n{"name": "f", "arguments": {"a": [1, 2]}}\n</tool_call>'


def cut(text: str, places: list[int]) -> list[Committed]:
    edges = [0, *sorted(places), len(text)]
    pieces = [text[begin:end] for begin, end in pairwise(edges)]
    return [Committed(piece, (at,), at + 1) for at, piece in enumerate(pieces)]


def grown(events: list[PartEvent]) -> dict[int, str]:
    made: dict[int, str] = {}
    for event in events:
        if isinstance(event, PartGrew):
            made[event.part.index] = made.get(event.part.index, "") + event.text
    return made


PLACES = st.lists(st.integers(0, len(CALLING)), max_size=8)


@given(PLACES, PLACES, st.data())
def test_nothing_is_told_twice_and_nothing_left_out_wherever_a_client_was_cut_off(
    first: list[int], second: list[int], data: st.DataObject
) -> None:
    stayed = ReplyContent(Position(), from_start=True)
    stayed.accepted(CALLS)
    commits = cut(CALLING, first)
    taken = commits[: data.draw(st.integers(0, len(commits)))]
    told_first = [event for commit in taken for event in stayed.take(commit).new]
    had = stayed.position
    back = ReplyContent(Position(0, had.num_chars), from_start=True)
    back.accepted(CALLS)
    again = [back.take(commit) for commit in cut(CALLING, second)]
    known = [event for growth in again for event in growth.known]
    rest = [event for growth in again for event in growth.new] + back.finish()
    assert grown(known) == grown(told_first)
    both = [*told_first, *rest]
    assert grown(both) == {0: "I look.", 1: '{"a": [1, 2]}'}
    assert [it.part.index for it in both if isinstance(it, PartBegun)] == [0, 1]
    assert back.position.num_chars == len(CALLING)
    assert [it.text for it in back.reader.parts] == ["I look.", '{"a": [1, 2]}']
    (call,) = back.reader.parts[1:]
    assert (call.call_index, call.name, call.is_whole) == (0, "f", True)


def test_streamed_text_is_not_kept_and_calls_are() -> None:
    content = ReplyContent(Position(), keeps=False)
    content.accepted(ACCEPTED)
    for commit in cut("some text", [4]):
        content.take(commit)
    assert [it.text for it in content.reader.parts] == [""]
    assert isinstance(parser_of(ACCEPTED), PlainText)
    content = ReplyContent(Position(), from_start=True, keeps=False)
    content.accepted(CALLS)
    content.accepted(CALLS)  # again, where the chat goes on elsewhere
    for commit in cut(CALLING, [30]):
        content.take(commit)
    assert content.reader.has_calls and not content.reader.is_plain
