"""Which files of a folder make a model: the allowed names, and the choice among the files found.
Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import Final

from outrider.errors import ArtifactCorruptError, SourceError, UnsupportedModelError
from outrider.models.strict_json import read_object

GRAPH: Final = "openvino_model.xml"
WEIGHTS: Final = "openvino_model.bin"
CHECKPOINT: Final = "model.safetensors"
CHECKPOINT_INDEX: Final = "model.safetensors.index.json"
CONFIG: Final = "config.json"
TOKENIZER: Final = "tokenizer.json"
TOKENIZER_CONFIG: Final = "tokenizer_config.json"
GENERATION_CONFIG: Final = "generation_config.json"
TEMPLATE: Final = "chat_template.jinja"
TEMPLATE_JSON: Final = "chat_template.json"
MODULES: Final = "modules.json"
"""The steps after the transformer in a sentence-transformers model."""
POOLING: Final = "1_Pooling/config.json"
SEQUENCE: Final = "sentence_bert_config.json"
OF_EMBEDDER: Final = frozenset({MODULES, POOLING, SEQUENCE})
"""Additional files of embedding models."""
OPTIONAL: Final = OF_EMBEDDER | {TOKENIZER_CONFIG, GENERATION_CONFIG, TEMPLATE, TEMPLATE_JSON}
SERVED: Final = (
    f"what can be served is a GGUF file (file:PATH), or a folder (dir:PATH) with {CONFIG}, "
    f"{TOKENIZER} and either {GRAPH} and {WEIGHTS}, or {CHECKPOINT}, whole or in shards with "
    f"{CHECKPOINT_INDEX}"
)
MAX_INDEX_BYTES: Final = 32 << 20
"""Longest index of a checkpoint; those of models with ten thousand tensors have one megabyte."""
MAX_SHARDS: Final = 1024

_ALWAYS: Final = frozenset({CONFIG, TOKENIZER})
_OF_GRAPH: Final = _ALWAYS | {GRAPH, WEIGHTS}
_PLAIN: Final = _OF_GRAPH | OPTIONAL | {CHECKPOINT_INDEX}
_SHARD: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\.safetensors")
_PICKLES: Final = (".bin", ".pt", ".pth", ".pkl", ".ckpt")

ReadIndex = Callable[[], bytes]


def is_weights_file(name: str) -> bool:
    """Whether a file of a folder can be (a shard of) a checkpoint."""
    return _SHARD.fullmatch(name) is not None


def is_member(name: str) -> bool:
    """Whether a file of that name can belong to a model's folder."""
    return name in _PLAIN or is_weights_file(name)


def choose_members(there: Collection[str], where: str, read_index: ReadIndex) -> list[str]:
    """The files of a folder that make the model, in order of name. A graph is preferred to a
    checkpoint, a whole checkpoint to a sharded one; `read_index` returns the bytes of the latter's
    index. Raises SourceError for missing files, UnsupportedModelError for a folder of another kind,
    ArtifactCorruptError for a damaged index; `where` names the folder in messages."""
    found = set(there)
    if found & {GRAPH, WEIGHTS}:
        needed = set(_OF_GRAPH)
    elif CHECKPOINT in found:
        needed = {*_ALWAYS, CHECKPOINT}
    elif CHECKPOINT_INDEX in found:
        needed = {*_ALWAYS, CHECKPOINT_INDEX, *shards_of(weight_map(read_index()))}
    else:
        raise _of_another_kind(found, where)
    if missing := sorted(needed - found):
        raise SourceError(f"{where} lacks {', '.join(missing[:8])}; {SERVED}")
    return sorted(needed | (found & OPTIONAL))


def missing_members(found: Collection[str], read_index: ReadIndex) -> list[str]:
    """Errors in an archive with the files `found`, one message each: files that are missing or do
    not belong there. Raises ArtifactCorruptError."""
    try:
        chosen = choose_members(found, "the archive", read_index)
    except SourceError as error:
        return [error.message]
    strange = sorted(set(found) - set(chosen))
    return [f"the archive holds {strange[0]!r}, which belongs to no model"] if strange else []


def _of_another_kind(found: set[str], where: str) -> SourceError | UnsupportedModelError:
    def named(*suffixes: str) -> list[str]:
        some = sorted(name for name in found if name.endswith(suffixes))
        # A hub's names may be anything, and are printed: none moves a terminal's cursor.
        return [name if name.isprintable() else ascii(name) for name in some]

    if some := named(".safetensors"):
        what = f"{some[0]}, but neither {CHECKPOINT} nor {CHECKPOINT_INDEX}"
        return UnsupportedModelError(f"{where} has {what}; {SERVED}")
    if some := named(*_PICKLES):
        return UnsupportedModelError(
            f"{where} has its weights in {some[0]}, and pickles are never opened because they can "
            f"run any code; save the model as safetensors, because {SERVED}"
        )
    if some := named(".gguf"):
        return UnsupportedModelError(
            f"{where} has GGUF files; name one of them: file:PATH/{some[0]}, or hf:REPO#{some[0]}"
        )
    lacking = ", ".join(sorted(_OF_GRAPH - found))
    return SourceError(f"{where} lacks {lacking}; {SERVED}")


def weight_map(index: bytes) -> dict[str, str]:
    """The file of each tensor, by a checkpoint's index. Raises ArtifactCorruptError."""
    if len(index) > MAX_INDEX_BYTES:
        raise ArtifactCorruptError(f"{CHECKPOINT_INDEX} has more than {MAX_INDEX_BYTES} bytes")
    try:
        listed = read_object(index)["weight_map"].items()
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise ArtifactCorruptError(
            f"{CHECKPOINT_INDEX} has no weight_map that can be read ({type(error).__name__}); "
            "fetch it again"
        ) from error
    files = dict[str, str]()
    for tensor, file in listed:
        if not isinstance(file, str) or not is_weights_file(file):
            raise ArtifactCorruptError(
                f"{CHECKPOINT_INDEX} says that a tensor is in {str(file)[:100]!r}, which is no "
                "plain name of a safetensors file; fetch it again"
            )
        files[tensor] = file
    return files


def shards_of(files: dict[str, str]) -> set[str]:
    """The files of a weight map. Raises ArtifactCorruptError for none, or too many."""
    shards = set(files.values())
    if not 0 < len(shards) <= MAX_SHARDS:
        raise ArtifactCorruptError(
            f"{CHECKPOINT_INDEX} names {len(shards)} files; there are 1 to {MAX_SHARDS}"
        )
    return shards
