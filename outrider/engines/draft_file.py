"""Files of draft models made for one target: their metadata, and composing them with the target.

A draft is a GGUF file without tokenizer and embedding, which are its target's, and with an output
head of a few rows: the ids that the target says most. `tools/train_draft` writes such files.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import gguf
import numpy as np
from gguf import GGUFReader, GGUFValueType, GGUFWriter

from outrider.engines.base import Ids
from outrider.engines.draft_calibration import Curve, DraftCalibration
from outrider.errors import ArtifactCorruptError
from outrider.models.gguf_file import content_of, open_gguf

PREFIX: Final = "outrider.draft."
_HEAD: Final = "output.weight"
_EMBEDDING: Final = "token_embd.weight"
_FILE_TYPE: Final = "general.file_type"


@dataclass(frozen=True, slots=True)
class DraftCard:
    """The metadata of a trained draft."""

    target: str
    """The target's name."""
    vocabulary_digest: bytes
    head_ids: Ids
    """[r] what the head's rows stand for, ascending."""
    head_order: Ids
    """[r] the file's row for each of them."""
    calibration: DraftCalibration


def read_card(path: Path) -> DraftCard | None:
    """The card in a GGUF file; None for a model that is no trained draft.

    Raises ArtifactCorruptError if there is no whole GGUF file, or the card contradicts itself.
    """
    try:
        reader = open_gguf(path)
        if f"{PREFIX}head_ids" not in reader.fields:
            return None
        return _card(reader)
    except (ValueError, TypeError, IndexError, KeyError, OverflowError) as error:
        raise ArtifactCorruptError(
            f"{path.name} is no whole draft ({type(error).__name__}: {error}); fetch it again"
        ) from error


def _card(reader: gguf.GGUFReader) -> DraftCard:
    def value(name: str) -> Any:
        return content_of(reader, PREFIX + name)

    ids = np.array(value("head_ids"), np.int64)
    (num_rows,) = (int(t.shape[1]) for t in reader.tensors if t.name == _HEAD)
    vocabulary_size = int(content_of(reader, "llama.vocab_size"))
    if len(ids) != num_rows or len(np.unique(ids)) != num_rows:
        raise ValueError(f"{len(ids)} head ids, not all different, for {num_rows} rows")
    if not num_rows or ids.min() < 0 or ids.max() >= vocabulary_size:
        raise ValueError("a head id lies outside the vocabulary")
    order = np.argsort(ids).astype(np.int32)
    begins = tuple(int(begin) for begin in value("calibration_begins"))
    return DraftCard(
        target=str(value("target")),
        vocabulary_digest=bytes.fromhex(value("vocabulary_digest")),
        head_ids=ids[order].astype(np.int32),
        head_order=order,
        calibration=DraftCalibration(
            begins=begins,
            greedy=_curves(value("calibration_greedy"), len(begins)),
            sampled=_curves(value("calibration_sampled"), len(begins)),
        ),
    )


def _curves(values: list[float], count: int) -> tuple[Curve, ...]:
    """`count` curves of one length, which are in the file one after the other."""
    length, rest = divmod(len(values), max(1, count))
    if rest:
        raise ValueError(f"{len(values)} calibration values for {count} ranges")
    chances = [float(value) for value in values]
    return tuple(tuple(chances[at * length : (at + 1) * length]) for at in range(count))


def compose(draft: Path, target: Path, head_order: Ids, out: Path) -> None:
    """Write `out`: the draft's layers and head, its rows in this order, on the target's embedding
    and tokenizer. Raises ArtifactCorruptError if the two do not fit each other."""
    small, large = open_gguf(draft), open_gguf(target)
    writer = GGUFWriter(out, "llama")
    copy_fields(small, writer, lambda name: name.startswith("llama."))
    copy_fields(large, writer, lambda name: name.startswith("tokenizer.") or name == _FILE_TYPE)
    embedding = next((t for t in large.tensors if t.name == _EMBEDDING), None)
    width = content_of(small, "llama.embedding_length")
    if embedding is None or int(embedding.shape[0]) != width:
        raise ArtifactCorruptError(
            f"{draft.name} has width {width}, its target's embedding has another; use a draft that "
            "was made for this target"
        )
    _add(writer, embedding, None)
    for tensor in small.tensors:
        _add(writer, tensor, head_order if tensor.name == _HEAD else None)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def copy_fields(source: GGUFReader, writer: GGUFWriter, wanted: Callable[[str], bool]) -> None:
    """Add to a file being written the metadata of another, as far as their names are wanted."""
    for field in source.fields.values():
        if wanted(field.name):
            kind = field.types[0]
            inner = field.types[-1] if kind == GGUFValueType.ARRAY else None
            writer.add_key_value(field.name, content_of(source, field.name), kind, sub_type=inner)


def _add(writer: GGUFWriter, tensor: gguf.ReaderTensor, order: Ids | None) -> None:
    """Blocks of quantised weights never cross rows, so rows may change places."""
    data = tensor.data if order is None else tensor.data[order]
    writer.add_tensor(tensor.name, data, raw_dtype=tensor.tensor_type)
