"""Chats that grow, through the cache: what it knows, by class, and what that saves."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

from bench.harness.figures import Run
from bench.tokenizer.texts import chats
from outrider.models.chat import Message
from outrider.models.vocabulary import Vocabulary
from outrider.tokenization.backends.fallback import FallbackBackend
from outrider.tokenization.encoder import CachingEncoder
from outrider.tokenization.segment_cache import CachePolicy, ContentClass

SEED_TABLE = {
    ContentClass.ROLE_TAG: "95+",
    ContentClass.SYSTEM: "80-90",
    ContentClass.USER: "10-30",
}
"""Per cent, as the article on this bottleneck expects them (ranvier.systems, 2026-05)."""


def measure(run: Run, vocabulary: Vocabulary, backends: Sequence[FallbackBackend]) -> int:
    """Adds two tables; returns how many prompts were not the vocabulary's own."""
    asked = list(chats(200 if run.quick else 2000))
    encoder = CachingEncoder(vocabulary, backends[-1])
    wrong = sum(
        encoder.encode_chat(c, b"replay").tolist() != vocabulary.encode_chat(c) for c in asked
    )
    table = run.table(
        f"Cache hits on {len(asked)} requests of growing chats",
        *("class", "texts", "hits %", "hits % of characters", "expected %"),
    )
    for content, found in encoder.lookups.items():
        if found.num_texts:
            share = 100 * found.num_hits / found.num_texts
            chars = 100 * found.num_hit_chars / found.num_chars
            table.add(content, found.num_texts, share, chars, SEED_TABLE.get(content, "-"))
    costs = run.table(
        "Microseconds per request of the replay, template included",
        *("backend", "without cache", "with cache"),
    )
    for backend in backends:
        cold = CachingEncoder(vocabulary, backend, CachePolicy(max_entries=0))
        warm = CachingEncoder(vocabulary, backend)
        costs.add(backend.name, *(_us_per_request(e, asked) for e in (cold, warm)))
    return wrong


def _us_per_request(encoder: CachingEncoder, asked: list[list[Message]]) -> float:
    begin = perf_counter()
    for chat in asked:
        encoder.encode_chat(chat, b"replay")
    return (perf_counter() - begin) * 1e6 / len(asked)
