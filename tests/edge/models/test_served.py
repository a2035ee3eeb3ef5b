"""What a drafter is told of its model: the definitions that the edge has, whatever files say."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from outrider.errors import ModelStoreError
from outrider.models.catalog import SHIPPED, load_catalog
from outrider.models.definitions import ModelSpec
from outrider.models.vocabulary import Vocabulary
from outrider.telemetry.metrics import Metrics
from outrider.tokenization.backends.base import REFERENCE
from outrider.tokenization.backends.fallback import FallbackBackend
from outrider.tokenization.backends.selection import select_backend
from outrider.tokenization.pool.config import TokenizationConfig
from outrider.tokenization.pool.metrics import TokenizationMetrics
from services.edge.config import EdgeConfig
from services.edge.drafter.link import DrafterLink
from services.edge.models.keys import EdgeModel
from services.edge.models.served import DrafterFile, ServedModel, definitions_of, load_model
from services.edge.telemetry.labels import ModelLabels
from tests.edge.integration.region import small_vocabulary

TEMPLATE = "{% for m in messages %}\n[\"{{ m['content'] }}\"]\\{% endfor %}" + "x" * 200_000
SPEC = ModelSpec("mine", "file:/m.gguf", chat_template=TEMPLATE, draft="gone", stop_tokens=("é",))
READ = """
import sys
from pathlib import Path
from outrider.models.catalog import load_catalog
print([spec.source for spec in load_catalog(Path(sys.argv[1]), {"OUTRIDER_MODELS": "/dev/null"})])
"""


def test_definitions_arrive_whole_in_this_process_and_in_a_child() -> None:
    small = ModelSpec("small", "file:/s.gguf")
    file = DrafterFile(definitions_of(EdgeModel(SPEC, "small", small)))
    try:
        found = load_catalog(Path(file.path), {"OUTRIDER_MODELS": "/dev/null"})
        mine = found.lookup("mine")
        assert (mine.source, mine.chat_template, mine.stop_tokens) == (
            *(SPEC.source, SPEC.chat_template, SPEC.stop_tokens),
        )
        assert mine.draft == "", "the drafter is told its draft, and that one is defined"
        assert found.lookup("small") == small
        assert len(found) == len(SHIPPED) + 2
        child = [sys.executable, "-c", READ, file.path]
        told = subprocess.run(child, capture_output=True, text=True, timeout=60, check=True).stdout
        assert "file:/m.gguf" in told and "file:/s.gguf" in told
    finally:
        file.close()
    assert not Path(file.path).exists()


def load(spec: ModelSpec) -> tuple[Vocabulary, FallbackBackend]:
    vocabulary = small_vocabulary()
    return vocabulary, select_backend(vocabulary, REFERENCE)


@contextmanager
def metrics() -> Iterator[Metrics]:
    made = Metrics("edge")
    try:
        yield made
    finally:
        made.close()


def served(config: EdgeConfig, metrics: Metrics) -> ServedModel:
    counted = TokenizationMetrics(metrics.registry, lambda: [])
    try:
        model = EdgeModel(ModelSpec("a", "file:/a.gguf"), "none", None)
        return load_model(model, config.model_settings(), load, ModelLabels(metrics), counted)
    finally:
        counted.close()


def num_files() -> int:
    """Files for drafters that this process has open."""
    links = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
    return sum("memfd:drafter" in os.readlink(it) for it in links if os.path.lexists(it))


def test_a_load_that_fails_leaves_no_file_open(tmp_path: Path) -> None:
    no_folder = tmp_path / "store"
    no_folder.write_text("")
    with metrics() as counts:
        for _ in range(3):
            with pytest.raises(ModelStoreError):
                served(EdgeConfig(model_store=no_folder, state_dir=tmp_path), counts)
    assert num_files() == 0


@pytest.mark.parametrize(
    ("cores", "settings", "num_processes"),
    [
        (2, {}, 0),
        (8, {}, 2),
        (8, {"processes": 2}, 1),
        (8, {"tokenization": TokenizationConfig(processes=0)}, 0),
        (1, {"tokenization": TokenizationConfig(processes=3)}, 3),
    ],
)
async def test_processes_tokenize_too_where_cores_are_left_or_the_operator_says_so(
    cores: int,
    settings: Mapping[str, Any],
    num_processes: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("services.edge.models.served.usable_cores", lambda: cores)
    config = EdgeConfig(model_store=tmp_path / "store", state_dir=tmp_path, **settings)
    with metrics() as counts:
        model = served(config, counts)
        assert model.tokenization.num_processes == num_processes
        await model.close()


class Stuck(DrafterLink):
    """One that cannot be stopped."""

    async def stop(self) -> None:
        raise OSError("no such process")


async def test_what_cannot_be_given_back_keeps_nothing_else(tmp_path: Path) -> None:
    config = EdgeConfig(model_store=tmp_path / "store", state_dir=tmp_path)
    with metrics() as counts:
        model = served(config, counts)
        assert num_files() == 2
        link = model.drafter
        stuck = Stuck(link._settings, link._vocabulary_size, link._metrics)
        with pytest.raises(OSError, match="no such process"):
            await replace(model, drafter=stuck).close()
    assert num_files() == 0
    assert not any(thread.is_alive() for thread in model.tokenization._threads._threads)
