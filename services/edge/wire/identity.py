"""Whose chats these are, as the region is told."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from hashlib import blake2b

_SALT_BYTES = 16


@dataclass(frozen=True, slots=True)
class Identity:
    """A tenant. Replicas reuse the KV of prompts between sessions of equal salts alone, so that
    nobody can tell from his own time to the first token what others have asked."""

    tenant: str = ""
    """Empty: anonymous, in common with all others who are."""
    cache_salt: bytes = b""


NOBODY = Identity()


class Identities:
    """Derives salts: a keyed hash (BLAKE2b, RFC 7693), so that who knows a tenant's name, but not
    the key, cannot compute the names of its cached blocks."""

    def __init__(self, key: str = "") -> None:
        """Edges of one key share a tenant's cached prefixes; empty: a key of this process alone."""
        secret = key.encode() if key else secrets.token_bytes(32)
        # Keys of BLAKE2b are bounded; a hash of the configured one is not too long for any.
        self._key = blake2b(secret, digest_size=32).digest()

    def of(self, tenant: str) -> Identity:
        """The tenant of this name; the empty one has no salt."""
        if not tenant:
            return NOBODY
        salt = blake2b(tenant.encode(), key=self._key, digest_size=_SALT_BYTES).digest()
        return Identity(tenant, salt)

    def alone(self, tenant: str) -> Identity:
        """The tenant of this name for one chat, which shares its cache with no other."""
        return Identity(tenant, secrets.token_bytes(_SALT_BYTES))
