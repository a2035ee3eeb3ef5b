"""The commands of `outrider demo`."""

from __future__ import annotations

import typer

from outrider.cli.demo.kill import kill
from outrider.cli.demo.wan import wan

app = typer.Typer(
    name="demo",
    no_args_is_help=True,
    help="Show what Outrider does, on a mesh that is started for the demo and stopped after it.",
)
app.command()(kill)
app.command()(wan)
