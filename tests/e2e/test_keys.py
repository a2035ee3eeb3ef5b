"""Keys of a mesh that runs: made, found, rotated and revoked by the commands that users have."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from bench.harness.local_mesh import LocalMesh, local_mesh, outrider
from outrider.cli.local import development_key
from outrider.client import Message, SamplingParams, connect_blocking
from outrider.errors import UnauthenticatedError


def keys(mesh: LocalMesh, *arguments: str) -> str:
    return outrider("keys", *arguments, "--state-dir", str(mesh.state_dir)).stdout


def ask(mesh: LocalMesh, key: str | None) -> str:
    host, port = mesh.edge
    sampling = SamplingParams(max_tokens=4)
    with connect_blocking(host, port, ca=mesh.ca, key=key) as client:
        with client.chat([Message("user", "hello")], sampling=sampling) as chat:
            return chat.result().text


def chat(mesh: LocalMesh, *arguments: str) -> tuple[int, str]:
    state = ("--state-dir", str(mesh.state_dir))
    done = outrider("chat", "hello", "--max-tokens", "4", *arguments, *state, check=False)
    return done.returncode, done.stderr


@pytest.mark.e2e
def test_keys_of_a_running_mesh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("OUTRIDER_API_KEY", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    settings = ("edge.anonymous=no", "edge.drafter.model=none")
    with local_mesh(engine="fake", regions="here", settings=settings) as mesh:
        made = json.loads(keys(mesh, "create", "web", "--json"))
        assert ask(mesh, made["key"]), "it counts when the command has returned"
        with pytest.raises(UnauthenticatedError, match="with an API key"):
            ask(mesh, "")

        path = mesh.state_dir / "development.key"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        text = development_key.read(mesh.state_dir)
        assert chat(mesh)[0] == 0, "chat finds the development key"
        monkeypatch.setenv("OUTRIDER_STATE_DIR", str(mesh.state_dir))
        assert ask(mesh, None), "so does the SDK"
        for log in (mesh.state_dir / "up.log", *(mesh.state_dir / "logs").iterdir()):
            found = log.read_text()
            assert text not in found and made["key"] not in found, log

        new = json.loads(keys(mesh, "rotate", "web", "--json"))
        assert ask(mesh, new["key"])
        with pytest.raises(UnauthenticatedError, match="was revoked"):
            ask(mesh, made["key"])
        keys(mesh, "revoke", new["id"])
        with pytest.raises(UnauthenticatedError, match="was revoked"):
            ask(mesh, new["key"])
        status, said = chat(mesh, "--api-key", new["key"])
        assert status == 1 and "was revoked" in said
