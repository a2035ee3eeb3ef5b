"""Rank tables: frequent token ids first, so that their LEB128 is one byte.

A table is bound to the digest of a vocabulary's tokens and has a version; codec RANK_VARINT means
version 1. A published table never changes: a better one gets a new version and a new codec number,
because a peer may hold the old one. (A wrong table would be caught by the token block's checksum.)
`tools/make_rank_table.py` makes the tables and documents their source.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from outrider.errors import ArtifactCorruptError

U32: TypeAlias = npt.NDArray[np.uint32]

_MAGIC: Final = b"ORRT"
_HEADER: Final = struct.Struct("<4sH32sII")
_CRC: Final = struct.Struct("<I")


class RankTable:
    """A permutation of the ids 0 .. vocabulary_size - 1: the `top` ids first, then the rest in
    id order. Immutable."""

    def __init__(
        self, tokens_digest: bytes, vocabulary_size: int, top: Sequence[int], version: int = 1
    ) -> None:
        """`top`: distinct ids, most frequent first. Raises ValueError if they are not."""
        ids = np.asarray(top, dtype=np.uint32)
        if len(np.unique(ids)) != len(ids) or (len(ids) and int(ids.max()) >= vocabulary_size):
            raise ValueError("the top ids of a rank table are not distinct ids of its vocabulary")
        rest = np.setdiff1d(np.arange(vocabulary_size, dtype=np.uint32), ids)
        self.tokens_digest = bytes(tokens_digest)
        self.vocabulary_size = vocabulary_size
        self.version = version
        self.num_top = len(ids)
        self.to_id: U32 = np.concatenate((ids, rest)).astype(np.uint32)
        """[vocabulary_size] the id of each rank."""
        self.to_rank: U32 = np.empty(vocabulary_size, dtype=np.uint32)
        """[vocabulary_size] the rank of each id."""
        self.to_rank[self.to_id] = np.arange(vocabulary_size, dtype=np.uint32)
        self.to_id.flags.writeable = self.to_rank.flags.writeable = False

    def to_bytes(self) -> bytes:
        """The file form: header, top ids (u16 while ids fit, else u32), CRC-32 of all before."""
        header = _HEADER.pack(
            _MAGIC, self.version, self.tokens_digest, self.vocabulary_size, self.num_top
        )
        body = header + self.to_id[: self.num_top].astype(_id_type(self.vocabulary_size)).tobytes()
        return body + _CRC.pack(zlib.crc32(body))

    @classmethod
    def from_bytes(cls, data: bytes) -> RankTable:
        """Reads the file form. Raises ArtifactCorruptError."""
        try:
            body, crc = data[: -_CRC.size], data[-_CRC.size :]
            if zlib.crc32(body) != _CRC.unpack(crc)[0]:
                raise ValueError("checksum")
            magic, version, digest, size, num_top = _HEADER.unpack_from(body)
            top = np.frombuffer(body, dtype=_id_type(size), offset=_HEADER.size)
            if magic != _MAGIC or len(top) != num_top:
                raise ValueError("header")
            return cls(digest, size, top.tolist(), version)
        except (ValueError, struct.error) as error:
            raise ArtifactCorruptError(
                f"a rank table is damaged ({error}); install the package again"
            ) from error


def _id_type(vocabulary_size: int) -> npt.DTypeLike:
    return np.dtype("<u2") if vocabulary_size <= 1 << 16 else np.dtype("<u4")
