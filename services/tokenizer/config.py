"""The tokenizer service's settings, written once, checked when built."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from outrider.bounds import (
    NonNegativeFloat,
    NonNegativeInt,
    Port,
    PositiveFloat,
    PositiveInt,
    between,
    check_bounds,
)
from outrider.errors import ConfigError
from outrider.mirrors.config import MirrorConfig
from outrider.redis_settings import SealedRedisConfig
from outrider.telemetry.config import AdminConfig
from outrider.tls.config import TlsConfig
from outrider.tokenization.backends.selection import AUTO
from outrider.tokenization.rewriting import AS_IT_IS, RewritingPolicy


@dataclass(frozen=True, slots=True)
class SharedCacheConfig(SealedRedisConfig):
    """The Redis that tokenizers may share: table `[tokenizer.shared_cache]`."""

    TABLE = "shared_cache"

    url: str = ""
    """redis://HOST:PORT/DATABASE, or rediss:// over TLS; empty: none. It may be slow, full or gone
    at any time. Only texts of requests with a cache salt are shared."""
    timeout_ms: PositiveFloat = 5.0
    """Longest wait for an answer of that Redis."""
    min_chars: NonNegativeInt = 0
    """Shorter texts are not looked up there, for encoding them is faster; 0: 1,024 with
    `tokenizers`, 8,192 with `fastokens`, and with `splintr-rs` nothing is looked up."""
    ttl_s: PositiveInt = 86_400
    """An entry expires so long after it was last written."""


@dataclass(frozen=True, slots=True)
class TokenizerConfig:
    """Everything a tokenizer service is started with."""

    host: str = "127.0.0.1"
    """Address the gRPC listener binds."""
    port: Port = 7200
    """Port of the gRPC listener; 0: any free one."""
    admin: AdminConfig = dataclasses.field(default_factory=AdminConfig)
    """Address of /metrics, /health and /ready."""
    tls: TlsConfig = dataclasses.field(default_factory=TlsConfig)
    """Certificate of this process, of the role tokenizer."""
    worker_port: Annotated[int | None, between(0, 65535)] = None
    """Port at which workers of other nodes join, with certificates of the role tokenizer-worker;
    unset: none; 0: any free one. A worker reads parts of texts, and its ids are trusted."""
    models: tuple[str, ...] = ("smollm2-135m-instruct",)
    """Models whose vocabularies are served; the first is the default of requests that name none.
    This setting and the models' definitions are followed while the service runs."""
    max_loaded_vocabularies: PositiveInt = 16
    """Vocabularies in memory at once: for another one, the one that was used least recently goes,
    and is loaded again when it is asked for."""
    vocabulary_timeout_s: PositiveFloat = 60.0
    """Time in which a caller must read a vocabulary; then the transfer ends. The vocabulary stays
    in memory meanwhile; the largest ones take 35 MB, at 5 Mbit/s."""
    model_store: Path | None = None
    """The model store's folder; unset: $OUTRIDER_MODEL_STORE or the user's cache."""
    mirrors: MirrorConfig = dataclasses.field(default_factory=MirrorConfig)
    """Mirrors for models that are not in the store, asked before their own source."""
    backend: str = AUTO
    """`auto`: the fastest that equals `tokenizers` on this machine; or the name of one package."""
    cache_bytes: NonNegativeInt = 64 << 20
    """Memory of each vocabulary's cache of texts' ids; 0: no cache."""
    shared_cache: SharedCacheConfig = dataclasses.field(default_factory=SharedCacheConfig)
    """A Redis that tokenizers share (docs/guides/long-texts.md)."""
    previous_vocabularies: tuple[str, ...] = ()
    """Vocabularies that models had before, as MODEL=FOLDER. They are served beside the current ones
    to requests that name their digest, while nodes are replaced one after another."""
    rewriting: RewritingPolicy = AS_IT_IS
    """How conversations are rewritten before they are tokenized (docs/guides/tokens.md)."""
    threads: PositiveInt = 2
    """Threads that tokenize; they release the GIL while they do."""
    max_text_bytes: PositiveInt = 1 << 20
    """Longest text of one request, in UTF-8."""
    max_decode_ids: PositiveInt = 1 << 18
    """Largest number of ids in one Decode request."""
    max_in_flight: PositiveInt = 256
    """Requests of one stream in progress at once; then reading from it pauses."""
    max_pending: PositiveInt = 2048
    """Requests in progress at once over all streams; for more, whoever has most of them loses the
    newest, as OVERLOADED."""
    max_pending_bytes: PositiveInt = 256 << 20
    """Most bytes of those requests; likewise."""
    max_message_bytes: PositiveInt = 16 << 20
    """Largest message read or written."""
    worker_processes: NonNegativeInt = 2
    """Worker processes of this node for long texts; started with the first of those. They join over
    a socket in a folder that only this user can open."""
    part_chars: PositiveInt = 1 << 16
    """Length of a part of a long text: it is cut at the first safe place behind so many."""
    max_part_chars: int = 1 << 20
    """Longest stretch of a text without a safe place to cut; longer ones are refused."""
    max_long_texts: PositiveInt = 64
    """Long texts in progress at once; likewise."""
    window_parts: PositiveInt = 16
    """Parts of one long text held at once, results that the caller has not read included."""
    worker_timeout_s: PositiveFloat = 5.0
    """A worker that sends no heartbeat for so long is given up."""
    part_hedge_delay_s: PositiveFloat = 10.0
    """A part that has been at a worker for so long is given to a second one too (hedging)."""
    drain_s: NonNegativeFloat = 5.0
    """Time open streams get to finish when the service stops."""
    log_level: str = "info"
    """Lowest level that is logged."""

    def __post_init__(self) -> None:
        check_bounds(self)
        if not self.models:
            raise ConfigError("models is empty; name at least one model to serve")
        for entry in self.previous_vocabularies:
            if not all(entry.partition("=")):
                raise ConfigError(f"previous_vocabularies has {entry!r}; use MODEL=FOLDER")
        if self.max_part_chars <= self.part_chars:
            raise ConfigError(
                f"max_part_chars is {self.max_part_chars}; set it above part_chars, "
                f"{self.part_chars}"
            )
        if self.max_text_bytes >= self.max_message_bytes:
            raise ConfigError(
                f"max_text_bytes is {self.max_text_bytes}; keep it below max_message_bytes, "
                f"{self.max_message_bytes}, so that a long text is refused with a reason"
            )
