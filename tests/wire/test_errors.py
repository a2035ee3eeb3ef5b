"""Every error of the tree survives the wire; a peer's error is bounded."""

from __future__ import annotations

import grpc
import pytest

from outrider import errors
from outrider.v1 import common_pb2
from outrider.wire.errors import MAX_MESSAGE_CHARS, MAX_METADATA, from_detail, to_detail


def _tree(root: type[errors.OutriderError]) -> list[type[errors.OutriderError]]:
    return [root, *(leaf for child in root.__subclasses__() for leaf in _tree(child))]


@pytest.mark.parametrize("cls", _tree(errors.OutriderError))
def test_round_trip(cls: type[errors.OutriderError]) -> None:
    sent = cls("say what to do", retry_delay_ms=250, metadata={"ours": "aa", "theirs": "bb"})
    detail = to_detail(sent)
    assert detail.grpc_code == grpc.StatusCode[cls.grpc_code].value[0]
    back = from_detail(common_pb2.ErrorDetail.FromString(detail.SerializeToString()))
    assert type(back) is cls
    assert (back.message, back.retry_delay_ms, back.metadata) == (
        sent.message,
        250,
        sent.metadata,
    )


def test_unknown_reason_is_kept_in_metadata() -> None:
    back = from_detail(common_pb2.ErrorDetail(reason="FROM_THE_FUTURE", grpc_code=13))
    assert type(back) is errors.OutriderError
    assert back.metadata["reason"] == "FROM_THE_FUTURE"
    assert back.message


def test_both_directions_are_bounded() -> None:
    huge = errors.EngineError("x" * 9000, metadata={str(i): "v" * 999 for i in range(99)})
    detail = to_detail(huge)
    assert len(detail.message) == MAX_MESSAGE_CHARS
    assert detail.ByteSize() < 8192
    hostile = common_pb2.ErrorDetail(
        reason="ENGINE" * 999, message="x" * 9000, metadata={str(i): "v" for i in range(99)}
    )
    back = from_detail(hostile)
    assert len(back.message) == MAX_MESSAGE_CHARS
    assert len(back.metadata) <= MAX_METADATA + 1
