"""JSON Web Tokens (RFC 7519) of an issuer that the edge trusts (pure).

Nothing of a token is parsed before its length and its characters are checked, and only its header
before its signature is. The header chooses among the issuer's keys, never how to verify: algorithms
are pinned and include neither `none` nor those of shared secrets, and keys in a header (jwk, jku,
x5c, x5u) are ignored.

A valid token is cached until it expires, so that a chat does not verify a signature twice.
"""

from __future__ import annotations

import math
from base64 import urlsafe_b64decode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from re import compile as pattern
from typing import Any, Final

from jwt import PyJWS
from jwt.exceptions import PyJWTError

from outrider.access.api_keys import MAX_NAME_CHARS, Scope
from outrider.errors import UnauthenticatedError
from outrider.lru_map import LruMap
from outrider.models.strict_json import read_object
from services.edge.access.identity import MAX_USER_CHARS, TokenClaims
from services.edge.access.key_set import MAX_KID_CHARS, KeySet

MAX_TOKEN_CHARS: Final = 8192
_MAX_HEADER_CHARS: Final = 1024
_MAX_AUDIENCES: Final = 64
_MAX_REMEMBERED: Final = 4096
_REMEMBERED_S: Final = 300.0
"""How long a token without expiry is cached."""
_UNKNOWN_KEY_RETRY_MS: Final = 1000
_FORM: Final = pattern(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")
TIMES: Final = ("exp", "nbf", "iat")


@dataclass(frozen=True, slots=True)
class TokenPolicy:
    """Which tokens are valid, and how their claims are read."""

    issuer: str
    audience: str
    algorithms: frozenset[str]
    required: frozenset[str] = frozenset({"exp"})
    """Claims that a token has to have."""
    clock_skew_s: float = 30.0
    """How far the issuer's clock may be from this one."""
    tenant: str = ""
    """Tenant of all tokens; empty: named by the claim."""
    tenant_claim: str = "tenant"
    user_claim: str = "sub"
    """Empty: tokens are of no user in particular."""
    scope_claim: str = "scope"
    scopes: frozenset[Scope] = frozenset()
    """Scopes of tokens without that claim."""


@dataclass(frozen=True, slots=True)
class _Remembered:
    claims: TokenClaims
    until: float


class TokenVerifier:
    """Checks tokens. Times in seconds since 1970."""

    def __init__(self, policy: TokenPolicy, want_keys: Callable[[], None]) -> None:
        """`want_keys` is called when a token names a key that is not known: the issuer may have a
        new one. It returns at once."""
        self._policy = policy
        self._want_keys = want_keys
        self._keys = KeySet()
        self._good: LruMap[bytes, _Remembered] = LruMap(_MAX_REMEMBERED)
        """By SHA-256 of the token."""
        self._jws = PyJWS(algorithms=sorted(policy.algorithms))
        self.num_verified = 0
        """Signatures."""

    @property
    def num_remembered(self) -> int:
        """Good tokens that are not verified again."""
        return len(self._good)

    def set_keys(self, keys: KeySet) -> None:
        """Replace the issuer's keys. All tokens are verified anew."""
        self._keys = keys
        self._good.clear()

    def check(self, token: str, now: float) -> TokenClaims:
        """The claims of a token. Raises UnauthenticatedError."""
        if len(token) > MAX_TOKEN_CHARS or _FORM.fullmatch(token) is None:
            raise UnauthenticatedError(_BAD)
        name = sha256(token.encode()).digest()
        known = self._good.get(name)
        if known is not None and now < known.until:
            return known.claims
        claims = self._verified(token)
        until = check_times(claims, self._policy, now)
        check_origin(claims, self._policy)
        read = read_claims(claims, self._policy)
        self._good.put(name, _Remembered(read, until))
        return read

    def _verified(self, token: str) -> dict[str, Any]:
        """The token's claims. Raises UnauthenticatedError unless the issuer signed it."""
        kid, algorithm = read_header(token.partition(".")[0], self._policy)
        key = self._keys.find(kid, algorithm)
        if key is None:
            self._want_keys()
            raise UnauthenticatedError(
                "the key that the token was signed with is not known yet; try again, or get a new "
                "token",
                retry_delay_ms=_UNKNOWN_KEY_RETRY_MS,
            )
        self.num_verified += 1
        try:
            payload = self._jws.decode(token, key.key, algorithms=[algorithm])
            return read_object(payload)
        except (PyJWTError, ValueError, TypeError, RecursionError):
            raise UnauthenticatedError(_BAD) from None


_BAD: Final = "the token is not valid here; check it, or get a new one"
"""Alike for a wrong form, algorithm and signature."""


def read_header(encoded: str, policy: TokenPolicy) -> tuple[str, str]:
    """The name of the key, "" for none, and the algorithm. Raises UnauthenticatedError."""
    if len(encoded) > _MAX_HEADER_CHARS:
        raise UnauthenticatedError(_BAD)
    try:
        header = read_object(urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)))
    except (ValueError, RecursionError):
        raise UnauthenticatedError(_BAD) from None
    kid, algorithm = header.get("kid", ""), header.get("alg")
    # What is critical has to be understood, and nothing of the kind is (RFC 7515, section 4.1.11).
    if not isinstance(kid, str) or len(kid) > MAX_KID_CHARS or "crit" in header:
        raise UnauthenticatedError(_BAD)
    if not isinstance(algorithm, str) or algorithm not in policy.algorithms:
        raise UnauthenticatedError(_BAD)
    return kid, algorithm


def check_times(claims: Mapping[str, Any], policy: TokenPolicy, now: float) -> float:
    """Until when the token is good. Raises UnauthenticatedError."""
    for name in sorted(policy.required - claims.keys()):
        raise UnauthenticatedError(f"the token has no {name}, which is required here")
    times = {name: _seconds(claims[name]) for name in TIMES if name in claims}
    skew = policy.clock_skew_s
    for name in ("nbf", "iat"):
        if name in times and now < times[name] - skew:
            raise UnauthenticatedError(
                "the token is not valid yet; check the clocks of issuer and edge"
            )
    if "exp" not in times:
        return now + _REMEMBERED_S
    until = times["exp"] + skew
    if now >= until:
        raise UnauthenticatedError("the token has expired; get a new one")
    return until


def check_origin(claims: Mapping[str, Any], policy: TokenPolicy) -> None:
    """Raises UnauthenticatedError unless it is from the issuer, for this audience."""
    audience = claims.get("aud")
    audiences = audience if isinstance(audience, list) else [audience]
    if claims.get("iss") != policy.issuer:
        raise UnauthenticatedError("the token is of another issuer")
    if len(audiences) > _MAX_AUDIENCES or policy.audience not in audiences:
        raise UnauthenticatedError("the token is for another audience")


def read_claims(claims: Mapping[str, Any], policy: TokenPolicy) -> TokenClaims:
    """The token's tenant, user and scopes. Raises UnauthenticatedError."""
    tenant = policy.tenant or claims.get(policy.tenant_claim)
    if not isinstance(tenant, str) or not 0 < len(tenant) <= MAX_NAME_CHARS:
        raise UnauthenticatedError(f"the token names no tenant as {policy.tenant_claim}")
    user = claims.get(policy.user_claim, "") if policy.user_claim else ""
    if not isinstance(user, str) or len(user) > MAX_USER_CHARS:
        raise UnauthenticatedError(
            f"{policy.user_claim} of the token is no name of at most {MAX_USER_CHARS} characters"
        )
    return TokenClaims(tenant, user, _scopes(claims, policy))


def _scopes(claims: Mapping[str, Any], policy: TokenPolicy) -> frozenset[Scope]:
    found = claims.get(policy.scope_claim)
    if found is None:
        return policy.scopes
    # A text with blanks (RFC 8693, section 4.2), or a list. Others' scopes are none of ours.
    names = found.split() if isinstance(found, str) else found
    if not isinstance(names, list):
        raise UnauthenticatedError(f"{policy.scope_claim} of the token is no list of scopes")
    known = {scope.value: scope for scope in Scope}
    return frozenset(known[name] for name in names if isinstance(name, str) and name in known)


def _seconds(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UnauthenticatedError(_BAD)
    try:
        seconds = float(value)
    except OverflowError:
        raise UnauthenticatedError(_BAD) from None
    if not math.isfinite(seconds):
        raise UnauthenticatedError(_BAD)
    return seconds
