"""The router that a command asks, and its credentials: from flags, or of the mesh of `outrider
up`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from outrider.cli import operator
from outrider.cli.local.state import RunningMesh, default_state_dir, no_mesh, running_mesh
from outrider.config import check_address

if TYPE_CHECKING:
    from outrider.tls import Tls

Router = Annotated[
    str, typer.Option(help="HOST:PORT of a router elsewhere; default: the mesh on this machine.")
]


class ChosenRouter(NamedTuple):
    """The router that a command asks, and its credentials."""

    address: str
    """HOST:PORT"""
    tls: Tls
    is_here: bool
    """Whether the router belongs to the mesh of `outrider up`."""


def choose(state_dir: Path | None, router: str, flags: operator.Flags) -> ChosenRouter:
    """The router named by --router, else the one of the local mesh. Raises UnavailableError,
    ConfigError."""
    if router:
        check_address(router, "--router")
        return ChosenRouter(router, operator.of_flags(*flags), is_here=False)
    folder = (state_dir or default_state_dir()).resolve()
    address = router_of(mesh_here(folder))
    return ChosenRouter(address, operator.of_mesh(folder), is_here=True)


def mesh_here(folder: Path) -> RunningMesh:
    """The mesh of `outrider up` in a folder. Raises UnavailableError if none runs."""
    mesh = running_mesh(folder)
    if mesh is None:
        raise no_mesh(folder)
    return mesh


def router_of(mesh: RunningMesh) -> str:
    """HOST:PORT of its first router."""
    return f"{mesh.host}:{mesh.service('router')['port']}"
