"""Parts of replies: when each begins, grows and ends."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from services.edge.http.reply_parts import (
    PartBegun,
    PartEnded,
    PartEvent,
    PartGrew,
    PartKind,
    PartReader,
    PlainText,
)
from services.edge.session.events import Accepted
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
