"""Equality on whole books in twelve languages: ids of the parts of an exact cut, of the fast
backends and of `outrider tokenize` against those of the book encoded at once by the reference, for
five vocabularies; how many books naive cuts get wrong; and for each class of tokenizer, ids against
those of the file's own tokenizer."""

from __future__ import annotations

import sys
import tempfile
from array import array
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, TypeAlias

import pyarrow.parquet as pq

from bench.harness import Run, parser, start
from bench.tokenizer import classes
from bench.tokenizer.books import LANGUAGES, OTHERS, book, tokenizer_json
from outrider.bulk import scan
from outrider.bulk.plan.shards import BulkSettings
from outrider.bulk.worker import BulkJob, BulkWorker
from outrider.models.catalog import DEFAULT_MODEL
from outrider.models.store import ModelStore, default_root
from outrider.models.vocabulary import Vocabulary, load_vocabulary
from outrider.tokenization.backends.base import REFERENCE, Backend, Reference
from outrider.tokenization.backends.packages import PACKAGES, installed_version
from outrider.tokenization.backends.selection import select_backend
from outrider.tokenization.cut_proofs import prove
from outrider.tokenization.cuts import CutRule, Cutter

_PART_CHARS: Final = 4096
_NAIVE_CHARS: Final = 100_000
"""Of each book, for the naive cuts: they are wrong soon enough."""

Ids: TypeAlias = "array[int]"


def measure(run: Run) -> int:
    """Adds the table; returns how many books differ from the reference, which must be none."""
    books = {language: book(language) for language in LANGUAGES[: 3 if run.quick else None]}
    size = sum(len(text.encode()) for text in books.values()) / 1e6
    table = run.table(
        f"How many of {len(books)} whole books, each in another language ({size:.1f} MB in all), "
        "have ids that differ from the reference's",
        "vocabulary",
        "tokens",
        "exact cuts",
        "cuts",
        *PACKAGES,
        "outrider tokenize",
        "cut by length",
        "cut at line ends",
    )
    num_wrong = 0
    for name in (DEFAULT_MODEL.name, *OTHERS):
        wrong, row = _compared(name, list(books.values()))
        table.add(name, *row)
        num_wrong += wrong
    return num_wrong + classes.measure(run, books)


def _compared(name: str, texts: Sequence[str]) -> tuple[int, list[str | int]]:
    vocabulary = _vocabulary(name)
    rule = prove(vocabulary.tokenizer_json)
    reference = Reference(vocabulary)
    expected = [reference.encode(text) for text in texts]
    parts = [_cut(rule, text) for text in texts]
    by_cuts = _count(expected, (_joined(reference, part) for part in parts))
    packages = {package: _by_package(vocabulary, package, texts, expected) for package in PACKAGES}
    in_bulk = _count(expected, (_bulk(vocabulary, rule, text) for text in texts))
    short = [text[:_NAIVE_CHARS] for text in texts]
    naive = [reference.encode(text) for text in short]
    by_length = _count(naive, (_joined(reference, _chunks(text)) for text in short))
    by_lines = _count(naive, (_joined(reference, text.splitlines(True)) for text in short))
    wrong = by_cuts + in_bulk + sum(n for n in packages.values() if isinstance(n, int))
    return wrong, [
        sum(map(len, expected)),
        by_cuts,
        sum(map(len, parts)) - len(parts),
        *packages.values(),
        in_bulk,
        by_length,
        by_lines,
    ]


def _by_package(
    vocabulary: Vocabulary, package: str, texts: Sequence[str], expected: Sequence[Ids]
) -> int | str:
    """Through the gate, as in use."""
    if installed_version(package) is None:
        return "not installed"
    backend: Backend = select_backend(vocabulary, package)
    if backend.name != package:
        return "refused by the gate"
    return _count(expected, map(backend.encode, texts))


def _bulk(vocabulary: Vocabulary, rule: CutRule, text: str) -> Ids:
    settings = BulkSettings(shard_bytes=1 << 17)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "book.txt"
        path.write_text(text, "utf-8", newline="")
        sources, _ = scan.find([str(path)], settings)
        worker = BulkWorker(BulkJob(folder, settings, vocabulary, REFERENCE, rule))
        ids = array("I")
        for shard in scan.plan(sources, settings, cuts_texts=True):
            table = pq.read_table(Path(folder) / worker.run(shard).name)
            ids.extend(table.column("ids").combine_chunks().flatten().to_numpy())
        return ids


def _cut(rule: CutRule, text: str) -> list[str]:
    cutter = Cutter(rule, target_chars=_PART_CHARS, max_chars=1 << 30)
    return [*cutter.feed(text), cutter.finish()]


def _chunks(text: str) -> list[str]:
    return [text[at : at + _PART_CHARS] for at in range(0, len(text), _PART_CHARS)]


def _joined(reference: Reference, parts: Iterable[str]) -> Ids:
    return array("I", reference.encode_batch(list(parts)).ids)


def _count(expected: Sequence[Ids], found: Iterable[Ids]) -> int:
    return sum(ours != theirs for ours, theirs in zip(found, expected, strict=True))


def _vocabulary(name: str) -> Vocabulary:
    if name == DEFAULT_MODEL.name:
        return load_vocabulary(DEFAULT_MODEL, ModelStore(default_root()))
    return Vocabulary.from_tokenizer_json(tokenizer_json(name))


def main() -> int:
    run = start("tokenizer_equality", parser("tokenizer.equality", __doc__ or "").parse_args())
    run.figures["differences"] = measure(run)
    run.finish()
    return int(bool(run.figures["differences"]))


if __name__ == "__main__":
    sys.exit(main())
