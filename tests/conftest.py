"""What every test shares: the real model's store and vocabulary, and how properties are tested."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from outrider.models.catalog import DEFAULT_MODEL
from outrider.models.loading import load_vocabulary
from outrider.models.store import ModelStore, default_root
from outrider.models.vocabulary import Vocabulary

if TYPE_CHECKING:
    from outrider.engines.openvino.engine import OpenVinoEngine

# No deadline: a busy machine is no failure. Derandomized: a run can be repeated.
settings.register_profile("outrider", deadline=None, derandomize=True, database=None)
settings.load_profile("outrider")


@pytest.fixture(scope="session")
def model_store() -> ModelStore:
    """The machine's model store; the default model is fetched into it once."""
    return ModelStore(default_root())


@pytest.fixture(scope="session")
def vocabulary(model_store: ModelStore) -> Vocabulary:
    """The default model's vocabulary."""
    return load_vocabulary(DEFAULT_MODEL, model_store)


@pytest.fixture(scope="session")
def openvino_engine(model_store: ModelStore) -> Iterator[OpenVinoEngine]:
    """The default model, loaded once. Tests close the sequences they open, never the engine."""
    # Imported here: tests of the fake engine alone need no OpenVINO.
    from outrider.engines.config import EngineConfig
    from outrider.engines.openvino.loading import load_engine

    config = EngineConfig(num_blocks=384, max_fixed_rows=8, prepare_first=True)
    engine = load_engine(DEFAULT_MODEL, model_store, config)
    yield engine
    engine.close()
