"""Vectors of a decoder that embeds, against numpy, and bit for bit whatever shares a call."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from outrider.engines.openvino.embedder import OpenVinoEmbedder, open_embedders
from outrider.models.embedding_folder import EmbeddingFolder
from outrider.models.store import ModelStore
from tests.models.decoders import reference, write_decoder
from tests.models.encoders import TOKENS


def opened(folder: Path, root: Path) -> OpenVinoEmbedder:
    store = ModelStore(root / "store")
    return open_embedders(EmbeddingFolder(store.ensure(f"dir:{folder}"), store))[0]


@pytest.mark.parametrize("prefix", ["", "model."])
def test_a_small_model_is_what_numpy_makes_of_it(tmp_path: Path, prefix: str) -> None:
    tensors = write_decoder(tmp_path / "m", prefix)
    engine = opened(tmp_path / "m", tmp_path)
    rng = np.random.default_rng(1)
    for length in (1, 2, 9, 31):
        ids = rng.integers(0, len(TOKENS), length).astype(np.int32)
        (vector,) = engine.embed([ids])
        np.testing.assert_allclose(vector, reference(tensors, list(ids)), atol=1e-4, rtol=1e-3)


def test_a_vector_does_not_depend_on_what_else_is_in_the_call(tmp_path: Path) -> None:
    write_decoder(tmp_path / "m")
    engine = opened(tmp_path / "m", tmp_path)
    rng = np.random.default_rng(2)
    for length in (3, 8, 30, 200):
        ids = rng.integers(0, len(TOKENS), length).astype(np.int32)
        alone = engine.embed([ids]).tobytes()
        for count in (2, 3, 5, 8):
            others = [rng.integers(0, len(TOKENS), length).astype(np.int32) for _ in range(count)]
            assert engine.embed([*others, ids])[-1].tobytes() == alone
