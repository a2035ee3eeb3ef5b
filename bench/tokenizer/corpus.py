"""Text that every machine has which runs this: what is installed with Python.

Sources, documentation, licences, translations; each file a document, those with equal bytes once.
"""

from __future__ import annotations

import hashlib
import itertools
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_SUFFIXES: Final = frozenset({".py", ".pyi", ".txt", ".md", ".rst", ".html", ".h", ".hpp"})
_LONG_BYTES: Final = 8 << 20


@dataclass(frozen=True, slots=True)
class Corpus:
    """The same documents in three forms, below one folder."""

    folder: Path
    num_bytes: int
    num_documents: int
    num_distinct: int

    @property
    def patterns(self) -> dict[str, str]:
        """Form to files: a text file per 8 MB, one per document, Parquet."""
        forms = {"long texts": "long/*.txt", "documents": "short/*.txt", "Parquet": "all.parquet"}
        return {name: str(self.folder / pattern) for name, pattern in forms.items()}

    @classmethod
    def written(cls, folder: Path, num_bytes: int) -> Corpus:
        """About `num_bytes`, or less; the documents come again as often as it takes."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        distinct = list(_distinct())
        texts = list(_of_size(itertools.cycle(distinct), num_bytes))
        for name in ("long", "short"):
            (folder / name).mkdir()
        for number, text in enumerate(texts):
            (folder / "short" / f"{number:07}.txt").write_text(text, "utf-8", newline="")
        for number, text in enumerate(_joined(texts)):
            (folder / "long" / f"{number:04}.txt").write_text(text, "utf-8", newline="")
        pq.write_table(pa.table({"text": texts}), folder / "all.parquet", row_group_size=500)
        size = sum(len(text.encode()) for text in texts)
        return cls(folder, size, len(texts), min(len(texts), len(distinct)))


def _distinct() -> Iterator[str]:
    seen: set[bytes] = set()
    for root in (sysconfig.get_path("purelib"), sysconfig.get_path("stdlib")):
        for path in sorted(Path(root).rglob("*")):
            if path.suffix not in _SUFFIXES or not path.is_file():
                continue
            data = path.read_bytes()
            digest = hashlib.sha256(data).digest()
            if not data or digest in seen:
                continue
            seen.add(digest)
            try:
                yield data.decode()
            except UnicodeDecodeError:
                continue


def _of_size(texts: Iterator[str], num_bytes: int) -> Iterator[str]:
    size = 0
    for text in texts:
        size += len(text.encode())
        if size > num_bytes:
            return
        yield text


def _joined(texts: list[str]) -> Iterator[str]:
    """The texts one after another, in pieces of 8 MB or a little more; not a byte is added."""
    held: list[str] = []
    size = 0
    for text in texts:
        held.append(text)
        size += len(text)
        if size >= _LONG_BYTES:
            yield "".join(held)
            held, size = [], 0
    if held:
        yield "".join(held)
