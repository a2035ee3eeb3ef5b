"""Command-line options that choose what runs bulk work."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer


class ExecutorName(StrEnum):
    """What runs the workers of bulk work."""

    local = "local"
    ray = "ray"


ExecutorOption = Annotated[ExecutorName, typer.Option(help="What runs the workers.")]
RayAddress = Annotated[
    str | None, typer.Option(help="Of a Ray cluster; without it Ray runs on this machine.")
]
