"""Token blocks on the wire; `TokenCoder.decode` is what validates them."""

from __future__ import annotations

from outrider.codec.tokens import Block
from outrider.v1 import common_pb2


def to_proto(block: Block) -> common_pb2.TokenBlock:
    """The wire form."""
    return common_pb2.TokenBlock(
        codec=common_pb2.TokenCodec.ValueType(block.codec),
        count=block.count,
        checksum=block.checksum,
        payload=block.payload,
    )


def from_proto(block: common_pb2.TokenBlock) -> Block:
    """The block as it came, unknown codecs included; nothing is checked yet."""
    return Block(block.codec, block.count, block.checksum, block.payload)
