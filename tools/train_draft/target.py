"""What the draft takes over from the target's GGUF file: geometry and weights.

Also which ids the draft's output head keeps: the target's most frequent ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from gguf import GGUFReader, dequantize

from tools.train_draft.replies import Reply

Floats: TypeAlias = npt.NDArray[np.float32]
Tensors: TypeAlias = dict[str, Floats]
"""By GGUF name; a matrix is [out, in]. Rows of `attn_q` and `attn_k` are in GGUF's order, with the
two halves of a rotary pair side by side."""

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


class TargetFile:
    """The target's GGUF file; its weights are dequantised as they are asked for."""

    def __init__(self, path: Path) -> None:
        """Takes seconds. Raises ValueError for another architecture than Llama's."""
        self._reader = GGUFReader(path)
        self._tensors = {tensor.name: tensor for tensor in self._reader.tensors}
        architecture = self._field("general.architecture")
        if architecture != "llama":
            raise ValueError(f"{path.name} is a {architecture} model; only llama is known here")

    @property
    def geometry(self) -> Geometry:
        return Geometry(
            block_count=self._field("llama.block_count"),
            context_length=self._field("llama.context_length"),
            embedding_length=self._field("llama.embedding_length"),
            feed_forward_length=self._field("llama.feed_forward_length"),
            head_count=self._field("llama.attention.head_count"),
            head_count_kv=self._field("llama.attention.head_count_kv"),
            rope_dimension_count=self._field("llama.rope.dimension_count"),
            rope_freq_base=self._field("llama.rope.freq_base"),
            rms_epsilon=self._field("llama.attention.layer_norm_rms_epsilon"),
            vocab_size=len(self._reader.fields["tokenizer.ggml.tokens"].data),
        )

    def embedding(self) -> Floats:
        """[V, width]."""
        return self._tensor(EMBEDDING)

    def student_tensors(self, layers: Sequence[int], head_ids: npt.NDArray[np.uint32]) -> Tensors:
        """These layers of the target as a whole model whose head has the rows `head_ids` alone."""
        tensors = {
            layer_name(at, name): self._tensor(layer_name(layer, name))
            for at, layer in enumerate(layers)
            for name in LAYER_TENSORS
        }
        tensors[OUTPUT_NORM] = self._tensor(OUTPUT_NORM)
        output = OUTPUT if OUTPUT in self._tensors else EMBEDDING  # a tied head is not stored
        tensors[OUTPUT] = np.ascontiguousarray(self._tensor(output)[head_ids])
        return tensors

    def _tensor(self, name: str) -> Floats:
        tensor = self._tensors[name]
        return np.array(dequantize(tensor.data, tensor.tensor_type), np.float32)

    def _field(self, name: str) -> Any:
        return self._reader.fields[name].contents()


_RUNNERS_UP = 4
"""Likeliest ids of each row that count too: they show what the target nearly said."""


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
