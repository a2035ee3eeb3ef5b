"""Geometry and weights that a draft takes from its target, a GGUF file or a folder.

Also which ids the draft's output head keeps: the target's most frequent ones.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
from gguf import GGUFReader, dequantize

from outrider.errors import ArtifactCorruptError, UnsupportedModelError
from outrider.models.definitions import ModelSpec
from outrider.models.folder import (
    holds_checkpoint,
    is_archive,
    read_config,
    read_facts,
    unpacked,
)
from outrider.models.store import ModelStore
from tools.train_draft.replies import Reply

Floats: TypeAlias = npt.NDArray[np.float32]
Tensors: TypeAlias = dict[str, Floats]
"""Tensors by GGUF name; a matrix is [out, in]. Rows of `attn_q` and `attn_k` are in GGUF's order,
with the two halves of a rotary pair side by side."""

LAYER_TENSORS = (
    "attn_norm",
    "attn_q",
    "attn_k",
    "attn_v",
    "attn_output",
    "ffn_norm",
    "ffn_gate",
    "ffn_up",
    "ffn_down",
)
OUTPUT_NORM = "output_norm.weight"
OUTPUT = "output.weight"
EMBEDDING = "token_embd.weight"


@dataclass(frozen=True, slots=True)
class Geometry:
    """The sizes of a Llama model, under the names of its GGUF metadata."""

    block_count: int
    context_length: int
    embedding_length: int
    feed_forward_length: int
    head_count: int
    head_count_kv: int
    rope_dimension_count: int
    rope_freq_base: float
    rms_epsilon: float
    vocab_size: int


def layer_name(layer: int, tensor: str) -> str:
    """The GGUF name of one of LAYER_TENSORS."""
    return f"blk.{layer}.{tensor}.weight"


class Target(Protocol):
    """The parts of a target that its draft uses."""

    @property
    def geometry(self) -> Geometry:
        """Geometry of a draft with all of the target's layers."""

    def embedding(self) -> Floats:
        """[V, width]."""

    @property
    def has_file(self) -> bool:
        """Whether it is a GGUF file, from which drafts get embedding and tokenizer when they are
        loaded; otherwise the draft's file has the embedding."""

    def student_tensors(self, layers: Sequence[int], head_ids: npt.NDArray[np.uint32]) -> Tensors:
        """A whole model with one layer per entry of `layers` and a head with the rows `head_ids`
        alone. The layers are copies of the target's, if the draft can use those."""


def open_target(spec: ModelSpec, store: ModelStore) -> Target:
    """The target of a definition: a GGUF file, or a folder with a graph of OpenVINO. Fetches what
    is missing. Raises what ModelStore.ensure raises, ArtifactCorruptError, and
    UnsupportedModelError for a folder with safetensors."""
    artifact = store.ensure(spec.source, sha256=spec.sha256)
    if is_archive(artifact.path):
        folder = unpacked(artifact, store)
        if holds_checkpoint(folder):
            raise UnsupportedModelError(
                f"{spec.name} is a folder with safetensors, whose embedding is not read: "
                "name the same model as a GGUF file, or as a folder with an OpenVINO graph"
            )
        return TargetFolder(folder)
    return TargetFile(artifact.path)


def spread(num_layers: int, count: int) -> tuple[int, ...]:
    """`count` layers of `num_layers`, the first and the last among them, evenly apart."""
    count = min(count, num_layers)
    if count < 2:
        return (0,) * count
    return tuple(math.ceil(at * (num_layers - 1) / (count - 1)) for at in range(count))


class TargetFile:
    """A GGUF file of any architecture; its weights are dequantised as they are asked for.

    Drafts are Llama models. For a Llama or Qwen2 target they begin with some of its layers (without
    Qwen2's biases, and with the rows of queries and keys in the order of Llama's file); for any
    other, with new layers.
    """

    has_file = True

    def __init__(self, path: Path) -> None:
        """Takes seconds."""
        self._reader = GGUFReader(path)
        self._tensors = {tensor.name: tensor for tensor in self._reader.tensors}
        self._architecture = str(self._value("general.architecture", ""))

    @property
    def geometry(self) -> Geometry:
        width = int(self._number("embedding_length"))
        heads = int(self._number("attention.head_count"))
        if self._takes_layers:
            size = int(self._number("rope.dimension_count", width // heads))
        else:
            heads, size = _heads(width, heads)
        return Geometry(
            block_count=int(self._number("block_count")),
            context_length=int(self._number("context_length")),
            embedding_length=width,
            feed_forward_length=int(self._number("feed_forward_length")),
            head_count=heads,
            head_count_kv=_key_heads(heads, int(self._number("attention.head_count_kv", heads))),
            rope_dimension_count=size,
            rope_freq_base=self._number("rope.freq_base", _ROTARY_BASE),
            rms_epsilon=self._number("attention.layer_norm_rms_epsilon", _EPSILON),
            vocab_size=len(self._reader.fields["tokenizer.ggml.tokens"].data),
        )

    def embedding(self) -> Floats:
        return self._tensor(EMBEDDING)

    def student_tensors(self, layers: Sequence[int], head_ids: npt.NDArray[np.uint32]) -> Tensors:
        output = OUTPUT if OUTPUT in self._tensors else EMBEDDING  # a tied head is not stored
        head = np.ascontiguousarray(self._tensor(output)[head_ids])
        if not self._takes_layers:
            return new_tensors(replace(self.geometry, block_count=len(layers)), head)
        tensors = {
            layer_name(at, name): self._layer(layer, name)
            for at, layer in enumerate(layers)
            for name in LAYER_TENSORS
        }
        return tensors | {OUTPUT_NORM: self._tensor(OUTPUT_NORM), OUTPUT: head}

    @property
    def is_llama(self) -> bool:
        """Whether it is a Llama model in every detail: a whole model of its tensors computes the
        same."""
        return self._architecture == "llama"

    @property
    def _takes_layers(self) -> bool:
        """Whether a draft can begin with layers of this target."""
        return self._architecture in _LIKE_LLAMA

    def _layer(self, layer: int, name: str) -> Floats:
        tensor = self._tensor(layer_name(layer, name))
        if self._architecture != "llama" and name in ("attn_q", "attn_k"):
            return _interleaved(tensor, self.geometry.rope_dimension_count)
        return tensor

    def _tensor(self, name: str) -> Floats:
        tensor = self._tensors[name]
        return np.array(dequantize(tensor.data, tensor.tensor_type), np.float32)

    def _number(self, name: str, default: float | None = None) -> float:
        """A number from the architecture's metadata; for numbers by layer, the largest. Raises
        ArtifactCorruptError if it is missing and `default` is None."""
        value = self._value(f"{self._architecture}.{name}", default)
        if isinstance(value, list) and value:
            value = max(value)
        if not isinstance(value, int | float):
            raise ArtifactCorruptError(
                f"the model file does not say {self._architecture}.{name}; use a complete one"
            )
        return value

    def _value(self, name: str, default: Any) -> Any:
        field = self._reader.fields.get(name)
        return default if field is None else field.contents()


class TargetFolder:
    """A folder with a graph of OpenVINO's: its embedding is computed from the graph, whatever form
    its weights have there; drafts begin with new layers."""

    has_file = False

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._config = read_config(folder)

    @property
    def geometry(self) -> Geometry:
        config = self._config
        width = self._embedding.shape[1]
        heads, size = _heads(width, int(config.get("num_attention_heads") or 0))
        return Geometry(
            block_count=int(config.get("num_hidden_layers") or 4),
            context_length=read_facts(self._folder).max_context_tokens,
            embedding_length=width,
            feed_forward_length=int(config.get("intermediate_size") or 4 * width),
            head_count=heads,
            head_count_kv=_key_heads(heads, int(config.get("num_key_value_heads") or heads)),
            rope_dimension_count=size,
            rope_freq_base=float(config.get("rope_theta") or _ROTARY_BASE),
            rms_epsilon=float(config.get("rms_norm_eps") or _EPSILON),
            vocab_size=read_facts(self._folder).vocabulary_size,
        )

    def embedding(self) -> Floats:
        return self._embedding

    def student_tensors(self, layers: Sequence[int], head_ids: npt.NDArray[np.uint32]) -> Tensors:
        geometry = replace(self.geometry, block_count=len(layers))
        return new_tensors(geometry, np.ascontiguousarray(self._embedding[head_ids]))

    @cached_property
    def _embedding(self) -> Floats:
        # Imported here: GGUF targets are trained on machines without OpenVINO.
        from tools.train_draft.graph_embedding import read_embedding

        return read_embedding(self._folder / "openvino_model.xml")


_LIKE_LLAMA = ("llama", "qwen2")
"""Architectures whose layers are a Llama's, but for biases and the order of rows."""
_ROTARY_BASE = 10_000.0
_EPSILON = 1e-5
_HEAD_SIZE = 64
_INITIAL = 0.02
"""Standard deviation of new weights."""


def new_tensors(geometry: Geometry, head: Floats) -> Tensors:
    """Untrained layers, the same each time; what they add to the embedding is small at first."""
    rng = np.random.default_rng(0)
    width, inner = geometry.embedding_length, geometry.feed_forward_length
    rows = geometry.rope_dimension_count * geometry.head_count
    key_rows = geometry.rope_dimension_count * geometry.head_count_kv
    shapes = {
        "attn_q": (rows, width),
        "attn_k": (key_rows, width),
        "attn_v": (key_rows, width),
        "attn_output": (width, rows),
        "ffn_gate": (inner, width),
        "ffn_up": (inner, width),
        "ffn_down": (width, inner),
    }
    tensors: Tensors = {OUTPUT_NORM: np.ones(width, np.float32), OUTPUT: head}
    for layer in range(geometry.block_count):
        for name in LAYER_TENSORS:
            if name in shapes:
                values = rng.standard_normal(shapes[name]) * _INITIAL
            else:
                values = np.ones(width)
            tensors[layer_name(layer, name)] = values.astype(np.float32)
    return tensors


def _heads(width: int, wanted: int) -> tuple[int, int]:
    """Heads of a draft of this width and their size, which is even: as many as the target has, if
    they divide the width."""
    for heads in (wanted, width // _HEAD_SIZE, 1):
        if heads > 0 and width % heads == 0 and width // heads % 2 == 0:
            return heads, width // heads
    raise UnsupportedModelError(f"a draft of width {width} cannot be trained: it is odd")


def _key_heads(heads: int, wanted: int) -> int:
    return wanted if wanted > 0 and heads % wanted == 0 else heads


def _interleaved(rows: Floats, size: int) -> Floats:
    """Rows of queries or keys whose rotary pairs are `size / 2` apart, with the pairs side by
    side."""
    heads = rows.reshape(-1, 2, size // 2, rows.shape[1])
    return np.ascontiguousarray(heads.swapaxes(1, 2).reshape(rows.shape))


_RUNNERS_UP = 4
"""Likeliest ids of each row that count too: the target nearly chose them."""


def head_ids(
    replies: Iterable[Reply], num_rows: int, always: Collection[int], vocabulary_size: int
) -> npt.NDArray[np.uint32]:
    """[num_rows] ids, ascending: those of `always`, then the most frequent of the target's text.

    An id said counts 1, one that was among the row's likeliest its probability. Ids that never
    came up follow in id order: byte-level BPE numbers them by how frequent they were when the
    vocabulary was made.
    """
    weights = np.zeros(vocabulary_size)
    for reply in replies:
        weights += np.bincount(reply.ids, minlength=vocabulary_size)
        top = reply.top_ids[:, :_RUNNERS_UP].ravel()
        mass = np.exp(reply.top_logprobs[:, :_RUNNERS_UP].astype(np.float64)).ravel()
        weights += np.bincount(top, mass, minlength=vocabulary_size)
    weights[list(always)] = np.inf
    ranked = np.argsort(-weights, kind="stable")
    return np.sort(ranked[:num_rows]).astype(np.uint32)


def coverage(replies: Iterable[Reply], ids: npt.NDArray[np.uint32]) -> float:
    """Share of the replies' tokens that a head of these ids can say."""
    counts = Counter(token for reply in replies for token in reply.ids.tolist())
    kept = set(ids.tolist())
    return sum(n for token, n in counts.items() if token in kept) / max(1, counts.total())
