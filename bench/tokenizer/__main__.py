"""Tokenization: one text by length and backend, the caches, an event loop under prompts of 100,000
tokens, and files in bulk, fewer of them with `--core`."""

from __future__ import annotations

import sys

from bench.harness import parser, start
from bench.tokenizer import bulk, caches, latency, loop_lag
from outrider.models.catalog import DEFAULT_MODEL
from outrider.models.store import ModelStore, default_root
from outrider.models.vocabulary import load_vocabulary
from outrider.tokenization.backends.base import REFERENCE
from outrider.tokenization.backends.selection import AUTO, load_backend

BULK_MB = 192
CORE_BULK_MB = 96


def main() -> int:
    core = f"files in bulk of {CORE_BULK_MB} MB"
    run = start("tokenizer", parser("tokenizer", __doc__ or "", core=core).parse_args())
    store = ModelStore(default_root())
    vocabulary = load_vocabulary(DEFAULT_MODEL, store)
    backends = [load_backend(store, vocabulary, name) for name in (REFERENCE, AUTO)]
    num_wrong = latency.measure(run, vocabulary)
    num_wrong += caches.measure_hits(run, vocabulary, backends)
    caches.measure_redis(run, vocabulary, backends)
    loop_lag.measure(run, vocabulary, backends)
    megabytes = CORE_BULK_MB if run.core else BULK_MB
    bulk.measure(run, rounds=1, megabytes=48 if run.quick else megabytes)
    run.figures["differences"] = num_wrong
    run.finish()
    return 1 if num_wrong else 0


if __name__ == "__main__":
    sys.exit(main())
