"""One model in the forms that the systems take: a folder of sentence-transformers, a GGUF file, and
OpenVINO's IR. Values are the same float32 in all of them.

The model was trained on 256 tokens of a text, and has positions for 512: so many are computed here
by everybody.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import gguf
import numpy as np
import openvino as ov
import openvino.opset13 as ops

from outrider.engines.openvino.encoder_graph import IDS, MASK, encoder_graph
from outrider.models.catalog import lookup
from outrider.models.embedding import EncoderShape
from outrider.models.embedding_folder import EmbeddingFolder
from outrider.models.folder import checkpoint_extents, unpacked
from outrider.models.store import ModelStore, default_root

NAME: Final = "all-minilm-l6-v2"
MAX_TOKENS: Final = 512
_LAYER: Final = {
    "attn_q": "attention.self.query",
    "attn_k": "attention.self.key",
    "attn_v": "attention.self.value",
    "attn_output": "attention.output.dense",
    "attn_output_norm": "attention.output.LayerNorm",
    "ffn_up": "intermediate.dense",
    "ffn_down": "output.dense",
    "layer_output_norm": "output.LayerNorm",
}
"""Names of a layer's parts in GGUF files, and in the checkpoint."""


@dataclass(frozen=True, slots=True)
class ModelForms:
    """Where they are."""

    folder: Path
    gguf_file: Path
    ir: Path


def write_forms(home: Path) -> tuple[ModelForms, EmbeddingFolder]:
    """Write all of them below `home`. Raises ModelStoreError where the model cannot be had."""
    spec, store = lookup(NAME), ModelStore(default_root())
    artifact = store.ensure(spec.source, sha256=spec.sha256)
    forms = ModelForms(home / "model", home / "model.gguf", home / "ir")
    hidden = shutil.ignore_patterns(".*")
    shutil.copytree(unpacked(artifact, store), forms.folder, ignore=hidden)
    (extent,) = checkpoint_extents(artifact.path)
    with extent.path.open("rb") as archive:
        archive.seek(extent.offset)
        (forms.folder / "model.safetensors").write_bytes(archive.read(extent.num_bytes))
    lengths = forms.folder / "sentence_bert_config.json"
    told = json.loads(lengths.read_text(encoding="utf-8"))
    lengths.write_text(json.dumps({**told, "max_seq_length": MAX_TOKENS}), encoding="utf-8")
    own = ModelStore(home / "store")
    model = EmbeddingFolder(own.ensure(f"dir:{forms.folder}"), own)
    _write_gguf(forms.gguf_file, model, forms.folder / "tokenizer.json")
    forms.ir.mkdir()
    ov.save_model(_whole_graph(model), forms.ir / "openvino_model.xml", compress_to_fp16=False)
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(forms.folder / name, forms.ir)
    return forms, model


def _write_gguf(path: Path, model: EmbeddingFolder, tokenizer: Path) -> None:
    """As llama.cpp's own converter writes a BERT, in F32."""
    shape = model.facts.shape
    assert isinstance(shape, EncoderShape)
    writer = gguf.GGUFWriter(path, "bert")
    writer.add_name(NAME)
    writer.add_context_length(shape.num_positions)
    writer.add_embedding_length(shape.width)
    writer.add_feed_forward_length(shape.inner_width)
    writer.add_block_count(shape.num_layers)
    writer.add_head_count(shape.num_heads)
    writer.add_layer_norm_eps(shape.epsilon)
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType.MEAN)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    _add_vocabulary(writer, json.loads(tokenizer.read_text(encoding="utf-8")))
    width = shape.width
    sizes = {
        "token_embd": ("embeddings.word_embeddings", (shape.vocabulary_size, width)),
        "position_embd": ("embeddings.position_embeddings", (shape.num_positions, width)),
        "token_types": ("embeddings.token_type_embeddings", (2, width)),
    }
    for name, (source, size) in sizes.items():
        writer.add_tensor(f"{name}.weight", _plain(model, f"{source}.weight", size))
    _add_pair(writer, model, "token_embd_norm", "embeddings.LayerNorm", (width,))
    inner = {"ffn_up": (shape.inner_width, width), "ffn_down": (width, shape.inner_width)}
    for layer in range(shape.num_layers):
        for name, source in _LAYER.items():
            size = inner.get(name, (width, width))
            shape_of = size[:1] if name.endswith("norm") else size
            source_of = f"encoder.layer.{layer}.{source}"
            _add_pair(writer, model, f"blk.{layer}.{name}", source_of, shape_of)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_pair(
    writer: gguf.GGUFWriter, model: EmbeddingFolder, name: str, source: str, size: tuple[int, ...]
) -> None:
    writer.add_tensor(f"{name}.weight", _plain(model, f"{source}.weight", size))
    writer.add_tensor(f"{name}.bias", _plain(model, f"{source}.bias", size[:1]))


def _plain(model: EmbeddingFolder, name: str, size: tuple[int, ...]) -> np.ndarray[Any, Any]:
    return np.ascontiguousarray(model.weights(name, size))


def _add_vocabulary(writer: gguf.GGUFWriter, tokenizer: dict[str, Any]) -> None:
    """Pieces that begin a word are marked there, not those that go on with one."""
    found = sorted(tokenizer["model"]["vocab"].items(), key=lambda each: each[1])
    special = {each["content"] for each in tokenizer["added_tokens"] if each["special"]}
    tokens, kinds = [], []
    for text, _ in found:
        is_special = text in special or (text.startswith("[") and text.endswith("]"))
        begun = text.removeprefix("##") if text.startswith("##") else f"\u2581{text}"
        tokens.append(text if is_special else begun)
        kinds.append(gguf.TokenType.CONTROL if text in special else gguf.TokenType.NORMAL)
    ids = dict(found)
    writer.add_tokenizer_model("bert")
    writer.add_tokenizer_pre("jina-v2-en")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_type_count(2)
    writer.add_bos_token_id(ids["[CLS]"])
    writer.add_eos_token_id(ids["[SEP]"])
    writer.add_unk_token_id(ids["[UNK]"])
    writer.add_sep_token_id(ids["[SEP]"])
    writer.add_pad_token_id(ids["[PAD]"])
    writer.add_mask_token_id(ids["[MASK]"])


def _whole_graph(model: EmbeddingFolder) -> Any:
    """Our encoder with the inputs that converters give one: ids, and 1 where a token is one."""
    graph = encoder_graph(model)
    given = ops.parameter([-1, -1], np.int64)
    seen = ops.parameter([-1, -1], np.int64)
    one = ops.constant(np.int64(1))
    zero, nothing = (ops.constant(np.float32(value)) for value in (0.0, -np.inf))
    ids = ops.convert(given, np.int32)
    mask = ops.select(ops.equal(seen, one), zero, nothing)
    for name, instead in ((IDS, ids), (MASK, mask)):
        graph.input(name).replace(instead.output(0))
    whole = ov.Model([ops.result(graph.output(0).get_node().input_value(0))], [given, seen], "bert")
    for output, name in (
        *((whole.input(0), "input_ids"), (whole.input(1), "attention_mask")),
        (whole.output(0), "last_hidden_state"),
    ):
        output.get_tensor().set_names({name})
    return whole
