"""Small safetensors files and config.json files."""

from __future__ import annotations

import json

import numpy as np

from tests.models.checkpoints import LLAMA3_RULE, Small, packed


def small_safetensors() -> list[bytes]:
    """Two tensors of some bytes, and none."""
    tensors = {"a": np.ones((2, 3), np.float32), "b": np.ones(4, np.float32)}
    return [packed(tensors), packed(tensors, "BF16"), packed({})]


def small_checkpoint_configs() -> list[bytes]:
    small = Small(layers=2)
    return [
        json.dumps(small.config()).encode(),
        json.dumps(small.config(rope_scaling=LLAMA3_RULE)).encode(),
        json.dumps(small.config(rope_parameters={"rope_type": "linear", "factor": 2})).encode(),
    ]
