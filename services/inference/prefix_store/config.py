"""The settings of the prefix store."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from outrider.bounds import PositiveFloat, PositiveInt
from outrider.errors import ConfigError


@dataclass(frozen=True, slots=True)
class PrefixStoreConfig:
    """The Redis that keeps KV of prompts' beginnings: table `[inference.prefix_store]`."""

    url: str = ""
    """redis://HOST:PORT/DATABASE, or rediss:// over TLS; empty: none. It may be slow, full or gone
    at any time: then prompts are computed, as without it."""
    cluster: bool = False
    """`url` is one node of a Redis Cluster, which names the others."""
    key: str = dataclasses.field(default="", repr=False)
    """A secret of 32 characters or more, the same in all replicas that share it (`openssl rand -hex
    32`): without it nobody can read entries or make valid ones. Better in a file, or in the
    environment."""
    key_file: Path | None = None
    """A file that holds the secret."""
    user: str = ""
    """A user of that Redis (ACL); empty: its default one."""
    password: str = dataclasses.field(default="", repr=False)
    """That user's password. Better in a file, or in the environment."""
    password_file: Path | None = None
    """A file that holds the password."""
    ca: Path | None = None
    """CA certificates for that Redis (rediss://), in PEM; unset: those of this machine."""
    timeout_ms: PositiveFloat = 1000.0
    """Longest round trip of up to four blocks. No session waits for one."""
    ttl_s: PositiveInt = 86_400
    """Seconds after which an entry expires if nobody asks for it."""
    min_tokens: PositiveInt = 256
    """Prompts with fewer tokens are computed sooner than it pays to look for them."""
    max_tokens: PositiveInt = 8192
    """Most tokens kept of a prompt."""

    def __post_init__(self) -> None:
        for field in ("key", "password"):
            if getattr(self, field) and getattr(self, f"{field}_file"):
                raise ConfigError(
                    f"both prefix_store.{field} and prefix_store.{field}_file are set; use one"
                )
        if self.url and not (self.key or self.key_file):
            raise ConfigError("prefix_store.key is empty; set the same secret in all replicas")
