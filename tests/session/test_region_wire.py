"""Drafts and commits in frames: as protobuf writes them, and nothing else is taken for one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.codec.ranks import RankTable
from outrider.codec.tokens import TokenCodec, TokenCoder
from outrider.errors import BadTokenBlockError, MalformedFrameError
from outrider.session.region import Commit, Draft, Pace
from outrider.session.region_wire import (
    MAX_COMMIT_TOKENS,
    commit_bytes,
    commit_from_proto,
    draft_from_proto,
    draft_to_proto,
    ids_of,
    put_ids,
    resumable_tokens,
    session_bytes,
)
from outrider.session.types import ScoredToken, TokenLogprobs
from outrider.v1 import inference_pb2
from outrider.wire import logprobs_to_proto, token_block_from_proto

SIZE = 40_000
CODER = TokenCoder(b"d" * 32, SIZE, RankTable(b"t" * 32, SIZE, [39_999, 7, 300]))
TOKENS = st.integers(0, SIZE - 1)
IDS = st.lists(TOKENS, max_size=3).map(tuple)
CODECS = st.sampled_from(TokenCodec)
LOGPROBS = TokenLogprobs(ScoredToken(5, -0.5), (ScoredToken(9, -0.25),))
PACE = Pace(0.5, 0.25, 9, 1, 4, 0.125)


@st.composite
def commits(draw: st.DrawFn) -> Commit:
    base, ids, accepted_ids = draw(st.integers(0, 20_000)), draw(IDS), draw(IDS)
    has_lossy, has_logprobs = draw(st.booleans()), draw(st.booleans())
    return Commit(
        draw(st.integers(0, 300)),
        base,
        len(accepted_ids),
        ids,
        draw(st.none() | st.just(PACE)),
        int(bool(ids) and has_lossy),
        (LOGPROBS,) if has_logprobs else (),
        accepted_ids,
        draw(st.booleans()),
    )


def parsed(commit: Commit, codec: TokenCodec) -> inference_pb2.Commit:
    told = commit_bytes(commit, CODER, codec, pace=commit.pace, sends_accepted_ids=True)
    return inference_pb2.SessionDown.FromString(told).commit


@given(commits(), CODECS, st.integers(1, 2**64 - 1))
def test_a_commit_is_written_as_protobuf_writes_it_and_read_as_it_was(
    commit: Commit, codec: TokenCodec, session: int
) -> None:
    told = session_bytes(session) + commit_bytes(
        commit, CODER, codec, pace=commit.pace, sends_accepted_ids=True
    )
    frame = inference_pb2.SessionDown.FromString(told)
    assert frame.SerializeToString() == told
    assert frame.session == session and frame.commit.upto == commit.upto
    assert commit_from_proto(frame.commit, CODER) == commit._replace(accepted_ids=())
    assert not parsed(commit._replace(accepted_ids=(), accepted=0), codec).accepted_ids


@given(commits(), CODECS)
def test_a_relay_keeps_a_commit_as_a_resumed_open_has_it(commit: Commit, codec: TokenCodec) -> None:
    frame = parsed(commit, codec)
    entries = resumable_tokens(frame, commit.base)
    if commit.upto == commit.base:
        assert not entries
        return
    assert entries is not None
    opening = inference_pb2.OpenSession.FromString(entries)
    assert opening.SerializeToString() == entries
    blocks = [token_block_from_proto(block) for block in opening.resumed]
    ids = [CODER.decode(block, max_count=3, needs_checksum=False) for block in blocks]
    assert sum(ids, ()) == (*commit.accepted_ids, *commit.ids)
    with pytest.raises(BadTokenBlockError, match="no checksum"):
        CODER.decode(blocks[0], max_count=3)
    assert resumable_tokens(frame, commit.base + 1) is None
    if commit.accepted:
        frame.ClearField("accepted_ids")
        assert resumable_tokens(frame, commit.base) is None


@given(
    st.builds(
        Draft,
        st.integers(0, 300),
        st.integers(0, 300),
        IDS,
        st.booleans(),
        st.integers(0, 2**32 - 1),
    ),
    CODECS,
)
def test_a_draft_is_read_as_it_was(draft: Draft, codec: TokenCodec) -> None:
    frame = draft_to_proto(draft, CODER, codec)
    found = draft_from_proto(frame, CODER, max_count=3)
    assert found == draft and found.echo == draft.echo
    # One token is its number behind a byte, others have their length in between.
    written = TokenCodec.RANK_VARINT if codec is TokenCodec.RANK_CLASSES else codec
    bare = inference_pb2.Draft()
    put_ids(bare, CODER, draft.ids, codec)
    num_bytes = len(CODER.pack(draft.ids, written))
    assert len(bare.SerializeToString()) == num_bytes + min(len(draft.ids), 2)


@pytest.mark.parametrize(
    "frame",
    [
        inference_pb2.Commit(id=SIZE),
        inference_pb2.Commit(rank=SIZE),
        inference_pb2.Commit(ids=CODER.pack([7] * 5, TokenCodec.VARINT)),
        inference_pb2.Commit(ids=b"\xc0\xb8\x02"),
        inference_pb2.Commit(ranks=b"\xc0\xb8\x02"),
        inference_pb2.Draft(ids=b"\xff"),
        inference_pb2.Draft(ranks=b"\x01" * 5),
        inference_pb2.Draft(ids=b"\x81\x00"),
    ],
)
def test_ids_that_are_none(frame: inference_pb2.Commit | inference_pb2.Draft) -> None:
    with pytest.raises(BadTokenBlockError):
        ids_of(frame, CODER, max_count=4)


def test_ranks_are_of_no_use_without_their_table() -> None:
    coder = TokenCoder(b"d" * 32, 300)
    for frame in (inference_pb2.Commit(rank=1), inference_pb2.Commit(ranks=b"\x01\x02")):
        with pytest.raises(BadTokenBlockError, match="token codec 1 is not one of"):
            ids_of(frame, coder, max_count=4)
    with pytest.raises(BadTokenBlockError, match="outside the vocabulary"):
        put_ids(inference_pb2.Commit(), coder, [300], TokenCodec.VARINT)


def details(**fields: object) -> bytes:
    return inference_pb2.CommitDetails(**fields).SerializeToString()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("frame", "says"),
    [
        (inference_pb2.Commit(id=5, upto=2), "ends at 2"),
        (inference_pb2.Commit(base=3, accepted=2, upto=4), "ends at 4"),
        (inference_pb2.Commit(id=5, upto=1, details=b"\xff"), "does not parse"),
        (inference_pb2.Commit(id=5, base=1, upto=2, details=details(lossy_tokens=2)), "lossy"),
        (
            inference_pb2.Commit(
                id=5,
                upto=1,
                details=details(logprobs=logprobs_to_proto([LOGPROBS] * (MAX_COMMIT_TOKENS + 1))),
            ),
            f"at most {MAX_COMMIT_TOKENS}",
        ),
    ],
)
def test_a_commit_that_contradicts_itself_is_refused(
    frame: inference_pb2.Commit, says: str
) -> None:
    with pytest.raises(MalformedFrameError, match=says):
        commit_from_proto(frame, CODER)


def test_a_commit_of_absurd_length_is_refused() -> None:
    ids = (1,) * (MAX_COMMIT_TOKENS + 1)
    frame = inference_pb2.Commit(ids=CODER.pack(ids, TokenCodec.VARINT), upto=len(ids))
    with pytest.raises(BadTokenBlockError):
        commit_from_proto(frame, CODER)


@pytest.mark.parametrize("ms", [-1.0, float("nan"), float("inf")])
@pytest.mark.parametrize("field", ["commit_interval_ms", "row_ms", "ack_delay_ms"])
def test_times_that_are_none_are_refused(field: str, ms: float) -> None:
    told = inference_pb2.CommitDetails()
    setattr(told.pace, field, ms)
    frame = inference_pb2.Commit(accepted=1, upto=1, details=told.SerializeToString())
    with pytest.raises(MalformedFrameError, match="time"):
        commit_from_proto(frame, CODER)
