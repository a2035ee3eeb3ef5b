"""A block goes over the wire as it is, damage included."""

from __future__ import annotations

import pytest

from outrider.codec.tokens import Block, TokenCoder
from outrider.errors import BadTokenBlockError
from outrider.v1 import common_pb2
from outrider.wire.tokens import from_proto, to_proto


def test_round_trip_through_bytes() -> None:
    coder = TokenCoder(b"d" * 32, 1000)
    ids = [1, 2, 3, 999]
    for codec in coder.supported:
        wire = to_proto(coder.encode(ids, codec)).SerializeToString()
        block = from_proto(common_pb2.TokenBlock.FromString(wire))
        assert coder.decode(block, max_count=4) == tuple(ids)


def test_unknown_codec_reaches_the_decoder() -> None:
    block = from_proto(to_proto(Block(codec=77, count=1, checksum=0, payload=b"\x01")))
    assert block.codec == 77
    with pytest.raises(BadTokenBlockError):
        TokenCoder(b"d" * 32, 1000).decode(block, max_count=4)
