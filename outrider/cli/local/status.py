"""`outrider status`: the services of the running mesh, and models and replicas as a router sees
them."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Annotated, Final, TypeAlias

import typer

from outrider.cli import operator, router_choice
from outrider.cli.local import status_view
from outrider.cli.local.admin_page import provisional_text, tokenizer_backends
from outrider.cli.local.state import RunningMesh, StateDir, default_state_dir
from outrider.cli.router_choice import ChosenRouter, mesh_here, router_of
from outrider.cli.router_state import State, ask
from outrider.errors import UnavailableError

_MIN_INTERVAL_S: Final = 0.1
_TOKENIZING_ROLES: Final = ("edge", "tokenizer")

_Show: TypeAlias = Callable[[str], None]

_Watch = Annotated[bool, typer.Option("--watch", "-w", help="Refresh until Ctrl-C.")]
_Interval = Annotated[
    float,
    typer.Option(min=_MIN_INTERVAL_S, max=3600, help="With --watch: seconds between refreshes."),
]


def status(
    state_dir: StateDir = None,
    router: router_choice.Router = "",
    watch: _Watch = False,
    interval: _Interval = 2.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the state as JSON.")] = False,
    certificate: operator.Certificate = None,
    private_key: operator.PrivateKey = None,
    ca: operator.Ca = None,
    trust_domain: operator.TrustDomain = operator.TRUST_DOMAIN,
    plaintext: operator.Plaintext = False,
) -> None:
    """Show the services, models and replicas of a running mesh.

    For each model and region: replicas, queue, and the last minute's time to first token (TTFT),
    tokens and accepted drafts. For each replica: state, round trip, load and KV cache. For each
    service here that tokenizes: the tokenizer package that serves each model, and why that one. For
    each edge here: what provisional text brought.
    """
    folder = (state_dir or default_state_dir()).resolve()
    flags = (certificate, private_key, ca, trust_domain, plaintext)
    asked = router_choice.choose(state_dir, router, flags)

    def look() -> State:
        return _look(folder, asked)

    if watch:
        _watch(look, interval, as_json=as_json)
    else:
        print(_text(look(), as_json=as_json))


def _look(folder: Path, asked: ChosenRouter) -> State:
    mesh = mesh_here(folder) if asked.is_here else None
    state = asyncio.run(ask(router_of(mesh) if mesh else asked.address, asked.tls))
    return {
        "host": mesh.host if mesh else "",
        "services": mesh.services if mesh else [],
        "tokenizers": _tokenizers(mesh) if mesh else [],
        "provisional": _provisional(mesh) if mesh else [],
        **state,
    }


def _tokenizers(mesh: RunningMesh) -> list[State]:
    """The tokenizer backend of each model at each service that tokenizes."""
    return [
        {"service": row["name"], **backend}
        for row in mesh.services
        if row["role"] in _TOKENIZING_ROLES and row["is_up"]
        for backend in tokenizer_backends(mesh.host, row["admin_port"])
    ]


def _provisional(mesh: RunningMesh) -> list[State]:
    """What provisional text brought each model's chats at each edge."""
    return [
        {"service": row["name"], **brought}
        for row in mesh.services
        if row["role"] == "edge" and row["is_up"]
        for brought in provisional_text(mesh.host, row["admin_port"])
    ]


def _text(state: State, *, as_json: bool) -> str:
    if as_json:
        return json.dumps(state)
    # What reads a pipe wants a line for each row, however long.
    max_chars = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    return "\n".join(status_view.lines(state, max_chars)).rstrip()


def _watch(look: Callable[[], State], interval_s: float, *, as_json: bool) -> None:
    """Show the state again and again, without end. A mesh or router that does not answer is shown
    as such and asked again."""
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
    """A terminal's screen, to show text on until the context ends."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    live = Live(console=Console(), screen=True, auto_refresh=False)

    def show(text: str) -> None:
        live.update(Text(text, overflow="fold"), refresh=True)

    return live, show
