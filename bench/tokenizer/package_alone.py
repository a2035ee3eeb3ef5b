"""One package alone, in a process of its own: documents in memory, ids dropped, cold caches.

    python -m bench.tokenizer.package_alone PACKAGE WAY PARQUET

prints how many bytes of text it encoded and how many seconds that took. The number of threads is
RAYON_NUM_THREADS.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from outrider.models.catalog import DEFAULT_MODEL
from outrider.models.store import ModelStore, default_root
from outrider.models.vocabulary import load_vocabulary
from outrider.tokenization.backends.base import REFERENCE
from outrider.tokenization.backends.packages import Fastokens, Splintr, make_backend

Encode = Callable[[list[str]], object]

WAYS: Final = (
    (REFERENCE, "encode_batch_fast of 512"),
    (Splintr.name, "batches of 64"),
    (Splintr.name, "batches of 1024"),
    (Splintr.name, "Python threads"),
    (Fastokens.name, "batches of 64"),
)
"""Packages, and ways to give them all documents. The batches are spread over the package's own
threads, of which small ones keep some waiting; "Python threads" are Python's, one batch each."""


def run_package(package: str, way: str, documents: str, num_threads: int) -> tuple[int, float]:
    """One package, used in one way, on all documents in their order: bytes and seconds."""
    own = 1 if "threads" in way else num_threads
    command = [sys.executable, "-m", __name__, package, way, documents]
    environment = {
        **os.environ,
        "RAYON_NUM_THREADS": str(own),
        "TOKENIZERS_PARALLELISM": "true",
        "RIVAL_THREADS": str(num_threads),
    }
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    num_bytes, seconds = done.stdout.split()
    return int(num_bytes), float(seconds)


def _encoder(package: str) -> Encode:
    vocabulary = load_vocabulary(DEFAULT_MODEL, ModelStore(default_root()))
    if package == REFERENCE:
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_str(vocabulary.tokenizer_json)
        return lambda texts: tokenizer.encode_batch_fast(texts, add_special_tokens=False)
    backend: Any = make_backend(package, vocabulary)
    native = backend._tokenizer  # without our look at the bytes: its raw speed
    return lambda texts: native.encode_batch_flat(texts)


def read_documents(path: str) -> tuple[list[str], int]:
    """All of them, and their bytes."""
    import pyarrow.parquet as pq

    texts: list[str] = pq.read_table(path).column("text").to_pylist()
    return texts, sum(len(text.encode()) for text in texts)


def _all(encode: Encode, way: str, texts: list[str], num_threads: int) -> None:
    if "threads" in way:
        with ThreadPoolExecutor(num_threads) as pool:
            list(pool.map(lambda batch: encode(batch) and None, _batches(texts, 16)))
        return
    for batch in _batches(texts, int(way.rpartition(" ")[2])):
        encode(batch)


def _batches(texts: list[str], count: int) -> list[list[str]]:
    return [texts[at : at + count] for at in range(0, len(texts), count)]


def main() -> None:
    package, way, path = sys.argv[1:]
    encode = _encoder(package)
    texts, num_bytes = read_documents(path)
    encode(["warm"])
    begin = time.perf_counter()
    _all(encode, way, texts, int(os.environ["RIVAL_THREADS"]))
    print(num_bytes, time.perf_counter() - begin)


if __name__ == "__main__":
    main()
