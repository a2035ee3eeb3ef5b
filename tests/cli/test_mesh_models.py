"""`outrider mesh`: what the commands find out before they ask the mesh."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from outrider.cli.local import mesh_models
from outrider.cli.local.mesh import ServedModel
from outrider.cli.local.state import RunningMesh, holding, publish
from outrider.errors import ConfigError, UnavailableError
from outrider.models import catalog
from tests.cli.invoking import invoke

REPLICA = {
    **{"name": "here-b-0", "role": "inference", "model": "b"},
    **{"is_up": True, "restarts": 0, "last_end": None},
}
REPLICA |= {"pid": 1, "port": 2, "admin_port": 3}


@pytest.fixture
def weights(tmp_path: Path, user_models: Path) -> Path:
    user_models.parent.mkdir()
    user_models.write_text(
        '[models.b]\nsource = "file:/new.gguf"\n[models.mine]\nsource = "file:/mine.gguf"\n'
    )
    file = tmp_path / "b.gguf"
    file.write_bytes(b"weights")
    return file


@pytest.fixture
def mesh(tmp_path: Path, weights: Path) -> Iterator[RunningMesh]:
    """It serves the file as `b`, with the draft `small`."""
    running = RunningMesh(
        os.getpid(),
        "127.0.0.1",
        [REPLICA, REPLICA | {"name": "here-b-1", "is_up": False}, {"name": "edge", "role": "edge"}],
        [asdict(ServedModel("a")), asdict(ServedModel("b", 2))],
        {"b": {"source": f"file:{weights}", "draft": "small"}, "small": {"source": "file:/s"}},
    )
    folder = tmp_path / "state"
    with holding(folder):
        publish(folder, running)
        yield running
    catalog.use(None)


def test_without_a_mesh_there_is_nothing_to_change(tmp_path: Path) -> None:
    for arguments in (["list"], ["add", "a"], ["remove", "a"]):
        result = invoke(["mesh", *arguments, "--state-dir", str(tmp_path)])
        assert isinstance(result.exception, UnavailableError)
        assert "outrider up" in str(result.exception)


def test_models_are_listed_with_their_replicas(tmp_path: Path, mesh: RunningMesh) -> None:
    state = ("--state-dir", str(tmp_path / "state"))
    told = invoke(["mesh", "list", *state]).stdout.splitlines()
    assert told[0].split() == ["a", "0", "of", "0", "replicas", "up", "default"]
    assert told[1].split() == ["b", "1", "of", "2", "replicas", "up"]
    rows = invoke(["mesh", "list", "--json", *state]).stdout.splitlines()
    assert [json.loads(row)["is_default"] for row in rows] == [True, False]


def test_a_file_that_is_served_is_not_added_again(mesh: RunningMesh, weights: Path) -> None:
    with pytest.raises(ConfigError, match="already, as b"):
        mesh_models._chosen(mesh, str(weights), "")


def test_a_name_means_what_the_mesh_means_by_it(mesh: RunningMesh, tmp_path: Path) -> None:
    other = tmp_path / "folder" / "b.gguf"
    other.parent.mkdir()
    other.write_bytes(b"others")
    spec, definitions = mesh_models._chosen(mesh, str(other), "")
    assert spec.name.startswith("b-")
    assert set(definitions) == {spec.name}
    served, _ = mesh_models._chosen(mesh, "b", "")
    assert served.draft == "small", "as the mesh has it, not as the user defines it now"


def test_a_draft_goes_with_its_model(mesh: RunningMesh, weights: Path) -> None:
    spec, definitions = mesh_models._chosen(mesh, "mine", "small")
    assert spec.draft == "small"
    assert definitions["mine"] == {"source": "file:/mine.gguf", "draft": "small"}
    assert definitions["small"] == {"source": "file:/s"}
    spec, definitions = mesh_models._chosen(mesh, "mine", "none")
    assert definitions == {"mine": {"source": "file:/mine.gguf", "draft": "none"}}
    shipped = catalog.DEFAULT_MODEL
    spec, definitions = mesh_models._chosen(mesh, shipped.name, "")
    assert (spec, definitions) == (shipped, {})
