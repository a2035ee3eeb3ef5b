"""Where a client finds its key, and to whom it never goes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from outrider.access.client_key import configured_key, development_key, found_key
from outrider.errors import ConfigError


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "OUTRIDER_STATE_DIR": str(tmp_path / "state"),
    }


def write_config(environ: dict[str, str], text: str) -> None:
    file = Path(environ["XDG_CONFIG_HOME"]) / "outrider" / "config.toml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def write_mesh(environ: dict[str, str], port: int) -> Path:
    folder = Path(environ["OUTRIDER_STATE_DIR"])
    folder.mkdir(exist_ok=True)
    services = [{"name": "router", "port": 1}, {"name": "edge", "port": port}]
    (folder / "mesh.json").write_text(json.dumps({"services": services}))
    (folder / "development.key").write_text("of-the-mesh\n")
    return folder


def test_the_nearest_place_counts(environ: dict[str, str]) -> None:
    assert found_key("localhost", 4433, environ) == ""
    write_mesh(environ, 4433)
    assert found_key("127.0.0.1", 4433, environ) == "of-the-mesh"
    write_config(environ, '[client]\napi_key = "of-the-file"\n')
    assert found_key("127.0.0.1", 4433, environ) == "of-the-file"
    environ["OUTRIDER_API_KEY"] = " of-the-environment "
    assert found_key("127.0.0.1", 4433, environ) == "of-the-environment"


@pytest.mark.parametrize(
    ("host", "port", "key"),
    [
        ("127.0.0.1", 4433, "of-the-mesh"),
        ("::1", 4433, "of-the-mesh"),
        ("localhost", 4433, "of-the-mesh"),
        ("127.0.0.1", 4434, ""),
        ("192.0.2.1", 4433, ""),
        ("localhost.example", 4433, ""),
    ],
)
def test_a_meshs_key_goes_to_its_edge_alone(
    environ: dict[str, str], host: str, port: int, key: str
) -> None:
    assert development_key(write_mesh(environ, 4433), host, port) == key


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"services": 1}', '{"services": [{}]}'])
def test_a_damaged_record_is_no_mesh(environ: dict[str, str], damage: str) -> None:
    folder = write_mesh(environ, 4433)
    (folder / "mesh.json").write_text(damage)
    assert development_key(folder, "127.0.0.1", 4433) == ""


def test_a_file_may_name_another(environ: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / "key"
    write_config(environ, f'[client]\napi_key_file = "{file}"\n')
    with pytest.raises(ConfigError, match="cannot be read"):
        configured_key(environ)
    file.write_text("of-another-file\n")
    assert configured_key(environ) == "of-another-file"


@pytest.mark.parametrize(
    "text",
    ["[client", "client = 1", "[client]\napi_key = 1", '[client]\napi_key="a"\napi_key_file="b"'],
)
def test_a_damaged_configuration_is_named(environ: dict[str, str], text: str) -> None:
    write_config(environ, text)
    with pytest.raises(ConfigError, match=r"config\.toml"):
        configured_key(environ)
