"""Draft models: composed with their target, checked, or refused with a reason."""

from __future__ import annotations

import random
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from outrider.engines.base import Engine, SequenceSlice
from outrider.engines.config import EngineConfig
from outrider.engines.draft_calibration import DraftCalibration
from outrider.engines.draft_file import read_card
from outrider.engines.draft_loading import load_draft
from outrider.engines.openvino.loading import load_trained_draft
from outrider.errors import (
    ArtifactCorruptError,
    ArtifactMissingError,
    ConfigError,
    UnknownModelError,
    VocabularyMismatchError,
)
from outrider.models.catalog import DEFAULT_MODEL, SHIPPED, ModelSpec, use
from outrider.models.definitions import EngineDefaults
from outrider.models.disk.files import file_sha256
from outrider.models.store import ModelStore
from outrider.models.vocabulary import Vocabulary
from tests.engines.draft_making import make_draft
from tests.engines.shallow_model import NUM_LAYERS, ShallowModel
from tests.engines.test_draft_file import write
from tests.fidelity.models import Shape, weights
from tests.fidelity.models import write as write_model
from tests.models.test_folder import write_folder
from tests.tools.train_draft.test_draft_file import small_draft
from tools.train_draft.draft_file import write_draft

CONFIG = EngineConfig(num_blocks=32, max_fixed_rows=0, pin_threads=False)
IDS = np.arange(100, 140, dtype=np.int32)


def last_rows(engine: Engine, num_rows: int) -> tuple[np.ndarray, np.ndarray | None]:
    engine.open(1, IDS)
    blocks = np.arange(3, dtype=np.int32)
    (rows,) = engine.step([SequenceSlice(1, IDS, 0, blocks, num_rows)])
    engine.close_sequence(1)
    return rows.logits.copy(), rows.ids


@pytest.fixture
def whole_draft(tmp_path: Path, shallow_model: ShallowModel, vocabulary: Vocabulary) -> Path:
    """All of the target's layers, and a few rows of its head in no order."""
    ids = random.Random(1).sample(range(vocabulary.size), 500)
    path = tmp_path / "whole.draft.gguf"
    target, layers = shallow_model.file, range(NUM_LAYERS)
    return make_draft(target, path, ids, digest=vocabulary.digest.hex(), layers=layers)


def test_a_draft_without_an_embedding_is_refused_for_a_target_that_is_a_folder(
    tmp_path: Path,
) -> None:
    target = ModelSpec("m", f"dir:{write_folder(tmp_path / 'folder')}", "")
    path = tmp_path / "m.draft.gguf"
    write_draft(path, small_draft())
    card = read_card(path)
    assert card is not None
    with pytest.raises(ArtifactCorruptError, match="has no embedding, and its target is a folder"):
        load_trained_draft(path, card, target, ModelStore(tmp_path / "store"), CONFIG)


@pytest.mark.model
@pytest.mark.timeout(300)
def test_a_draft_of_all_layers_says_what_its_target_does(
    whole_draft: Path, shallow_model: ShallowModel
) -> None:
    with closing(shallow_model.load(CONFIG)) as target:
        wanted, _ = last_rows(target, 8)
    draft = load_draft(str(whole_draft), shallow_model.spec, shallow_model.store, CONFIG)
    with closing(draft.engine):
        logits, ids = last_rows(draft.engine, 8)
        assert ids is not None and ids.shape == logits.shape == (8, 500)
        assert (np.diff(ids[0]) > 0).all()
        among = wanted[:, ids[0]]
        # Rounded to Q8_0 once more on the way; steps of bf16 are 0.125 at these scores.
        distance = np.abs(logits - among)
        assert distance.max() < (1.5 if draft.engine.info.precision == "bf16" else 1.0)
        assert distance.mean() < 0.3
        assert (logits.argmax(axis=1) == among.argmax(axis=1)).mean() > 0.8
        # The grid of calibration.
        assert draft.calibration.greedy[0] == pytest.approx((0.0, 0.3, 0.9))
        assert draft.name == "whole.draft.gguf"


@pytest.mark.model
@pytest.mark.timeout(300)
def test_a_named_draft_has_four_bits_and_what_its_definition_says(
    shallow_model: ShallowModel, user_models: Path
) -> None:
    plain = replace(shallow_model.spec, name="plain-draft")
    as_defined = replace(
        shallow_model.spec,
        name="defined-draft",
        engine=EngineDefaults(precision="f32", max_fixed_rows=48, weight_bits=8),
    )
    use(SHIPPED.extended((plain, as_defined)))
    config, store = replace(CONFIG, num_blocks=64), shallow_model.store
    four = load_draft("plain-draft", shallow_model.spec, store, config).engine
    with closing(four):
        coarse, _ = last_rows(four, 8)
        assert max(four.info.sizing.sizes) == 32
    eight = load_draft("defined-draft", shallow_model.spec, store, config).engine
    with closing(eight):
        fine, _ = last_rows(eight, 8)
        assert eight.info.precision == "f32"
        assert max(eight.info.sizing.sizes) == 48
    with closing(shallow_model.load(replace(CONFIG, precision="f32"))) as target:
        wanted, _ = last_rows(target, 8)
    assert np.abs(fine - wanted).mean() < np.abs(coarse - wanted).mean() / 2
    assert (coarse.argmax(axis=1) == wanted.argmax(axis=1)).mean() >= 0.5


@pytest.mark.model
def test_another_vocabulary_is_refused_by_both_digests(
    tmp_path: Path, model_store: ModelStore, vocabulary: Vocabulary
) -> None:
    other = write(tmp_path / "other.gguf")
    with pytest.raises(VocabularyMismatchError) as caught:
        load_draft(str(other), DEFAULT_MODEL, model_store, CONFIG)
    assert vocabulary.digest.hex() in caught.value.message
    assert "ab" * 32 in caught.value.message


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("more", "fits"), [(7, True), (-1, False)])
def test_any_file_of_the_same_vocabulary_may_draft_whatever_it_is_padded_to(
    tmp_path: Path, more: int, fits: bool
) -> None:
    """Models of one family have the same tokens, and different numbers of ids behind them."""
    texts = ["a", "b", "ab", *(f"{number:03}" for number in range(247))]
    specs = []
    for name, vocabulary in (
        ("target", texts),
        (
            "draft",
            [*texts, *(f"[PAD{250 + i}]" for i in range(more))] if fits else [*texts[:-1], "x"],
        ),
    ):
        shape = Shape(vocabulary=len(vocabulary), width=64, inner=64)
        path = write_model(tmp_path / f"{name}.gguf", shape, weights(shape), vocabulary=vocabulary)
        specs.append(ModelSpec(name, f"file:{path}", file_sha256(path)))
    target, draft = specs
    store = ModelStore(tmp_path / "store")
    file = draft.source.removeprefix("file:")
    if fits:
        loaded = load_draft(file, target, store, CONFIG)
        with closing(loaded.engine) as engine:
            assert engine.info.vocabulary_size == 250 + more
            logits, ids = last_rows(engine, 1)
            assert ids is None and logits.shape == (1, 250 + more)
            assert loaded.name == "draft.gguf" and loaded.calibration == DraftCalibration()
        return
    with pytest.raises(
        VocabularyMismatchError, match="id 249 is 'x' in one and '246' in the other"
    ):
        load_draft(file, target, store, CONFIG)


def test_a_file_that_is_not_there(model_store: ModelStore) -> None:
    with pytest.raises(ArtifactMissingError, match=r"nowhere\.gguf is not there"):
        load_draft("nowhere.gguf", DEFAULT_MODEL, model_store, CONFIG)


def test_a_name_that_nobody_knows(model_store: ModelStore) -> None:
    with pytest.raises(UnknownModelError, match="what-model"):
        load_draft("what-model", DEFAULT_MODEL, model_store, CONFIG)


def test_a_target_for_which_nothing_is_shipped(model_store: ModelStore) -> None:
    target = ModelSpec("another", "file:/nowhere", "00" * 32)
    with pytest.raises(ArtifactMissingError, match="no draft model is shipped for another"):
        load_draft("", target, model_store, CONFIG)


def test_without_the_packages_it_says_which_to_install(
    monkeypatch: pytest.MonkeyPatch, model_store: ModelStore
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"openvino.*outrider\[draft\]"):
        load_draft("", DEFAULT_MODEL, model_store, CONFIG)
