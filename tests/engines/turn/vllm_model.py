"""A small checkpoint with random weights, for vLLM: made where transformers is installed."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

VOCABULARY = 320
"""Ids that it scores: more than its tokenizer has."""
MAX_CONTEXT_TOKENS = 1024
END = "<end>"


def write_model(folder: Path) -> Path:
    """A Llama of two layers, with a tokenizer of single bytes."""
    transformers = importlib.import_module("transformers")
    importlib.import_module("torch").manual_seed(7)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=MAX_CONTEXT_TOKENS,
        tie_word_embeddings=True,
        initializer_range=0.3,
        bos_token_id=None,
        eos_token_id=256,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({it: n for n, it in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([END])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder
