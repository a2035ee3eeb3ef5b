"""The plan of a local mesh: what is started, and that services read the configs it writes."""

from __future__ import annotations

import importlib
import tomllib
from pathlib import Path
from typing import Any

import pytest

from outrider.cli.local import mesh
from outrider.cli.local.mesh import MeshOptions, ProcessSpec, ServedModel
from outrider.cli.local.supervisor import START_LIMIT_S
from outrider.config import load
from outrider.errors import ConfigError
from outrider.tls.identity import is_label

ONE = (ServedModel("model-a"),)


def _all_specs(options: MeshOptions, state_dir: Path) -> list[ProcessSpec]:
    replicas = mesh.replicas(options)
    ports = {spec.name: 7000 + i for i, spec in enumerate(replicas)}
    return [
        *replicas,
        mesh.tokenizer(options),
        *mesh.routers(options, replicas, ports, 7100),
        *mesh.edges(options, [7200], state_dir),
    ]


def test_routers_stand_in_the_regions_in_turn_and_edges_prefer_each_another() -> None:
    options = MeshOptions(ONE, num_routers=3, num_edges=2, port=5000, http_port=9000)
    routers = mesh.routers(options, [], {}, 7200)
    assert [(it.name, it.values["region"]) for it in routers] == [
        ("router", "us-east"),
        ("router-2", "eu-west"),
        ("router-3", "us-east"),
    ]
    first, second = mesh.edges(options, [1, 2, 3], Path("/state"))
    assert (first.name, second.name) == ("edge", "edge-2")
    assert (first.values["port"], second.values["port"]) == (5000, 5001)
    assert second.values["http"] == {"host": "127.0.0.1", "port": 9001}
    assert first.values["routers"] == ("127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3")
    assert second.values["routers"] == ("127.0.0.1:2", "127.0.0.1:3", "127.0.0.1:1")
    assert first.values["state_dir"] != second.values["state_dir"], "what they learn is their own"
    assert second.values["certificate"] == "/state/tls/cert.pem", "clients trust one"


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"port": 65535, "num_edges": 2}, "port must be 0 to 65534"),
        ({"http_port": 65535, "num_edges": 2}, "http-port must be 0 to 65534"),
    ],
)
def test_shapes_that_cannot_be(wrong: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        MeshOptions(ONE, **wrong)


def test_every_model_has_its_replicas_in_every_region() -> None:
    models = (ServedModel("a", 2), ServedModel("b.q8_0", threads=3))
    specs = mesh.replicas(MeshOptions(models))
    found = [(spec.name, spec.values["model"], spec.values["threads"]) for spec in specs]
    assert found == [
        ("us-east-a-0", "a", 1),
        ("us-east-a-1", "a", 1),
        ("eu-west-a-0", "a", 1),
        ("eu-west-a-1", "a", 1),
        ("us-east-b-q8-0-0", "b.q8_0", 3),
        ("eu-west-b-q8-0-0", "b.q8_0", 3),
    ]


def test_names_are_unique_and_fit_certificates() -> None:
    models = ("b-c", "c", "c.d", "c_d", "c" * 64, "c" * 63 + "x", "c" + "-" * 62 + "x")
    options = MeshOptions(
        tuple(ServedModel(name, 2) for name in models), regions=("a", "a-b", "r" * 63)
    )
    names = [spec.name for spec in mesh.replicas(options)]
    assert len(set(names)) == len(names) == 42
    assert all(map(is_label, names))
    for spec in mesh.replicas(options):
        assert is_label(str(spec.values["region"]))


def test_every_config_file_is_read_by_its_service(tmp_path: Path) -> None:
    two = (ServedModel("model-a", 2), ServedModel("model-b"))
    for spec in _all_specs(MeshOptions(two, engine="fake"), tmp_path):
        file = tmp_path / f"{spec.name}.toml"
        file.write_text(mesh.to_toml(spec), encoding="utf-8")
        module = importlib.import_module(f"services.{spec.role}.config")
        config = load(getattr(module, f"{spec.role.capitalize()}Config"), spec.role, file=file)
        assert config.host == "127.0.0.1"


def test_the_edge_drafts_with_what_is_asked_for_unless_the_model_is_fake(tmp_path: Path) -> None:
    for options, expected in (
        (MeshOptions(ONE), ""),
        (MeshOptions(ONE, draft_model="d.gguf"), "d.gguf"),
        (MeshOptions(ONE, engine="fake"), "none"),
        (MeshOptions(ONE, draft_model="none", engine="fake"), "none"),
    ):
        drafter = mesh.edges(options, [7200], tmp_path)[0].values["drafter"]
        assert isinstance(drafter, dict) and drafter["model"] == expected
        assert 10 < drafter["ready_wait_s"] < START_LIMIT_S, "it is waited for"


def test_services_are_told_the_models() -> None:
    options = MeshOptions((*ONE, ServedModel("model-b")), regions=("a", "b"))
    replicas = mesh.replicas(options)
    ports = {spec.name: number for number, spec in enumerate(replicas, start=1)}
    table = tomllib.loads(mesh.to_toml(mesh.routers(options, replicas, ports, 9)[0]))["router"]
    assert [(row["address"], row["model"]) for row in table["replicas"]] == [
        ("127.0.0.1:1", "model-a"),
        ("127.0.0.1:2", "model-a"),
        ("127.0.0.1:3", "model-b"),
        ("127.0.0.1:4", "model-b"),
    ]
    assert table["tokenizers"] == ["127.0.0.1:9"]
    assert table["default_model"] == "model-a"
    assert mesh.tokenizer(options).values["models"] == ("model-a", "model-b")
    assert mesh.edges(options, [9], Path())[0].values["models"] == ("model-a", "model-b")


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
        {"models": ()},
        {"models": (ServedModel("a"), ServedModel("a", 2))},
        {"models": tuple(ServedModel(f"m{n}") for n in range(mesh.MAX_MODELS + 1))},
        {"settings": ("edge.models=b",)},
        {"settings": ("inference.model=b",)},
        {"tables": {"router": {"replicas": []}}},
        {"port": 65_536},
        {"port": -1},
        {"engine": "fake", "draft_model": "d.gguf"},
        {"settings": ("port=1",)},
        {"settings": ("mixer.port=1",)},
    ],
)
def test_absurd_shapes_are_refused(bad: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        MeshOptions(**{"models": ONE, **bad})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["A", "none"])
def test_what_is_no_model_of_a_mesh(name: str) -> None:
    with pytest.raises(ConfigError):
        ServedModel(name)
