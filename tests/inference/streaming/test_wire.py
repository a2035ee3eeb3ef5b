"""What routers are told of a replica's load, edges of its pace, and both of final tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.codec.ranks import RankTable
from outrider.codec.tokens import TokenCodec, TokenCoder
from outrider.v1 import common_pb2, inference_pb2
from outrider.wire import ids_of, token_block_from_proto
from services.inference.prefix_store.exchange import TransferCounts
from services.inference.scheduler.types import ClassLoad, Committed, KvHits, Load
from services.inference.streaming import wire


def load_at(level: int) -> Load:
    return Load(
        running_sessions=0,
        queued_sessions=0,
        queued_prompt_tokens=0,
        kv_blocks_total=8,
        kv_blocks_free=8,
        fixed_ms=10.0,
        row_ms=1.0,
        max_sessions=4,
        overload_level=level,
    )


@pytest.mark.parametrize(
    ("level", "queues_low", "refuses"),
    [(0, False, False), (2, False, False), (3, True, False), (4, True, True)],
)
def test_a_report_says_whom_an_overloaded_replica_takes(
    level: int, queues_low: bool, refuses: bool
) -> None:
    report = wire.load_response(load_at(level), draining=False)
    assert (report.overload_level, report.queues_low, report.refuses_sessions) == (
        level,
        queues_low,
        refuses,
    )


LOAD = Load(
    running_sessions=2,
    queued_sessions=1,
    queued_prompt_tokens=100,
    kv_blocks_total=200,
    kv_blocks_free=100,
    fixed_ms=10.0,
    row_ms=1.0,
    max_sessions=4,
    service_ms=500.0,
)


@pytest.mark.parametrize(
    ("changes", "is_news"),
    [
        ({}, False),
        ({"running_sessions": 3}, True),
        ({"queued_sessions": 0}, True),
        ({"queued_prompt_tokens": 99}, True),
        ({"paused_sessions": 1}, True),
        ({"overload_level": 1}, True),
        ({"low": ClassLoad(sessions=1)}, True),
        ({"fixed_ms": 10.9, "row_ms": 0.95, "service_ms": 540.0}, False),
        ({"fixed_ms": 11.5}, True),
        ({"row_ms": 0.8}, True),
        ({"service_ms": 0.0}, True),
        ({"kv_blocks_free": 81}, False),
        ({"kv_blocks_free": 80}, True),
        ({"kv_hits": KvHits(1000, 500, 0, 0)}, False),
    ],
)
def test_routers_are_told_what_they_would_place_sessions_by(
    changes: dict[str, Any], is_news: bool
) -> None:
    told, now = wire.load_response(LOAD), wire.load_response(replace(LOAD, **changes))
    assert wire.is_news(now, told) == wire.is_news(told, now) == is_news


def test_draining_and_slower_transfers_are_news() -> None:
    told = wire.load_response(LOAD, TransferCounts(peer_block_ms=10.0, num_bytes=5))
    slower = TransferCounts(peer_block_ms=12.0, num_bytes=5)
    more = TransferCounts(peer_block_ms=10.0, num_bytes=50)
    assert wire.is_news(wire.load_response(LOAD, slower), told)
    assert not wire.is_news(wire.load_response(LOAD, more), told)
    same = TransferCounts(peer_block_ms=10.0, num_bytes=5)
    assert wire.is_news(wire.load_response(LOAD, same, draining=True), told)


def test_an_edge_is_told_of_a_pace_that_it_does_not_know() -> None:
    coder = TokenCoder(b"digest", 64)
    contract = wire.Contract("m", "r", "", b"", b"", 64, coder, 100, "fake", 16, 32, 8)
    told = wire.ToldPace()

    def news(
        interval_ms: float, row_ms: float = 1.0, level: int = 0, echo: wire.Echo = wire.NO_ECHO
    ) -> tuple[float, float, int, int, int] | None:
        event = Committed(1, 0, 0, 0, (5,), interval_ms, row_ms)
        pace = told.news(event, load_at(level), contract, echo, 2.0)
        if pace is None:
            return None
        times = round(pace.commit_interval_ms, 3), round(pace.row_ms, 3)
        return (*times, pace.max_lead, pace.overload_level, pace.echo)

    assert news(0.0) == (0.0, 1.0, 32, 0, 0), "the first commit says so in any case"
    assert news(40.0) == (40.0, 1.0, 32, 0, 0)
    assert news(40.0) is None and news(41.0) is None
    assert news(42.5) == (42.5, 1.0, 32, 0, 0), "by what it was told, not by the last one"
    assert news(42.5, row_ms=0.5) == (42.5, 0.5, 32, 0, 0)
    assert news(42.5, row_ms=0.5, level=1) == (42.5, 0.5, 32, 1, 0)
    assert news(42.5, row_ms=0.5, level=1, echo=wire.Echo(7, 1.0)) == (42.5, 0.5, 32, 1, 7)
    assert news(42.5, row_ms=0.5, level=1) is None


COMMIT_CODER = TokenCoder(b"digest", 40_000, RankTable(b"digest", 40_000, [7, 39_999, 300]))
COMMIT_CONTRACT = wire.Contract("m", "r", "", b"", b"", 40_000, COMMIT_CODER, 100, "", 16, 32, 8)
TOKENS = st.integers(0, 39_999)


@given(
    number=st.integers(1, 2**64 - 1),
    epoch=st.integers(0, 300),
    base=st.integers(0, 20_000),
    accepted=st.lists(TOKENS, max_size=2),
    ids=st.lists(TOKENS, min_size=1, max_size=3),
    lossy=st.booleans(),
    has_pace=st.booleans(),
    codec=st.sampled_from(TokenCodec),
)
def test_a_commit_in_bytes_is_the_message(
    number: int,
    epoch: int,
    base: int,
    accepted: list[int],
    ids: list[int],
    lossy: bool,
    has_pace: bool,
    codec: TokenCodec,
) -> None:
    event = Committed(
        *(5, epoch, base, len(accepted), tuple(ids), 20.0, 1.0),
        lossy=(base,) if lossy else (),
        accepted_ids=tuple(accepted),
    )
    pace = inference_pb2.Pace(row_ms=1.0) if has_pace else None
    told = wire.session_bytes(number) + wire.commit_bytes(
        event, pace, COMMIT_CONTRACT, codec, sends_accepted_ids=True
    )
    frame = inference_pb2.SessionDown.FromString(told)
    assert frame.SerializeToString() == told, "as protobuf writes it, byte for byte"
    commit = frame.commit
    assert (frame.session, commit.epoch, commit.base, commit.upto) == (
        *(number, epoch, base),
        base + len(accepted) + len(ids),
    )
    assert commit.accepted == len(accepted)
    assert ids_of(commit, COMMIT_CODER, max_count=3) == tuple(ids)
    if accepted:
        drafts = token_block_from_proto(common_pb2.TokenBlock.FromString(commit.accepted_ids))
        told_drafts = COMMIT_CODER.decode(drafts, max_count=2, needs_checksum=False)
        assert told_drafts == tuple(accepted)
    details = inference_pb2.CommitDetails.FromString(commit.details)
    assert details.HasField("pace") == has_pace
    assert list(details.lossy) == [base] * lossy
