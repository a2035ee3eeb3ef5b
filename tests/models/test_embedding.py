"""What a model's files say of its vectors, and its tokenizer."""

from __future__ import annotations

import base64
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outrider.errors import (
    ArtifactCorruptError,
    InvalidRequestError,
    PromptTooLongError,
    UnsupportedModelError,
)
from outrider.models.embedding import DecoderShape, EncoderShape, Pooling, read_embedding_facts
from outrider.models.embedding_folder import EmbeddingFolder, TextTokenizer
from outrider.models.store import ModelStore
from tests.models import decoders
from tests.models.encoders import POSITIONS, TOKENS, config, modules, pooling, write_encoder

WHOLE = modules("Transformer", "Pooling", "Normalize")


def test_what_the_files_say() -> None:
    facts = read_embedding_facts(
        config(), WHOLE, pooling("cls_token"), {"max_seq_length": 20, "do_lower_case": False}
    )
    assert (facts.pooling, facts.normalizes, facts.max_tokens) == (Pooling.FIRST, True, 20)
    plain = read_embedding_facts(
        config(), modules("Transformer", "Pooling"), pooling("lasttoken"), None
    )
    assert (plain.pooling, plain.normalizes, plain.max_tokens) == (Pooling.LAST, False, POSITIONS)
    bare = read_embedding_facts(config(), None, None, {"max_seq_length": 4096})
    assert (bare.pooling, bare.normalizes, bare.max_tokens) == (Pooling.MEAN, True, POSITIONS)


def test_positions_of_roberta_begin_behind_that_of_padding() -> None:
    facts = read_embedding_facts(config(model_type="roberta", pad_token_id=1), None, None, None)
    assert isinstance(facts.shape, EncoderShape) and facts.shape.first_position == 2
    assert facts.max_tokens == POSITIONS - 2


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"model_type": "llama"}, "model_type is 'llama'"),
        ({"hidden_act": "silu"}, "hidden_act is 'silu'"),
        ({"position_embedding_type": "relative_key"}, "positions are not absolute"),
        ({"hidden_size": None}, "hidden_size"),
        ({"num_attention_heads": 5}, "5 heads do not share a width of 64"),
        ({"layer_norm_eps": "x"}, "layer_norm_eps"),
        ({"num_hidden_layers": 1 << 20}, "num_hidden_layers"),
        ({"pad_token_id": 1 << 20}, "pad_token_id"),
    ],
)
def test_what_cannot_be_computed_is_refused_by_name(changed: dict[str, Any], named: str) -> None:
    with pytest.raises(UnsupportedModelError, match=named):
        read_embedding_facts(config(**changed), WHOLE, pooling("cls_token"), None)


def test_what_the_files_of_a_decoder_say() -> None:
    facts = read_embedding_facts(
        decoders.config(max_position_embeddings=32_768), WHOLE, pooling("lasttoken"), None
    )
    assert isinstance(facts.shape, DecoderShape)
    assert (facts.shape.num_queries, facts.shape.queries_width) == (2, 128)
    assert (facts.pooling, facts.max_tokens) == (Pooling.LAST, 2048)
    asked = {"max_seq_length": 32_768}
    most = decoders.config(max_position_embeddings=32_768)
    assert read_embedding_facts(most, None, None, asked).max_tokens == 8192
    assert read_embedding_facts(decoders.config(), None, None, None).pooling is Pooling.LAST


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"rope_scaling": {"type": "yarn"}}, "rope_scaling"),
        ({"use_sliding_window": True}, "use_sliding_window"),
        ({"num_key_value_heads": 3}, "do not share 3"),
        ({"rope_theta": None}, "rope_theta"),
        ({"rms_norm_eps": None}, "rms_norm_eps"),
    ],
)
def test_what_a_decoder_cannot_be_is_refused_by_name(changed: dict[str, Any], named: str) -> None:
    with pytest.raises(UnsupportedModelError, match=named):
        read_embedding_facts(decoders.config(**changed), WHOLE, pooling("lasttoken"), None)
    with pytest.raises(UnsupportedModelError, match="pools by mean_tokens"):
        read_embedding_facts(decoders.config(), WHOLE, pooling("mean_tokens"), None)


@pytest.mark.parametrize(
    ("asked", "pools", "named"),
    [
        (modules("Transformer", "Pooling", "Dense"), pooling("cls_token"), "Dense"),
        ([{}], pooling("cls_token"), "no list of modules"),
        (WHOLE, pooling("max_tokens"), "max_tokens"),
        (WHOLE, pooling("cls_token", "mean_tokens"), "cls_token, mean_tokens"),
        (WHOLE, pooling(), "nothing"),
    ],
)
def test_other_modules_are_refused(asked: Any, pools: Any, named: str) -> None:
    with pytest.raises(UnsupportedModelError, match=named):
        read_embedding_facts(config(), asked, pools, None)


@pytest.fixture
def tokenizer(tmp_path: Path) -> TextTokenizer:
    write_encoder(tmp_path / "model", max_tokens=8)
    store = ModelStore(tmp_path / "store")
    return EmbeddingFolder(store.ensure(f"dir:{tmp_path / 'model'}"), store).tokenizer()


def texts_of(ids: Any) -> str:
    return " ".join(TOKENS[i] for i in ids)


def test_texts_are_neither_padded_nor_cut(tokenizer: TextTokenizer) -> None:
    assert texts_of(tokenizer.encode("The cats sat.")) == "[CLS] the cat ##s sat . [SEP]"
    assert texts_of(tokenizer.encode("")) == "[CLS] [SEP]"
    with pytest.raises(PromptTooLongError, match="length is 8 tokens; the input has 12 tokens"):
        tokenizer.encode("a b c d e f g h i j")
    assert texts_of(tokenizer.encode("a b c d e f g h i j", truncate=True)) == (
        "[CLS] a b c d e f [SEP]"
    )
    with pytest.raises(InvalidRequestError, match="surrogate"):
        tokenizer.encode("\ud800")


def test_a_text_of_no_token_has_no_vector(tokenizer: TextTokenizer) -> None:
    """Of a tokenizer that puts none before a text or behind it."""
    plain = json.loads(tokenizer.definition)
    plain["post_processor"] = None
    facts = read_embedding_facts(config(), None, None, None)
    bare = TextTokenizer(json.dumps(plain), facts)
    assert texts_of(bare.encode("The cats")) == "the cat ##s"
    with pytest.raises(InvalidRequestError, match="no token"):
        bare.encode("  ")


def changed(tokenizer: TextTokenizer, **changes: Any) -> str:
    return json.dumps(json.loads(tokenizer.definition) | changes)


def test_a_table_that_leads_outside_itself_is_refused(tokenizer: TextTokenizer) -> None:
    units = np.full(256, 200_000 << 10 | 1 << 8, "<u4")
    table = struct.pack("<I", units.nbytes) + units.tobytes()
    step = {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(table).decode()}
    facts = read_embedding_facts(config(), None, None, None)
    for normalizer in (step, {"type": "Sequence", "normalizers": [{"type": "NFC"}, step]}):
        with pytest.raises(ArtifactCorruptError, match="damaged"):
            TextTokenizer(changed(tokenizer, normalizer=normalizer), facts)


def test_ids_that_the_model_lacks_are_refused(tokenizer: TextTokenizer) -> None:
    facts = read_embedding_facts(config(), None, None, None)
    model = {"type": "WordLevel", "vocab": {"[UNK]": 0, "hi": 2_000_000}, "unk_token": "[UNK]"}
    with pytest.raises(ArtifactCorruptError, match="more ids than the model"):
        TextTokenizer(changed(tokenizer, model=model, added_tokens=[], post_processor=None), facts)


def test_ids_are_taken_as_they_are(tokenizer: TextTokenizer) -> None:
    ids = np.array([2, 5, 3], np.int32)
    assert tokenizer.checked(ids, truncate=False) is ids
    assert len(tokenizer.checked(np.full(20, 5, np.int32), truncate=True)) == 8
    for wrong in ([], [-1], [len(TOKENS)]):
        with pytest.raises(InvalidRequestError):
            tokenizer.checked(np.array(wrong, np.int32), truncate=False)
    with pytest.raises(PromptTooLongError):
        tokenizer.checked(np.full(20, 5, np.int32), truncate=False)


def test_a_folder_without_its_weights_is_refused_by_name(tmp_path: Path) -> None:
    write_encoder(tmp_path / "model", num_hidden_layers=3)
    store = ModelStore(tmp_path / "store")
    folder = EmbeddingFolder(store.ensure(f"dir:{tmp_path / 'model'}"), store)
    with pytest.raises(UnsupportedModelError, match=r"lack encoder\.layer\.2\.x"):
        folder.weights("encoder.layer.2.x", (1,))
    with pytest.raises(UnsupportedModelError, match="has the shape"):
        folder.weights("embeddings.LayerNorm.bias", (1,))


def test_a_single_file_is_no_embedder(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(json.dumps({}).encode() * 400)
    store = ModelStore(tmp_path / "store")
    with pytest.raises(UnsupportedModelError, match="is a folder"):
        EmbeddingFolder(store.ensure(f"file:{tmp_path / 'model.gguf'}"), store)
