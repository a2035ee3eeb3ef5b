"""An edge or a replica killed in the middle of replies (SIGKILL): the text is exact."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import pytest
from openai import AsyncOpenAI

from bench.harness.local_mesh import LocalMesh, local_mesh, outrider
from outrider.cli.local import development_key
from outrider.cli.local.certificates import of_process
from outrider.cli.local.mesh import ProcessSpec, completed, to_toml
from outrider.client import SamplingParams
from outrider.process import read_ports
from outrider.sampling.grammar import json_schema
from outrider.testing import free_udp_port
from tests.cli.prompting.terminal import terminal
from tests.e2e.reference import Reference
from tests.e2e.router import Router

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

LIMIT_S = 200.0
PROMPT = "Explain in a few sentences why the sky is blue."


class KillableEdge:
    """An edge process before a mesh's router, on a port of its own that it keeps."""

    def __init__(self, mesh: LocalMesh, folder: Path) -> None:
        (self._router,) = mesh.services("router")
        self._host = mesh.state.host
        self._tls = of_process(mesh.state_dir, "edge")
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_udp_port()
        self.where = ("--edge", f"127.0.0.1:{self.port}", "--ca", str(folder / "tls" / "cert.pem"))
        """For commands."""

    def start(self) -> None:
        """Run it, and wait until it is ready."""
        ready = self._folder / "ready.json"
        ready.unlink(missing_ok=True)
        values = {
            "port": self.port,
            "state_dir": str(self._folder),
            "routers": (f"{self._host}:{self._router['port']}",),
            "drafter": {"model": "none"},
            "anonymous": True,
        }
        spec = completed(ProcessSpec("edge", "edge", values), {}, self._tls)
        config = self._folder / "edge.toml"
        config.parent.mkdir(exist_ok=True)
        config.write_text(to_toml(spec), encoding="utf-8")
        command = ("serve", "edge", "--config", str(config), "--ready-file", str(ready))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "outrider.cli.main", *command],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        limit = time.monotonic() + LIMIT_S
        while read_ports(ready) is None:
            assert self._process.poll() is None, "the edge ended"
            assert time.monotonic() < limit, "the edge did not start"
            time.sleep(0.05)

    def kill(self) -> None:
        """SIGKILL: nobody is told anything."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(LIMIT_S)


SCHEMA = {
    "type": "object",
    "properties": {
        "colours": {
            "type": "array", "items": {"enum": ["blue", "red"]}, "minItems": 9, "maxItems": 12,
        },
        "reason": {"type": "string", "minLength": 120, "maxLength": 200},
        "is_certain": {"type": "boolean"},
    },
    "required": ["colours", "reason", "is_certain"],
    "additionalProperties": False,
}  # fmt: skip


@pytest.mark.model
async def test_a_reply_by_a_schema_goes_on_at_another_replica(
    mesh: LocalMesh, reference: Reference
) -> None:
    """Asked over HTTP; its replica is killed, and the text is the reference's, and valid."""
    sampling = SamplingParams(temperature=0.8, seed=5, max_tokens=300, grammar=json_schema(SCHEMA))
    truth = await asyncio.to_thread(reference.reply, PROMPT, sampling)
    port = mesh.state.service("edge")["http_port"]
    said, killed, finish = "", "", None
    async with (
        Router(mesh) as router,
        AsyncOpenAI(
            base_url=f"http://{mesh.state.host}:{port}/v1",
            api_key=development_key.read(mesh.state_dir),
            max_retries=0,
            timeout=LIMIT_S,
        ) as client,
    ):
        await router.is_whole()
        stream = await client.chat.completions.create(
            model=mesh.state.models[0]["name"],
            messages=[{"role": "user", "content": PROMPT}],
            max_completion_tokens=300,
            seed=5,
            temperature=0.8,
            top_p=1.0,  # else the model's own
            response_format={
                "type": "json_schema",
                "json_schema": {"name": "sky", "schema": SCHEMA, "strict": True},
            },
            stream=True,
        )
        async for chunk in stream:
            said += chunk.choices[0].delta.content or ""
            finish = chunk.choices[0].finish_reason or finish
            if len(said) > 30 and not killed:
                assert len(said) < len(truth.text) / 2
                killed = await router.latest_replica()
                os.kill(mesh.state.service(killed)["pid"], signal.SIGKILL)
        assert killed and said == truth.text
        assert finish == "stop" == truth.finish_reason.value
        jsonschema.Draft202012Validator(SCHEMA).validate(json.loads(said))
        assert await router.latest_replica() != killed, "it went on elsewhere"
        await router.is_whole()  # for those who use the mesh next


# No drafter in the mesh's own edge: it would take seconds to start, and has no part in this.
ROOM = (
    "inference.max_context_tokens=16000",
    "inference.fake_call_ms=20.0",
    "edge.drafter.model=none",
)
LONG = ("--max-tokens", "300", "--speculation", "off")
"""A call for every token: six seconds, in which a busy machine kills an edge, too."""


@pytest.fixture(scope="module")
def fake_mesh() -> Iterator[LocalMesh]:
    # Room for a reply that lasts for seconds.
    with local_mesh(engine="fake", regions="here", settings=ROOM) as mesh:
        yield mesh


@pytest.fixture
def edge(fake_mesh: LocalMesh, tmp_path: Path) -> Iterator[KillableEdge]:
    edge = KillableEdge(fake_mesh, tmp_path / "edge")
    edge.start()
    try:
        yield edge
    finally:
        edge.kill()


def test_the_command_says_that_it_was_interrupted_and_goes_on(
    fake_mesh: LocalMesh, edge: KillableEdge
) -> None:
    whole = ("--prompt", "tell me all", "--no-provisional", *LONG)
    state = str(fake_mesh.state_dir)
    truth = outrider("chat", "--state-dir", state, *whole).stdout
    with subprocess.Popen(
        [sys.executable, "-m", "outrider.cli.main", "chat", *edge.where, *whole],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        begun = os.read(process.stdout.fileno(), 100)
        edge.kill()
        edge.start()
        shown, said = process.communicate(timeout=LIMIT_S)
        assert process.returncode == 0
    # As text, like the other one: what the fake engine says has bare carriage returns.
    assert io.TextIOWrapper(io.BytesIO(begun + shown), encoding="utf-8").read() == truth
    assert b"outrider: interrupted: " in said and b"(trying until " in said
    assert b"outrider: back after " in said


def test_a_conversation_at_a_terminal_goes_on(edge: KillableEdge) -> None:
    with terminal("chat", *edge.where, "--temperature", "0", *LONG) as user:
        user.prompted()
        user.type("tell me all\r")
        user.until("\r\n")  # what was typed stands there
        user.until(" ")  # the first words
        edge.kill()
        user.until("[interrupted: ")
        edge.start()
        user.until("stopped at the length limit")
        user.type("/bye\r")
        assert user.ended() == 0
        assert "Traceback" not in user.shown
