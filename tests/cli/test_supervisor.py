"""What the processes of a mesh are started with."""

from __future__ import annotations

from pathlib import Path

import pytest

from outrider.cli.local import mesh
from outrider.cli.local.mesh import MeshOptions, ProcessSpec, ServedModel
from outrider.cli.local.supervisor import _environ, _with_ports, tail
from outrider.config import load
from services.edge.config import EdgeConfig
from services.tokenizer.config import TokenizerConfig

OPTIONS = MeshOptions((ServedModel("smollm2-135m-instruct"), ServedModel("qwen3-0.6b")))


def test_variables_that_name_models_do_not_hide_those_of_the_mesh(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for role in ("EDGE", "TOKENIZER"):
        monkeypatch.setenv(f"OUTRIDER_{role}_MODELS", "smollm2-360m-instruct")
        monkeypatch.setenv(f"OUTRIDER_{role}_LOG_LEVEL", "error")
    specs: list[tuple[type[EdgeConfig | TokenizerConfig], ProcessSpec]] = [
        (EdgeConfig, mesh.edges(OPTIONS, [7001], tmp_path)[0]),
        (TokenizerConfig, mesh.tokenizer(OPTIONS)),
    ]
    for cls, spec in specs:
        file = tmp_path / f"{spec.role}.toml"
        file.write_text(mesh.to_toml(spec))
        config: EdgeConfig | TokenizerConfig = load(
            cls, spec.role, file=file, environ=_environ(spec.role)
        )
        assert config.models == ("smollm2-135m-instruct", "qwen3-0.6b")
        assert config.log_level == "error", "others count as ever"


def test_processes_get_ports_that_they_can_be_started_with_again(tmp_path: Path) -> None:
    options = MeshOptions(OPTIONS.models, port=0, http_port=0)
    specs = [mesh.tokenizer(options), *mesh.edges(options, [7001], tmp_path)]
    for spec in specs:
        values = _with_ports(spec, options.host)
        listeners = {"admin", "http"} & spec.values.keys()
        assert listeners == ({"admin", "http"} if spec.role == "edge" else {"admin"})
        ports = [values["port"], *(values[name]["port"] for name in listeners)]  # type: ignore[index]
        assert all(ports)
        assert len(set(ports)) == len(ports)


def test_ports_that_were_asked_for_stay(tmp_path: Path) -> None:
    options = MeshOptions(OPTIONS.models, port=4433, http_port=8080)
    (edge,) = mesh.edges(options, [7001], tmp_path)
    values = _with_ports(edge, options.host)
    assert values["port"] == 4433
    assert values["http"] == {"host": "127.0.0.1", "port": 8080}


def test_of_a_log_its_failure_is_told_and_not_what_was_before(tmp_path: Path) -> None:
    log = tmp_path / "edge.log"
    log.write_text("".join(f'{{"event": "{number}"}}\n' for number in range(30)), "utf-8")
    assert tail(log).splitlines()[0] == '{"event": "10"}'
    with log.open("a", encoding="utf-8") as file:
        file.write("outrider: cannot listen on UDP 127.0.0.1:4433\nset another port\n")
    assert tail(log) == "cannot listen on UDP 127.0.0.1:4433\nset another port"
