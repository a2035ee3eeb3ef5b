"""Names and values of the shared cache's entries. Pure.

Anyone who can read or write the store without the key learns neither texts nor ids, and cannot make
a process accept an entry: a name is a keyed hash of the text (BLAKE2b, RFC 7693), a value is sealed
with AES-256-GCM-SIV (RFC 8452) for its name and vocabulary. The keys are derived from the secret by
HKDF-SHA256 (RFC 5869), others for every vocabulary. A nonce is a function of the name, so that two
processes that write the same ids write the same bytes; GCM-SIV is made for repeated nonces, which
reveal only whether the value under a name changed. Values are padded to powers of two, so that
their lengths reveal no more of a text than that.

What stays visible: which vocabulary an entry is of, how many entries exist, when each is read, and
the power of two.

Names include the vocabulary's digest: a new vocabulary finds nothing of the old one, and needs no
invalidation.
"""

from __future__ import annotations

import struct
from array import array
from hashlib import blake2b
from typing import Final

import numpy as np
from cryptography.exceptions import InvalidTag, UnsupportedAlgorithm
from cryptography.hazmat.primitives.ciphers.aead import AESGCMSIV
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from outrider.codec import varint
from outrider.errors import ConfigError, MalformedFrameError

MIN_VALUE_BYTES: Final = 256
"""Smallest size of encoded ids before they are sealed; shorter ones are padded to it."""
PREFIX: Final = b"outrider:tokens:2:"
_HASH_BYTES: Final = 16
_KEY_BYTES: Final = 32
_NONCE_BYTES: Final = 12
_TAG_BYTES: Final = 16
_COUNT: Final = struct.Struct("<I")


class Entries:
    """Makes and reads the entries of one vocabulary."""

    def __init__(self, secret: str, digest: bytes, vocabulary_size: int) -> None:
        """`secret`: the same in all processes that share the cache, and as hard to guess as a key,
        since a reader of the store can try secrets offline. Raises ValueError for an empty one, and
        ConfigError if the crypto library has no AES-GCM-SIV."""
        if not secret:
            raise ValueError("entries need a secret")
        self._digest = digest
        self._size = vocabulary_size
        self._name_key = _derived(secret, b"names", digest)
        self._nonce_key = _derived(secret, b"nonces", digest)
        try:
            self._cipher = AESGCMSIV(_derived(secret, b"values", digest))
        except UnsupportedAlgorithm as error:
            raise ConfigError(
                "tokenizers share ids sealed with AES-GCM-SIV, which needs OpenSSL 3.2 or newer: "
                "use the wheels of `cryptography`, or set no shared_cache.url"
            ) from error

    def name(self, text: str, scope: bytes, backend: str) -> bytes:
        """The name of the ids that `backend` gives for `text` in `scope`. The backend is part of it
        so that ids of a backend that has been turned off are not read again."""
        hashed = blake2b(key=self._name_key, digest_size=_HASH_BYTES)
        for part in (scope, backend.encode()):
            hashed.update(_COUNT.pack(len(part)) + part)
        hashed.update(text.encode())
        return PREFIX + self._digest[:8].hex().encode() + b":" + hashed.hexdigest().encode()

    def value(self, name: bytes, ids: array[int]) -> bytes:
        """The value under `name`: the count, LEB128 of each id, and zeros, sealed."""
        packed = varint.encode_array(np.frombuffer(ids, dtype=np.uint32))
        body = _COUNT.pack(len(ids)) + packed
        padded = body.ljust(_padded_bytes(len(body)), b"\0")
        return self._cipher.encrypt(self._nonce(name), padded, self._bound_to(name))

    def ids(self, name: bytes, value: bytes) -> array[int] | None:
        """The ids of a value that `value` made for this name; None for any other."""
        if len(value) < _COUNT.size + _TAG_BYTES:
            return None
        try:
            body = self._cipher.decrypt(self._nonce(name), value, self._bound_to(name))
        except InvalidTag:
            return None
        (count,) = _COUNT.unpack_from(body)
        try:
            found = varint.decode_array(_unpadded(body[_COUNT.size :], count), max_count=count)
        except MalformedFrameError:
            return None
        if len(found) != count or int(found.max(initial=0)) >= self._size:
            return None
        return array("I", found.tobytes())

    def _nonce(self, name: bytes) -> bytes:
        return blake2b(name, key=self._nonce_key, digest_size=_NONCE_BYTES).digest()

    def _bound_to(self, name: bytes) -> bytes:
        return self._digest + name


def _derived(secret: str, purpose: bytes, digest: bytes) -> bytes:
    info = b"outrider shared tokens " + purpose + b" " + digest
    return HKDF(SHA256(), _KEY_BYTES, salt=None, info=info).derive(secret.encode())


def _padded_bytes(num_bytes: int) -> int:
    return max(MIN_VALUE_BYTES, 1 << (num_bytes - 1).bit_length())


def _unpadded(packed: bytes, count: int) -> bytes:
    """The bytes of the first `count` numbers: each ends with a byte below 0x80."""
    ends = np.flatnonzero(np.frombuffer(packed, dtype=np.uint8) < 0x80)
    if count > len(ends):
        return packed
    return packed[: int(ends[count - 1]) + 1] if count else b""
