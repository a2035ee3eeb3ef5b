"""Keys of a mesh that runs: made, found, rotated and revoked by the commands that users have."""

from __future__ import annotations

import json
import re
import stat
import subprocess
from pathlib import Path

import openai
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


@pytest.mark.e2e
def test_what_outrider_up_shows_is_all_that_a_client_needs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Key and `curl` line as they are printed, once; for whoever has no key, chat alone."""
    monkeypatch.delenv("OUTRIDER_API_KEY", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    state = ("--state-dir", str(tmp_path / "state"))
    up = ("up", "--engine", "fake", "--detach", "--port", "0", "--http-port", "0", *state)
    flags = ("--regions", "here", "--set=edge.drafter.model=none")
    shown = outrider(*up, *flags).stderr
    try:
        (key,) = set(re.findall(r"or_[0-9a-zA-Z_-]{20,}", shown))
        (line,) = [it for it in shown.splitlines() if it.startswith("curl ")]
        asked = subprocess.run(
            ["bash", "-c", line + " --silent --show-error --fail"],
            capture_output=True,
            text=True,
            check=True,
        )
        assert json.loads(asked.stdout)["choices"][0]["message"]["content"]
        url = re.findall(r"http://[0-9.:]+", line)[0]
        schema = {
            "type": "object",
            "properties": {"ok": {"type": "boolean"}},
            "required": ["ok"],
            "additionalProperties": False,
        }
        question: list[openai.types.chat.ChatCompletionUserMessageParam]
        question = [{"role": "user", "content": "hello"}]
        with openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0) as client:
            (name,) = [it.id for it in client.models.list().data]
            answer = client.chat.completions.create(
                model=name,
                messages=question,
                max_completion_tokens=200,
                logprobs=True,
                response_format={
                    "type": "json_schema",
                    "json_schema": {"name": "n", "strict": True, "schema": schema},
                },
            )
        found = json.loads(answer.choices[0].message.content or "")
        assert set(found) == {"ok"} and isinstance(found["ok"], bool)
        assert answer.choices[0].logprobs is not None
        with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as stranger:
            with pytest.raises(openai.AuthenticationError):
                stranger.chat.completions.create(model=name, messages=question)
        talked = outrider("chat", "hello", "--max-tokens", "4", *state)
        assert talked.stdout
    finally:
        outrider("down", *state)
    again = outrider(*up, *flags).stderr
    outrider("down", *state)
    assert key not in again, "shown once"
    assert "$(cat " in again
