"""`outrider up` and `outrider down`."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Annotated, TextIO

import typer
from rich.console import Console

from outrider.children import python_module
from outrider.cli.local import development_key
from outrider.cli.local import settings as told
from outrider.cli.local.mesh import (
    DEFAULT_REGIONS,
    MAX_PER_ROLE,
    MAX_REPLICAS_PER_REGION,
    MAX_RTT_MS,
    ROLES,
    MeshOptions,
    ServedModel,
    dump,
)
from outrider.cli.local.preparing import (
    check_memory,
    check_packages,
    check_ports,
    fair_share,
    fetched,
)
from outrider.cli.local.redis_server import find_binary
from outrider.cli.local.start_line import Show, start_line
from outrider.cli.local.state import (
    RunningMesh,
    StateDir,
    already_up,
    command_for,
    default_state_dir,
    holding,
    killed_mesh,
    left_running,
    make_private,
    no_mesh,
    record_start,
    running_mesh,
    start_of,
    started_by,
    supervisor_pid,
)
from outrider.cli.local.supervisor import FAILED, STOP_LIMIT_S, Supervisor, tail
from outrider.cli.model_choice import MODEL_HELP, choose_all
from outrider.errors import OutriderError, UnavailableError
from outrider.models.catalog import DEFAULT_MODEL
from outrider.models.definitions import NO_DRAFT, ModelSpec, as_table

Welcome = Callable[[RunningMesh], Iterable[str]]

_POLL_S = 0.1
_MAX_TOLD_LINES = 40
"""Lines of a failed start that are shown: the end of one process's log, and what is said of it."""
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


_Models = Annotated[
    list[str] | None,
    typer.Option(
        help=f"{MODEL_HELP} Repeatable; requests that name no model get the first.",
        show_default=DEFAULT_MODEL.name,
    ),
]
_Regions = Annotated[str, typer.Option(help="Names of the regions, separated by commas.")]
_Replicas = Annotated[
    int,
    typer.Option(min=1, max=MAX_REPLICAS_PER_REGION, help="Replicas of each model in each region."),
]
_Routers = Annotated[
    int,
    typer.Option(
        min=1, max=MAX_PER_ROLE, help="Number of routers, spread over the regions in turn."
    ),
]
_Edges = Annotated[
    int,
    typer.Option(
        min=1,
        max=MAX_PER_ROLE,
        help="Number of edges; each further one takes the next port numbers.",
    ),
]
_RouterProcesses = Annotated[
    int,
    typer.Option(
        min=1, max=MAX_PER_ROLE, help="Processes of each router; more than one needs Linux."
    ),
]
_EdgeProcesses = Annotated[
    int,
    typer.Option(
        min=1,
        max=MAX_PER_ROLE,
        help="Processes of each edge, sharing its port; more than one needs Linux.",
    ),
]
_Rtt = Annotated[
    float,
    typer.Option(
        min=0,
        max=MAX_RTT_MS,
        metavar="MS",
        help="Round trip to simulate between edges and routers, in milliseconds.",
    ),
]
_Threads = Annotated[
    int,
    typer.Option(
        min=0, max=1024, help="Engine threads of each replica; 0: an equal share of the cores."
    ),
]
_Engine = Annotated[
    str,
    typer.Option(help="`openvino`, `torch`, or `fake` (made-up text, for trying things out)."),
]
_Port = Annotated[
    int, typer.Option(min=0, max=65535, help="UDP port of the edge; 0: any free one.")
]
_HttpPort = Annotated[
    int,
    typer.Option(
        min=-1, max=65535, help="TCP port of the edge for HTTP; 0: any free one; -1: no HTTP."
    ),
]
_Draft = Annotated[
    str,
    typer.Option(
        help="Draft model of the edge for the first model: a GGUF file, a model name, or `none`. "
        "Without it: as the model is defined, or the one shipped with the package."
    ),
]
_Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="ROLE.KEY=VALUE",
        help="Set a configuration key of every service of that role. Repeatable.",
    ),
]
_Config = Annotated[
    Path | None,
    typer.Option(
        help="TOML file with a table for each role, such as [edge], and tables [models.NAME]."
    ),
]
_Plaintext = Annotated[
    bool, typer.Option("--plaintext", help="Use no certificates between the services.")
]
_PrefixStore = Annotated[
    str,
    typer.Option(
        metavar="redis",
        help="Start a Redis that shares computed prompt prefixes (KV) between replicas and keeps "
        "them when a replica restarts.",
    ),
]
_Detached = Annotated[
    bool, typer.Option("--detach", help="Return once the mesh is ready; `outrider down` stops it.")
]


def up(
    model: _Models = None,
    regions: _Regions = ",".join(DEFAULT_REGIONS),
    replicas: _Replicas = 1,
    routers: _Routers = 1,
    edges: _Edges = 1,
    router_processes: _RouterProcesses = 1,
    edge_processes: _EdgeProcesses = 1,
    rtt: _Rtt = 0.0,
    threads: _Threads = 0,
    engine: _Engine = "openvino",
    port: _Port = 4433,
    http_port: _HttpPort = 8080,
    draft_model: _Draft = "",
    settings: _Settings = None,
    config: _Config = None,
    prefix_store: _PrefixStore = "",
    plaintext: _Plaintext = False,
    state_dir: StateDir = None,
    detach: _Detached = False,
) -> None:
    """Start a whole mesh on this machine: replicas in two regions, a tokenizer, a router, an edge.

    Every service is a process of its own, with a log in the state folder, and is restarted if it
    dies. Ctrl-C stops the mesh; a second Ctrl-C stops it at once.

    Then run `outrider chat "hello"`, or point any OpenAI client at `http://127.0.0.1:8080/v1`.
    """
    folder = (state_dir or default_state_dir()).resolve()
    if supervisor_pid(folder) is not None:
        raise already_up(folder)
    names = tuple(name.strip() for name in regions.split(",") if name.strip())
    chosen = choose_all(model or [DEFAULT_MODEL.name], config)
    share = threads or fair_share(len(names) * replicas * len(chosen.specs))
    options = MeshOptions(
        models=tuple(ServedModel(it.name, replicas, share, it.embeds) for it in chosen.specs),
        regions=names,
        num_routers=routers,
        num_edges=edges,
        router_processes=router_processes,
        edge_processes=edge_processes,
        rtt_ms=rtt,
        engine=engine,
        port=port,
        http_port=None if http_port == -1 else http_port,
        draft_model=draft_model,
        settings=tuple(settings or ()),
        tables={} if config is None else told.read(config, ROLES),
        definitions={spec.name: as_table(spec) for spec in chosen.definitions},
        prefix_store=prefix_store,
        plaintext=plaintext,
    )
    check_packages(engine)  # before anything is fetched
    if prefix_store:
        find_binary()
    for role in ROLES:
        told.typed(role, options.settings_of(role))
    _await_killed(folder)
    _check_ports(options)
    if not any(".model_store=" in setting for setting in options.settings):
        options = _prepared(options, chosen.specs)
    make_private(folder)
    # Made and said here and not in the detached process, whose output is kept in a log.
    has_key = not development_key.has_own_file(options)
    key, is_new = development_key.ensure(folder) if has_key else ("", False)

    def welcome(mesh: RunningMesh) -> Iterator[str]:
        yield from _ready(mesh, folder)
        if key:
            yield from development_key.welcome(mesh, folder, key, is_new=is_new)

    if detach:
        mesh = _detach(options, folder)
        for line in welcome(mesh):
            _console().print(line)
    else:
        asyncio.run(run(options, folder, welcome))


def _await_killed(folder: Path) -> None:
    """Report that the last mesh here was killed, and wait until all its processes have ended: they
    may hold the ports. Raises UnavailableError if they do not end."""
    killed = killed_mesh(folder)
    if killed is None:
        return
    _console().print(
        f"the last mesh here (process {killed.supervisor_pid}) was killed, not stopped; starting "
        "a new one"
    )
    limit = time.monotonic() + STOP_LIMIT_S
    while left := left_running(killed, folder):
        if time.monotonic() > limit:
            pids = ", ".join(str(pid) for pid in left)
            raise UnavailableError(
                f"these processes of the killed mesh still run: {pids}; wait until their chats "
                "end, or end them with kill -9"
            )
        time.sleep(_POLL_S)


def _check_ports(options: MeshOptions) -> None:
    """Raises UnavailableError if a port of the edges is taken, as far as flags give the ports."""
    own = {**options.tables.get("edge", {}), **told.typed("edge", options.settings_of("edge"))}
    if "host" in own:
        return
    port = 0 if "port" in own else options.port
    http_port = None if "http" in own else options.http_port
    check_ports(options.host, port, http_port, options.num_edges)


def _prepared(options: MeshOptions, specs: Sequence[ModelSpec]) -> MeshOptions:
    """With the models in the store, and room for them. Raises ModelStoreError,
    InsufficientMemoryError."""
    is_fake = options.engine == "fake"
    drafts = [options.draft_model or specs[0].draft, *(spec.draft for spec in specs[1:])]
    if options.draft_model == NO_DRAFT:
        drafts = [NO_DRAFT] * len(specs)  # as edges take it
    definitions = fetched(specs, () if is_fake else drafts, options.definitions)
    if options.engine == "openvino":
        counts = [options.num_replicas(model) for model in options.models]
        replicas = zip(specs, counts, strict=True)
        drafted = zip(specs, drafts, strict=True)
        check_memory(replicas, _inference_settings(options), drafted)
    return replace(options, definitions=definitions)


def _inference_settings(options: MeshOptions) -> dict[str, object]:
    """Configured settings of each replica; --set overrides the configuration file."""
    tables = options.tables.get("inference", {})
    return {**tables, **told.typed("inference", options.settings_of("inference"))}


def _detach(options: MeshOptions, state_dir: Path) -> RunningMesh:
    """Run the mesh in a session of its own; wait until it is ready."""
    make_private(state_dir)
    record_start(state_dir, "")  # what a killed mesh left there
    log = state_dir / "up.log"
    with log.open("wb") as sink:
        child = subprocess.Popen(
            python_module("outrider.cli.local.detached", str(state_dir)),
            stdin=subprocess.PIPE,
            stdout=sink,
            stderr=sink,
            start_new_session=True,
        )
    assert child.stdin is not None, "a pipe was asked for"
    with child.stdin as shape, contextlib.suppress(BrokenPipeError):
        shape.write(dump(options))
    console = _console()
    with _taken_along(child):
        mesh = _wait_ready(child, state_dir, log, console)
    return mesh


def _wait_ready(
    child: subprocess.Popen[bytes], state_dir: Path, log: Path, console: Console
) -> RunningMesh:
    """Wait until all of the mesh is up, or its supervisor has ended because a process does not
    start; its output is shown meanwhile. Raises UnavailableError."""
    with log.open(encoding="utf-8", errors="replace") as said, start_line(console) as show:
        while (mesh := started_by(child.pid, state_dir)) is None:
            if child.poll() is not None:
                raise UnavailableError(f"the mesh did not start: {tail(log, _MAX_TOLD_LINES)}")
            _pass_on(said, console)
            show(start_of(state_dir))
            time.sleep(_POLL_S)
        _pass_on(said, console)
    return mesh


def _pass_on(said: TextIO, console: Console) -> None:
    """Print the lines that are there. What the supervisor says of a failure becomes an error."""
    for line in iter(said.readline, ""):
        if line.startswith(FAILED):
            said.read()
        else:
            console.print(line, end="")


def _ready(mesh: RunningMesh, state_dir: Path) -> Iterator[str]:
    """Lines for the user when all of a mesh is up."""
    first = "embed TEXT" if mesh.models[0]["embeds"] else "chat"
    yield f"ready; logs in {state_dir / 'logs'}; try: {command_for(first, state_dir)}"
    for row in mesh.services:
        if row.get("http_port"):
            yield f"HTTP: http://{mesh.host}:{row['http_port']}/v1"


@contextlib.contextmanager
def _taken_along(child: subprocess.Popen[bytes]) -> Iterator[None]:
    """Stop the mesh if anything ends the wait before it is ready, including Ctrl-C and SIGTERM."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, leave) for number in _STOP_SIGNALS}
    try:
        yield
    except BaseException:
        child.terminate()
        child.wait()
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _console() -> Console:
    # Paths and logs are printed as they are: no markup, no line breaks but their own.
    return Console(stderr=True, highlight=False, markup=False, soft_wrap=True)


async def run(options: MeshOptions, state_dir: Path, welcome: Welcome | None = None) -> None:
    """Run a mesh from a folder until it is stopped; `welcome` returns the lines to print when it is
    up, None for a mesh whose start another process shows. Raises UnavailableError."""
    console = _console()
    stop = asyncio.Event()
    supervisor = Supervisor(options, state_dir, console.print)

    def on_signal() -> None:
        if stop.is_set():
            supervisor.kill()
        stop.set()

    for number in _STOP_SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, on_signal)
    with holding(state_dir):
        try:
            await _start_and_wait(supervisor, stop, console, welcome)
        finally:
            with contextlib.suppress(OSError):  # its log's disk is full
                console.print("stopping")
            await supervisor.stop()


async def _start_and_wait(
    supervisor: Supervisor, stop: asyncio.Event, console: Console, welcome: Welcome | None
) -> None:
    shown = start_line(console) if welcome is not None else _recorded(supervisor.state_dir)
    with shown as show:
        start = asyncio.create_task(supervisor.start(show))
        asked = asyncio.create_task(stop.wait())
        await asyncio.wait({start, asked}, return_when=asyncio.FIRST_COMPLETED)
    asked.cancel()
    if not start.done():
        start.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await start
        return
    start.result()
    mesh = running_mesh(supervisor.state_dir)
    for line in welcome(mesh) if welcome is not None and mesh is not None else ():
        console.print(line)
    await supervisor.wait(stop)


@contextlib.contextmanager
def _recorded(state_dir: Path) -> Iterator[Show]:
    """For the process that waits until this mesh is up."""
    yield partial(record_start, state_dir)


def down(state_dir: StateDir = None) -> None:
    """Stop the mesh that `outrider up` started."""
    folder = (state_dir or default_state_dir()).resolve()
    pid = supervisor_pid(folder)
    if pid is None:
        raise no_mesh(folder)
    os.kill(pid, signal.SIGTERM)
    limit = time.monotonic() + (len(ROLES) + 1) * STOP_LIMIT_S
    # Not until the process is gone: without anyone to reap it, it would stay as a zombie for ever.
    while supervisor_pid(folder) == pid:
        if time.monotonic() > limit:
            raise OutriderError(f"process {pid} does not stop; kill it by hand")
        time.sleep(_POLL_S)
    _console().print("stopped")
