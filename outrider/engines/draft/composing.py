"""A whole GGUF file from a draft's and its target's, for the engine's converter."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import gguf
from gguf import GGUFReader, GGUFValueType, GGUFWriter

from outrider.engines.base import Ids
from outrider.errors import ArtifactCorruptError
from outrider.models.gguf_file import content_of, open_gguf

_EMBEDDING: Final = "token_embd.weight"
_HEAD: Final = "output.weight"
_FILE_TYPE: Final = "general.file_type"


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
