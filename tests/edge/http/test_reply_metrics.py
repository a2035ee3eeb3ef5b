"""What a reply tells of its times and drafts, in all APIs of chats."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.session.client import Done
from outrider.session.types import (
    AcceptanceCount,
    FinishReason,
    FirstText,
    SpeculationStats,
    Timings,
    Usage,
)
from services.edge.http.reply_metrics import metrics_of
from tests.edge.http.asking import chat_of, data_of, planned, told
from tests.edge.http.test_chat_apis import ALL, Shape, over_all

COUNTS = (AcceptanceCount(3, 0, 39), AcceptanceCount(3, 1, 1), AcceptanceCount(3, 3, 3))
USAGE = Usage(
    prompt_tokens=5,
    completion_tokens=60,
    draft_tokens=129,
    accepted_tokens=10,
    accepted_edge_tokens=4,
    uncounted_tokens=7,
    acceptance=COUNTS,
)
DONE = Done(
    *(FinishReason.STOP, USAGE, Timings(queue_ms=1.5), Timings(0, 0, 10.0, 128.0), 60, "r", "a"),
    num_moves=1,
    max_drafts=3,
    first_text=FirstText(4.0, 6.0, 10.0, 11.5),
    speculation_stats=SpeculationStats(rtt_ms=7.25),
)
METRICS = {
    "time_to_first_token_ms": 10.0,
    "generation_time_ms": 118.0,
    "queue_time_ms": 1.5,
    "mean_itl_ms": 2.0,
    "tokens_per_second": 468.75,
    "speculative_decoding": {
        "mean_acceptance_length": 1.2325581395348837,
        "draft_acceptance_rate": 0.07751937984496124,
        "acceptance_histogram": [39, 1, 0, 3],
        "acceptance_histogram_by_draft_length": {"3": [39, 1, 0, 3]},
        "num_spec_steps": 43,
        "num_accepted_draft_tokens": 10,
        "num_draft_tokens": 129,
        "num_spec_tokens": 3,
    },
    "tokens": {"edge": 4, "region": 6, "none": 43, "unknown": 7},
    "moves": 1,
    "first_text": {
        "provisional_ms": 4.0,
        "staying_ms": 6.0,
        "committed_ms": 10.0,
        "region_ms": 11.5,
    },
    "rtt_ms": 7.25,
}
"""The example of vLLM's own page has these counts."""


def as_told(done: Done) -> Any:
    return json.loads(msgspec.json.encode(metrics_of(done)))


def test_the_shape_is_vllms() -> None:
    assert as_told(DONE) == METRICS


def test_without_drafts_and_tokens_there_is_no_division() -> None:
    found = as_told(replace(DONE, usage=Usage(), edge_timings=Timings(), max_drafts=2))
    assert "mean_itl_ms" not in found and found["tokens_per_second"] == 0
    assert found["speculative_decoding"] == {
        "mean_acceptance_length": 1.0,
        "draft_acceptance_rate": 0.0,
        "acceptance_histogram": [0, 0, 0],
        "acceptance_histogram_by_draft_length": {},
        "num_spec_steps": 0,
        "num_accepted_draft_tokens": 0,
        "num_draft_tokens": 0,
        "num_spec_tokens": 2,
    }


@given(
    st.dictionaries(
        st.tuples(st.integers(1, 40), st.integers(0, 40)).map(lambda it: (it[0], min(it))),
        st.integers(1, 99),
        max_size=20,
    ),
    st.integers(0, 8),
)
def test_histograms_add_up(kinds: dict[tuple[int, int], int], max_drafts: int) -> None:
    counts = tuple(AcceptanceCount(*kind, calls) for kind, calls in kinds.items())
    done = replace(DONE, usage=Usage(acceptance=counts), max_drafts=max_drafts)
    found = as_told(done)["speculative_decoding"]
    histogram, by_length = (
        found["acceptance_histogram"],
        found["acceptance_histogram_by_draft_length"],
    )
    assert len(histogram) == found["num_spec_tokens"] + 1 > max_drafts
    assert sum(histogram) == found["num_spec_steps"] == sum(kinds.values())
    assert sum(j * it for j, it in enumerate(histogram)) == found["num_accepted_draft_tokens"]
    assert all(len(row) == int(length) + 1 for length, row in by_length.items())
    num_drafts = sum(int(length) * sum(row) for length, row in by_length.items())
    assert num_drafts == found["num_draft_tokens"]
    for accepted, calls in enumerate(histogram):
        assert calls == sum(row[accepted] for row in by_length.values() if accepted < len(row))


# Replies.


def parts_of(it: Shape, fields: dict[str, Any], *, num_chats: int = 1, **options: Any) -> list[Any]:
    """The events of a streamed reply, or its body, of chats that end so."""
    reply = planned(it.api, it.body | fields, **options)
    sent = told(reply, *([*chat_of("He", "llo")[:-1], DONE] for _ in range(num_chats)))
    return data_of(sent) if reply.is_streamed else [json.loads(sent)]


def places_of(value: Any, path: str = "") -> list[tuple[str, Any]]:
    """Where metrics are, and what they are."""
    if isinstance(value, list):
        return [found for it in value for found in places_of(it, path)]
    if not isinstance(value, dict):
        return []
    here = [(path, it) for name, it in value.items() if name == "metrics"]
    inner = {name: it for name, it in value.items() if name != "metrics"}
    return here + [found for name, it in inner.items() for found in places_of(it, f"{path}/{name}")]


@over_all
@pytest.mark.parametrize("is_streamed", [False, True])
def test_metrics_come_once_and_last_where_they_were_asked_for(it: Shape, is_streamed: bool) -> None:
    stream: dict[str, Any] = {"stream": is_streamed}
    parts = parts_of(it, stream | {"return_metrics": True})
    is_response = it is ALL["response"] and is_streamed
    assert places_of(parts) == [("/response" if is_response else "", METRICS)]
    last = parts[-2 if it is ALL["message"] and is_streamed else -1]
    assert places_of(last), "message_stop is bare"
    assert places_of(parts_of(it, stream, return_metrics=True)) == places_of(parts)
    not_now = stream | {"return_metrics": False}
    assert places_of(parts_of(it, not_now, return_metrics=True)) == []
    assert places_of(parts_of(it, stream)) == []


@pytest.mark.parametrize("name", ["chat", "completion"])
def test_with_the_usage_metrics_are_in_its_chunk(name: str) -> None:
    wanted = {"stream": True, "stream_options": {"include_usage": True}, "return_metrics": True}
    *others, last = parts_of(ALL[name], wanted)
    assert last["choices"] == [] and last["usage"]["completion_tokens"] == 60
    assert last["metrics"] == METRICS and places_of(others) == []


@pytest.mark.parametrize("name", ["chat", "completion"])
@pytest.mark.parametrize("is_streamed", [False, True])
def test_each_of_several_choices_has_its_own(name: str, is_streamed: bool) -> None:
    wanted = {"n": 2, "stream": is_streamed, "return_metrics": True}
    parts = parts_of(ALL[name], wanted, num_chats=2)
    assert places_of(parts) == [("/choices/outrider", METRICS)] * 2


@over_all
def test_whether_a_reply_has_metrics_makes_no_other_request_of_it(it: Shape) -> None:
    key = {"idempotency_key": "k"}
    with_, without = (
        planned(it.api, it.body | {"return_metrics": wanted}, **key).chats[0]
        for wanted in (True, False)
    )
    assert with_ == without
