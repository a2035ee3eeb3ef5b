"""A graph in a folder is served as it is: the same rows as the GGUF file that it was made from."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from bench.harness.model_folder import write_folder
from outrider.engines.base import Ids, Logits
from outrider.engines.openvino.convert import (
    ConvertedModel,
    convert,
    converted,
    read_converted,
    read_folder,
)
from outrider.engines.openvino.engine import OpenVinoEngine
from outrider.engines.openvino.layouts import DEFAULT_LAYOUT
from outrider.errors import EngineError, UnsupportedModelError
from outrider.fidelity.comparing import engine_rows
from outrider.models.catalog import ModelSpec
from outrider.models.store import ModelStore
from outrider.models.vocabulary import Vocabulary, load_vocabulary
from tests.engines.openvino.test_formats import CONFIG, IDS, SHAPE, VOCABULARY, tensors_of
from tests.fidelity.models import write


def rows_of(model: ConvertedModel, ids: Ids = IDS) -> Logits:
    engine = OpenVinoEngine(model, CONFIG)
    try:
        return np.concatenate([logits.copy() for _, logits in engine_rows(engine, ids)])
    finally:
        engine.close()


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[ConvertedModel, Vocabulary]:
    work = tmp_path_factory.mktemp("small")
    source = write(work / "m.gguf", SHAPE, tensors_of("llama"), vocabulary=VOCABULARY)
    (work / "out").mkdir()
    convert(source, work / "out", DEFAULT_LAYOUT)
    return read_converted(work / "out"), Vocabulary.from_gguf(source)


def spec_of(folder: Path, store: ModelStore) -> ModelSpec:
    return ModelSpec("folder", f"dir:{folder}", store.ensure(f"dir:{folder}").sha256)


def test_a_folder_gives_the_rows_of_the_file(
    small: tuple[ConvertedModel, Vocabulary], tmp_path: Path
) -> None:
    model, vocabulary = small
    store = ModelStore(tmp_path / "store")
    spec = spec_of(write_folder(tmp_path / "folder", model, vocabulary), store)
    served = converted(spec, store)
    np.testing.assert_array_equal(rows_of(served), rows_of(model))
    assert load_vocabulary(spec, store).digest == vocabulary.digest


Change = Callable[[Path], object]


def _config(**values: object) -> Change:
    return lambda folder: (folder / "config.json").write_text(json.dumps(values))


def _graph(pattern: str, instead: str) -> Change:
    def change(folder: Path) -> None:
        path = folder / "openvino_model.xml"
        text = path.read_text()
        found, count = re.subn(pattern, instead, text)
        assert count
        path.write_text(found)

    return change


def _halved(name: str) -> Change:
    def change(folder: Path) -> None:
        data = (folder / name).read_bytes()
        (folder / name).write_bytes(data[: len(data) // 2])

    return change


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (_config(vocab_size=95, max_position_embeddings=9), "scores 96 ids, config.json says 95"),
        (_config(vocab_size=96), "lacks vocab_size or max_position_embeddings"),
        (_halved("openvino_model.xml"), "no whole language model"),
        (_halved("openvino_model.bin"), "no whole language model"),
        (_graph("input_ids", "pixels"), "takes no input_ids"),
        (_graph("logits", "embedding"), "it has no logits"),
    ],
)
def test_graphs_of_something_else_are_refused(
    change: Change, complaint: str, small: tuple[ConvertedModel, Vocabulary], tmp_path: Path
) -> None:
    folder = write_folder(tmp_path / "folder", *small)
    change(folder)
    with pytest.raises((UnsupportedModelError, EngineError), match=complaint):
        read_folder(folder)
