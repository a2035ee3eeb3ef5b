"""`outrider status`: the services of the running mesh, and models and replicas as a router sees
them."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

import typer

from outrider.cli import operator
from outrider.cli.local import status_view
from outrider.cli.local.state import (
    RunningMesh,
    StateDir,
    command_for,
    default_state_dir,
    running_mesh,
)
from outrider.cli.router_state import State, ask
from outrider.config import check_address
from outrider.errors import UnavailableError

if TYPE_CHECKING:
    from outrider.tls import Tls

_MIN_INTERVAL_S: Final = 0.1

_Show: TypeAlias = Callable[[str], None]

_Router = Annotated[
    str, typer.Option(help="Ask the router at HOST:PORT, not one of a mesh on this machine.")
]
_Watch = Annotated[bool, typer.Option("--watch", "-w", help="Show it anew until Ctrl-C.")]
_Interval = Annotated[
    float,
    typer.Option(min=_MIN_INTERVAL_S, max=3600, help="With --watch: seconds between two looks."),
]


def status(
    state_dir: StateDir = None,
    router: _Router = "",
    watch: _Watch = False,
    interval: _Interval = 2.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the state as JSON.")] = False,
    certificate: operator.Certificate = None,
    private_key: operator.PrivateKey = None,
    ca: operator.Ca = None,
    trust_domain: operator.TrustDomain = operator.TRUST_DOMAIN,
    plaintext: operator.Plaintext = False,
) -> None:
    """Show the services of the running mesh, its models by region (replicas, queue, and of the last
    minute TTFT, tokens and accepted drafts), and its replicas (state, round trip, load, KV)."""
    folder = (state_dir or default_state_dir()).resolve()
    flags = (certificate, private_key, ca, trust_domain, plaintext)
    _, tls = chosen_router(folder, router, flags)

    def look() -> State:
        return _look(folder, router, tls)

    if watch:
        _watch(look, interval, as_json=as_json)
    else:
        print(_text(look(), as_json=as_json))


def chosen_router(folder: Path, router: str, flags: operator.Flags) -> tuple[str, Tls]:
    """HOST:PORT of a router and as whom to ask it: the one that is named, or that of the mesh in a
    folder. Raises UnavailableError, ConfigError."""
    if router:
        check_address(router, "--router")
        return router, operator.of_flags(*flags)
    return _address(_mesh(folder)), operator.of_mesh(folder)


def _look(folder: Path, router: str, tls: Tls) -> State:
    mesh = None if router else _mesh(folder)
    state = asyncio.run(ask(_address(mesh) if mesh else router, tls))
    return {
        "host": mesh.host if mesh else "",
        "services": mesh.services if mesh else [],
        **state,
    }


def _text(state: State, *, as_json: bool) -> str:
    return json.dumps(state) if as_json else "\n".join(status_view.lines(state)).rstrip()


def _watch(look: Callable[[], State], interval_s: float, *, as_json: bool) -> None:
    """Without an end. A mesh or a router that does not answer is shown as that, and looked for
    again."""
    screen, show = _screen() if sys.stdout.isatty() and not as_json else (nullcontext(), _print)
    with screen:
        while True:
            at = time.strftime("%H:%M:%S")
            try:
                text = _text(look(), as_json=as_json)
            except UnavailableError as error:
                failed = {"error": {"reason": error.reason, "message": error.message}}
                text = json.dumps(failed) if as_json else error.message
            show(text if as_json else f"{at}, every {interval_s:g} s until Ctrl-C\n\n{text}\n")
            time.sleep(interval_s)


def _print(text: str) -> None:
    print(text, flush=True)


def _screen() -> tuple[AbstractContextManager[object], _Show]:
    """A terminal's screen, to show text on until the context ends. Lines are cut at its width."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    live = Live(console=Console(), screen=True, auto_refresh=False)

    def show(text: str) -> None:
        live.update(Text(text, no_wrap=True, overflow="crop"), refresh=True)

    return live, show


def _mesh(folder: Path) -> RunningMesh:
    mesh = running_mesh(folder)
    if mesh is None:
        start = command_for("up", folder)
        raise UnavailableError(f"no mesh is up in {folder}; start one with `{start}`")
    return mesh


def _address(mesh: RunningMesh) -> str:
    return f"{mesh.host}:{mesh.service('router')['port']}"
