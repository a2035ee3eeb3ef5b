"""Command-line options that choose what runs bulk work."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer


class ExecutorName(StrEnum):
    """Names of the executors that run the workers of bulk work."""

    local = "local"
    ray = "ray"


ExecutorOption = Annotated[
    ExecutorName,
    typer.Option(help="Run workers on this machine (`local`) or on a Ray cluster (`ray`)."),
]
RayAddress = Annotated[
    str | None, typer.Option(help="Address of a Ray cluster; default: Ray runs on this machine.")
]
