"""What every test shares: the real model's store and vocabulary, and how properties are tested."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import structlog
from hypothesis import settings
from structlog.testing import capture_logs
from structlog.types import EventDict
from xdist.scheduler import LoadScopeScheduling

from outrider.models import catalog
from outrider.models.catalog import DEFAULT_MODEL, MODELS_VARIABLE
from outrider.models.disk.files import exclusive
from outrider.models.store import ModelStore, default_root
from outrider.models.vocabulary import Vocabulary, load_vocabulary
from tests.worker_watch import WorkerWatch

if TYPE_CHECKING:
    from outrider.engines.openvino.engine import OpenVinoEngine
    from tests.engines.shallow_model import ShallowModel

# What this machine's user has defined is nothing that a test depends on.
os.environ[MODELS_VARIABLE] = os.devnull

_TOGETHER = {
    "mesh of commands": (
        "tests/cli/bench/test_serve.py",
        "tests/cli/prompting/test_interactive.py",
        "tests/cli/test_check.py",
        "tests/cli/test_elsewhere.py",
    ),
    "mesh": (
        "tests/e2e/test_code_blocks.py",
        "tests/e2e/test_commands.py",
        "tests/e2e/test_embeddings.py",
        "tests/e2e/test_exactness.py",
        "tests/e2e/test_interruptions.py",
    ),
    "openvino_engine": (
        "tests/engines/openvino/test_folder.py",
        "tests/engines/openvino/test_layouts.py",
        "tests/engines/openvino/test_model.py",
        "tests/engines/test_draft_loading.py",
        "tests/engines/test_openvino.py",
        "tests/inference/integration/",
    ),
    # What they keep in the machine's store is removed when they are done.
    "tiny models": (
        "tests/e2e/test_demo.py",
        "tests/e2e/test_mirrors.py",
        "tests/e2e/test_official_clients.py",
        "tests/e2e/test_own_model.py",
        "tests/e2e/test_several_models.py",
        "tests/e2e/test_stock_engine_clients.py",
    ),
}
"""What takes long to make, or is not for two at once, and the tests that share it."""
_LONG = ("tests/e2e/", "tests/edge/drafter/test_model.py", "tests/bench/wan/", "tests/cli/")
"""Further files whose tests take long, as far as that is known: they wait for processes."""
_INSTRUMENTS = (
    "tests/bench/",
    "tests/deploy/",
    "tests/e2e/test_code_blocks.py",
    "tests/tools/",
    "tests/test_docs.py",
    "tests/test_documented_names.py",
    "tests/test_worker_watch.py",
)
"""Tests of what only developers use. `make test` leaves them out, `make test-all` runs them."""


def _group(file: str) -> str:
    groups = (name for name, places in _TOGETHER.items() if file.startswith(places))
    return next(groups, file)


def _place(item: pytest.Item) -> int:
    """In the order of the tests: what takes longest begins first, for it would keep one worker busy
    long after the others."""
    file = item.nodeid.partition("::")[0]
    if _group(file) in _TOGETHER:
        return list(_TOGETHER).index(_group(file))
    return len(_TOGETHER) + (not file.startswith(_LONG))


class _ByFixture(LoadScopeScheduling):
    """Gives each of several workers (`pytest -n 2`) the tests of a file, or of a shared fixture."""

    def _split_scope(self, nodeid: str) -> str:
        return _group(nodeid.partition("::")[0])


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """Workers take what is first in the order of the tests."""
    config.option.loadscopereorder = False
    return _ByFixture(config, log)


def pytest_sessionstart(session: pytest.Session) -> None:
    """With several workers (`pytest -n 2`), look after them."""
    plugins = session.config.pluginmanager
    if plugins.has_plugin("dsession"):
        plugins.register(WorkerWatch(session))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest first. Those of instruments are marked."""
    for item in items:
        if item.nodeid.startswith(_INSTRUMENTS):
            item.add_marker("instrument")
    items.sort(key=_place)


def pytest_collection_finish() -> None:
    """What thousands of tests are made of stays until the end: the collector need not look at it
    again and again."""
    gc.collect()
    gc.freeze()


# No deadline: a busy machine is no failure. No database: a run depends on the source and a seed.
settings.register_profile(
    "repeatable", deadline=None, derandomize=True, database=None, max_examples=40
)
settings.register_profile(
    "fresh", deadline=None, derandomize=False, database=None, max_examples=30, print_blob=True
)
settings.load_profile("repeatable")
"""Property tests run on the same examples every time, and in `make test-all` once more on new ones,
whose seed is the commit's (`make new-examples`)."""


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


@pytest.fixture(scope="session")
def shallow_model(
    model_store: ModelStore, tmp_path_factory: pytest.TempPathFactory
) -> ShallowModel:
    """The default model's first layers, written and converted once: for tests that load an engine
    of their own and do not read what it says."""
    from tests.engines.shallow_model import make_shallow

    # One for all workers, whose folders lie in this one.
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    with exclusive(shared / "shallow.lock"):
        return make_shallow(model_store, shared / "shallow")


@pytest.fixture
def user_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The user's models file of this test, which is not there yet; names are looked up anew."""
    file = tmp_path / "configuration" / "models.toml"
    monkeypatch.setenv(MODELS_VARIABLE, str(file))
    catalog.use(None)
    yield file
    catalog.use(None)


@pytest.fixture(autouse=True)
def _plain_logging() -> None:
    """What an earlier test configured, a level for one, does not count."""
    structlog.reset_defaults()


@pytest.fixture
def logs() -> Iterator[list[EventDict]]:
    """What is logged, at any level."""
    with capture_logs() as captured:
        yield captured
