"""A small random decoder that embeds, of the Qwen3 kind, as a folder of sentence-transformers, and
the vectors that it makes of ids, computed with numpy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.models.checkpoints import QWEN3, Floats, Small, Tensors, random_tensors, states_of
from tests.models.encoders import TOKENS, modules, pooling, tokenizer, write_embedder

DECODER = Small(
    *(QWEN3, len(TOKENS)),
    width=64,
    head_size=32,
    inner=128,
    base=1e6,
    epsilon=1e-6,
)


def config(**changes: Any) -> dict[str, Any]:
    """config.json."""
    return DECODER.config(**({"model_type": "qwen3", "attention_bias": False} | changes))


def write_decoder(folder: Path, prefix: str = "") -> Tensors:
    """The folder; names of its tensors begin with `prefix`. Returns its weights, by the names that
    `reference` takes."""
    tensors = random_tensors(DECODER, scale=0.2)
    files: dict[str, Any] = {
        "config.json": config(),
        "tokenizer.json": tokenizer(),
        "modules.json": modules("Transformer", "Pooling", "Normalize"),
        "1_Pooling/config.json": pooling("lasttoken"),
    }
    named = {f"{prefix}{name.removeprefix('model.')}": it for name, it in tensors.items()}
    write_embedder(folder, files, named)
    return tensors


def reference(tensors: Mapping[str, Floats], ids: Sequence[int]) -> npt.NDArray[np.float64]:
    """The vector of one text."""
    last = states_of(DECODER, tensors, ids)[-1]
    vector: npt.NDArray[np.float64] = last / np.linalg.norm(last)
    return vector
