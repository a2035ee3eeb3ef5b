"""What end-to-end tests share: one mesh of real processes with real models, and small models."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.harness.local_mesh import LocalMesh, local_mesh, outrider
from bench.peers.vllm import PEER
from outrider.models.catalog import DEFAULT_MODEL
from outrider.models.store import ModelStore
from outrider.models.vocabulary import Vocabulary
from tests.e2e.reference import Reference
from tests.e2e.tiny_models import write_tiny

EMBEDDING_MODEL = "all-minilm-l6-v2"
collect_ignore_glob = [] if PEER.is_installed() else ["test_vllm.py"]


@pytest.fixture(scope="session")
def mesh() -> Iterator[LocalMesh]:
    # Few sizes of calls, so that it starts in seconds; they change no text.
    few = ("inference.max_fixed_rows=4", "inference.warm_up_rows=16")
    with local_mesh(settings=few, http=True, more_models=[EMBEDDING_MODEL]) as running:
        yield running


@pytest.fixture(scope="session")
def reference(model_store: ModelStore, vocabulary: Vocabulary) -> Iterator[Reference]:
    """The default model's."""
    from outrider.engines.config import EngineConfig
    from outrider.engines.openvino.loading import load_engine

    config = EngineConfig(num_blocks=64, max_fixed_rows=0)
    engine = load_engine(DEFAULT_MODEL, model_store, config)
    yield Reference(engine, vocabulary)
    engine.close()


@pytest.fixture(scope="session")
def tinies(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path]]:
    """Two small random models with a chat template of their own, which load in a second; what the
    machine's store keeps of them is removed again."""
    folder = tmp_path_factory.mktemp("models")
    files = write_tiny(folder / "Tiny One.gguf", 0.2), write_tiny(folder / "Tiny Two.gguf", 0.3)
    yield files
    for file in files:
        outrider("models", "rm", f"file:{file}", check=False)
