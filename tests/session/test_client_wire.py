"""What a client is told arrives as it was said, and bytes that are no frame are refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.cost import Cost
from outrider.errors import MalformedFrameError, OutriderError, OverloadedError
from outrider.reply_parsing.formats import REASONING_TAGS, CallSyntax, ReplyFormat
from outrider.session.client import Accepted, Committed, Done, Failed, Provisional, Retracted
from outrider.session.client_wire import Told, read, write
from outrider.session.types import (
    AcceptanceCount,
    FinishReason,
    ScoredToken,
    SpeculationStats,
    Timings,
    TokenLogprobs,
    Usage,
)
from outrider.v1 import edge_pb2

LOGPROBS = (TokenLogprobs(ScoredToken(2, -0.5, b"\xc3"), (ScoredToken(9, 0.0, b" a"),)),)
FORMAT = ReplyFormat(CallSyntax.MISTRAL, REASONING_TAGS[1], True, ("f", "g"), single_call=True)
USAGE = Usage(1, 2, 3, 4, 5, Cost(6, "USD"), 7, 8, 9, 10, 11, 12, (AcceptanceCount(3, 2, 1),))
STATS = SpeculationStats(shown_tokens=3, rtt_ms=2.5)


@pytest.mark.parametrize(
    "event",
    [
        Provisional(1, 2, "\xe9", 0.5),
        Retracted(4),
        Committed("text", (1, 2), 2),
        Committed("text", (1, 2), 2, model_identity=b"\x0a" * 32, inexact=True),
        Committed("text", (1, 2), 2, model_identity=b""),
        Committed("text", (1, 2), 2, logprobs=LOGPROBS),
        Done(
            *(FinishReason.LENGTH, USAGE, Timings(1, 2, 3, 4), Timings(), 2, "r", "p", STATS, True),
            num_moves=4,
        ),
    ],
    ids=lambda event: type(event).__name__,
)
def test_what_is_said_arrives(event: Told) -> None:
    assert read(write(event)) == event


@pytest.mark.parametrize("reply_format", [None, FORMAT])
def test_an_acceptance_comes_with_the_edges_name_and_a_resume_token(
    reply_format: ReplyFormat | None,
) -> None:
    accepted = Accepted("r", "m", 3, reply_format=reply_format)
    expected = replace(accepted, edge="edge-1", resume_token="secret")
    assert read(write(accepted, "edge-1", "secret")) == expected


def test_a_failure_is_raised() -> None:
    with pytest.raises(OverloadedError, match="full") as raised:
        read(write(Failed(OverloadedError("full", retry_delay_ms=5))))
    assert raised.value.retry_delay_ms == 5


@given(
    st.builds(
        Committed,
        text=st.text(max_size=200),
        ids=st.lists(st.integers(0, 2**32 - 1), max_size=2).map(tuple),
        upto=st.integers(1, 2**32 - 1),
        model_identity=st.none() | st.just(b"identity"),
        inexact=st.booleans(),
        logprobs=st.just(()),
    )
)
def test_a_commit_is_written_as_protobuf_writes_it(event: Committed) -> None:
    commit = edge_pb2.CommitText(
        text=event.text,
        ids=event.ids,
        upto=event.upto,
        model_identity=event.model_identity,
        inexact=event.inexact,
    )
    assert write(event) == edge_pb2.EdgeFrame(commit=commit).SerializeToString()


@given(st.binary(max_size=200))
def test_any_bytes_give_an_event_or_a_typed_error(data: bytes) -> None:
    try:
        read(data)
    except OutriderError as error:
        assert error.http_status < 600


def test_a_syntax_of_tool_calls_that_a_client_does_not_know_is_refused() -> None:
    accepted = edge_pb2.ChatAccepted(reply_format=edge_pb2.ReplyFormat(tool_calls="rune"))
    with pytest.raises(MalformedFrameError, match="update it"):
        read(edge_pb2.EdgeFrame(accepted=accepted).SerializeToString())
