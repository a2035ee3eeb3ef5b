"""An issuer's public keys: a JWK set (RFC 7517), read from bytes of unknown origin (pure).

Only keys that can verify are accepted: public keys of at least 2,048 bits (RSA) or of a known
curve, for the algorithms that the edge allows. Shared secrets ("oct") are never accepted: anyone
who can read the set could sign with them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from jwt import PyJWK
from jwt.exceptions import PyJWTError

from outrider.errors import ConfigError
from outrider.models.strict_json import read_object

MAX_SET_BYTES: Final = 256 << 10
MAX_SET_KEYS: Final = 64
MAX_KID_CHARS: Final = 256
_RSA_BITS: Final = range(2048, 8193)
"""Larger ones take a noticeable time to verify."""
_RSA: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_BY_CURVE: Final[Mapping[tuple[str, str], tuple[str, ...]]] = {
    ("EC", "P-256"): ("ES256",),
    ("EC", "P-384"): ("ES384",),
    ("EC", "P-521"): ("ES512",),
    ("OKP", "Ed25519"): ("EdDSA",),
}
ALGORITHMS: Final = (*_RSA, *(name for names in _BY_CURVE.values() for name in names))
"""All that may be allowed: each verifies with a public key."""


@dataclass(frozen=True, slots=True)
class VerifyingKey:
    """A public key of the issuer."""

    kid: str
    """Empty: it has no name."""
    algorithms: frozenset[str]
    """Algorithms that it may verify."""
    key: Any
    """The key in the library's form."""


class KeySet:
    """The keys that an issuer signs with."""

    def __init__(self, keys: Collection[VerifyingKey] = ()) -> None:
        self._keys = tuple(keys)

    def __len__(self) -> int:
        return len(self._keys)

    def find(self, kid: str, algorithm: str) -> VerifyingKey | None:
        """The key of this name that verifies this algorithm; without a name the only one that
        does."""
        fitting = [key for key in self._keys if algorithm in key.algorithms]
        if not kid:
            return fitting[0] if len(fitting) == 1 else None
        return next((key for key in fitting if key.kid == kid), None)


def read_key_set(text: bytes, allowed: Collection[str]) -> KeySet:
    """The usable keys of a JWK set, for these algorithms. Raises ConfigError if the text is no JWK
    set or has no usable key."""
    if len(text) > MAX_SET_BYTES:
        raise ConfigError(f"a JWK set has at most {MAX_SET_BYTES} bytes, not {len(text)}")
    try:
        rows = read_object(text).get("keys")
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"this is no JWK set: {str(error)[:200]}") from error
    if not isinstance(rows, list) or len(rows) > MAX_SET_KEYS:
        raise ConfigError(f"a JWK set has a list `keys` of at most {MAX_SET_KEYS}")
    found = [key for row in rows if (key := _usable(row, allowed)) is not None]
    if not found:
        raise ConfigError(f"none of the {len(rows)} keys of the JWK set verifies what is allowed")
    return KeySet(found)


def _usable(row: object, allowed: Collection[str]) -> VerifyingKey | None:
    if not isinstance(row, dict) or row.get("use", "sig") != "sig":
        return None
    operations, kid = row.get("key_ops", ["verify"]), row.get("kid", "")
    if not isinstance(operations, list) or "verify" not in operations:
        return None
    if not isinstance(kid, str) or len(kid) > MAX_KID_CHARS:
        return None
    possible = _RSA if row.get("kty") == "RSA" else _of_curve(row)
    named = row.get("alg")
    usable = frozenset(
        name for name in possible if name in allowed and (named is None or named == name)
    )
    if not usable:
        return None
    public = {name: value for name, value in row.items() if name not in _PRIVATE}
    try:
        key = PyJWK(public, algorithm=min(usable)).key
    except (PyJWTError, ValueError, TypeError, KeyError):
        return None
    if row.get("kty") == "RSA" and getattr(key, "key_size", 0) not in _RSA_BITS:
        return None
    return VerifyingKey(kid, usable, key)


def _of_curve(row: Mapping[str, object]) -> tuple[str, ...]:
    return _BY_CURVE.get((str(row.get("kty")), str(row.get("crv"))), ())


_PRIVATE: Final = frozenset(("d", "p", "q", "dp", "dq", "qi", "oth", "k"))
"""Members of private keys: an issuer that shows them by mistake is read as if it did not."""
