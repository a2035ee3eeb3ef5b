"""Which router a command asks, and as whom: flags, a saved context, or the mesh of `outrider
up`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from outrider.cli import contexts, operator
from outrider.cli.local.state import RunningMesh, default_state_dir, no_mesh, running_mesh
from outrider.config import check_address
from outrider.errors import InvalidRequestError

if TYPE_CHECKING:
    from outrider.tls import Tls

Router = Annotated[
    str, typer.Option(help="Ask the router at HOST:PORT, not one of a mesh on this machine.")
]


class ChosenRouter(NamedTuple):
    """Which router a command asks, and as whom."""

    address: str
    """HOST:PORT"""
    tls: Tls
    is_here: bool
    """It is of the mesh of `outrider up`."""
    context: str
    """Name of the context that says so; "": none does."""


def choose(
    state_dir: Path | None, router: str, context: str, flags: operator.Flags
) -> ChosenRouter:
    """The router that flags name, or a context, or that of the mesh here. Raises
    InvalidRequestError, UnavailableError, ConfigError."""
    if router:
        check_address(router, "--router")
    has_place = bool(router) or state_dir is not None
    name, saved = contexts.chosen(context, has_place=has_place)
    if router:
        return ChosenRouter(router, operator.of_flags(*flags), is_here=False, context="")
    if name:
        if not saved.router:
            raise InvalidRequestError(f"context {name} names no router; add it anew with --router")
        return ChosenRouter(saved.router, operator.of_context(saved), is_here=False, context=name)
    folder = (state_dir or default_state_dir()).resolve()
    address = router_of(mesh_here(folder))
    return ChosenRouter(address, operator.of_mesh(folder), is_here=True, context="")


def mesh_here(folder: Path) -> RunningMesh:
    """That of `outrider up` in a folder. Raises UnavailableError."""
    mesh = running_mesh(folder)
    if mesh is None:
        raise no_mesh(folder)
    return mesh


def router_of(mesh: RunningMesh) -> str:
    """HOST:PORT of its first router."""
    return f"{mesh.host}:{mesh.service('router')['port']}"
