"""`outrider demo kill`: a replica dies in the middle of a sentence, and the text continues."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console

from outrider.cli import operator
from outrider.cli.demo.mesh import command, own_mesh
from outrider.cli.local import development_key
from outrider.cli.local.state import RunningMesh, running_mesh
from outrider.cli.prompting import options
from outrider.cli.prompting.painter import Painter
from outrider.errors import OutriderError, UnavailableError
from outrider.models.chat import Message
from outrider.sampling.params import SamplingParams

PROMPT: Final = "What is photosynthesis?"
_POLL_S: Final = 0.01
_TIMEOUT_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Killing:
    """Result of the chat whose replica was killed."""

    text: str
    killed: str
    """Name of the replica that was killed; "": none, the chat was over before."""
    finished_by: str
    """Name of the replica that computed the end."""
    pause_s: float
    """The longest wait for final text since the kill; what was under way still came at once."""


def kill(
    prompt: Annotated[str, typer.Option(help="The prompt.")] = PROMPT,
    model: options.Model = "",
    temperature: options.Temperature = 0.8,
    seed: options.Seed = 7,
    max_tokens: Annotated[
        int, typer.Option(min=2, max=1 << 20, help="Longest reply, in tokens.")
    ] = 120,
    after: Annotated[
        int,
        typer.Option(min=1, max=1 << 20, help="Kill the replica when this many tokens are final."),
    ] = 30,
) -> None:
    """Kill a replica (SIGKILL) in the middle of a reply, and compare the reply with `outrider
    reference`.

    The demo starts a mesh of two regions and stops it afterwards. Exit status 1 if the text differs
    by a byte, or if the reply ended before the replica could be killed.
    """
    params = options.sampling(temperature, 1.0, 0, seed, max_tokens)
    _say("starting a mesh of two regions with a replica each")
    with own_mesh(model) as folder:
        seen = asyncio.run(_Demo(folder).run(prompt, params, after))
    if not seen.killed:
        raise OutriderError(
            "the reply ended before its replica could be killed; give a larger --max-tokens, or "
            f"--after below {after}"
        )
    _say(
        f"{seen.killed} was killed (signal 9); {seen.finished_by} wrote the end, "
        f"after a pause of {seen.pause_s:.2f} s"
    )
    _say("asking `outrider reference`: the model alone, no mesh, no drafts, no failures")
    expected = _reference(prompt, model, params)
    if seen.text != expected:
        raise OutriderError(f"the text differs {_first_difference(seen.text, expected)}")
    _say(f"identical: {len(expected.encode())} bytes of {len(expected.encode())}")


def _say(text: str) -> None:
    print(f"outrider: {text}", file=sys.stderr, flush=True)


def _first_difference(text: str, expected: str) -> str:
    """In words, where two texts part."""
    pairs = enumerate(zip(text, expected, strict=False))
    at = next((n for n, (one, other) in pairs if one != other), min(len(text), len(expected)))
    return (
        f"from character {at} on: {text[at : at + 40]!r}, the reference {expected[at : at + 40]!r}"
    )


def _reference(prompt: str, model: str, params: SamplingParams) -> str:
    arguments = ["reference", "--json", "--prompt", prompt, "--seed", str(params.seed)]
    arguments += ["--temperature", str(params.temperature), "--max-tokens", str(params.max_tokens)]
    arguments += ["--model", model] if model else []
    with Console(stderr=True).status("the reference loads the model and writes its reply"):
        done = subprocess.run(command(*arguments), capture_output=True, text=True, check=False)
    if done.returncode:
        raise UnavailableError(f"`outrider reference` failed:\n{done.stderr.rstrip()}")
    return str(json.loads(done.stdout)["text"])


class _Demo:
    """One chat on the demo's mesh, and the death of its replica."""

    def __init__(self, folder: Path) -> None:
        mesh = running_mesh(folder)
        if mesh is None:
            raise UnavailableError("the demo's mesh has ended")
        self._mesh: RunningMesh = mesh
        self._folder = folder
        self._width, self._height = shutil.get_terminal_size()
        self._painter = Painter(self._width, self._height)

    async def run(self, prompt: str, params: SamplingParams, after: int) -> Killing:
        """Stream the reply; kill its replica once `after` tokens are final."""
        from outrider.client import Accepted, Committed, connect

        mesh, killed, last_at, pause_s = self._mesh, "", 0.0, 0.0
        found: asyncio.Task[str] | None = None
        key = development_key.read(self._folder)
        ca = self._folder / "tls" / "cert.pem"
        port = mesh.service("edge")["port"]
        async with (
            connect(mesh.host, port, ca=ca, key=key) as client,
            client.chat([Message("user", prompt)], sampling=params) as chat,
        ):
            try:
                async for event in chat:
                    if isinstance(event, Accepted) and found is None:
                        found = asyncio.create_task(self._placed(event.request_id))
                    if not isinstance(event, Committed):
                        continue
                    if killed:
                        now = time.monotonic()
                        pause_s, last_at = max(pause_s, now - last_at), now
                    self._show(event.text)
                    if found and not killed and after <= event.upto < params.max_tokens:
                        killed, last_at = await found, time.monotonic()
                        os.kill(mesh.service(killed)["pid"], signal.SIGKILL)
                        self._show(f" [kill -9 {killed}] ")
                result = await chat.result()
            finally:
                if found is not None:
                    found.cancel()
        print(flush=True)
        # A replica that finished the chat was not killed in the middle of it.
        was_hit = bool(killed) and result.replica != killed
        return Killing(result.text, killed if was_hit else "", result.replica, pause_s)

    def _show(self, text: str) -> None:
        is_terminal = sys.stdout.isatty()
        sys.stdout.write(self._painter.paint(text, "") if is_terminal else text)
        sys.stdout.flush()

    async def _placed(self, request_id: str) -> str:
        """Name of the replica that the router placed the chat on. Its record of decisions has it
        before the first token; what replicas report of their load comes too late for short
        replies. Raises UnavailableError."""
        import grpc.aio

        from outrider.rpc import from_rpc_error, make_channel
        from outrider.tls import Role
        from outrider.v1 import router_pb2, router_pb2_grpc

        address = f"{self._mesh.host}:{self._mesh.service('router')['port']}"
        asked = router_pb2.ExplainRequest(request_id=request_id, max_placements=1)
        tls = operator.of_mesh(self._folder)
        async with make_channel(address, tls=tls, role=Role.ROUTER) as channel:
            stub: router_pb2_grpc.RouterServiceAsyncStub = router_pb2_grpc.RouterServiceStub(
                channel
            )
            limit = time.monotonic() + _TIMEOUT_S
            while time.monotonic() < limit:
                try:
                    told = await stub.Explain(asked, timeout=_TIMEOUT_S)
                except grpc.aio.AioRpcError as error:
                    why = from_rpc_error(error).message
                    raise UnavailableError(f"the router does not answer: {why}") from error
                if told.placements:
                    return str(told.placements[0].chosen.replica)
                await asyncio.sleep(_POLL_S)
        raise UnavailableError("no replica has the chat")
