"""An edge killed in the middle of replies (SIGKILL), another in its place: the text is exact."""

from __future__ import annotations

import asyncio
import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.harness.local_mesh import LocalMesh, local_mesh, outrider
from outrider.cli.local.certificates import of_process
from outrider.cli.local.mesh import ProcessSpec, completed, to_toml
from outrider.client import (
    Committed,
    Interrupted,
    Message,
    ReconnectPolicy,
    Resumed,
    SamplingParams,
    connect,
)
from outrider.process import read_ports
from outrider.testing import free_udp_port
from tests.cli.prompting.terminal import terminal

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

LIMIT_S = 60.0
PATIENT = ReconnectPolicy(give_up_after_s=120)
PROMPT = "Explain in a few sentences why the sky is blue."
MAX_TOKENS = 64


class KillableEdge:
    """An edge process before a mesh's router, on a port of its own that it keeps."""

    def __init__(self, mesh: LocalMesh, folder: Path) -> None:
        (self._router,) = mesh.services("router")
        self._host = mesh.state.host
        self._tls = of_process(mesh.state_dir, "edge")
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_udp_port()
        self.ca = folder / "tls" / "cert.pem"

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


@pytest.fixture
def edge(mesh: LocalMesh, tmp_path: Path) -> Iterator[KillableEdge]:
    edge = KillableEdge(mesh, tmp_path / "edge")
    edge.start()
    try:
        yield edge
    finally:
        edge.kill()


@pytest.mark.model
async def test_a_killed_edge_costs_a_pause_and_no_byte(edge: KillableEdge) -> None:
    flags = ("--prompt", PROMPT, "--max-tokens", str(MAX_TOKENS), "--seed", "5", "--json")
    done = await asyncio.to_thread(outrider, "reference", "--temperature", "0.8", *flags)
    truth = json.loads(done.stdout)
    sampling = SamplingParams(temperature=0.8, seed=5, max_tokens=MAX_TOKENS)
    seen, kills = set[type](), 0
    async with (
        connect("127.0.0.1", edge.port, ca=edge.ca, reconnect=PATIENT) as client,
        client.chat([Message("user", PROMPT)], sampling=sampling) as chat,
    ):
        async for event in chat:
            seen.add(type(event))
            if isinstance(event, Committed) and event.upto >= 10 and not kills:
                kills += 1
                await asyncio.to_thread(edge.kill)
                await asyncio.to_thread(edge.start)
        result = await chat.result()
    assert kills == 1
    assert {Interrupted, Resumed} <= seen
    assert (result.text, list(result.ids)) == (truth["text"], truth["ids"])


# No drafter in the mesh's own edge: it would take seconds to start, and has no part in this.
ROOM = ("inference.max_context_tokens=16000", "edge.drafter.model=none")


@pytest.fixture(scope="module")
def fake_mesh() -> Iterator[LocalMesh]:
    # Room for a reply that lasts for seconds.
    with local_mesh(engine="fake", regions="here", settings=ROOM) as mesh:
        yield mesh


def test_the_command_says_that_it_was_interrupted_and_goes_on(
    fake_mesh: LocalMesh, tmp_path: Path
) -> None:
    whole = ("--prompt", "tell me all", "--max-tokens", "2000", "--no-provisional")
    state = str(fake_mesh.state_dir)
    truth = outrider("chat", "--state-dir", state, *whole).stdout
    edge = KillableEdge(fake_mesh, tmp_path / "edge")
    edge.start()
    where = ("--edge", f"127.0.0.1:{edge.port}", "--ca", str(edge.ca))
    try:
        with subprocess.Popen(
            [sys.executable, "-m", "outrider.cli.main", "chat", *where, *whole],
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
        assert b"outrider: interrupted; reconnecting\n" in said
        assert b"outrider: back after " in said
    finally:
        edge.kill()


def test_a_conversation_at_a_terminal_goes_on(fake_mesh: LocalMesh, tmp_path: Path) -> None:
    edge = KillableEdge(fake_mesh, tmp_path / "edge")
    edge.start()
    where = ("--edge", f"127.0.0.1:{edge.port}", "--ca", str(edge.ca))
    try:
        with terminal("chat", *where, "--max-tokens", "2000") as user:
            user.until("> ")
            user.type("tell me all\n")
            user.until("\n")  # the echo
            user.until(" ")  # the first words
            edge.kill()
            user.until("interrupted; reconnecting")
            edge.start()
            user.until("· length")
            user.type("/bye\n")
            assert user.ended() == 0
            assert "Traceback" not in user.shown
    finally:
        edge.kill()
