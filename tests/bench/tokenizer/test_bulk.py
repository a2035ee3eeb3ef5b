"""Everybody who is measured in bulk gets the same bytes in the same order."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.tokenizer import corpus
from bench.tokenizer.corpus import Corpus
from bench.tokenizer.package_alone import WAYS, read_documents, run_package


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Corpus:
    texts = ["one\n", "zwei, ü", "three " * 40, "\n\n", "four\r\n"]
    monkeypatch.setattr(corpus, "_distinct", lambda: iter(texts))
    return Corpus.written(tmp_path, 2_000)


def test_the_three_forms_hold_the_same_bytes_in_the_same_order(small: Corpus) -> None:
    def joined(form: str) -> bytes:
        paths = sorted(small.folder.glob(small.patterns[form].removeprefix(f"{small.folder}/")))
        return b"".join(path.read_bytes() for path in paths)

    texts, num_bytes = read_documents(small.patterns["Parquet"])
    whole = "".join(texts).encode()
    assert joined("long texts") == joined("documents") == whole
    assert num_bytes == small.num_bytes == len(whole)
    assert len(texts) == small.num_documents > small.num_distinct == 5


@pytest.mark.model
def test_a_package_is_given_all_of_it(small: Corpus) -> None:
    num_bytes, seconds = run_package(*WAYS[0], small.patterns["Parquet"], 1)
    assert num_bytes == small.num_bytes
    assert seconds > 0.0
