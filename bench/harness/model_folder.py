"""A folder with an OpenVINO model, as OpenVINO's organisation publishes them, made from a converted
one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from outrider.engines.openvino.convert import ConvertedModel
from outrider.models.vocabulary import Vocabulary


def write_folder(folder: Path, model: ConvertedModel, vocabulary: Vocabulary) -> Path:
    """Write it, and return its path."""
    folder.mkdir()
    for suffix in (".xml", ".bin"):
        shutil.copy(model.graph.with_suffix(suffix), folder)
    facts = vocabulary.facts
    config = {
        "vocab_size": model.facts.vocabulary_size,
        "max_position_embeddings": model.facts.max_context_tokens,
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
