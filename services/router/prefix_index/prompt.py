"""A prompt as hashes of its blocks, computed only as far as a look-up needs them (pure).

Hashing is most of the cost of a look-up, about a microsecond per block, and prompts share their
beginnings. So the hashes of pieces of 16 blocks are kept under a digest of the piece.
"""

from __future__ import annotations

from hashlib import blake2b

import numpy as np

from outrider.codec import rank_classes, varint
from outrider.codec.block_hashes import HASH_BYTES, root_hash
from outrider.codec.ranks import RankTable
from outrider.codec.tokens import RANKED, TokenCodec
from outrider.errors import MalformedFrameError
from services.router.prefix_index.recent_map import RecentMap

PIECE_BLOCKS = 16
"""Number of blocks whose hashes are kept together."""
_ID_BYTES = 4
_SIZE_BYTES = 8
_new_hash = blake2b(digest_size=HASH_BYTES).copy
"""A copy costs a quarter less than a hash that is given its arguments."""


class HashMemo(RecentMap[bytes, tuple[bytes, ...]]):
    """Digest of a piece, all before it and the size of a block -> hashes of its blocks. About
    1.2 KB per entry."""


class HashedPrompt:
    """Token ids as little-endian u32, and the cache salt of the session."""

    __slots__ = ("_chains", "_ids", "_memo", "_salt", "num_tokens")

    def __init__(self, ids: bytes, salt: bytes, memo: HashMemo) -> None:
        self._ids = ids
        self._salt = salt
        self._memo = memo
        self._chains: dict[int, BlockChain] = {}
        self.num_tokens = len(ids) // _ID_BYTES

    @property
    def ids(self) -> bytes:
        """Its ids, as they were given."""
        return self._ids

    def chain(self, block_tokens: int) -> BlockChain:
        """Hashes of its blocks of this size."""
        found = self._chains.get(block_tokens)
        if found is None:
            root = root_hash(self._salt)
            found = BlockChain(self._ids, root, block_tokens * _ID_BYTES, self._memo)
            self._chains[block_tokens] = found
        return found


class BlockChain:
    """Hashes of a prompt's full blocks, first block first (outrider.codec.block_hashes)."""

    __slots__ = ("_block_bytes", "_ids", "_memo", "_piece", "_root", "known", "num_blocks")

    def __init__(self, ids: bytes, root: bytes, block_bytes: int, memo: HashMemo) -> None:
        self._ids = ids
        self._root = root
        self._block_bytes = block_bytes
        self._memo = memo
        self._piece = b""
        self.num_blocks = len(ids) // block_bytes
        self.known: list[bytes] = []
        """The hashes computed so far; `grow` adds to it."""

    @property
    def root(self) -> bytes:
        """The parent of the first block."""
        return self._root

    def grow(self) -> None:
        """Compute the first block, or the rest of the current piece, or take a whole piece from the
        memo. Not beyond `num_blocks`."""
        known = self.known
        size = self._block_bytes
        first = len(known)
        parent = known[-1] if known else self._root
        if first % PIECE_BLOCKS == 0:
            piece = self._ids[first * size : (first + PIECE_BLOCKS) * size]
            digest = _new_hash()
            # With the size: the same ids have other hashes in blocks of another one.
            digest.update(size.to_bytes(_SIZE_BYTES) + parent + piece)
            self._piece = digest.digest()
            remembered = self._memo.get(self._piece)
            if remembered is not None:
                known += remembered
                return
        # The first block alone: of most prompts no replica has more.
        last = min((first // PIECE_BLOCKS + 1) * PIECE_BLOCKS, self.num_blocks) if first else 1
        ids = self._ids
        add = known.append
        for begin in range(first * size, last * size, size):
            block = _new_hash()
            block.update(parent + ids[begin : begin + size])
            parent = block.digest()
            add(parent)
        if last % PIECE_BLOCKS == 0:
            self._memo.put(self._piece, tuple(known[-PIECE_BLOCKS:]))

    def upto(self, num_blocks: int) -> list[bytes]:
        """The hashes of the first `num_blocks` blocks, or of all if the prompt has fewer."""
        wanted = min(num_blocks, self.num_blocks)
        while len(self.known) < wanted:
            self.grow()
        return self.known[:wanted]


class TokenIdReader:
    """Reads token blocks of the replicas' vocabularies.

    A router has no vocabulary and does not check blocks, which is the replica's task: ids that are
    read wrongly are only not found in any cache.
    """

    def __init__(self) -> None:
        self._tables: dict[bytes, RankTable] = {}

    def add_table(self, vocabulary_digest: bytes, table: RankTable | None) -> None:
        """Add the rank table of a replica's vocabulary, if it has one."""
        if table is not None:
            self._tables[vocabulary_digest] = table

    def reads(self, codec: int, vocabulary_digest: bytes) -> bool:
        """Whether it can read blocks of this codec."""
        if codec in RANKED:
            return vocabulary_digest in self._tables
        return codec in (TokenCodec.VARINT, TokenCodec.U16)

    def read(self, codec: int, count: int, payload: bytes, vocabulary_digest: bytes) -> bytes:
        """The `count` ids as little-endian u32; b"" if they cannot be read."""
        if codec == TokenCodec.U16:
            whole = payload[: len(payload) // 2 * 2]
            return np.frombuffer(whole, dtype="<u2").astype("<u4").tobytes()
        try:
            if codec == TokenCodec.RANK_CLASSES:
                values = rank_classes.decode(payload, count)
            else:
                values = varint.decode_array(payload, max_count=count)
        except MalformedFrameError:
            return b""  # the replica will refuse it
        if codec == TokenCodec.VARINT:
            return values.astype("<u4").tobytes()
        table = self._tables.get(vocabulary_digest) if codec in RANKED else None
        if table is None or (len(values) and int(values.max()) >= table.vocabulary_size):
            return b""
        return table.to_id[values].astype("<u4").tobytes()

    def write(self, codec: int, ids: bytes, vocabulary_digest: bytes) -> bytes:
        """Encode ids that `read` returned, in a codec in which it has read some; the inverse of
        `read`."""
        values = np.frombuffer(ids, dtype="<u4")
        if codec == TokenCodec.U16:
            return values.astype("<u2").tobytes()
        if codec in RANKED:
            values = self._tables[vocabulary_digest].to_rank[values]
        if codec == TokenCodec.RANK_CLASSES:
            return rank_classes.encode(values)
        return varint.encode_array(values)
