"""Documents to columns of Arrow, without a Python object per token."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from outrider.bulk.plan.results import TextCounts
from outrider.bulk.reading import Document
from outrider.models.vocabulary import Vocabulary
from outrider.tokenization.backends.base import Batch
from outrider.tokenization.backends.fallback import FallbackBackend
from outrider.tokenization.cuts import CutRule, Cutter

LONG_CHARS: Final = 1 << 16
"""Texts above it are encoded in parts: shorter ones are faster, and the reference takes many bytes
of memory a token."""

EncodeElsewhere: TypeAlias = Callable[[str], "array[int] | None"]
"""The ids ('I') of a long text; None: it is to be encoded here."""

_LIST: Final = pa.list_(pa.field("item", pa.uint32(), nullable=False))
_COLUMNS: Final = (
    ("source", pa.string()),
    ("record", pa.uint64()),
    ("part", pa.uint32()),
    ("is_last", pa.bool_()),
    ("byte_offset", pa.uint64()),
    ("num_bytes", pa.uint64()),
    ("num_chars", pa.uint64()),
    ("num_tokens", pa.uint32()),
)


def schema(*, token_offsets: bool) -> pa.Schema:
    """Columns of every shard."""
    fields = [pa.field(name, kind, nullable=False) for name, kind in _COLUMNS]
    fields.append(pa.field("ids", _LIST, nullable=False))
    # Null where the ids do not stand for the very bytes of the text.
    offsets = [pa.field("token_offsets", _LIST)] if token_offsets else []
    return pa.schema([*fields, *offsets])


class DocumentEncoder:
    """Encodes batches of documents with one backend."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        backend: FallbackBackend,
        rule: CutRule | None,
        *,
        token_offsets: bool = False,
        elsewhere: EncodeElsewhere = lambda text: None,
    ) -> None:
        """`elsewhere` is asked first for what is longer than LONG_CHARS."""
        self.backend = backend
        self.num_elsewhere = 0
        """Texts that were encoded there."""
        self._elsewhere = elsewhere
        self.schema = schema(token_offsets=token_offsets)
        self._rule = rule
        self._bytes_of = (
            [vocabulary.token_bytes(i) for i in range(vocabulary.size)] if token_offsets else []
        )
        self._lengths = np.array([len(data) for data in self._bytes_of], np.uint32)

    def encode(self, documents: Sequence[Document]) -> tuple[pa.RecordBatch, TextCounts]:
        """The rows of the documents."""
        pieces: list[str | array[int]] = []
        ends = [0]
        for document in documents:
            pieces += self._pieces(document)
            ends.append(len(pieces))
        batch = self._encode(pieces)
        ids = np.frombuffer(batch.ids, np.uint32)
        offsets = np.frombuffer(batch.offsets, np.uint64)[ends].astype(np.int32)
        columns = self._columns(documents, np.diff(offsets))
        columns.append(_lists(offsets, ids))
        if self._bytes_of:
            columns.append(self._token_offsets(documents, ids, offsets))
        counts = TextCounts(
            documents=sum(document.part == 0 for document in documents),
            rows=len(documents),
            bytes=sum(document.num_bytes for document in documents),
            chars=sum(document.num_chars for document in documents),
            tokens=len(ids),
        )
        return pa.RecordBatch.from_arrays(columns, schema=self.schema), counts

    def _pieces(self, document: Document) -> list[str | array[int]]:
        """Texts and ids that joined are the document's."""
        if document.num_chars > LONG_CHARS:
            ids = self._elsewhere(document.text)
            if ids is not None:
                self.num_elsewhere += 1
                return [ids]
        return [part for text in document.texts for part in self._parts(text)]

    def _encode(self, pieces: Sequence[str | array[int]]) -> Batch:
        batch = self.backend.encode_batch([it for it in pieces if isinstance(it, str)])
        if all(isinstance(it, str) for it in pieces):
            return batch
        numbers = itertools.count()
        return Batch.of(batch.ids_of(next(numbers)) if isinstance(it, str) else it for it in pieces)

    def _parts(self, text: str) -> list[str]:
        if self._rule is None or len(text) <= LONG_CHARS:
            return [text]
        cutter = Cutter(self._rule, target_chars=LONG_CHARS, max_chars=len(text) + 1)
        return [*cutter.feed(text), *cutter.finish()]

    def _columns(
        self, documents: Sequence[Document], num_tokens: npt.NDArray[np.int32]
    ) -> list[pa.Array]:
        values: list[Any] = [
            [document.source for document in documents],
            [document.record for document in documents],
            [document.part for document in documents],
            [document.is_last for document in documents],
            [document.byte_offset for document in documents],
            [document.num_bytes for document in documents],
            [document.num_chars for document in documents],
            num_tokens.tolist(),
        ]
        return [pa.array(found, kind) for found, (_, kind) in zip(values, _COLUMNS, strict=True)]

    def _token_offsets(
        self,
        documents: Sequence[Document],
        ids: npt.NDArray[np.uint32],
        offsets: npt.NDArray[np.int32],
    ) -> pa.Array:
        lengths = self._lengths[ids]
        starts = np.cumsum(lengths, dtype=np.int64) - lengths
        found = []
        for at, document in enumerate(documents):
            begin, end = offsets[at], offsets[at + 1]
            data = b"".join([self._bytes_of[i] for i in ids[begin:end].tolist()])
            # A tokenizer may change text (NFC), or drop bytes that it has no token for.
            is_same = data == document.text.encode()
            own = starts[begin:end]
            found.append((own - own[:1]).tolist() if is_same else None)
        return pa.array(found, _LIST)


def _lists(offsets: npt.NDArray[np.int32], ids: npt.NDArray[np.uint32]) -> pa.Array:
    """The ids of each row, without a copy. Of buffers: pyarrow imports `numpy.ma` to look at an
    array, which takes a new process 0.1 s."""
    held = pa.Array.from_buffers(pa.uint32(), len(ids), [None, pa.py_buffer(ids)])
    rows = [None, pa.py_buffer(offsets)]
    return pa.Array.from_buffers(_LIST, len(offsets) - 1, rows, children=[held])
