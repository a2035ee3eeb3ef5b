"""Vectors of the engine, against numpy, and bit for bit whatever shares a call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outrider.engines.config import Precision
from outrider.engines.embedding import padded_tokens, shortened
from outrider.engines.openvino.embedder import OpenVinoEmbedder, open_embedders
from outrider.errors import ConfigError, EngineError
from outrider.models.catalog import lookup
from outrider.models.embedding_folder import EmbeddingFolder
from outrider.models.folder import read_config, unpacked
from outrider.models.store import ModelStore
from tests.models.encoders import TOKENS, config, reference, write_encoder


def opened(folder: Path, root: Path, precision: Precision = "auto") -> OpenVinoEmbedder:
    """Skips the test, and says why, for bf16 on a CPU without it."""
    store = ModelStore(root / "store")
    made = EmbeddingFolder(store.ensure(f"dir:{folder}"), store)
    try:
        return open_embedders(made, precision=precision)[0]
    except ConfigError as error:
        if "does not compute in bf16" not in error.message:
            raise
        pytest.skip(error.message)


@pytest.mark.parametrize(
    ("pools_by", "normalizes", "kind"),
    [
        ("mean_tokens", True, "bert"),
        ("cls_token", False, "roberta"),
        ("lasttoken", True, "bert"),
    ],
)
def test_a_small_model_is_what_numpy_makes_of_it(
    tmp_path: Path, pools_by: str, normalizes: bool, kind: str
) -> None:
    changes: dict[str, Any] = {"model_type": kind, "pad_token_id": 0 if kind == "bert" else 1}
    tensors = write_encoder(tmp_path / "m", pools_by=pools_by, normalizes=normalizes, **changes)
    engine = opened(tmp_path / "m", tmp_path)
    rng = np.random.default_rng(1)
    for length in (1, 2, 7, 8, 9, 31):
        ids = rng.integers(0, len(TOKENS), length).astype(np.int32)
        (vector,) = engine.embed([ids])
        expected = reference(
            tensors.__getitem__,
            config(**changes),
            list(ids),
            pools_by=pools_by,
            normalizes=normalizes,
        )
        np.testing.assert_allclose(vector, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("precision", ["f32", "bf16"])
def test_a_vector_does_not_depend_on_what_else_is_in_the_call(
    tmp_path: Path, precision: Precision
) -> None:
    write_encoder(tmp_path / "m")
    engine = opened(tmp_path / "m", tmp_path, precision)
    assert engine.info.precision == precision
    rng = np.random.default_rng(2)
    for length in (2, 5, 8, 10, 12, 29):
        ids = rng.integers(0, len(TOKENS), length).astype(np.int32)
        alone = engine.embed([ids]).tobytes()
        for count in (2, 3, 5, 16, 33):
            others = [
                rng.integers(0, len(TOKENS), others_length).astype(np.int32)
                for others_length in rng.integers(1, 33, 400)
                if padded_tokens(int(others_length)) == padded_tokens(length)
            ]
            place = int(rng.integers(0, count))
            batch = others[: count - 1]
            batch.insert(place, ids)
            assert engine.embed(batch)[min(place, len(batch) - 1)].tobytes() == alone


def test_engines_of_one_model_compute_the_same_whatever_threads_they_have(tmp_path: Path) -> None:
    write_encoder(tmp_path / "m")
    store = ModelStore(tmp_path / "store")
    folder = EmbeddingFolder(store.ensure(f"dir:{tmp_path / 'm'}"), store)
    engines = [*open_embedders(folder, count=3), *open_embedders(folder, threads=2)]
    assert len({engine.info.fingerprint for engine in engines}) == 1
    texts = [np.arange(start, start + 30, dtype=np.int32) % len(TOKENS) for start in range(5)]
    assert len({engine.embed(texts).tobytes() for engine in engines}) == 1


def test_bf16_is_another_identity_and_nearly_the_same_vector(tmp_path: Path) -> None:
    write_encoder(tmp_path / "m")
    exact, rounded = (opened(tmp_path / "m", tmp_path, it) for it in ("auto", "bf16"))
    assert (exact.info.precision, rounded.info.precision) == ("f32", "bf16")
    assert exact.info.fingerprint != rounded.info.fingerprint
    ids = np.arange(24, dtype=np.int32) % len(TOKENS)
    (one,), (other,) = exact.embed([ids]), rounded.embed([ids])
    assert one @ other / np.linalg.norm(one) / np.linalg.norm(other) > 0.999


def test_the_padding_of_the_longest_text_needs_no_positions(tmp_path: Path) -> None:
    write_encoder(tmp_path / "m", max_tokens=None, model_type="roberta", pad_token_id=1)
    engine = opened(tmp_path / "m", tmp_path)
    assert padded_tokens(engine.info.max_tokens - 1) > 60
    for length in (61, 62):
        assert np.isfinite(engine.embed([np.ones(length, np.int32)])).all()


def test_texts_of_different_padded_lengths_are_refused(tmp_path: Path) -> None:
    write_encoder(tmp_path / "m")
    engine = opened(tmp_path / "m", tmp_path)
    with pytest.raises(EngineError):
        engine.embed([np.ones(8, np.int32), np.ones(9, np.int32)])
    engine.close()


def test_padding_is_bounded() -> None:
    for length in range(1, 2000):
        padded = padded_tokens(length)
        assert length <= padded <= max(8, length + 3, length * 17 // 16)
        assert padded_tokens(padded) == padded
    lengths = {padded_tokens(length) for length in range(1, 513)}
    assert len(lengths) == 15 + 3 * 16


def test_fewer_dimensions_are_the_first_ones_of_length_one() -> None:
    vectors = np.array([[3.0, 4.0, 12.0]], np.float32)
    np.testing.assert_allclose(shortened(vectors, 2, normalizes=True), [[0.6, 0.8]], atol=1e-6)
    np.testing.assert_allclose(shortened(vectors, 2, normalizes=False), [[3.0, 4.0]])
    assert shortened(vectors, 3, normalizes=True) is vectors


@pytest.mark.model
def test_the_real_model_is_what_numpy_makes_of_it(model_store: ModelStore) -> None:
    """The two films are 0.8939 alike, as in the documentation of sentence-transformers, "Semantic
    Textual Similarity"."""
    spec = lookup("all-minilm-l6-v2")
    artifact = model_store.ensure(spec.source, sha256=spec.sha256)
    folder = EmbeddingFolder(artifact, model_store)
    (engine,), tokenizer = open_embedders(folder), folder.tokenizer()
    texts = [
        "The new movie is awesome",
        "The new movie is so great",
        "Caf\u00e9 \u4f60\u597d, \U0001f600!" * 3,
    ]
    vectors = [engine.embed([tokenizer.encode(text)])[0] for text in texts]
    assert vectors[0] @ vectors[1] == pytest.approx(0.8939, abs=1e-4)
    shape = read_config(unpacked(artifact, model_store))
    files = {name: file.tensors[name].shape for name, file in folder._files.items()}
    for text, vector in zip(texts, vectors, strict=True):
        expected = reference(
            lambda name: folder.weights(name, files[name]), shape, list(tokenizer.encode(text))
        )
        assert vector @ expected >= 0.9999
        np.testing.assert_allclose(vector, expected, atol=1e-4)
    engine.close()
