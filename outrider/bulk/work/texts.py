"""Reads `.txt` and `.txt.gz`: one document a file, a long one in parts."""

from __future__ import annotations

import codecs
import gzip
import io
from collections.abc import Iterator
from typing import Final

from outrider.bulk.plan.edges import edge
from outrider.bulk.plan.sources import Slice
from outrider.bulk.work.documents import Document, Found, Reading
from outrider.tokenization.cuts import Cutter

_PIECE_BYTES: Final = 1 << 20
_MAX_PART_RATIO: Final = 16
"""How much longer than asked for a part may get where no place is safe."""


def read_text(one: Slice, reading: Reading) -> Iterator[Found]:
    """The document, or the slice's part of it. Raises OSError, UnicodeDecodeError,
    FrameTooLargeError."""
    with open(one.source.path, "rb", buffering=0) as file:  # read at once: no need of a buffer
        begin, end = _edges(one, reading, file)
        size = one.source.num_bytes
        if begin == end and one.part:
            return
        file.seek(begin)
        data = file.read(end - begin)
        if len(data) != end - begin:
            raise OSError("it became shorter while it was read")
        yield Document(
            *(one.source.path, one.first_record, data.decode(), len(data), one.part),
            *(end == size, begin),
        )


def _edges(one: Slice, reading: Reading, file: io.FileIO) -> tuple[int, int]:
    size = one.source.num_bytes
    if reading.rule is None or (one.begin, one.end) == (0, size):
        return one.begin, one.end

    def read(begin: int, end: int) -> bytes:
        file.seek(begin)
        return file.read(end - begin)

    return edge(reading.rule, read, size, one.begin), edge(reading.rule, read, size, one.end)


def read_gzip_text(one: Slice, reading: Reading) -> Iterator[Found]:
    """The document, cut as it comes out of its compression. Raises OSError, EOFError, zlib.error,
    UnicodeDecodeError, FrameTooLargeError."""
    parts = _parts(one.source.path, reading)
    offset = number = 0
    held = next(parts)
    for following in parts:
        num_bytes = len(held.encode())
        yield Document(one.source.path, 0, held, num_bytes, number, False, offset)
        offset, number, held = offset + num_bytes, number + 1, following
    yield Document(one.source.path, 0, held, len(held.encode()), number, True, offset)


def _parts(path: str, reading: Reading) -> Iterator[str]:
    """At least one."""
    target_chars = reading.settings.shard_bytes
    # Without a rule nothing is ever cut, however long.
    max_chars = _MAX_PART_RATIO * target_chars if reading.rule else 1 << 62
    cutter = Cutter(reading.rule, target_chars=target_chars, max_chars=max_chars)
    decoder = codecs.getincrementaldecoder("utf-8")()
    with gzip.open(path, "rb") as file:
        while data := file.read(_PIECE_BYTES):
            yield from cutter.feed(decoder.decode(data))
    decoder.decode(b"", final=True)
    yield cutter.finish()
