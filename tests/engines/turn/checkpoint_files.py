"""A checkpoint's folder as others publish it, without weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

LLAMA = {
    "vocab_size": 128_256,
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
}


def write_checkpoint(folder: Path, tokenizer: str = "", **facts: Any) -> Path:
    """config.json with Llama's facts but for these, and tokenizer.json unless it is empty."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**LLAMA, **facts}))
    if tokenizer:
        (folder / "tokenizer.json").write_text(tokenizer)
    return folder
