"""Rows of the output against the reference, token by token."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.bulk import encoding
from outrider.bulk.encoding import DocumentEncoder, schema
from outrider.bulk.plan.shards import COMPRESSIONS, FORMATS, BulkSettings
from outrider.bulk.reading import Document
from outrider.bulk.writing import ShardWriter
from outrider.models.vocabulary import Vocabulary
from outrider.tokenization.backends.selection import select_backend
from outrider.tokenization.cut_proofs import rule_of
from tests.models import corpus

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def encoder(vocabulary: Vocabulary) -> DocumentEncoder:
    chosen = select_backend(vocabulary, "tokenizers")
    rule = rule_of(vocabulary.tokenizer_json)
    return DocumentEncoder(vocabulary, chosen, rule, token_offsets=True)


def document(text: str, record: int = 0) -> Document:
    return Document("a.jsonl", record, (text,), len(text.encode()))


def test_rows_are_what_the_documents_are(encoder: DocumentEncoder, vocabulary: Vocabulary) -> None:
    texts = [*corpus.LANGUAGES, "", *corpus.CODE]
    batch, counts = encoder.encode([document(text, n) for n, text in enumerate(texts)])
    for n, (row, text) in enumerate(zip(batch.to_pylist(), texts, strict=True)):
        ids = vocabulary.encode(text)
        assert row["ids"] == ids and row["num_tokens"] == len(ids)
        assert (row["record"], row["num_chars"], row["num_bytes"]) == (
            *(n, len(text), len(text.encode())),
        )
    assert counts.tokens == sum(len(vocabulary.encode(text)) for text in texts)
    assert (counts.documents, counts.rows) == (len(texts), len(texts))
    assert counts.bytes == sum(len(text.encode()) for text in texts)


def test_a_long_text_is_encoded_in_parts_and_is_one_row(
    encoder: DocumentEncoder, vocabulary: Vocabulary
) -> None:
    text = " ".join([*corpus.LANGUAGES, *corpus.CODE] * 3)
    with patch.object(encoding, "LONG_CHARS", 100):
        batch, _ = encoder.encode([document("short"), document(text), document("short")])
    short = vocabulary.encode("short")
    assert batch.column("ids").to_pylist() == [short, vocabulary.encode(text), short]


@given(st.lists(st.one_of(st.text(max_size=20), st.sampled_from(corpus.LANGUAGES)), max_size=4))
def test_token_offsets_are_where_the_bytes_are(
    encoder: DocumentEncoder, vocabulary: Vocabulary, texts: list[str]
) -> None:
    batch, _ = encoder.encode([document(text) for text in texts])
    for row, text in zip(batch.to_pylist(), texts, strict=True):
        data, offsets = text.encode(), row["token_offsets"]
        if offsets is None:  # bytes that the vocabulary lacks were dropped
            assert b"".join(map(vocabulary.token_bytes, row["ids"])) != data
            continue
        ends = [*offsets[1:], len(data)]
        pieces = [data[a:b] for a, b in zip(offsets, ends[: len(offsets)], strict=True)]
        assert pieces == [vocabulary.token_bytes(i) for i in row["ids"]]


def test_ids_that_are_not_the_text_have_no_offsets(encoder: DocumentEncoder) -> None:
    batch, _ = encoder.encode([document("a\x04b"), document("ab")])
    assert batch.column("token_offsets").to_pylist() == [None, [0]]


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_every_format_gives_the_rows_back(
    encoder: DocumentEncoder, tmp_path: Path, format: str, compression: str
) -> None:
    given_settings = BulkSettings(format=format, compression=compression)
    batches = [encoder.encode([document("one two"), document("")])[0] for _ in range(2)]
    path = tmp_path / f"x{given_settings.suffix}"
    with ShardWriter(path, encoder.schema, given_settings) as writer:
        writer.write(batches)
        writer.write(batches[:1])
    if format == "parquet":
        table = pq.read_table(path)
        assert pq.ParquetFile(path).num_row_groups == 2
    else:
        with pa.memory_map(str(path)) as file:
            table = pa.ipc.open_file(file).read_all()
    assert table.schema.equals(encoder.schema)
    assert table.equals(pa.Table.from_batches([*batches, batches[0]]))


def test_a_shard_that_fails_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    with (
        pytest.raises(ZeroDivisionError),
        ShardWriter(path, schema(token_offsets=False), BulkSettings()),
    ):
        assert list(tmp_path.iterdir()) != []
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []
