"""Names and values of what is shared (pure).

A name tells nothing of the text to who cannot compute the keyed hash (BLAKE2b, RFC 7693), and a
value that somebody without the key wrote, or that belongs to another name, is not read. Names hold
the vocabulary's digest: a new vocabulary finds nothing of the old one, and needs no invalidation.
"""

from __future__ import annotations

import struct
from array import array
from hashlib import blake2b
from hmac import compare_digest
from typing import Final

import numpy as np

from outrider.codec import varint
from outrider.errors import MalformedFrameError

_PREFIX: Final = b"outrider:tokens:1:"
_HASH_BYTES: Final = 16
_COUNT: Final = struct.Struct("<I")


class Entries:
    """One vocabulary's."""

    def __init__(self, secret: str, digest: bytes, vocabulary_size: int) -> None:
        """`secret`: the same in all processes that share. Raises ValueError for an empty one."""
        if not secret:
            raise ValueError("entries need a secret")
        # Keys of BLAKE2b are bounded; a hash of the configured one is not too long for any.
        self._key = blake2b(secret.encode(), digest_size=32).digest()
        self._digest = digest
        self._size = vocabulary_size

    def name(self, text: str, scope: bytes, maker: str) -> bytes:
        """Of the ids of `text`, for those of `scope`, as the package `maker` gives them: what a
        package gave that is turned off by now is not asked for again."""
        hashed = blake2b(key=self._key, digest_size=_HASH_BYTES)
        for part in (scope, maker.encode()):
            hashed.update(_COUNT.pack(len(part)) + part)
        hashed.update(text.encode())
        return _PREFIX + self._digest[:8].hex().encode() + b":" + hashed.hexdigest().encode()

    def value(self, name: bytes, ids: array[int]) -> bytes:
        """What is kept under `name`: a keyed hash, the count, and LEB128 of each id."""
        packed = varint.encode_array(np.frombuffer(ids, dtype=np.uint32))
        body = _COUNT.pack(len(ids)) + packed
        return self._seal(name, body) + body

    def ids(self, name: bytes, value: bytes) -> array[int] | None:
        """The ids of a value that `value` made for this name; None for any other."""
        seal, body = value[:_HASH_BYTES], value[_HASH_BYTES:]
        if len(body) < _COUNT.size or not compare_digest(seal, self._seal(name, body)):
            return None
        (count,) = _COUNT.unpack_from(body)
        try:
            found = varint.decode_array(body[_COUNT.size :], max_count=count)
        except MalformedFrameError:
            return None
        if len(found) != count or int(found.max(initial=0)) >= self._size:
            return None
        return array("I", found.tobytes())

    def _seal(self, name: bytes, body: bytes) -> bytes:
        hashed = blake2b(self._digest + name, key=self._key, digest_size=_HASH_BYTES)
        hashed.update(body)
        return hashed.digest()
