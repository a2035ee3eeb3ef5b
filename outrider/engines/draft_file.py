"""Files of draft models made for one target: their metadata, and composing them with the target.

A draft is a GGUF file without tokenizer and embedding, which it shares with its target, and with an
output head of a few rows: the ids most frequent in the target's text. `tools/train_draft` writes
such files.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

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
_TOKENS: Final = "tokenizer.ggml.tokens"
_FILE_TYPE: Final = "general.file_type"
_CONVERTED: Final = frozenset(
    gguf.GGMLQuantizationType[name]
    for name in ("F32", "F16", "Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q6_K")
)
"""Types of matrices that openvino_genai's GGUF reader knows."""


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
    """The card in a GGUF file; None if the model is not a trained draft.

    Raises ArtifactCorruptError if the file is not a whole GGUF file, or the card contradicts
    itself.
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


class TrainedSize(NamedTuple):
    """The sizes that a trained draft's memory depends on."""

    weights_bytes: int
    """Bytes of the draft's own matrices, and of its target's embedding at one byte a weight."""
    num_scored: int
    """Rows of its head."""


def trained_size(path: Path) -> TrainedSize | None:
    """Sizes of a trained draft; None if the model is not one. Raises as `read_card`."""
    card = read_card(path)
    if card is None:
        return None
    reader = open_gguf(path)
    own = sum(int(tensor.n_bytes) for tensor in reader.tensors)
    rows, width = (
        content_of(reader, f"llama.{name}") for name in ("vocab_size", "embedding_length")
    )
    return TrainedSize(own + int(rows) * int(width or 0), len(card.head_ids))


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


def compose(draft: Path, target: Path | None, head_order: Ids, out: Path) -> None:
    """Write `out`: the draft's layers and head, its rows in this order, on the target's embedding
    and tokenizer; with None on those that the draft itself has. Raises ArtifactCorruptError if the
    two do not fit each other, or the draft has none."""
    small = open_gguf(draft)
    large = small if target is None else open_gguf(target)
    writer = GGUFWriter(out, "llama")
    copy_fields(small, writer, lambda name: name.startswith("llama."))
    copy_fields(large, writer, lambda name: name == _FILE_TYPE)
    if _FILE_TYPE not in large.fields:
        writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    if has_plain_tokenizer(large):
        copy_fields(large, writer, lambda name: name.startswith("tokenizer."))
    else:
        add_placeholder_tokens(writer, len(large.fields[_TOKENS].data))
    embedding = next((t for t in large.tensors if t.name == _EMBEDDING), None)
    width = content_of(small, "llama.embedding_length")
    if embedding is None and target is None:
        raise ArtifactCorruptError(
            f"{draft.name} has no embedding, and its target is a folder, which lends none; use a "
            "draft that was made for this target"
        )
    if embedding is None or int(embedding.shape[0]) != width:
        raise ArtifactCorruptError(
            f"{draft.name} has width {width}, its target's embedding has another; use a draft that "
            "was made for this target"
        )
    _add_readable(writer, embedding)
    for tensor in small.tensors:
        if tensor.name != _EMBEDDING:
            _add(writer, tensor, head_order if tensor.name == _HEAD else None)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def has_plain_tokenizer(reader: GGUFReader) -> bool:
    """Whether the converter takes the file's tokenizer; it fails with others, which it would have
    no use for."""
    return content_of(reader, "tokenizer.ggml.model") in (None, "gpt2")


def add_placeholder_tokens(writer: GGUFWriter, size: int) -> None:
    """A tokenizer of so many ids that the converter takes, and that stands for nothing."""
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([f"t{index}" for index in range(size)])
    writer.add_token_types([gguf.TokenType.NORMAL] * size)
    writer.add_token_merges(["t 0"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)


def copy_fields(source: GGUFReader, writer: GGUFWriter, wanted: Callable[[str], bool]) -> None:
    """Add to a file being written the metadata of another, as far as their names are wanted."""
    for field in source.fields.values():
        if wanted(field.name):
            kind = field.types[0]
            inner = field.types[-1] if kind == GGUFValueType.ARRAY else None
            writer.add_key_value(field.name, content_of(source, field.name), kind, sub_type=inner)


def _add_readable(writer: GGUFWriter, tensor: gguf.ReaderTensor) -> None:
    """Add a tensor unchanged, or in Q8_0 if the converter does not read its type."""
    if tensor.tensor_type in _CONVERTED:
        _add(writer, tensor, None)
        return
    kind = gguf.GGMLQuantizationType.Q8_0
    values = gguf.quantize(gguf.dequantize(tensor.data, tensor.tensor_type), kind)
    writer.add_tensor(tensor.name, values, raw_dtype=kind)


def _add(writer: GGUFWriter, tensor: gguf.ReaderTensor, order: Ids | None) -> None:
    """Blocks of quantised weights never cross rows, so rows may change places."""
    data = tensor.data if order is None else tensor.data[order]
    writer.add_tensor(tensor.name, data, raw_dtype=tensor.tensor_type)
