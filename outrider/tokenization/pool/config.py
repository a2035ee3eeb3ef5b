"""Settings of an edge's tokenization pool."""

from __future__ import annotations

from dataclasses import dataclass

from outrider.errors import ConfigError
from outrider.tokenization.backends.selection import AUTO


@dataclass(frozen=True, slots=True)
class TokenizationConfig:
    """Where and how prompts are tokenized: table `[edge.tokenization]`."""

    threads: int = 2
    """Threads that tokenize."""
    max_queued: int = 64
    """Prompts that may wait for a thread."""
    processes: int = 0
    """Processes that tokenize too, when as many chats wait as there are threads."""
    backend: str = AUTO
    """`auto`: the fastest that equals `tokenizers` on this machine; or the name of one package."""
    cache_bytes: int = 32 << 20
    """Memory for the token ids of texts. Of chats with trust policy `chat` only the template's own
    texts are kept."""

    def __post_init__(self) -> None:
        if self.threads < 1:
            raise ConfigError(f"tokenization.threads is {self.threads}: set it above 0.")
        for name in ("max_queued", "processes", "cache_bytes"):
            if getattr(self, name) < 0:
                raise ConfigError(
                    f"tokenization.{name} is {getattr(self, name)}: it cannot be negative."
                )
