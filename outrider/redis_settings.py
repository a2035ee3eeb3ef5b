"""What a service is told of a Redis that it uses: tokenizers' shared texts, edges' shared limits
and replies, replicas' prefixes. Needs no Redis client."""

from __future__ import annotations

import socket
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final
from urllib.parse import urlsplit

from outrider.errors import ConfigError
from outrider.extras import install_command
from outrider.host_names import is_loopback

if TYPE_CHECKING:
    from redis.asyncio.retry import Retry

MIN_KEY_CHARS: Final = 32
"""Least length of the secret that seals entries: anyone who can read the Redis can try keys
offline, without limit."""
_KEEPALIVE: Final = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 1, "TCP_KEEPCNT": 3}
"""An idle connection whose peer vanished without a word, or that a firewall forgot, is closed after
8 s, so that the next request makes a new one rather than wait for it in vain."""


@dataclass(frozen=True, slots=True)
class RedisAddress:
    """Address of a Redis, and the user to log in as."""

    url: str
    """redis://HOST:PORT/DATABASE, or rediss:// over TLS; without secrets and options."""
    user: str = ""
    """User of its access control lists (ACL); "": its default user."""
    password: str = field(default="", repr=False)
    ca: Path | None = None
    """CA certificates to accept for the Redis, in PEM; None: those of this machine."""

    @property
    def is_tls(self) -> bool:
        return self.url.startswith("rediss:")

    def check(self) -> None:
        """Raises ValueError, which never quotes the URL: it may hold a password."""
        try:
            parts = urlsplit(self.url)
            host = parts.hostname or ""
            _ = parts.port  # raises ValueError if it is none
        except ValueError:
            raise ValueError("it is no URL") from None
        if parts.scheme not in ("redis", "rediss") or not host:
            raise ValueError("use redis://HOST:PORT/DATABASE, or rediss:// for TLS")
        if parts.username is not None or parts.password is not None:
            raise ValueError(
                "it holds a user or a password, which would be logged; set user, and password or "
                "password_file, of the same table"
            )
        if parts.query or parts.fragment:
            raise ValueError("it has options; only host, port and database are taken")
        if parts.scheme == "redis" and self.ca is not None:
            raise ValueError("a CA is set, but the URL has no TLS; use rediss://")
        if parts.scheme == "redis" and self.password and not is_loopback(host):
            raise ValueError("the password would cross the network unencrypted; use rediss://")

    def options(self, timeout_s: float, connect_timeout_s: float) -> dict[str, Any]:
        """Arguments of `from_url` of redis.Redis and redis.asyncio.Redis: user, timeouts, and TLS
        with a certificate that must be valid for the URL's host."""
        options: dict[str, Any] = {
            "username": self.user or None,
            "password": self.password or None,
            "socket_timeout": timeout_s,
            "socket_connect_timeout": connect_timeout_s,
            "socket_keepalive": True,
            "socket_keepalive_options": {
                getattr(socket, name): value
                for name, value in _KEEPALIVE.items()
                if hasattr(socket, name)  # not on every system
            },
        }
        if self.is_tls:
            options |= {
                "ssl_cert_reqs": "required",
                "ssl_check_hostname": True,
                "ssl_min_version": ssl.TLSVersion.TLSv1_2,
                "ssl_ca_certs": None if self.ca is None else str(self.ca),
            }
        return options


@dataclass(frozen=True, slots=True)
class RedisConfig:
    """What every table of settings says of its Redis. Raises ConfigError for values that cannot
    work."""

    TABLE: ClassVar[str]
    """The table's name, for messages."""

    url: str = ""
    """redis://HOST:PORT/DATABASE, or rediss:// over TLS; empty: none."""
    user: str = ""
    """A user of that Redis (ACL); empty: its default one."""
    password: str = field(default="", repr=False)
    """That user's password. Better in a file, or in the environment."""
    password_file: Path | None = None
    """A file that holds the password."""
    ca: Path | None = None
    """CA certificates for that Redis (rediss://), in PEM; unset: those of this machine."""

    def __post_init__(self) -> None:
        self._check_one("password")

    def address(self) -> RedisAddress:
        """Where it is, and as whom to log in. Raises ConfigError, which quotes neither the URL nor
        the password, if that cannot be right."""
        password = secret(self.password, self.password_file, f"{self.TABLE}.password")
        address = RedisAddress(self.url, self.user, password, self.ca)
        try:
            address.check()
        except ValueError as error:
            raise ConfigError(f"{self.TABLE}.url: {error}") from None
        return address

    def _check_one(self, name: str) -> None:
        """A secret is given in one way."""
        if getattr(self, name) and getattr(self, f"{name}_file"):
            raise ConfigError(
                f"both {self.TABLE}.{name} and {self.TABLE}.{name}_file are set; use one"
            )


@dataclass(frozen=True, slots=True)
class SealedRedisConfig(RedisConfig):
    """Of a Redis whose entries are sealed with a secret."""

    key: str = field(default="", repr=False)
    """A secret of 32 characters or more, the same in all that share it (`openssl rand -hex 32`):
    without it nobody can read entries or make valid ones. Better in a file, or in the
    environment."""
    key_file: Path | None = None
    """A file that holds the secret."""

    def __post_init__(self) -> None:
        RedisConfig.__post_init__(self)
        self._check_one("key")
        if self.url and not (self.key or self.key_file):
            raise ConfigError(
                f"{self.TABLE}.key is empty; set the same secret in all that share it"
            )

    def sealing_key(self) -> str:
        """The secret. Raises ConfigError if it cannot be read or is too short."""
        return sealing_key(self.key, self.key_file, f"{self.TABLE}.key")


def secret(value: str, file: Path | None, where: str) -> str:
    """The value of the setting `where`, or of the file that holds it. Raises ConfigError, which
    quotes neither."""
    if file is None:
        return value
    try:
        return file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{where}_file {file} cannot be read: {type(error).__name__}") from None


def sealing_key(value: str, file: Path | None, where: str) -> str:
    """Like `secret`, for a key that seals entries. Raises ConfigError also if it is too short."""
    key = secret(value, file, where)
    if len(key) < MIN_KEY_CHARS:
        raise ConfigError(
            f"{where} has {len(key)} characters; make one of {MIN_KEY_CHARS} or more, for example "
            "with `openssl rand -hex 32`"
        )
    return key


def needs_client(where: str) -> ConfigError:
    """The error for a setting that needs the Redis client, which is not installed."""
    return ConfigError(f"{where} needs the Redis client: {install_command('redis')}")


def once_more() -> Retry:
    """How often a client for asyncio retries: once, over a new connection. That a kept connection
    was reset, or found dead by keepalive, shows only when it is used; uvloop then raises
    RuntimeError."""
    import redis
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff

    errors: Any = (redis.ConnectionError, RuntimeError)
    return Retry(NoBackoff(), 1, supported_errors=errors)
