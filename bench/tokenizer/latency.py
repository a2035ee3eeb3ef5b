"""One text of 100 B to 1 MB: the reference, every fast backend, the cache."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from time import perf_counter_ns

from bench.harness.figures import Run, spread
from bench.tokenizer.texts import text_of
from outrider.models.vocabulary import Vocabulary
from outrider.tokenization.backends.base import REFERENCE, Backend, Reference
from outrider.tokenization.backends.choice import choose
from outrider.tokenization.backends.packages import PACKAGES, installed_version, make
from outrider.tokenization.front.encoder import CachingEncoder

SIZES = {"100 B": 100, "2 KB": 2048, "16 KB": 16_384, "64 KB": 65_000, "1 MB": 1 << 20}


def measure(run: Run, vocabulary: Vocabulary) -> int:
    """Adds the table; returns how many texts a fast backend got wrong."""
    reference = Reference(vocabulary)
    fast = [make(name, vocabulary) for name in PACKAGES if installed_version(name)]
    table = run.table(
        "Microseconds for one text, p50 (p99), distinct texts, one thread",
        *("text", "tokenizers", *(backend.name for backend in fast), "cached"),
    )
    num_wrong = 0
    for name, num_bytes in SIZES.items():
        count = max(3, min(400 if not run.quick else 40, (4 << 20) // num_bytes))
        texts = [text_of(num_bytes, seed) for seed in range(count)]
        expected = [reference.encode(text) for text in texts]
        cells = [_times(reference.encode, texts)]
        for backend in fast:
            num_wrong += _count_wrong(backend, texts, expected)
            cells.append(_times(backend.encode, texts))
        cached = _cached(vocabulary, texts)
        shown = [f"{p50:,.1f} ({p99:,.1f})" for p50, p99 in cells]
        table.add(name, *shown, f"{cached[0]:,.1f} ({cached[1]:,.1f})" if cached else "not kept")
        if name == "2 KB":
            run.figures["reference_2kb_ms"] = round(cells[0][0] / 1e3, 4)
            run.figures["fast_2kb_ms"] = round(min(c[0] for c in cells) / 1e3, 4)
            assert cached is not None
            run.figures["cached_2kb_us"] = round(cached[0], 2)
    return num_wrong


def _cached(vocabulary: Vocabulary, texts: list[str]) -> tuple[float, float] | None:
    """The second time; texts above 64 KB are not kept."""
    encoder = CachingEncoder(vocabulary, choose(vocabulary, REFERENCE))
    for text in texts:
        encoder.encode(text)
    copies = [text[:1] + text[1:] for text in texts]  # another object: its hash is not known
    if encoder.size[0] == 0:
        return None
    return _times(encoder.encode, copies)


def _count_wrong(backend: Backend, texts: list[str], expected: list[array[int]]) -> int:
    return sum(backend.encode(t) != ids for t, ids in zip(texts, expected, strict=True))


def _times(encode: Callable[[str], object], texts: list[str]) -> tuple[float, float]:
    samples = []
    for text in texts:
        begin = perf_counter_ns()
        encode(text)
        samples.append((perf_counter_ns() - begin) / 1e3)
    found = spread(samples)
    return found.p50, found.p99
