"""`outrider models verify --fidelity`: figures, bounds and statuses, with a small model."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tokenizers.pre_tokenizers import ByteLevel
from typer.testing import CliRunner, Result

from outrider.cli.models import app
from outrider.engines.config import EngineConfig
from outrider.engines.openvino import loading
from outrider.fidelity import texts
from outrider.fidelity.texts import Text
from outrider.models.catalog import ModelSpec
from outrider.models.store import ModelStore
from tests.fidelity.engines import ReferenceEngine
from tests.fidelity.models import Shape, weights, write

BYTES = [*sorted(ByteLevel.alphabet()), "ab"]


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModelStore:
    monkeypatch.setenv("OUTRIDER_MODEL_STORE", str(tmp_path / "store"))
    documents = (Text("a", "Some words, and a few more of them."), Text("b", "Grüße.\n" * 10))
    monkeypatch.setattr(texts, "shipped", lambda: documents)
    return ModelStore(tmp_path / "store")


@pytest.fixture
def source(tmp_path: Path, store: ModelStore) -> str:
    shape = replace(Shape(), vocabulary=len(BYTES))
    path = write(tmp_path / "m.gguf", shape, weights(shape), vocabulary=BYTES)
    store.pull(f"file:{path}")
    return f"file:{path}"


def serve(monkeypatch: pytest.MonkeyPatch, noise: float) -> list[ReferenceEngine]:
    """From now on models are served with so much noise; the engines that were made."""
    made: list[ReferenceEngine] = []

    def load(spec: ModelSpec, store: ModelStore, config: EngineConfig) -> ReferenceEngine:
        made.append(ReferenceEngine(store.path(spec.source, sha256=spec.sha256), noise=noise))
        return made[-1]

    monkeypatch.setattr(loading, "load_engine", load)
    return made


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["verify", "--fidelity", *arguments])


def test_a_faithful_model(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = serve(monkeypatch, noise=0)
    verified = run(source)
    assert verified.exit_code == 0
    assert source in verified.stdout
    assert "1.0000 times" in verified.stdout
    assert "100.00%" in verified.stdout
    assert verified.stderr == ""
    assert [engine.is_closed for engine in made] == [True]


def test_a_damaged_model_has_status_6_and_is_told_by_what(
    source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(monkeypatch, noise=2)
    verified = run(source)
    assert verified.exit_code == 6
    assert "argmax agreement" in verified.stdout
    assert f"the engine does not say what {source} says" in verified.stderr
    assert "(at least 94%)" in verified.stderr
    assert "(at least 97%)" in run(source, "--precision", "f32").stderr


def test_figures_in_json(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    serve(monkeypatch, noise=2)
    verified = run(source, "--json")
    figures = json.loads(verified.stdout)
    assert verified.exit_code == 6
    assert (figures["model"], figures["precision"]) == (source, "f32")
    assert figures["ppl_ratio"] == pytest.approx(
        figures["perplexity"] / figures["reference_perplexity"]
    )
    assert figures["num_positions"] > 50
    assert figures["kl"] > 0.015
    assert len(figures["broken"]) >= 2


def test_models_that_cannot_be_measured_say_why(tmp_path: Path, store: ModelStore) -> None:
    shape = Shape(architecture="mamba")
    path = write(tmp_path / "other.gguf", shape, weights(shape))
    store.pull(f"file:{path}")
    verified = run(f"file:{path}")
    assert verified.exit_code == 1
    assert "it knows llama, qwen2" in verified.stderr
    assert run("smollm2-135m-instruct").exit_code == 3
    assert run("gpt-9").exit_code == 2
