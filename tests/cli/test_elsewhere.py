"""Commands before a mesh that flags name, as for one on another machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import Result

from bench.harness.local_mesh import LocalMesh
from outrider.access.client_key import DEVELOPMENT_KEY, KEY_VARIABLE
from outrider.cli.local.certificates import OPERATOR, of_process
from outrider.errors import OutriderError
from tests.cli.invoking import invoke


@pytest.mark.e2e
def test_commands_go_where_their_flags_say(
    mesh: LocalMesh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("OUTRIDER_STATE_DIR", str(tmp_path / "no-mesh"))
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    folder, host = mesh.state_dir, mesh.state.host
    (edge,), (router,) = mesh.services("edge"), mesh.services("router")
    chat = ("chat", "hello", "--max-tokens", "4", "--json")
    assert "no mesh is up in" in _refusal(invoke(chat))
    assert "no mesh is up in" in _refusal(invoke(["status"]))

    key_file = folder / DEVELOPMENT_KEY
    at_edge = ("--edge", f"{host}:{edge['port']}", "--ca", str(folder / "tls" / "cert.pem"))
    done = invoke([*chat, *at_edge, "--key-file", str(key_file)])
    assert json.loads(_output(done))["text"]
    done = invoke([*chat, *at_edge], env={KEY_VARIABLE: key_file.read_text()})
    assert json.loads(_output(done))["text"]

    operator = of_process(folder, OPERATOR)
    at_router = (
        *("--router", f"{host}:{router['port']}", "--ca", str(operator.ca)),
        *("--certificate", str(operator.certificate), "--private-key", str(operator.private_key)),
    )
    status = json.loads(_output(invoke(["status", "--json", *at_router])))
    assert status["replicas"][0]["state"] == "READY"
    assert "prompt tokens" in _output(invoke(["explain", "--last", "1", *at_router]))


def _output(done: Result) -> str:
    """Of a command that went well."""
    assert done.exit_code == 0, done.exception
    return done.stdout


def _refusal(done: Result) -> str:
    """Why a command was refused."""
    assert isinstance(done.exception, OutriderError)
    return done.exception.message
