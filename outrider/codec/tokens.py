"""Token blocks: token ids in transit, tagged with their layout, counted and checksummed.

Four layouts (protos/outrider/v1/common.proto): LEB128 of frequency ranks, ranks in classes (for
many), LEB128 of ids, and little-endian 16-bit ids. The checksum is CRC-32 over the ids as
little-endian u32, seeded with the CRC-32 of the vocabulary digest, so a wrong table, a wrong
vocabulary or a flipped bit is refused and never decoded to other ids.

A block of a few ids takes a plain Python path, a long one numpy.

Commits and drafts are too short for a header and a checksum: they carry only LEB128, of ids or
ranks (`TokenCoder.pack` and `unpack`, `number` and `token`), and a running checksum covers a reply.
"""

from __future__ import annotations

import struct
import sys
import zlib
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np

from outrider.codec import rank_classes, varint
from outrider.codec.ranks import RankTable
from outrider.codec.varint import U32
from outrider.errors import BadTokenBlockError, MalformedFrameError

_LONG_ENCODE: Final = 768
_LONG_DECODE: Final = 96
"""Number of ids from which numpy is faster than a loop, as measured."""
_U16_VOCABULARY: Final = 1 << 16
MIN_CLASSES: Final = 96
"""Number of ids from which RANK_CLASSES is written: fewer take as long as this many, above 1 us
each."""


class TokenCodec(IntEnum):
    """Layouts, by their numbers on the wire."""

    RANK_VARINT = 1
    VARINT = 2
    U16 = 3
    RANK_CLASSES = 60


RANKED: Final = frozenset({TokenCodec.RANK_VARINT, TokenCodec.RANK_CLASSES})
"""Layouts that need a rank table."""


@dataclass(frozen=True, slots=True)
class Block:
    """One token block as it travels. Nothing in it is trusted before `TokenCoder.decode`."""

    codec: int
    """A TokenCodec number, or one that this version does not know."""
    count: int
    """Number of ids."""
    checksum: int | None
    """None if the ids are checked together with those of other messages."""
    payload: bytes


def negotiate(offered: Iterable[int], supported: Sequence[TokenCodec]) -> TokenCodec:
    """The first codec of a peer's `offered` list (best first) that this side writes.

    An empty offer means VARINT, which every peer reads. Raises BadTokenBlockError when nothing
    is common.
    """
    wanted = list(offered)
    if not wanted:
        return TokenCodec.VARINT
    for codec in wanted:
        if codec in supported:
            return TokenCodec(codec)
    raise BadTokenBlockError(
        f"no common token codec: the peer reads {wanted}, this side writes "
        f"{[int(codec) for codec in supported]}; offer VARINT ({int(TokenCodec.VARINT)})"
    )


class TokenCoder:
    """Writes and reads the token blocks of one vocabulary. Thread-safe."""

    def __init__(
        self, vocabulary_digest: bytes, vocabulary_size: int, ranks: RankTable | None = None
    ) -> None:
        """`ranks` enables RANK_VARINT and RANK_CLASSES: the table of this vocabulary's tokens.
        Raises ValueError if it is of another size; any other wrong table fails the blocks'
        checksums."""
        if ranks is not None and ranks.vocabulary_size != vocabulary_size:
            raise ValueError("the rank table is bound to a vocabulary of another size")
        self._size = vocabulary_size
        self._seed = zlib.crc32(vocabulary_digest)
        self._ranks = ranks
        self._max_varint_bytes = varint.encoded_length(max(vocabulary_size - 1, 0))
        self.supported = self._codecs()
        """Codecs this coder reads and writes, best first."""
        # Built now, not at first use: it takes some 10 ms that no event loop should meet.
        self._id_pieces = [varint.encode(i) for i in range(vocabulary_size)]
        to_rank = [] if ranks is None else ranks.to_rank.tolist()
        self._ranks_by_id: list[int] = to_rank
        self._rank_pieces = [self._id_pieces[rank] for rank in to_rank]
        self._ids_by_rank: list[int] = [] if ranks is None else ranks.to_id.tolist()

    def _codecs(self) -> tuple[TokenCodec, ...]:
        rank: tuple[TokenCodec, ...] = ()
        if self._ranks is not None:
            has_classes = self._size <= rank_classes.MAX_RANKS
            classes = (TokenCodec.RANK_CLASSES,) if has_classes else ()
            rank = (*classes, TokenCodec.RANK_VARINT)
        u16 = (TokenCodec.U16,) if self._size <= _U16_VOCABULARY else ()
        return (*rank, TokenCodec.VARINT, *u16)

    def encode(self, ids: Sequence[int], codec: TokenCodec | None = None) -> Block:
        """The block of `ids`; the best supported codec if none is given. Few ids are RANK_VARINT
        where the codec is RANK_CLASSES.

        Raises BadTokenBlockError for an unsupported codec or an id outside the vocabulary.
        """
        chosen = self.supported[0] if codec is None else codec
        self._require(chosen)
        if chosen == TokenCodec.RANK_CLASSES and len(ids) < MIN_CLASSES:
            chosen = TokenCodec.RANK_VARINT
        try:
            raw = _as_bytes(ids)
            payload = self._pack(ids, raw, chosen)
        except (IndexError, struct.error) as error:
            raise self._outside() from error
        return Block(chosen, len(ids), zlib.crc32(raw, self._seed), payload)

    def checksum(self, ids: Sequence[int], before: int | None = None) -> int:
        """CRC-32 of ids; `before` is the checksum of the ids in front of them."""
        raw = ids[0].to_bytes(4, "little") if len(ids) == 1 else _as_bytes(ids)
        return zlib.crc32(raw, self._seed if before is None else before)

    def number(self, token: int, codec: TokenCodec) -> int:
        """A single token's value in a codec: its rank if the codec has ranks, else its id. Raises
        BadTokenBlockError for one outside the vocabulary."""
        if not 0 <= token < self._size:
            raise self._outside()
        return self._ranks_by_id[token] if codec in RANKED else token

    def number_bytes(self, token: int, codec: TokenCodec) -> bytes:
        """The LEB128 of `number`. Raises BadTokenBlockError."""
        if not 0 <= token < self._size:
            raise self._outside()
        return self._rank_pieces[token] if codec in RANKED else self._id_pieces[token]

    def token(self, number: int, codec: TokenCodec) -> int:
        """The token of `number`. Raises BadTokenBlockError."""
        self._require(codec)
        if number >= self._size:
            raise self._outside()
        return self._ids_by_rank[number] if codec == TokenCodec.RANK_VARINT else number

    def pack(self, ids: Sequence[int], codec: TokenCodec) -> bytes:
        """Their LEB128 in a row: of ranks with RANK_VARINT, else of ids. Raises
        BadTokenBlockError."""
        pieces = self._rank_pieces if codec == TokenCodec.RANK_VARINT else self._id_pieces
        if ids and not 0 <= min(ids) <= max(ids) < self._size:
            raise self._outside()
        return b"".join([pieces[i] for i in ids])

    def unpack(self, payload: bytes, codec: TokenCodec, *, max_count: int) -> tuple[int, ...]:
        """The ids from which `pack` made `payload`. Raises BadTokenBlockError."""
        self._require(codec)
        table = self._ids_by_rank if codec == TokenCodec.RANK_VARINT else range(self._size)
        try:
            return tuple([table[value] for value in varint.decode(payload, max_count=max_count)])
        except MalformedFrameError as error:
            raise _damaged(error) from error
        except IndexError as error:
            raise self._outside() from error

    def decode(
        self, block: Block, *, max_count: int, needs_checksum: bool = True
    ) -> tuple[int, ...]:
        """The ids of `block`.

        Counts and lengths are checked before anything is decoded. Raises BadTokenBlockError for
        everything that `encode` cannot have made for this vocabulary, and above `max_count` ids.
        A block without a checksum is one of these, unless it needs none.
        """
        if block.checksum is None and needs_checksum:
            raise BadTokenBlockError("a token block has no checksum; send it with one")
        if block.count >= _LONG_DECODE or block.codec == TokenCodec.RANK_CLASSES:
            return tuple(self.decode_array(block, max_count=max_count).tolist())
        self._check(block, max_count)
        try:
            ids = self._unpack(block)
        except MalformedFrameError as error:
            raise _damaged(error) from error
        except IndexError as error:
            raise self._outside() from error
        self._check_decoded(block, len(ids), struct.pack(f"<{len(ids)}I", *ids))
        return ids

    def decode_array(self, block: Block, *, max_count: int) -> U32:
        """Like `decode`, for long blocks: [count] ids. Releases the GIL for most of its time. A
        missing checksum is accepted."""
        self._check(block, max_count)
        try:
            ids = self._unpack_array(block)
        except MalformedFrameError as error:
            raise _damaged(error) from error
        self._check_decoded(block, len(ids), ids.astype("<u4", copy=False).tobytes())
        return ids

    def _check(self, block: Block, max_count: int) -> None:
        self._require(block.codec)
        count = block.count
        num_bytes = len(block.payload)
        if not 0 <= count <= max_count:
            raise BadTokenBlockError(
                f"a token block of {count} ids where at most {max_count} may stand"
            )
        if block.codec == TokenCodec.RANK_CLASSES:
            if count < MIN_CLASSES:
                raise BadTokenBlockError(
                    f"a token block of {count} ids is in classes, which begin at {MIN_CLASSES}; "
                    "send RANK_VARINT"
                )
            shortest, longest = rank_classes.encoded_bounds(count)
        elif block.codec == TokenCodec.U16:
            shortest = longest = 2 * count
        else:
            shortest, longest = count, self._max_varint_bytes * count
        if not shortest <= num_bytes <= longest:
            raise BadTokenBlockError(f"a token block of {count} ids cannot have {num_bytes} bytes")

    def _check_decoded(self, block: Block, count: int, raw: bytes) -> None:
        if count != block.count:
            raise BadTokenBlockError(f"a token block announces {block.count} ids and holds {count}")
        if block.checksum is not None and zlib.crc32(raw, self._seed) != block.checksum:
            raise BadTokenBlockError(
                "a token block fails its checksum; the peers' vocabularies or rank tables differ, "
                "or bytes were changed"
            )

    def _pack(self, ids: Sequence[int], raw: bytes, codec: TokenCodec) -> bytes:
        is_short = len(ids) < _LONG_ENCODE and codec in (TokenCodec.VARINT, TokenCodec.RANK_VARINT)
        if is_short:
            pieces = self._id_pieces if codec == TokenCodec.VARINT else self._rank_pieces
            return b"".join([pieces[i] for i in ids])
        values = np.frombuffer(raw, dtype="<u4")
        if int(values.max(initial=0)) >= self._size:
            raise IndexError
        if codec == TokenCodec.U16:
            return values.astype("<u2").tobytes()
        if self._ranks is not None and codec in RANKED:
            values = self._ranks.to_rank[values]
        if codec == TokenCodec.RANK_CLASSES:
            return rank_classes.encode(values)
        return varint.encode_array(values)

    def _unpack(self, block: Block) -> tuple[int, ...]:
        count = block.count
        payload = block.payload
        if block.codec == TokenCodec.U16:
            ids = struct.unpack(f"<{count}H", payload)
            if ids and max(ids) >= self._size:
                raise IndexError
            return ids
        table = self._ids_by_rank if block.codec == TokenCodec.RANK_VARINT else range(self._size)
        return tuple([table[value] for value in varint.decode(payload, max_count=count)])

    def _unpack_array(self, block: Block) -> U32:
        if block.codec == TokenCodec.U16:
            values = np.frombuffer(block.payload, dtype="<u2").astype(np.uint32)
        elif block.codec == TokenCodec.RANK_CLASSES:
            values = rank_classes.decode(block.payload, block.count)
        else:
            values = varint.decode_array(block.payload, max_count=block.count)
        if int(values.max(initial=0)) >= self._size:
            raise self._outside()
        if self._ranks is not None and block.codec in RANKED:
            return self._ranks.to_id[values]
        return values

    def _require(self, codec: int) -> None:
        if codec not in self.supported:
            raise BadTokenBlockError(
                f"token codec {int(codec)} is not one of {[int(known) for known in self.supported]}"
            )

    def _outside(self) -> BadTokenBlockError:
        return BadTokenBlockError(f"a token id is outside the vocabulary of {self._size} ids")


def _as_bytes(ids: Sequence[int]) -> bytes:
    """Little-endian u32. An array has them already: packing 100,000 ids would hold the GIL for
    milliseconds."""
    if isinstance(ids, array) and ids.itemsize == 4 and sys.byteorder == "little":
        return ids.tobytes()
    return struct.pack(f"<{len(ids)}I", *ids)


def ids_checksum(vocabulary_digest: bytes, ids: Sequence[int]) -> int:
    """Like TokenCoder.checksum, for ids known to be of this vocabulary."""
    return zlib.crc32(_as_bytes(ids), zlib.crc32(vocabulary_digest))


def _damaged(error: MalformedFrameError) -> BadTokenBlockError:
    return BadTokenBlockError(f"a token block is damaged: {error.message}")
