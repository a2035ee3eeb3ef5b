"""The `outrider` command. Subcommands import what they need when they run."""

from __future__ import annotations

import sys
from importlib.metadata import version
from typing import Annotated

import typer

from outrider.cli import config, context, definitions, keys, models, serve
from outrider.cli.bench import serve as bench
from outrider.cli.check import check
from outrider.cli.demo import commands as demo
from outrider.cli.doctor import doctor
from outrider.cli.drain import drain
from outrider.cli.embed import embed
from outrider.cli.explain import explain
from outrider.cli.local import mesh_models, up
from outrider.cli.local.logs import logs
from outrider.cli.local.status import status
from outrider.cli.prompting.chat import chat
from outrider.cli.prompting.reference import reference
from outrider.cli.tokenize import tokenize
from outrider.errors import OutriderError

app = typer.Typer(
    name="outrider",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help=(
        "A speculative token mesh: LLM answers that start at the network edge and are decided "
        "in the datacenter.\n\nFirst steps: `outrider up --detach`, `outrider chat`, "
        "`outrider down`. Exit status: 0 well, 1 failed or refused, 2 no such command or "
        "flag, or a value that the flag does not take, 130 interrupted."
    ),
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"outrider {version('outrider')}")
        raise typer.Exit


@app.callback()
def _outrider(
    show_version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Holds the flags that belong to no subcommand."""


app.command()(up.up)
app.command()(up.down)
app.command()(status)
app.command()(logs)
app.command()(chat)
app.command()(reference)
app.command()(serve.serve)
app.command()(tokenize)
app.command()(embed)
app.command()(explain)
app.command()(drain)
app.command()(doctor)
app.command()(check)
models.app.command()(definitions.add)
models.app.command()(definitions.forget)
app.add_typer(models.app, name="models")
app.add_typer(mesh_models.app, name="mesh")
app.add_typer(keys.app, name="keys")
app.add_typer(config.app, name="config")
app.add_typer(context.app, name="context")
app.add_typer(demo.app, name="demo")
app.add_typer(bench.app, name="bench")


def main() -> None:
    """Run the command line; our errors, and files that fail, are one line on stderr, status 1."""
    try:
        app()
    except OutriderError as error:
        print(f"outrider: {error.message}", file=sys.stderr)
        raise SystemExit(1) from None
    except OSError as error:
        if error.filename is None:
            raise
        print(f"outrider: {error}", file=sys.stderr)
        raise SystemExit(1) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None


if __name__ == "__main__":
    main()
