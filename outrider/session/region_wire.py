"""Drafts and commits in frames (`protos/outrider/v1/inference.proto`), validated when read.

Most frames of the system are commits of one token. To fill and serialise a message takes several
times as long as to write its bytes, so these alone are written by hand (Protocol Buffers, encoding:
field number and wire type before each value); tests compare them with the generated code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Final, TypeAlias

from google.protobuf.message import DecodeError

from outrider.codec import varint
from outrider.codec.tokens import RANKED, TokenCodec, TokenCoder
from outrider.errors import MalformedFrameError
from outrider.session.region import Commit, Draft, Pace
from outrider.v1 import common_pb2, inference_pb2
from outrider.wire import logprobs_from_proto, logprobs_to_proto, token_block_to_proto

TokensFrame: TypeAlias = inference_pb2.Commit | inference_pb2.Draft
"""Frames that carry token ids without a block header."""
MAX_COMMIT_TOKENS: Final = 4096
"""Most ids, and log probabilities, that are read from one frame."""
_VARINT, _FIXED64, _LEN = 0, 1, 2


def _tag(field_number: int, wire_type: int) -> bytes:
    return varint.encode(field_number << 3 | wire_type)


_SESSION: Final = _tag(inference_pb2.SessionDown.SESSION_FIELD_NUMBER, _FIXED64)
_COMMIT: Final = _tag(inference_pb2.SessionDown.COMMIT_FIELD_NUMBER, _LEN)
_EPOCH: Final = _tag(inference_pb2.Commit.EPOCH_FIELD_NUMBER, _VARINT)
_BASE: Final = _tag(inference_pb2.Commit.BASE_FIELD_NUMBER, _VARINT)
_UPTO: Final = _tag(inference_pb2.Commit.UPTO_FIELD_NUMBER, _VARINT)
_ID: Final = _tag(inference_pb2.Commit.ID_FIELD_NUMBER, _VARINT)
_RANK: Final = _tag(inference_pb2.Commit.RANK_FIELD_NUMBER, _VARINT)
_BLOCK_CODEC: Final = _tag(common_pb2.TokenBlock.CODEC_FIELD_NUMBER, _VARINT)
_BLOCK_COUNT: Final = _tag(common_pb2.TokenBlock.COUNT_FIELD_NUMBER, _VARINT)
_BLOCK_PAYLOAD: Final = _tag(common_pb2.TokenBlock.PAYLOAD_FIELD_NUMBER, _LEN)
_RESUMED: Final = _tag(inference_pb2.OpenSession.RESUMED_FIELD_NUMBER, _LEN)


# Ids without a header.


def put_ids(frame: TokensFrame, coder: TokenCoder, ids: Sequence[int], codec: TokenCodec) -> None:
    """Put ids into a commit or a draft, as ranks if the codec has them. Raises
    BadTokenBlockError."""
    is_ranked = codec in RANKED
    if len(ids) == 1:
        number = coder.number(ids[0], codec)
        if is_ranked:
            frame.rank = number
        else:
            frame.id = number
    elif is_ranked:
        frame.ranks = coder.pack(ids, TokenCodec.RANK_VARINT)
    else:
        frame.ids = coder.pack(ids, codec)


def ids_of(frame: TokensFrame, coder: TokenCoder, *, max_count: int) -> tuple[int, ...]:
    """The ids that `put_ids` put there; none if it was not called. Raises BadTokenBlockError."""
    if frame.HasField("rank"):
        return (coder.token(frame.rank, TokenCodec.RANK_VARINT),)
    if frame.HasField("id"):
        return (coder.token(frame.id, TokenCodec.VARINT),)
    if payload := frame.ranks:
        return coder.unpack(payload, TokenCodec.RANK_VARINT, max_count=max_count)
    return coder.unpack(frame.ids, TokenCodec.VARINT, max_count=max_count) if frame.ids else ()


# Drafts: from the edge to the replica.


def draft_to_proto(draft: Draft, coder: TokenCoder, codec: TokenCodec) -> inference_pb2.Draft:
    """The wire form. Raises BadTokenBlockError for an id outside the vocabulary."""
    frame = inference_pb2.Draft(
        epoch=draft.epoch, base=draft.base, continues=draft.continues, echo=draft.echo
    )
    put_ids(frame, coder, draft.ids, codec)
    return frame


def draft_from_proto(frame: inference_pb2.Draft, coder: TokenCoder, *, max_count: int) -> Draft:
    """Raises BadTokenBlockError, for more than `max_count` ids too."""
    ids = ids_of(frame, coder, max_count=max_count)
    return Draft(frame.epoch, frame.base, ids, frame.continues, frame.echo)


# Commits: from the replica to the edge.


def session_bytes(number: int) -> bytes:
    """The session's number as a SessionDown begins with it."""
    return _SESSION + number.to_bytes(8, "little")


def commit_bytes(
    commit: Commit,
    coder: TokenCoder,
    codec: TokenCodec,
    *,
    pace: Pace | None = None,
    sends_accepted_ids: bool = False,
) -> bytes:
    """The commit as a field of SessionDown, to follow the session's number. Accepted drafts are
    only counted, unless `sends_accepted_ids`. Raises BadTokenBlockError for an id outside the
    vocabulary."""
    ids = commit.ids
    if len(ids) == 1 and not (commit.accepted or pace or _has_details(commit)):
        base, epoch = commit.base, commit.epoch
        frame = b"".join(
            (
                _EPOCH + varint.encode(epoch) if epoch else b"",
                _BASE + varint.encode(base) if base else b"",
                _UPTO,
                varint.encode(base + 1),
                _RANK if codec in RANKED else _ID,
                coder.number_bytes(ids[0], codec),
            )
        )
    else:
        told = _commit(commit, coder, codec, pace, sends_accepted_ids=sends_accepted_ids)
        frame = told.SerializeToString()
    return b"".join((_COMMIT, varint.encode(len(frame)), frame))


def _commit(
    commit: Commit,
    coder: TokenCoder,
    codec: TokenCodec,
    pace: Pace | None,
    *,
    sends_accepted_ids: bool,
) -> inference_pb2.Commit:
    frame = inference_pb2.Commit(epoch=commit.epoch, base=commit.base, upto=commit.upto)
    if commit.ids:
        put_ids(frame, coder, commit.ids, codec)
    if commit.accepted:
        frame.accepted = commit.accepted
        if sends_accepted_ids:
            block = replace(coder.encode(commit.accepted_ids, codec), checksum=None)
            frame.accepted_ids = token_block_to_proto(block).SerializeToString()
    if pace is not None or _has_details(commit):
        frame.details = inference_pb2.CommitDetails(
            pace=None if pace is None else _pace_to_proto(pace),
            lossy_tokens=commit.num_lossy,
            logprobs=logprobs_to_proto(commit.logprobs),
            inexact=commit.is_inexact,
        ).SerializeToString()
    return frame


def _has_details(commit: Commit) -> bool:
    return bool(commit.num_lossy or commit.logprobs or commit.is_inexact)


def commit_from_proto(frame: inference_pb2.Commit, coder: TokenCoder) -> Commit:
    """Read a commit, without the ids of accepted drafts, which its edge has. Raises
    BadTokenBlockError, and MalformedFrameError for a commit that contradicts itself."""
    ids = ids_of(frame, coder, max_count=MAX_COMMIT_TOKENS)
    base, accepted, upto = frame.base, frame.accepted, frame.upto
    if base + accepted + len(ids) != upto:
        raise MalformedFrameError(
            f"a commit of {accepted + len(ids)} tokens from number {base} on says that it ends at "
            f"{upto}"
        )
    if not (data := frame.details):
        return Commit(frame.epoch, base, accepted, ids)
    try:
        details = inference_pb2.CommitDetails.FromString(data)
    except DecodeError as error:
        raise MalformedFrameError(f"the region's commit does not parse: {error}") from error
    if details.lossy_tokens > upto - base:
        raise MalformedFrameError("a commit calls more tokens lossy than it has")
    return Commit(
        frame.epoch,
        base,
        accepted,
        ids,
        _pace_from_proto(details.pace) if details.HasField("pace") else None,
        details.lossy_tokens,
        logprobs_from_proto(details.logprobs, max_tokens=MAX_COMMIT_TOKENS),
        is_inexact=details.inexact,
    )


def _pace_to_proto(pace: Pace) -> inference_pb2.Pace:
    return inference_pb2.Pace(
        commit_interval_ms=pace.interval_s * 1e3,
        row_ms=pace.row_s * 1e3,
        max_lead=pace.max_lead,
        overload_level=pace.overload_level,
        echo=pace.echo,
        ack_delay_ms=pace.ack_delay_s * 1e3,
    )


def _pace_from_proto(pace: inference_pb2.Pace) -> Pace:
    return Pace(
        interval_s=seconds(pace.commit_interval_ms),
        row_s=seconds(pace.row_ms),
        max_lead=pace.max_lead,
        overload_level=pace.overload_level,
        echo=pace.echo,
        ack_delay_s=seconds(pace.ack_delay_ms),
    )


def seconds(ms: float) -> float:
    """Convert a replica's milliseconds to seconds. Raises MalformedFrameError if `ms` is negative,
    infinite or NaN."""
    if not 0 <= ms < float("inf"):
        raise MalformedFrameError(f"the region named a time of {ms} ms")
    return ms / 1e3


# Commits that a relay keeps without decoding them, to open the session elsewhere.


def resumable_tokens(commit: inference_pb2.Commit, num_committed: int) -> bytes | None:
    """The tokens of a commit as entries of OpenSession.resumed, made without a vocabulary; None if
    some are unknown, or if they do not follow the first `num_committed`. Their reader checks that
    their number matches the commit."""
    base, num_accepted, upto = commit.base, commit.accepted, commit.upto
    if base != num_committed or base + num_accepted > upto:
        return None
    if not num_accepted and base < upto:  # nearly all
        if upto - base == 1 and commit.HasField("rank"):
            return _resumed_rank(commit.rank)
        return _resumed_entry(_block_of(commit, upto - base)) or None
    tokens = b""
    if num_accepted:
        tokens = _resumed_entry(commit.accepted_ids)
        if not tokens:
            return None
    if base + num_accepted < upto:
        ids = _resumed_entry(_block_of(commit, upto - base - num_accepted))
        return tokens + ids if ids else None
    return tokens


@lru_cache(maxsize=1 << 15)
def _resumed_rank(rank: int) -> bytes:
    """One token, given by its rank, as an entry of OpenSession.resumed. Cached: most replies use a
    few thousand distinct tokens, and making an entry takes ten times as long as finding it."""
    return _resumed_entry(_block(TokenCodec.RANK_VARINT, 1, varint.encode(rank)))


def _resumed_entry(block: bytes) -> bytes:
    """A serialised TokenBlock as an entry of OpenSession.resumed; empty if `block` is empty."""
    return b"".join((_RESUMED, varint.encode(len(block)), block)) if block else b""


def _block_of(commit: inference_pb2.Commit, count: int) -> bytes:
    """The `count` ids of a commit as a serialised TokenBlock without a checksum; empty where there
    are none."""
    if commit.HasField("rank"):
        return _block(TokenCodec.RANK_VARINT, count, varint.encode(commit.rank))
    if commit.HasField("id"):
        return _block(TokenCodec.VARINT, count, varint.encode(commit.id))
    if payload := commit.ranks:
        return _block(TokenCodec.RANK_VARINT, count, payload)
    return _block(TokenCodec.VARINT, count, payload) if (payload := commit.ids) else b""


def _block(codec: TokenCodec, count: int, payload: bytes) -> bytes:
    head = (_BLOCK_CODEC, bytes((codec,)), _BLOCK_COUNT, varint.encode(count), _BLOCK_PAYLOAD)
    return b"".join((*head, varint.encode(len(payload)), payload))
