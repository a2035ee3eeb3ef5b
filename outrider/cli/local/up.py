"""`outrider up`, `outrider down` and `outrider status`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from outrider.cli.local.mesh import DEFAULT_REGIONS, MeshOptions
from outrider.cli.local.supervisor import START_LIMIT_S, STOP_LIMIT_S, Supervisor, tail
from outrider.errors import OutriderError, UnavailableError

_POLL_S = 0.1

StateDir = Annotated[
    Path | None,
    typer.Option(help="Where configs, logs and certificates of the mesh live.", show_default=False),
]


@dataclass(frozen=True, slots=True)
class RunningMesh:
    """What `mesh.json` says of a mesh that is up."""

    supervisor_pid: int
    host: str
    services: list[dict[str, Any]]

    def service(self, name: str) -> dict[str, Any]:
        """The row of one service. Raises UnavailableError."""
        for row in self.services:
            if row["name"] == name:
                return row
        raise UnavailableError(f"the mesh has no service named {name!r}")


def default_state_dir() -> Path:
    """$OUTRIDER_STATE_DIR, or the user's state folder (XDG Base Directory)."""
    if explicit := os.environ.get("OUTRIDER_STATE_DIR"):
        return Path(explicit)
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "outrider"


def running_mesh(state_dir: Path) -> RunningMesh | None:
    """The mesh whose state is in `state_dir`, if its supervisor lives."""
    try:
        state = json.loads((state_dir / "mesh.json").read_text(encoding="utf-8"))
        os.kill(state["supervisor_pid"], 0)
    except (FileNotFoundError, ProcessLookupError):
        return None
    return RunningMesh(**state)


def up(
    model: Annotated[str, typer.Option(help="Model name.")] = "smollm2-135m-instruct",
    regions: Annotated[str, typer.Option(help="Region names, comma-separated.")] = ",".join(
        DEFAULT_REGIONS
    ),
    replicas: Annotated[int, typer.Option(help="Inference replicas per region.")] = 1,
    threads: Annotated[int, typer.Option(help="Engine threads per replica; 0: a fair share.")] = 0,
    engine: Annotated[str, typer.Option(help="openvino, or fake for trying things out.")] = (
        "openvino"
    ),
    port: Annotated[int, typer.Option(help="The edge's UDP port; 0: any free one.")] = 4433,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="ROLE.KEY=VALUE", help="A config key of every such service."),
    ] = None,
    state_dir: StateDir = None,
    detach: Annotated[
        bool, typer.Option("--detach", help="Return when ready; `outrider down` stops it.")
    ] = False,
) -> None:
    """Start a whole mesh on this machine: replicas in two regions, tokenizer, router and edge.

    Every service is a process of its own with a log under the state folder. Ctrl-C stops all.
    Then: outrider chat "hello"
    """
    folder = (state_dir or default_state_dir()).resolve()
    if running_mesh(folder):
        raise UnavailableError(f"a mesh is already up in {folder}; stop it with `outrider down`")
    names = tuple(name.strip() for name in regions.split(",") if name.strip())
    count = len(names) * replicas
    share = threads or max(1, (os.cpu_count() or 1) // max(1, count))
    options = MeshOptions(
        model=model,
        regions=names,
        replicas_per_region=replicas,
        threads=share,
        engine=engine,
        port=port,
        settings=tuple(settings or ()),
    )
    if detach:
        _detach(folder)
    else:
        asyncio.run(_run(options, folder))


def _detach(state_dir: Path) -> None:
    """Run this same command without --detach in a session of its own; wait until it is ready."""
    state_dir.mkdir(parents=True, exist_ok=True)
    log = state_dir / "up.log"
    arguments = [a for a in sys.argv[1:] if a != "--detach"]
    with log.open("wb") as sink:
        child = subprocess.Popen(
            [sys.executable, "-m", "outrider.cli.main", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            start_new_session=True,
        )
    limit = time.monotonic() + 2 * START_LIMIT_S
    while running_mesh(state_dir) is None:
        if child.poll() is not None or time.monotonic() > limit:
            raise UnavailableError(f"the mesh did not start:\n{tail(log)}")
        time.sleep(_POLL_S)
    Console(stderr=True, highlight=False).print(log.read_text(encoding="utf-8").rstrip())


async def _run(options: MeshOptions, state_dir: Path) -> None:
    console = Console(stderr=True, highlight=False)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, stop.set)
    supervisor = Supervisor(options, state_dir, console.print)
    try:
        died = await _start_and_wait(supervisor, stop, console)
    finally:
        console.print("stopping")
        await supervisor.stop()
    if died:
        raise UnavailableError(died)


async def _start_and_wait(
    supervisor: Supervisor, stop: asyncio.Event, console: Console
) -> str | None:
    starting = asyncio.create_task(supervisor.start())
    asked = asyncio.create_task(stop.wait())
    await asyncio.wait({starting, asked}, return_when=asyncio.FIRST_COMPLETED)
    asked.cancel()
    if not starting.done():
        starting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await starting
        return None
    starting.result()
    console.print(f"ready; logs in {supervisor.state_dir / 'logs'}; try: outrider chat")
    return await supervisor.wait(stop)


def down(state_dir: StateDir = None) -> None:
    """Stop the mesh that `outrider up` started."""
    folder = (state_dir or default_state_dir()).resolve()
    mesh = running_mesh(folder)
    if mesh is None:
        raise UnavailableError(f"no mesh is up in {folder}")
    os.kill(mesh.supervisor_pid, signal.SIGTERM)
    limit = time.monotonic() + 4 * STOP_LIMIT_S
    while _alive(mesh.supervisor_pid):
        if time.monotonic() > limit:
            raise OutriderError(f"process {mesh.supervisor_pid} does not stop; kill it by hand")
        time.sleep(_POLL_S)
    Console(stderr=True, highlight=False).print("stopped")


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def status(
    state_dir: StateDir = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the state as JSON.")] = False,
) -> None:
    """Show the services of the running mesh."""
    folder = (state_dir or default_state_dir()).resolve()
    mesh = running_mesh(folder)
    if mesh is None:
        raise UnavailableError(f"no mesh is up in {folder}; start one with `outrider up`")
    if as_json:
        print(json.dumps({"host": mesh.host, "services": mesh.services}))
        return
    for row in mesh.services:
        print(
            f"{row['name']:<12} {row['role']:<10} pid {row['pid']:<8} port {row['port']:<6} "
            f"admin http://{mesh.host}:{row['admin_port']}/metrics"
        )
