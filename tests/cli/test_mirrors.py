"""`outrider models manifest`, `push` and `pull --from`: what they print, and how they end."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from typer.testing import Result

from outrider.mirrors.manifest import shard_name
from outrider.models.store import ModelStore
from tests.cli.invoking import invoke

WEIGHTS = b"weights" * 400_000
DIGEST = hashlib.sha256(WEIGHTS).hexdigest()


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModelStore:
    monkeypatch.setenv("OUTRIDER_MODEL_STORE", str(tmp_path / "store"))
    monkeypatch.delenv("OUTRIDER_MODEL_MIRRORS", raising=False)
    return ModelStore(tmp_path / "store")


@pytest.fixture
def source(tmp_path: Path) -> str:
    (tmp_path / "model").write_bytes(WEIGHTS)
    return f"file:{tmp_path / 'model'}"


def run(*arguments: str) -> Result:
    return invoke(["models", *arguments])


def test_what_is_pushed_is_pulled_by_its_digest(source: str, tmp_path: Path) -> None:
    mirror = f"file:{tmp_path / 'mirror'}"
    missing = run("push", source, mirror)
    assert missing.exit_code == 3
    assert "outrider models pull" in missing.stderr
    run("pull", source)
    manifest = json.loads(run("manifest", source, "--shard-mib", "1").stdout)
    assert manifest["sha256"] == DIGEST
    assert len(manifest["shards"]) == 3
    told = run("push", source, mirror, "--shard-mib", "1")
    assert told.exit_code == 0
    assert f'sha256 = "{DIGEST}"' in told.stdout
    again = json.loads(run("push", source, mirror, "--shard-mib", "1", "--json").stdout)
    assert again["sent_bytes"] == 0
    assert again["num_shards"] == 3

    elsewhere = ("--store", str(tmp_path / "elsewhere"), "--from", mirror)
    pulled = run("pull", f"sha256:{DIGEST}", *elsewhere, "--json")
    assert pulled.exit_code == 0
    assert json.loads(pulled.stdout)["sha256"] == DIGEST


def test_a_mirror_that_lacks_a_shard_is_named_with_what_to_do(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("pull", source)
    run("push", source, f"file:{tmp_path / 'mirror'}", "--shard-mib", "1")
    (tmp_path / "mirror" / shard_name(DIGEST, 1)).unlink()
    monkeypatch.setenv("OUTRIDER_MODEL_MIRRORS", f"file:{tmp_path / 'mirror'}")
    done = run("pull", f"sha256:{DIGEST}", "--store", str(tmp_path / "elsewhere"))
    assert done.exit_code == 5
    assert "has no shard 1 of the model" in done.stderr
    assert "outrider models push" in done.stderr
    assert not (tmp_path / "elsewhere" / "blobs").exists()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("pull", "x", "--from", "ftp://host/x"), "peer://HOST:PORT"),
        (("pull", "x", "--from", "peer://host"), "peer://HOST:PORT"),
        (("pull", "x", "--from", "peer://192.0.2.1:7400"), "without certificates"),
        (("pull", "x", "--from", "s3://"), "s3://BUCKET/PREFIX"),
        (("pull", "x", "--from", "s3://key:secret@bucket"), "AWS_ENDPOINT_URL"),
        (("pull", "x", "--from", "http://192.0.2.1/x"), "use https"),
        (("pull", "sha256:abc"), "64 lower-case"),
        (("pull", f"sha256:{DIGEST}", "--sha256", "0" * 64), "give one digest"),
        (("pull", "x", "--max-mb-s", "5"), "--from"),
        (("push", "x", "peer://127.0.0.1:1"), "nothing can be pushed"),
        (("push", "x", "https://127.0.0.1/x"), "nothing can be pushed"),
    ],
)
def test_wrong_use_is_told(arguments: tuple[str, ...], told: str) -> None:
    done = run(*arguments)
    assert done.exit_code == 2
    assert told in done.stderr
