"""Settings of an edge's tokenization pool."""

from __future__ import annotations

from dataclasses import dataclass

from outrider.bounds import NonNegativeInt, PositiveInt
from outrider.tokenization.backends.selection import AUTO


@dataclass(frozen=True, slots=True)
class TokenizationConfig:
    """How prompts are tokenized: table `[edge.tokenization]`."""

    threads: PositiveInt = 2
    """Threads that tokenize."""
    max_queued: NonNegativeInt = 64
    """Prompts that may wait for a thread."""
    processes: NonNegativeInt = 0
    """Processes that tokenize too, when as many chats wait as there are threads."""
    backend: str = AUTO
    """`auto`: the fastest that equals `tokenizers` on this machine; or the name of one package."""
    cache_bytes: NonNegativeInt = 32 << 20
    """Memory for the token ids of texts. Of chats with trust policy `chat` only the template's own
    texts are kept."""
