"""The plan of a local mesh: what is started, and that services read the configs it writes."""

from __future__ import annotations

import importlib
import tomllib
from pathlib import Path

import pytest

from outrider.cli.local import mesh
from outrider.cli.local.mesh import MeshOptions, ProcessSpec
from outrider.config import load
from outrider.errors import ConfigError


def _all_specs(options: MeshOptions, state_dir: Path) -> list[ProcessSpec]:
    replicas = mesh.replicas(options)
    ports = {spec.name: 7000 + i for i, spec in enumerate(replicas)}
    return [
        *replicas,
        mesh.tokenizer(options),
        mesh.router(options, ports, 7100),
        mesh.edge(options, 7200, state_dir),
    ]


def test_two_regions_with_a_replica_each_by_default() -> None:
    names = [spec.name for spec in mesh.replicas(MeshOptions())]
    assert names == ["us-east-0", "eu-west-0"]


def test_every_config_file_is_read_by_its_service(tmp_path: Path) -> None:
    for spec in _all_specs(MeshOptions(replicas_per_region=2, engine="fake"), tmp_path):
        file = tmp_path / f"{spec.name}.toml"
        file.write_text(mesh.to_toml(spec), encoding="utf-8")
        module = importlib.import_module(f"services.{spec.role}.config")
        config = load(getattr(module, f"{spec.role.capitalize()}Config"), spec.role, file=file)
        assert config.host == "127.0.0.1"


def test_the_edge_drafts_with_what_is_asked_for_unless_the_model_is_fake(tmp_path: Path) -> None:
    for options, expected in (
        (MeshOptions(), ""),
        (MeshOptions(draft_model="d.gguf"), "d.gguf"),
        (MeshOptions(engine="fake"), "none"),
        (MeshOptions(draft_model="none", engine="fake"), "none"),
    ):
        assert mesh.edge(options, 7200, tmp_path).values["drafter"] == {"model": expected}


def test_router_config_names_every_replica() -> None:
    options = MeshOptions(regions=("a", "b", "c"))
    spec = mesh.router(options, {"a-0": 1, "b-0": 2, "c-0": 3}, 9)
    table = tomllib.loads(mesh.to_toml(spec))["router"]
    assert [row["address"] for row in table["replicas"]] == [
        "127.0.0.1:1",
        "127.0.0.1:2",
        "127.0.0.1:3",
    ]
    assert table["tokenizers"] == ["127.0.0.1:9"]


def test_text_is_quoted() -> None:
    spec = ProcessSpec("x", "edge", {"a": 'say "hi" \\ there', "b": True, "c": 1.5, "d": ("e",)})
    assert tomllib.loads(mesh.to_toml(spec))["edge"] == {
        "a": 'say "hi" \\ there',
        "b": True,
        "c": 1.5,
        "d": ["e"],
    }


@pytest.mark.parametrize(
    "bad",
    [
        {"regions": ()},
        {"regions": ("a", "a")},
        {"regions": ("a/b",)},
        {"regions": ("..",)},
        {"replicas_per_region": 0},
        {"port": 65_536},
        {"port": -1},
        {"engine": "fake", "draft_model": "d.gguf"},
        {"settings": ("port=1",)},
        {"settings": ("mixer.port=1",)},
    ],
)
def test_absurd_shapes_are_refused(bad: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        MeshOptions(**bad)  # type: ignore[arg-type]
