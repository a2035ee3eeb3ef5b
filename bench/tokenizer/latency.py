"""One text of 100 B to 1 MB: the reference, every fast backend, the cache."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from time import perf_counter_ns
from typing import TypeVar

from bench.harness import Run
from bench.tokenizer.texts import text_of
from outrider.models.vocabulary import Vocabulary
from outrider.tokenization.backends.base import REFERENCE, Reference
from outrider.tokenization.backends.packages import PACKAGES, installed_version, make_backend
from outrider.tokenization.backends.selection import select_backend
from outrider.tokenization.encoder import CachingEncoder

T = TypeVar("T")
SIZES = {"100 B": 100, "2 KB": 2048, "16 KB": 16_384, "64 KB": 65_000, "1 MB": 1 << 20}


def measure(run: Run, vocabulary: Vocabulary) -> int:
    """Adds the table; returns how many texts a fast backend got wrong. Everybody gets the same
    texts in the same order, and is timed when it sees them for the first time; the cache, when it
    sees them for the second time."""
    reference = Reference(vocabulary)
    fast = [make_backend(name, vocabulary) for name in PACKAGES if installed_version(name)]
    table = run.table(
        "Time to tokenize a text that was not seen before, and one that is cached, us: medians",
        "text",
        "texts",
        "tokenizers",
        *(backend.name for backend in fast),
        "cached",
    )
    num_wrong = 0
    for number, (name, num_bytes) in enumerate(SIZES.items()):
        count = max(4, min(50 if run.quick else 500, (4 << 20) // num_bytes))
        texts = [text_of(num_bytes, 1000 * number + seed) for seed in range(count)]
        samples, expected = _timed(reference.encode, texts)
        cells = [table.median(samples)]
        run.samples(f"{name}, {reference.name}", samples, unit="us")
        for backend in fast:
            samples, found = _timed(backend.encode, texts)
            num_wrong += sum(ids != right for ids, right in zip(found, expected, strict=True))
            cells.append(table.median(samples))
            run.samples(f"{name}, {backend.name}", samples, unit="us")
        cached = _cached(vocabulary, texts)
        table.add(name, count, *cells, table.median(cached) if cached else "not kept")
        if cached:
            run.samples(f"{name}, cached", cached, unit="us")
    return num_wrong


def _cached(vocabulary: Vocabulary, texts: list[str]) -> list[float]:
    """The second time; texts above 64 KB are not kept."""
    encoder = CachingEncoder(vocabulary, select_backend(vocabulary, REFERENCE))
    for text in texts:
        encoder.encode(text, scope=b"bench")
    copies = [text[:1] + text[1:] for text in texts]  # another object: its hash is not known
    return _timed(partial(encoder.encode, scope=b"bench"), copies)[0] if encoder.size[0] else []


def _timed(encode: Callable[[str], T], texts: list[str]) -> tuple[list[float], list[T]]:
    """Microseconds of each text, and its result."""
    samples, found = [], []
    for text in texts:
        begin = perf_counter_ns()
        ids = encode(text)
        samples.append((perf_counter_ns() - begin) / 1e3)
        found.append(ids)
    return samples, found
