"""What a request over HTTP keeps between its tries."""

from __future__ import annotations

from typing import Any

import pytest

from bench.chaos.load import Request, TryAgainError


def request() -> Request:
    return Request([("edge-0", 1), ("edge-1", 2)], {})


def words(text: str) -> dict[str, Any]:
    return {"choices": [{"delta": {"content": text}}]}


def test_a_broken_stream_goes_on_at_the_other_edge_after_the_last_event() -> None:
    asked = request()
    assert asked.next_address() == ("edge-0", 1)
    asked.take(words("one "), "1-4")
    asked.take({"choices": []}, "")
    assert asked.next_address() == ("edge-1", 2)
    asked.take(words("two"), "2-7")
    assert (asked.text, asked.last_event_id) == ("one two", "2-7")
    assert asked.next_address() == ("edge-0", 1)


def test_an_event_with_an_error_says_whether_to_try_again() -> None:
    with pytest.raises(TryAgainError, match="no_replica"):
        request().take({"error": {"code": "no_replica"}}, "")
    with pytest.raises(ValueError, match="poisonous"):
        request().take({"error": {"code": "poisonous_request"}}, "")
