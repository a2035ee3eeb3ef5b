"""A prompt as the prefix tree sees it: hashes of its blocks, computed no further than asked (pure).

Hashing is most of what a look-up costs, about a microsecond per block, and prompts share their
beginnings. So the hashes of whole pieces are kept a while under a digest of the piece.
"""

from __future__ import annotations

from hashlib import blake2b

from outrider.codec.block_hashes import HASH_BYTES, root_hash
from services.router.prefixes.recent import RecentMap

PIECE_BLOCKS = 16
"""Blocks whose hashes are remembered together."""
_ID_BYTES = 4


class HashMemo(RecentMap[bytes, tuple[bytes, ...]]):
    """Digest of a piece and of all before it -> the hashes of its blocks. About 1.2 KB each."""


class Prompt:
    """Token ids as little-endian u32, and the cache salt of who asks."""

    __slots__ = ("_chains", "_ids", "_memo", "_salt", "num_tokens")

    def __init__(self, ids: bytes, salt: bytes, memo: HashMemo) -> None:
        self._ids = ids
        self._salt = salt
        self._memo = memo
        self._chains: dict[int, BlockChain] = {}
        self.num_tokens = len(ids) // _ID_BYTES

    def chain(self, block_tokens: int) -> BlockChain:
        """Its blocks of this size."""
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
        """The hashes computed so far; `grow` makes it longer."""

    @property
    def root(self) -> bytes:
        """The parent of the first block."""
        return self._root

    def grow(self) -> None:
        """Compute the first block, later ones by the piece, or take a whole piece from memory. Not
        beyond `num_blocks`."""
        known, size = self.known, self._block_bytes
        first = len(known)
        parent = known[-1] if known else self._root
        if first % PIECE_BLOCKS == 0:
            piece = self._ids[first * size : (first + PIECE_BLOCKS) * size]
            self._piece = blake2b(parent + piece, digest_size=HASH_BYTES).digest()
            remembered = self._memo.get(self._piece)
            if remembered is not None:
                known += remembered
                return
        # The first block alone: of most prompts nobody has more.
        last = min((first // PIECE_BLOCKS + 1) * PIECE_BLOCKS, self.num_blocks) if first else 1
        ids, add = self._ids, known.append
        for begin in range(first * size, last * size, size):
            block = parent + ids[begin : begin + size]
            parent = blake2b(block, digest_size=HASH_BYTES).digest()
            add(parent)
        if last % PIECE_BLOCKS == 0:
            self._memo.put(self._piece, tuple(known[-PIECE_BLOCKS:]))

    def upto(self, num_blocks: int) -> list[bytes]:
        """The hashes of the first so many blocks, or of all there are."""
        wanted = min(num_blocks, self.num_blocks)
        while len(self.known) < wanted:
            self.grow()
        return self.known[:wanted]
