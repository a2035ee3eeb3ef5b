"""Settings of access: API keys, tokens of an issuer, limits shared with other edges."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import urlsplit

from outrider.access.api_keys import scopes_of
from outrider.bounds import PositiveFloat, between
from outrider.errors import ConfigError
from outrider.host_names import is_loopback
from outrider.redis_settings import RedisConfig

_CLAIMS: Final = frozenset({"exp", "nbf", "iat", "sub", "jti"})


@dataclass(frozen=True, slots=True)
class AccessConfig:
    """API keys: table `[edge.access]`."""

    keys_file: Path | None = None
    """The file that `outrider keys` writes, followed while the edge runs; unset: keys.json in
    `state_dir`. It may be created later: until then no key is valid."""
    http_anonymous: bool = False
    """Whether clients without a key are served over HTTP too, where `anonymous` is on."""


@dataclass(frozen=True, slots=True)
class JwtConfig:
    """JSON Web Tokens of an issuer: table `[edge.jwt]`. Raises ConfigError for values that cannot
    work."""

    issuer: str = ""
    """`iss` of the tokens, letter by letter; empty: no tokens are taken."""
    audience: str = ""
    """Value that `aud` of the tokens must contain."""
    jwks_file: Path | None = None
    """The issuer's public keys, a JWK set; followed while the edge runs. This or `jwks_url`."""
    jwks_url: str = ""
    """Address at which the issuer publishes its keys: https, or http on the loopback."""
    jwks_ca: Path | None = None
    """CA certificates for `jwks_url`, in PEM; unset: those of this machine."""
    algorithms: tuple[str, ...] = ("RS256", "ES256", "EdDSA")
    """Accepted signature algorithms; all others are refused."""
    required: tuple[str, ...] = ("exp",)
    """Claims that a token has to have: of exp, nbf, iat, sub, jti."""
    clock_skew_s: Annotated[float, between(0, 600)] = 30.0
    """How far the issuer's clock may be from this one."""
    tenant: str = ""
    """The tenant of all tokens; empty: the one that `tenant_claim` names. It has to be listed in
    `[[edge.tenants]]`."""
    tenant_claim: str = "tenant"
    """The claim that names the tenant."""
    user_claim: str = "sub"
    """The claim that names the tenant's user; empty: none does."""
    scope_claim: str = "scope"
    """The claim with the scopes: a text with blanks, or a list. Scopes of others are left out."""
    scopes: tuple[str, ...] = ()
    """Scopes of tokens without that claim; empty: such tokens allow nothing."""
    refresh_s: PositiveFloat = 300.0
    """The keys are fetched again so often."""
    min_refetch_s: PositiveFloat = 30.0
    """For a token with an unknown key they are fetched at once, but no more often than that."""
    timeout_s: PositiveFloat = 5.0
    """How long a fetch may take."""

    def __post_init__(self) -> None:
        if not self.issuer:
            return
        if not self.audience:
            raise ConfigError("jwt.audience is empty; name what tokens for this mesh are for")
        if (self.jwks_file is None) == (not self.jwks_url):
            raise ConfigError("jwt takes one of jwks_file and jwks_url: the issuer's public keys")
        if self.jwks_url:
            _check_url(self.jwks_url)
        if not self.algorithms:
            raise ConfigError("jwt.algorithms is empty; name those that the issuer signs with")
        for name in set(self.required) - _CLAIMS:
            raise ConfigError(f"jwt.required: {name!r} is none of {', '.join(sorted(_CLAIMS))}")
        if self.scopes:
            scopes_of(self.scopes, "jwt.scopes")


@dataclass(frozen=True, slots=True)
class SharedLimitsConfig(RedisConfig):
    """The Redis through which the edges of a region hold limits together: table
    `[edge.shared_limits]`."""

    TABLE = "shared_limits"

    url: str = ""
    """redis://HOST:PORT/DATABASE, or rediss:// over TLS; empty: each edge holds them by itself."""
    timeout_ms: PositiveFloat = 50.0
    """Longest wait of a chat for that Redis; then this edge decides."""


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        host, is_secret = parts.hostname or "", parts.username or parts.password
    except ValueError as error:
        raise ConfigError(f"jwt.jwks_url is no URL: {error}") from error
    if is_secret:
        raise ConfigError("jwt.jwks_url holds a user or a password, and would be logged")
    if not host or not (parts.scheme == "https" or (parts.scheme == "http" and is_loopback(host))):
        raise ConfigError(
            "jwt.jwks_url is https://HOST/...; over http anybody on the way could change the keys"
        )
