"""Writes a model file as a checkpoint that vLLM reads. Run by the environment of the peer `vllm`.

python vllm_checkpoint.py FILE.gguf FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer


def main(file: Path, folder: Path) -> None:
    """The weights as float32, with the tokenizer; `folder` is complete or absent."""
    partial = folder.with_name(folder.name + ".partial")
    place = {"gguf_file": file.name}
    model = AutoModelForCausalLM.from_pretrained(file.parent, dtype=torch.float32, **place)
    weights = {
        name: tensor.to(torch.float32).contiguous()
        for name, tensor in model.state_dict().items()
        if name != "lm_head.weight" or not model.config.tie_word_embeddings
    }
    model.config.quantization_config = None
    del model.config.quantization_config
    model.config.save_pretrained(partial)
    save_file(weights, partial / "model.safetensors", {"format": "pt"})
    AutoTokenizer.from_pretrained(file.parent, **place).save_pretrained(partial)
    partial.rename(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
