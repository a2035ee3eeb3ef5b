"""Token ids out of a token block, as the bytes that block hashes are made of (pure).

A router has no vocabulary and need not check a block, which is the replica's to refuse: ids that
are read wrongly only find nothing cached.
"""

from __future__ import annotations

import numpy as np

from outrider.codec import varint
from outrider.codec.ranks import RankTable
from outrider.codec.tokens import TokenCodec
from outrider.errors import MalformedFrameError


class IdReader:
    """Reads blocks of the vocabularies that the fleet's replicas have."""

    def __init__(self) -> None:
        self._tables: dict[bytes, RankTable] = {}

    def learn(self, table: RankTable | None) -> None:
        """A replica's vocabulary has this rank table, or none."""
        if table is not None:
            self._tables[table.vocabulary_digest] = table

    def read(self, codec: int, count: int, payload: bytes, vocabulary_digest: bytes) -> bytes:
        """The `count` ids as little-endian u32; b"" if they cannot be read."""
        if codec == TokenCodec.U16:
            whole = payload[: len(payload) // 2 * 2]
            return np.frombuffer(whole, dtype="<u2").astype("<u4").tobytes()
        try:
            values = varint.decode_array(payload, max_count=count)
        except MalformedFrameError:
            return b""  # the replica answers it with its own error
        if codec == TokenCodec.VARINT:
            return values.astype("<u4").tobytes()
        table = self._tables.get(vocabulary_digest) if codec == TokenCodec.RANK_VARINT else None
        if table is None or (len(values) and int(values.max()) >= table.vocabulary_size):
            return b""
        return table.to_id[values].astype("<u4").tobytes()
