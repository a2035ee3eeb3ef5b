"""The tokenizer service's settings, written once, checked when built."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from outrider.errors import ConfigError

_POSITIVE = (
    "threads",
    "max_text_bytes",
    "max_decode_ids",
    "max_in_flight",
    "max_pending",
    "max_message_bytes",
)


@dataclass(frozen=True, slots=True)
class TokenizerConfig:
    """Everything a tokenizer service is started with."""

    host: str = "127.0.0.1"
    """Address the gRPC listener binds."""
    port: int = 0
    """Port of the gRPC listener; 0: any free one."""
    admin_host: str = "127.0.0.1"
    """Address of the metrics and health listener."""
    admin_port: int = 0
    """Port of the metrics and health listener; 0: any free one."""
    models: tuple[str, ...] = ("smollm2-135m-instruct",)
    """Models whose vocabularies are served; the first is the one of requests that name none."""
    model_store: Path | None = None
    """The model store's folder; unset: $OUTRIDER_MODEL_STORE or the user's cache."""
    threads: int = 2
    """Threads that tokenize; they release the GIL while they do."""
    max_text_bytes: int = 1 << 20
    """Longest text of one request, in UTF-8."""
    max_decode_ids: int = 1 << 18
    """Most ids of one Decode request."""
    max_in_flight: int = 256
    """Requests of one stream under way at once; reading pauses there."""
    max_pending: int = 2048
    """Requests under way at once over all streams; more are refused as OVERLOADED."""
    max_message_bytes: int = 16 << 20
    """Largest message read or written; a vocabulary of GetVocabulary has to fit."""
    drain_s: float = 5.0
    """Time open streams get to finish when the service stops."""
    log_level: str = "info"
    """Least severe level that is logged."""

    def __post_init__(self) -> None:
        if not self.models:
            raise ConfigError("models is empty: name at least one model to serve.")
        for field in _POSITIVE:
            if getattr(self, field) <= 0:
                raise ConfigError(f"{field} is {getattr(self, field)}: set it above 0.")
        for field in ("port", "admin_port"):
            if not 0 <= getattr(self, field) <= 65535:
                raise ConfigError(f"{field} is {getattr(self, field)}: use 0 to 65535.")
        if self.drain_s < 0:
            raise ConfigError(f"drain_s is {self.drain_s}: it cannot be negative.")
        if self.max_text_bytes >= self.max_message_bytes:
            raise ConfigError(
                f"max_text_bytes is {self.max_text_bytes}: keep it below max_message_bytes, "
                f"{self.max_message_bytes}, so that a long text is refused with a reason."
            )
