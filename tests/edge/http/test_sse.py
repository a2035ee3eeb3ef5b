"""Events, and the ids that say what a client has."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.errors import InvalidRequestError
from services.edge.http.sse import COMMENT, Position, event, event_id, positions

counts = st.integers(0, 10**9 - 1)


def test_an_event_is_its_fields_and_an_empty_line() -> None:
    assert event(b"{}") == b"data: {}\n\n"
    assert event(b"{}", name="n", event_id="1-2") == b"id: 1-2\nevent: n\ndata: {}\n\n"


def test_a_comment_ends_no_event() -> None:
    """Clients that remember an id make an event of any blank line."""
    stream = event(b"1", event_id="1-1") + COMMENT + event(b"2", event_id="2-2")
    blocks = stream.decode().split("\n\n")
    assert [[line for line in it.split("\n") if not line.startswith(":")] for it in blocks] == [
        ["id: 1-1", "data: 1"],
        ["id: 2-2", "data: 2"],
        [""],
    ]


dates = st.sampled_from(("", "2026-11-29"))


@given(st.lists(st.builds(Position, counts, counts, st.booleans(), dates), min_size=1, max_size=8))
def test_an_id_is_read_as_it_was_written(had: list[Position]) -> None:
    assert positions(event_id(had), len(had)) == tuple(had)


def test_who_has_nothing_sends_no_id() -> None:
    assert positions("", 2) == (Position(), Position())


@pytest.mark.parametrize(
    "text",
    ("x", "1", "1-", "-1-2", "1-2,3-4", "1-2,", "1-2ee", "9" * 99 + "-1", "1-2\n", "1-2@today"),
)
def test_other_ids_are_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="Last-Event-ID"):
        positions(text, 1)
