"""`outrider models add` and `forget`, and what `list` shows of definitions."""

from __future__ import annotations

import json
import os
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from typer.testing import Result

from outrider.models.catalog import DEFAULT_MODEL, MODELS_VARIABLE, SHIPPED, lookup
from outrider.models.store import ModelStore
from tests.cli.invoking import invoke


@pytest.fixture(autouse=True)
def store(tmp_path: Path, user_models: Path, monkeypatch: pytest.MonkeyPatch) -> ModelStore:
    monkeypatch.setenv("OUTRIDER_MODEL_STORE", str(tmp_path / "store"))
    return ModelStore(tmp_path / "store")


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    file = tmp_path / "My Model.Q8_0.gguf"
    file.write_bytes(b"weights")
    return file


def run(*arguments: str) -> Result:
    return invoke(["models", *arguments])


def listed() -> dict[str, dict[str, object]]:
    lines = run("list", "--json").stdout.splitlines()
    return {row.get("name", row["source"]): row for row in map(json.loads, lines)}


def test_a_model_of_ones_own_from_definition_to_pull(
    weights: Path, user_models: Path, store: ModelStore, tmp_path: Path
) -> None:
    template = tmp_path / "t.jinja"
    template.write_text("{{ messages }}", "utf-8")
    stops = ("--stop", "<|eot|>", "--stop", "<|end|>")
    options = ("--chat-template", str(template), *stops, "--tool-parser", "hermes")
    added = run("add", "mine", str(weights), *options, "--context", "512", "--draft", "none")
    assert added.exit_code == 0, added.output
    assert "outrider models pull mine" in added.stdout
    assert "outrider up --model mine" in added.stdout
    assert store.list() == (), "nothing is fetched"
    assert tomllib.loads(user_models.read_text("utf-8")) == {
        "models": {
            "mine": {
                "source": f"file:{weights}",
                "max_context_tokens": 512,
                "chat_template": "{{ messages }}",
                "stop_tokens": ["<|eot|>", "<|end|>"],
                "tool_parser": "hermes",
                "draft": "none",
            }
        }
    }
    assert run("pull", "mine").exit_code == 0
    assert store.path(f"file:{weights}").read_bytes() == b"weights"
    assert run("verify", "mine").exit_code == 0
    assert run("rm", "mine").exit_code == 0
    assert store.list() == ()
    assert lookup("mine").source == f"file:{weights}", "its definition stays"


def test_the_first_pull_decides_which_bytes_it_is(weights: Path) -> None:
    run("add", "mine", str(weights))
    assert run("pull", "mine").exit_code == 0
    held = Path(str(listed()["mine"]["path"]))
    held.chmod(0o644)
    held.write_bytes(b"damaged")
    weights.write_bytes(b"others!")
    refused = run("pull", "mine")
    assert refused.exit_code == 4
    assert "the pin says" in refused.stderr
    assert run("pull", "mine", "--refresh").exit_code == 0
    assert held.with_name(str(listed()["mine"]["held_sha256"])).read_bytes() == b"others!"


def test_other_bytes_than_the_definitions_are_refused(weights: Path) -> None:
    run("add", "mine", str(weights), "--sha256", "0" * 64)
    assert run("pull", "mine").exit_code == 4


def test_list_shows_definitions_and_what_belongs_to_none(
    weights: Path, user_models: Path, store: ModelStore, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.write_bytes(b"other")
    run("add", "mine", str(weights))
    run("pull", "mine")
    store.pull(f"file:{other}")
    rows = listed()
    assert set(rows) == {*SHIPPED.names, "mine", f"file:{other}"}
    assert rows["mine"]["num_bytes"] == 7
    assert rows["mine"]["defined_in"] == str(user_models)
    assert not rows["mine"]["tested"]
    assert rows[DEFAULT_MODEL.name]["tested"]
    assert rows[DEFAULT_MODEL.name]["defined_in"] == "shipped"
    assert rows[DEFAULT_MODEL.name]["num_bytes"] is None
    assert rows[f"file:{other}"]["state"] == "of no definition"
    text = run("list").stdout
    assert [line for line in text.splitlines() if line.startswith("mine ") and "MB" in line]
    assert "not tested" in text
    assert "no definition" in text


def test_a_name_is_not_taken_over_unasked(weights: Path) -> None:
    run("add", "mine", str(weights))
    for name in ("mine", DEFAULT_MODEL.name):
        refused = run("add", name, "file:/other.gguf")
        assert refused.exit_code == 2
        assert "--replace" in refused.stderr
    assert lookup("mine").source == f"file:{weights}"
    assert run("add", "mine", "file:/other.gguf", "--replace").exit_code == 0
    assert listed()["mine"]["source"] == "file:/other.gguf"
    assert run("add", DEFAULT_MODEL.name, "file:/other.gguf", "--replace").exit_code == 0
    assert listed()[DEFAULT_MODEL.name]["source"] == "file:/other.gguf"
    assert run("forget", DEFAULT_MODEL.name).exit_code == 0
    assert listed()[DEFAULT_MODEL.name]["source"] == DEFAULT_MODEL.source


def test_what_is_forgotten_stays_in_the_store(weights: Path, store: ModelStore) -> None:
    run("add", "mine", str(weights))
    run("pull", "mine")
    forgotten = run("forget", "mine")
    assert f"outrider models rm file:{weights}" in forgotten.stdout
    assert len(store.list()) == 1
    assert "mine" not in listed()
    assert run("pull", "mine").exit_code == 2


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("add", "Mine", "file:/m"), 2, "cannot name a model"),
        (("add", "mine", "ftp://m"), 2, "write pypi:"),
        (("add", "mine", "m"), 2, "write pypi:"),
        (("add", "mine", "./gone.gguf"), 3, "does not exist"),
        (("add", "mine", "file:/m", "--sha256", "ab"), 2, "64 lower-case"),
        (("add", "mine", "file:/m", "--context", "-1"), 2, "'--context'"),
        (("add", "mine", "file:/m", "--draft", "who"), 2, "'who', the draft of mine"),
        (("add", "mine", "file:/m", "--draft", "/d.gguf"), 2, "cannot name a model"),
        (("add", "mine", "file:/m", "--stop", ""), 2, "stop_tokens"),
        (("add", "mine", "file:/m", "--tool-parser", "xml"), 2, "one of hermes, llama3_json"),
        (("add", "mine", "file:/m", "--chat-template", "/gone"), 3, "cannot read /gone"),
        (("forget", "mine"), 2, "does not define 'mine'"),
        (("forget", DEFAULT_MODEL.name), 2, "is shipped with Outrider"),
    ],
)
def test_what_cannot_be_done_is_said_and_nothing_is_written(
    arguments: tuple[str, ...], status: int, message: str, user_models: Path
) -> None:
    failed = run(*arguments)
    assert failed.exit_code == status
    assert message in failed.stderr
    assert failed.stdout == ""
    assert not user_models.exists()


@pytest.mark.parametrize("text", ["{% if %}", "", "\ud800"])
def test_a_template_that_is_none(text: str, tmp_path: Path, user_models: Path) -> None:
    template = tmp_path / "t.jinja"
    template.write_bytes(text.encode("utf-8", "surrogatepass"))
    failed = run("add", "mine", "file:/m", "--chat-template", str(template))
    assert failed.exit_code == 2
    assert not user_models.exists()


def test_a_draft_in_use_is_not_forgotten(weights: Path) -> None:
    run("add", "small", str(weights))
    run("add", "large", str(weights), "--draft", "small")
    failed = run("forget", "small")
    assert failed.exit_code == 2
    assert "the draft of large" in failed.stderr
    assert "small" in listed()


def test_a_damaged_models_file_stays_as_it_is(user_models: Path) -> None:
    user_models.parent.mkdir()
    user_models.write_text("[models", "utf-8")
    for arguments in (("add", "mine", "file:/m"), ("forget", "mine"), ("list",)):
        failed = run(*arguments)
        assert failed.exit_code == 2
        assert str(user_models) in failed.stderr
    assert user_models.read_text("utf-8") == "[models"


def test_a_device_is_not_replaced_by_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    monkeypatch.setenv(MODELS_VARIABLE, str(pipe))
    for arguments in (("add", "mine", "file:/m"), ("forget", "mine")):
        failed = run(*arguments)
        assert failed.exit_code == 2
        assert "is no file" in failed.stderr
    assert pipe.is_fifo()
    assert not pipe.with_name(".pipe.lock").exists()


def test_json_for_programs(weights: Path) -> None:
    added = json.loads(run("add", "mine", str(weights), "--json").stdout)
    assert (added["defined"], added["source"]) == ("mine", f"file:{weights}")
    assert json.loads(run("add", "mine", "x", "--json").stdout)["error"] == "CONFIG"
    assert json.loads(run("forget", "mine", "--json").stdout)["forgotten"] == "mine"


def test_no_definition_is_lost_when_several_are_added_at_once(user_models: Path) -> None:
    from outrider.cli.definitions import add

    names = [f"m{i}" for i in range(16)]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda name: add(name, f"file:/{name}"), names))
    assert set(tomllib.loads(user_models.read_text("utf-8"))["models"]) == set(names)
