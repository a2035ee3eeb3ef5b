"""The `outrider` command. Subcommands import their dependencies when they run."""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version
from typing import Annotated, Final

import typer

from outrider.cli.failures import sentence_of

COMMANDS: Final = {
    "up": "outrider.cli.local.up:up",
    "down": "outrider.cli.local.up:down",
    "status": "outrider.cli.local.status:status",
    "logs": "outrider.cli.local.logs:logs",
    "chat": "outrider.cli.prompting.chat:chat",
    "reference": "outrider.cli.prompting.reference:reference",
    "serve": "outrider.cli.serve:serve",
    "tokenize": "outrider.cli.tokenize:tokenize",
    "embed": "outrider.cli.embed:embed",
    "explain": "outrider.cli.explain:explain",
    "drain": "outrider.cli.drain:drain",
    "prefixes": "outrider.cli.prefixes:prefixes",
    "doctor": "outrider.cli.doctor:doctor",
    "check": "outrider.cli.check:check",
    "models": "outrider.cli.model_commands:app",
    "keys": "outrider.cli.keys:app",
    "edges": "outrider.cli.edges:app",
    "config": "outrider.cli.config:app",
    "demo": "outrider.cli.demo.commands:app",
    "bench": "outrider.cli.bench.serve:app",
}
"""Module and function of each command or group. Importing all of them takes most of a second."""

_HELP: Final = (
    "Serve LLM chats across sites: every reply is byte-identical to the model's own and "
    "survives the death of any process.\n\nFirst steps: `outrider up --detach`, `outrider chat`, "
    "`outrider down`.\n\nExit status: 0 success, 1 failed or refused, 2 unknown command, flag or "
    "value, 130 interrupted."
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"outrider {version('outrider')}")
        raise typer.Exit


def _outrider(
    show_version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Holds the flags that belong to no subcommand."""


def app_for(arguments: Sequence[str]) -> typer.Typer:
    """The command line with the command that the arguments name; with all where they name none, to
    be listed or suggested."""
    app = typer.Typer(
        name="outrider",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        help=_HELP,
        # Rich's own markup would take `[edge]` in a help text for a tag and leave it out.
        rich_markup_mode="markdown",
    )
    app.callback()(_outrider)
    named = [name for name in arguments[:1] if name in COMMANDS]
    for name in named or COMMANDS:
        module, _, attribute = COMMANDS[name].partition(":")
        found = getattr(import_module(module), attribute)
        if isinstance(found, typer.Typer):
            app.add_typer(found, name=name)
        else:
            app.command(name)(found)
    return app


def main() -> None:
    """Run the command line; our errors, files that fail and optional packages that are missing are
    one line on stderr, status 1."""
    if sys.stdin is None:
        # A shell's `<&-` closed it: nothing is to be read, which is no defect.
        sys.stdin = open(os.devnull, encoding="utf-8")
    try:
        try:
            app_for(sys.argv[1:])()
        finally:
            if sys.stdout is not None:  # Python itself would do it later, and print a traceback
                sys.stdout.flush()
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except Exception as failure:
        if not (told := sentence_of(failure)):
            raise
        # What the failure left half made, such as an event loop without its pipe, is thrown away.
        sys.unraisablehook = lambda _: None
        warnings.simplefilter("ignore")
        print(f"outrider: {told}", file=sys.stderr)
        _leave_stdout()
        raise SystemExit(1) from None


def _leave_stdout() -> None:
    """What is still to be written there cannot be, or will be lost with it."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stdout.flush()
        return
    with contextlib.suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


if __name__ == "__main__":
    main()
