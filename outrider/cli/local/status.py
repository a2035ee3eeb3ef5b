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
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple, TypeAlias

import typer

from outrider.cli import contexts, operator
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
from outrider.errors import InvalidRequestError, UnavailableError

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
    context: contexts.Flag = "",
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
    asked = chosen_router(state_dir, router, context, flags)

    def look() -> State:
        with contexts.named(asked.context):
            return _look(folder, asked)

    if watch:
        _watch(look, interval, as_json=as_json)
    else:
        print(_text(look(), as_json=as_json))


class AskedRouter(NamedTuple):
    """Which router a command asks, and as whom."""

    address: str
    """HOST:PORT"""
    tls: Tls
    is_here: bool
    """It is of the mesh of `outrider up`."""
    context: str
    """Name of the context that says so; "": none does."""


def chosen_router(
    state_dir: Path | None, router: str, context: str, flags: operator.Flags
) -> AskedRouter:
    """The router that flags name, or a context, or that of the mesh here. Raises
    InvalidRequestError, UnavailableError, ConfigError."""
    if router:
        check_address(router, "--router")
    has_place = bool(router) or state_dir is not None
    name, saved = contexts.chosen(context, has_place=has_place)
    if router:
        return AskedRouter(router, operator.of_flags(*flags), is_here=False, context="")
    if name:
        if not saved.router:
            raise InvalidRequestError(f"context {name} names no router; add it anew with --router")
        return AskedRouter(saved.router, operator.of_context(saved), is_here=False, context=name)
    folder = (state_dir or default_state_dir()).resolve()
    address = _address(_mesh(folder))
    return AskedRouter(address, operator.of_mesh(folder), is_here=True, context="")


def _look(folder: Path, asked: AskedRouter) -> State:
    mesh = _mesh(folder) if asked.is_here else None
    state = asyncio.run(ask(_address(mesh) if mesh else asked.address, asked.tls))
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
