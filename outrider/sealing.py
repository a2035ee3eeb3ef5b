"""Seals values that services keep in a Redis, each for its name (AES-256-GCM, NIST SP 800-38D).

Whoever can read or write the Redis without the operator's secret learns no value, and cannot make a
service take one that was not sealed for that name. Keys are derived by HKDF-SHA256 (RFC 5869).
"""

from __future__ import annotations

import os
from hashlib import blake2b
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

_KEY_BYTES: Final = 32
_NONCE_BYTES: Final = 12
SEAL_BYTES: Final = _NONCE_BYTES + 16
"""Bytes that a seal adds to a value: the nonce and GCM's tag."""


class Seal:
    """Seals and opens the values of one purpose, and hashes what their names are made of. Nonces
    are random: one key is for far fewer than 2^32 values. Thread-safe."""

    def __init__(self, secret: str, purpose: bytes, context: bytes = b"") -> None:
        """`secret`: the same in all services that share the values, and as hard to guess as a key.
        `purpose` and `context`: values of others are not opened. Raises ValueError for an empty
        secret."""
        if not secret:
            raise ValueError("entries need a secret")
        self._name_key = _derived(secret, purpose + b" names " + context)
        self._cipher = AESGCM(_derived(secret, purpose + b" values " + context))

    def hashed(self, data: bytes, num_bytes: int) -> bytes:
        """A keyed hash (BLAKE2b, RFC 7693) of so many bytes, as hexadecimal digits."""
        return blake2b(data, key=self._name_key, digest_size=num_bytes).hexdigest().encode()

    def seal(self, name: bytes, value: bytes) -> bytes:
        """The sealed value, which opens under this name alone."""
        nonce = os.urandom(_NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, value, name)

    def open(self, name: bytes, sealed: bytes) -> bytes | None:
        """The value; None for anything that `seal` did not make for this name."""
        try:
            return self._cipher.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], name)
        except (InvalidTag, ValueError):
            return None


def _derived(secret: str, info: bytes) -> bytes:
    return HKDF(SHA256(), _KEY_BYTES, salt=None, info=b"outrider " + info).derive(secret.encode())
