"""A small random encoder as a folder of sentence-transformers, and what any such model makes of
ids, computed with numpy, text by text and head by head."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.models.checkpoints import Floats, Tensors, packed

WORDS = [*map(chr, range(ord("a"), ord("z") + 1)), "the", "cat", "dog", "sat", "##s", "##at", "."]
TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS, *(f"##{chr(c)}" for c in range(97, 123))]
WIDTH, HEADS, INNER, LAYERS, POSITIONS = 64, 4, 128, 2, 64
POOLINGS = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "lasttoken")


def config(**changes: Any) -> dict[str, Any]:
    """config.json."""
    return {
        "model_type": "bert",
        "hidden_act": "gelu",
        "hidden_size": WIDTH,
        "intermediate_size": INNER,
        "layer_norm_eps": 1e-12,
        "max_position_embeddings": POSITIONS,
        "num_attention_heads": HEADS,
        "num_hidden_layers": LAYERS,
        "pad_token_id": 0,
        "vocab_size": len(TOKENS),
    } | changes


def modules(*kinds: str) -> list[dict[str, Any]]:
    """modules.json."""
    return [{"idx": i, "type": f"sentence_transformers.models.{it}"} for i, it in enumerate(kinds)]


def pooling(*chosen: str) -> dict[str, Any]:
    """1_Pooling/config.json."""
    chosen_of = {f"pooling_mode_{name}": name in chosen for name in POOLINGS}
    return {"word_embedding_dimension": WIDTH, **chosen_of}


def tokenizer() -> dict[str, Any]:
    """tokenizer.json; that it pads and cuts is nothing to whoever batches."""
    special = [
        {"id": i, "content": TOKENS[i], "special": True, "single_word": False}
        | {"lstrip": False, "rstrip": False, "normalized": False}
        for i in range(4)
    ]
    around = [
        {"SpecialToken": {"id": "[CLS]", "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}},
        {"SpecialToken": {"id": "[SEP]", "type_id": 0}},
    ]
    ids = {"[CLS]": 2, "[SEP]": 3}
    return {
        "version": "1.0",
        "truncation": {"max_length": 4, "strategy": "LongestFirst", "stride": 0},
        "padding": {"strategy": {"Fixed": 16}, "direction": "Right", "pad_to_multiple_of": None}
        | {"pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]"},
        "added_tokens": special,
        "normalizer": {"type": "BertNormalizer", "clean_text": True, "lowercase": True}
        | {"handle_chinese_chars": True, "strip_accents": None},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": around,
            "pair": around,
            "special_tokens": {
                name: {"id": name, "ids": [number], "tokens": [name]}
                for name, number in ids.items()
            },
        },
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": {text: number for number, text in enumerate(TOKENS)},
        },
    }


def random_tensors(seed: int = 7) -> Tensors:
    """Weights as Hugging Face names them, large enough that all of the model matters."""
    rng = np.random.default_rng(seed)
    made: Tensors = {}

    def add(name: str, *shape: int, scale: float = 0.2, around: float = 0.0) -> None:
        made[name] = (rng.standard_normal(shape) * scale + around).astype(np.float32)

    def norm(name: str) -> None:
        add(f"{name}.weight", WIDTH, around=1.0)
        add(f"{name}.bias", WIDTH)

    def dense(name: str, rows: int, columns: int) -> None:
        add(f"{name}.weight", rows, columns, scale=1.5 / math.sqrt(columns))
        add(f"{name}.bias", rows)

    add("embeddings.word_embeddings.weight", len(TOKENS), WIDTH, scale=1.0)
    add("embeddings.position_embeddings.weight", POSITIONS, WIDTH, scale=0.5)
    add("embeddings.token_type_embeddings.weight", 2, WIDTH)
    norm("embeddings.LayerNorm")
    for layer in range(LAYERS):
        here = f"encoder.layer.{layer}."
        for part in ("query", "key", "value"):
            dense(f"{here}attention.self.{part}", WIDTH, WIDTH)
        dense(f"{here}attention.output.dense", WIDTH, WIDTH)
        norm(f"{here}attention.output.LayerNorm")
        dense(f"{here}intermediate.dense", INNER, WIDTH)
        dense(f"{here}output.dense", WIDTH, INNER)
        norm(f"{here}output.LayerNorm")
    return made


def write_encoder(
    folder: Path,
    *,
    pools_by: str = "mean_tokens",
    normalizes: bool = True,
    max_tokens: int | None = 32,
    seed: int = 7,
    **changes: Any,
) -> Tensors:
    """The folder; `changes` are of config.json. Returns its weights."""
    tensors = random_tensors(seed)
    kinds = ["Transformer", "Pooling", *(["Normalize"] if normalizes else [])]
    files: dict[str, Any] = {
        "config.json": config(**changes),
        "tokenizer.json": tokenizer(),
        "modules.json": modules(*kinds),
        "1_Pooling/config.json": pooling(pools_by),
    }
    if max_tokens is not None:
        files["sentence_bert_config.json"] = {"max_seq_length": max_tokens}
    write_embedder(folder, files, tensors)
    return tensors


def write_embedder(folder: Path, files: Mapping[str, Any], tensors: Mapping[str, Floats]) -> None:
    """A folder of sentence-transformers with these files of JSON and weights."""
    (folder / "1_Pooling").mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    (folder / "model.safetensors").write_bytes(packed(tensors))


def reference(
    weights: Callable[[str], Floats],
    shape: Mapping[str, Any],
    ids: Sequence[int],
    *,
    pools_by: str = "mean_tokens",
    normalizes: bool = True,
) -> npt.NDArray[np.float64]:
    """The vector of one text; `weights` gives a tensor by name, `shape` is config.json."""
    width, heads = shape["hidden_size"], shape["num_attention_heads"]
    size = width // heads

    def dense(rows: Any, name: str) -> Any:
        return rows @ _wide(weights(f"{name}.weight")).T + _wide(weights(f"{name}.bias"))

    def norm(rows: Any, name: str) -> Any:
        centred = rows - rows.mean(-1, keepdims=True)
        spread = np.sqrt((centred**2).mean(-1, keepdims=True) + shape["layer_norm_eps"])
        gain, shift = _wide(weights(f"{name}.weight")), _wide(weights(f"{name}.bias"))
        return centred / spread * gain + shift

    begin = 0 if shape["model_type"] == "bert" else shape["pad_token_id"] + 1
    places = np.arange(len(ids)) + begin
    rows = _wide(weights("embeddings.word_embeddings.weight"))[list(ids)]
    rows = rows + _wide(weights("embeddings.position_embeddings.weight"))[places]
    rows = rows + _wide(weights("embeddings.token_type_embeddings.weight"))[0]
    rows = norm(rows, "embeddings.LayerNorm")
    for layer in range(shape["num_hidden_layers"]):
        here = f"encoder.layer.{layer}."
        query, key, value = (
            dense(rows, f"{here}attention.self.{part}") for part in ("query", "key", "value")
        )
        mixed = np.empty_like(query)
        for head in range(heads):
            own = slice(head * size, (head + 1) * size)
            scores = query[:, own] @ key[:, own].T / math.sqrt(size)
            odds = np.exp(scores - scores.max(-1, keepdims=True))
            mixed[:, own] = odds / odds.sum(-1, keepdims=True) @ value[:, own]
        rows = norm(
            dense(mixed, f"{here}attention.output.dense") + rows,
            f"{here}attention.output.LayerNorm",
        )
        inner = dense(rows, f"{here}intermediate.dense")
        active = inner * (1 + np.vectorize(math.erf)(inner / math.sqrt(2))) / 2
        rows = norm(dense(active, f"{here}output.dense") + rows, f"{here}output.LayerNorm")
    pooled = {"mean_tokens": rows.mean(0), "cls_token": rows[0], "lasttoken": rows[-1]}[pools_by]
    vector: npt.NDArray[np.float64] = pooled / np.linalg.norm(pooled) if normalizes else pooled
    return vector


def _wide(values: Floats) -> npt.NDArray[np.float64]:
    return values.astype(np.float64)
