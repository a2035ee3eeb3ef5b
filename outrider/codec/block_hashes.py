"""Names of KV blocks: a hash per block that stands for all ids up to its end.

A block's hash is BLAKE2b-128 (RFC 7693) over its parent's hash and its own ids as little-endian
u32; the first block's parent is the root, BLAKE2b-128 over the cache salt. So equal hashes mean
equal prefixes of one trust group, and without the salt nobody can find out what is cached. Replica
and router compute the same hashes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from hashlib import blake2b

HASH_BYTES = 16
_INEXACT = b"inexact KV"
"""Sets salts of inexact KV apart (personalization of BLAKE2b)."""


def root_hash(salt: bytes) -> bytes:
    """The parent of all first blocks under this cache salt."""
    return blake2b(salt, digest_size=HASH_BYTES).digest()


def inexact_salt(salt: bytes) -> bytes:
    """The cache salt of sessions of the same trust group that may use inexact KV: neither kind ever
    finds blocks of the other. Empty for an empty one: such a session shares nothing."""
    return blake2b(salt, digest_size=HASH_BYTES, person=_INEXACT).digest() if salt else b""


def block_hash(parent: bytes, ids: Sequence[int]) -> bytes:
    """The hash of a block with these ids (0 .. 2^32 - 1) behind `parent`."""
    return blake2b(parent + struct.pack(f"<{len(ids)}I", *ids), digest_size=HASH_BYTES).digest()


def block_hashes(ids: Sequence[int], block_tokens: int, salt: bytes) -> Iterator[bytes]:
    """Hashes of the full blocks of `ids`, first block first, each computed when asked for."""
    parent = root_hash(salt)
    for begin in range(0, len(ids) - block_tokens + 1, block_tokens):
        parent = block_hash(parent, ids[begin : begin + block_tokens])
        yield parent
