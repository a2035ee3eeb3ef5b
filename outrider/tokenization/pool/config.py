"""Settings of an edge's tokenization pool."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from outrider.bounds import NonNegativeFloat, NonNegativeInt, PositiveInt, at_least
from outrider.tokenization.backends.selection import AUTO

_MOST_PROCESSES: Final = 2
"""As two choices need."""
_OWN_CORES: Final = 3
"""Cores that an edge keeps busy without other processes: its event loop, a thread with a long text,
and one with short ones."""


def automatic_processes(cores: int, *, is_fast: bool) -> int:
    """How many processes tokenize beside the threads unless a setting says it: none with a fast
    backend, whose threads are never saturated for long, and none if all `cores` of this edge
    process are busy without them."""
    return 0 if is_fast else min(_MOST_PROCESSES, max(0, cores - _OWN_CORES))


@dataclass(frozen=True, slots=True)
class TokenizationConfig:
    """How prompts are tokenized: table `[edge.tokenization]`."""

    threads: PositiveInt = 2
    """Threads that tokenize."""
    max_queued: NonNegativeInt = 64
    """Prompts that may wait for a thread."""
    processes: Annotated[int | None, at_least(0)] = None
    """Processes that tokenize too, when as many chats wait as there are threads; unset: as many as
    cores allow, see `automatic_processes`."""
    bail_out_ms: NonNegativeFloat = 0.0
    """A chat whose prompt is not tokenized within this time, or that finds no room to wait, is sent
    to the region as messages, and the region's tokenizer makes the ids; 0: it waits. Not for plain
    completions and chats with a prediction."""
    backend: str = AUTO
    """`auto`: the fastest that equals `tokenizers` on this machine; or the name of one package."""
    cache_bytes: NonNegativeInt = 32 << 20
    """Memory for the token ids of texts. Of chats with trust policy `chat` only the template's own
    texts are kept."""
