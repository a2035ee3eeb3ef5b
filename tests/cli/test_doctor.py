"""What `outrider doctor` says of a model and its draft."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from outrider.cli import doctor
from outrider.cli.findings import Finding
from outrider.cli.model_choice import choose
from outrider.engines import draft_loading
from outrider.models.catalog import DEFAULT_MODEL, ModelSpec, load_catalog, use
from outrider.models.store import ModelStore
from outrider.models.vocabulary import Vocabulary
from outrider.tokenization.backends import selection
from outrider.tokenization.backends.base import REFERENCE
from outrider.tokenization.backends.fallback import FallbackBackend
from outrider.tokenization.backends.selection import select_backend
from tests.cli.invoking import invoke
from tests.engines.test_draft_file import write


def finding(monkeypatch: pytest.MonkeyPatch, path: Path | None) -> Finding:
    monkeypatch.setattr(draft_loading, "shipped_draft", lambda target: path)
    return doctor._draft(DEFAULT_MODEL)


def test_without_a_draft_model_all_is_well(monkeypatch: pytest.MonkeyPatch) -> None:
    found = finding(monkeypatch, None)
    assert found.ok
    assert "none is shipped" in found.what


def test_a_draft_model_and_how_much_it_can_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = finding(monkeypatch, write(tmp_path / "d.gguf"))
    assert found.ok
    assert "3 of its ids" in found.what


def test_a_damaged_draft_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "d.gguf").write_bytes(b"GGUF")
    found = finding(monkeypatch, tmp_path / "d.gguf")
    assert not found.ok
    assert "install the package again" in found.fix


def test_a_definition_without_a_draft() -> None:
    found = doctor._draft(ModelSpec("mine", "file:/m", draft="none"))
    assert found.ok
    assert "none for mine" in found.what


def test_a_model_of_ones_own_and_its_draft(
    tmp_path: Path, user_models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTRIDER_MODEL_STORE", str(tmp_path / "store"))
    (tmp_path / "m.gguf").write_bytes(b"weights")
    user_models.parent.mkdir()
    source = f'source = "file:{tmp_path}/m.gguf"\n'
    user_models.write_text(f'[models.large]\n{source}draft = "small"\n[models.small]\n{source}')
    use(load_catalog())
    large = load_catalog().lookup("large")
    for found in (doctor._model(large), doctor._draft(large)):
        assert not found.ok
        assert "outrider models pull" in found.fix
    ModelStore(tmp_path / "store").pull(large.source)
    assert doctor._model(large).what == "model large is in the store and intact"
    assert doctor._draft(large).what == "draft model small is in the store and intact"
    assert doctor._argument(ModelSpec("m", large.source)) == f"'{large.source}'"
    asked = ModelSpec("other", "hf:o/r@main#f.gguf")
    assert doctor._model(asked).fix == "outrider models pull 'hf:o/r@main#f.gguf'"


def test_what_is_advised_for_a_changed_file_helps(
    tmp_path: Path, user_models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTRIDER_MODEL_STORE", str(tmp_path / "store"))
    user_models.parent.mkdir()
    user_models.touch()
    weights = tmp_path / "m.gguf"
    for content in (b"weights", b"other weights"):
        weights.write_bytes(content)
        found = doctor._model(choose(str(weights)).spec)
        assert not found.ok
        fetched = invoke(shlex.split(found.fix)[1:])
        assert fetched.exit_code == 0, fetched.output
        assert doctor._model(choose(str(weights)).spec).ok
    assert found.fix == f"outrider models pull --refresh 'file:{weights}'"
    weights.write_bytes(b"changed again")
    assert "models pull --refresh" in doctor._tokenizer(choose(str(weights)).spec).fix


@pytest.mark.model
@pytest.mark.parametrize(("cores", "told"), [(2, "0 other processes"), (8, "2 other processes")])
def test_the_processes_that_would_help_to_tokenize_are_told(
    cores: int, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(store: ModelStore, vocabulary: Vocabulary) -> FallbackBackend:
        return select_backend(vocabulary, REFERENCE)

    monkeypatch.setattr(selection, "load_backend", slow)
    monkeypatch.setattr(doctor, "usable_cores", lambda: cores)
    found = doctor._tokenizer(DEFAULT_MODEL)
    assert found.ok and f"{REFERENCE} (" in found.what and told in found.what


@pytest.mark.parametrize("is_well", [True, False])
def test_findings_as_json_have_the_same_exit_status(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_well: bool
) -> None:
    findings = [
        Finding(True, "fine", "nothing"),
        Finding(is_well, "disk", "more"),
    ]
    monkeypatch.setattr(doctor, "_findings", lambda specs, state_dir: iter(findings))
    flags = ("doctor", "--state-dir", str(tmp_path))
    told = invoke([*flags, "--json"])
    assert json.loads(told.stdout) == [
        {"ok": True, "what": "fine", "fix": ""},
        {"ok": is_well, "what": "disk", "fix": "" if is_well else "more"},
    ]
    assert told.exit_code == invoke(flags).exit_code == (0 if is_well else 1)
