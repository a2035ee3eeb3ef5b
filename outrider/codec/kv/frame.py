"""A KV frame: blocks of one prefix, with all that a receiver needs to use or refuse them.

    frame   = magic "OKV" version:u8  header  crc32(all before):u32le  section*
    header  = payload dtype block_tokens            (LEB128 each, as all numbers of the header)
              num_groups (num_planes num_heads head_size)*
              bytes(model fingerprint) bytes(vocabulary digest) bytes(parent hash)
              num_tokens bytes(ids)                 ids: LEB128 each
    section = length crc32(section):u32le bytes     one per block, in order
    bytes(x) = length x

`decode_frame` reads only the header. The receiver compares it with its own engine, and only then
decodes sections, one by one, into memory whose size the layout gives. A length reserves nothing by
itself, and a checksum is compared before anything is unpacked.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, TypeVar

import numpy as np

from outrider.codec import varint
from outrider.codec.kv.layout import KvDtype, KvLayout, PlaneGroup
from outrider.codec.kv.payload import Payload, decode_block, encode_block, max_section_bytes
from outrider.errors import MalformedFrameError

MAGIC: Final = b"OKV\x01"
MAX_NAME_BYTES: Final = 64
"""Longest fingerprint, digest or hash."""
MAX_GROUPS: Final = 256
MAX_TOKENS: Final = 1 << 20
_CRC: Final = struct.Struct("<I")
_MAX_SIZE: Final = 1 << 16
_MAX_KIND: Final = 255
_Kind = TypeVar("_Kind", bound=IntEnum)


@dataclass(frozen=True, slots=True)
class KvHeader:
    """Description of a frame's blocks and their prefix."""

    payload: Payload
    layout: KvLayout
    fingerprint: bytes
    """Fingerprint of the engine that computed them (EngineInfo.fingerprint); only an engine with
    the same one may import them."""
    vocabulary_digest: bytes
    parent_hash: bytes
    """Hash of the block before the first one, which stands for all ids before
    (outrider.codec.block_hashes); of the salt's root for the beginning."""
    ids: tuple[int, ...]
    """Ids of all blocks together: a multiple of layout.block_tokens."""

    @property
    def num_blocks(self) -> int:
        """Blocks in the frame."""
        return len(self.ids) // self.layout.block_tokens


@dataclass(frozen=True, slots=True)
class KvFrame:
    """A frame whose header was read; `blocks` decodes."""

    header: KvHeader
    data: memoryview
    begin: int
    """Offset of the first section."""

    def blocks(self) -> Iterator[bytes]:
        """Each block's bytes, in order, decoded when asked for. Raises MalformedFrameError."""
        at = self.begin
        for _ in range(self.header.num_blocks):
            reader = _Reader(self.data, at)
            section = reader.section()
            at = reader.at
            yield decode_block(section, self.header.layout, self.header.payload)
        if at != len(self.data):
            raise MalformedFrameError("a KV frame has bytes behind its last block")


def encode_frame(header: KvHeader, blocks: Sequence[bytes | memoryview]) -> bytes:
    """The frame of `blocks`, `layout.block_bytes` bytes each. Raises ValueError if they do not fit
    the header."""
    layout = header.layout
    if len(header.ids) != len(blocks) * layout.block_tokens:
        raise ValueError(f"{len(header.ids)} ids do not fill {len(blocks)} blocks")
    out = bytearray(MAGIC)
    out += varint.encode(header.payload) + varint.encode(layout.dtype)
    out += varint.encode(layout.block_tokens) + varint.encode(len(layout.groups))
    for group in layout.groups:
        for size in (group.num_planes, group.num_heads, group.head_size):
            out += varint.encode(size)
    for name in (header.fingerprint, header.vocabulary_digest, header.parent_hash):
        out += varint.encode(len(name)) + name
    ids = varint.encode_array(np.array(header.ids, np.uint32))
    out += varint.encode(len(header.ids)) + varint.encode(len(ids)) + ids
    out += _CRC.pack(zlib.crc32(out))
    for block in blocks:
        if len(block) != layout.block_bytes:
            raise ValueError(f"a block has {len(block)} bytes, its layout {layout.block_bytes}")
        section = encode_block(memoryview(block), layout, header.payload)
        out += varint.encode(len(section)) + _CRC.pack(zlib.crc32(section)) + section
    return bytes(out)


def max_frame_bytes(layout: KvLayout) -> int:
    """Most bytes of a frame of one block."""
    num_numbers = 10 + 3 * len(layout.groups) + layout.block_tokens
    header_bytes = len(MAGIC) + num_numbers * varint.MAX_BYTES + 3 * MAX_NAME_BYTES
    return header_bytes + 2 * _CRC.size + max_section_bytes(layout)


def decode_frame(data: bytes | memoryview) -> KvFrame:
    """The frame with its header read and checked. Raises MalformedFrameError for everything that
    `encode_frame` cannot have made; sections are checked as they are decoded."""
    view = memoryview(data)
    if bytes(view[: len(MAGIC)]) != MAGIC:
        raise MalformedFrameError("this is no KV frame of a version that is known here")
    reader = _Reader(view, len(MAGIC))
    payload = reader.one_of(Payload, "payload")
    dtype = reader.one_of(KvDtype, "number format")
    block_tokens = reader.number(_MAX_SIZE)
    groups = tuple(
        PlaneGroup(reader.number(_MAX_SIZE), reader.number(_MAX_SIZE), reader.number(_MAX_SIZE))
        for _ in range(reader.number(MAX_GROUPS))
    )
    layout = KvLayout(dtype, block_tokens, groups)
    layout.check()
    fingerprint, digest, parent = reader.name(), reader.name(), reader.name()
    ids = reader.ids()
    told = reader.crc()
    if told != zlib.crc32(view[: reader.at - _CRC.size]):
        raise MalformedFrameError("a KV frame's header fails its checksum")
    if len(ids) % block_tokens:
        raise MalformedFrameError(f"{len(ids)} ids do not fill blocks of {block_tokens}")
    header = KvHeader(payload, layout, fingerprint, digest, parent, ids)
    return KvFrame(header, view, reader.at)


class _Reader:
    """Reads a frame from the front; every length is checked against the bytes left."""

    def __init__(self, data: memoryview, at: int) -> None:
        self._data = data
        self.at = at

    def number(self, most: int) -> int:
        """One LEB128."""
        end = self.at
        while end < min(len(self._data), self.at + varint.MAX_BYTES):
            end += 1
            if self._data[end - 1] < 0x80:
                break
        (value,) = varint.decode(bytes(self._data[self.at : end]), max_count=1) or [-1]
        if not 0 <= value <= most:
            raise MalformedFrameError(f"a KV frame has {value} where at most {most} may stand")
        self.at = end
        return value

    def one_of(self, known: type[_Kind], what: str) -> _Kind:
        """A number of an enumeration."""
        value = self.number(_MAX_KIND)
        try:
            return known(value)
        except ValueError:
            raise MalformedFrameError(f"a KV frame has the unknown {what} {value}") from None

    def take(self, num_bytes: int) -> memoryview:
        """The next bytes, not copied."""
        if num_bytes > len(self._data) - self.at:
            raise MalformedFrameError("a KV frame is cut short")
        self.at += num_bytes
        return self._data[self.at - num_bytes : self.at]

    def name(self) -> bytes:
        """A fingerprint, digest or hash."""
        return bytes(self.take(self.number(MAX_NAME_BYTES)))

    def ids(self) -> tuple[int, ...]:
        """Token ids behind their count and their length in bytes."""
        count = self.number(MAX_TOKENS)
        packed = bytes(self.take(self.number(count * varint.MAX_BYTES)))
        ids = varint.decode_array(packed, max_count=count)
        if len(ids) != count:
            raise MalformedFrameError(f"a KV frame announces {count} ids and holds {len(ids)}")
        return tuple(ids.tolist())

    def crc(self) -> int:
        """A checksum."""
        return int(_CRC.unpack(self.take(_CRC.size))[0])

    def section(self) -> memoryview:
        """The bytes of one block."""
        num_bytes = self.number(varint.MAX_VALUE)
        told = self.crc()
        data = self.take(num_bytes)
        if zlib.crc32(data) != told:
            raise MalformedFrameError("a block of a KV frame fails its checksum")
        return data
