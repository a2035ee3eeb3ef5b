"""A folder with an OpenVINO model, as OpenVINO's organisation publishes them, made from a converted
one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from outrider.engines.openvino.convert import ConvertedModel
from outrider.models.gguf_file import content_of, open_gguf
from outrider.models.vocabulary import Vocabulary

_SIZES: Final = {
    "num_hidden_layers": "block_count",
    "hidden_size": "embedding_length",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
}
"""Names in config.json of a GGUF file's architecture sizes."""


def sizes_of(source: Path) -> dict[str, int]:
    """Sizes of a GGUF file's architecture, under config.json's names."""
    reader = open_gguf(source)
    architecture = content_of(reader, "general.architecture")
    return {name: content_of(reader, f"{architecture}.{key}") for name, key in _SIZES.items()}


def write_folder(
    folder: Path,
    model: ConvertedModel,
    vocabulary: Vocabulary,
    sizes: Mapping[str, int] | None = None,
) -> Path:
    """Write the folder, and return its path. `outrider up` needs the `sizes` to report the memory
    it takes."""
    folder.mkdir()
    for suffix in (".xml", ".bin"):
        shutil.copy(model.graph.with_suffix(suffix), folder)
    facts = vocabulary.facts
    config = {
        "vocab_size": model.facts.vocabulary_size,
        "max_position_embeddings": model.facts.max_context_tokens,
        **(sizes or {}),
    }
    tokens = {"bos_token": {"content": facts.bos_token}, "eos_token": facts.eos_token}
    for name, content in (
        ("config.json", config),
        ("tokenizer_config.json", tokens | {"chat_template": facts.chat_template}),
        ("generation_config.json", {"eos_token_id": list(facts.stop_ids)}),
        ("tokenizer.json", json.loads(vocabulary.tokenizer_json)),
    ):
        (folder / name).write_text(json.dumps(content))
    return folder
