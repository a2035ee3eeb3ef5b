"""`outrider context`: meshes elsewhere, saved by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from outrider.cli import contexts
from outrider.cli.columns import columns
from outrider.cli.contexts import Context, Name
from outrider.errors import InvalidRequestError

app = typer.Typer(
    no_args_is_help=True,
    help="Meshes elsewhere, saved by name, for chat, status, explain, drain and check.",
)
_Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command()
def add(
    name: Annotated[str, typer.Argument(help="Letters, digits and . _ -")],
    edge: Annotated[str, typer.Option(help="HOST:PORT of an edge, for chats.")] = "",
    ca: Annotated[Path | None, typer.Option(help="Certificate to trust for the edge.")] = None,
    key_file: Annotated[Path | None, typer.Option(help="File with the API key.")] = None,
    user: Annotated[str, typer.Option(help="Which of the key's users asks.")] = "",
    router: Annotated[str, typer.Option(help="HOST:PORT of a router, for operators.")] = "",
    certificate: Annotated[Path | None, typer.Option(help="An operator's certificate.")] = None,
    private_key: Annotated[Path | None, typer.Option(help="PEM key of --certificate.")] = None,
    router_ca: Annotated[
        Path | None, typer.Option(help="CA that the routers' certificates lead to.")
    ] = None,
    trust_domain: Annotated[str, typer.Option(help="Of the routers' certificates.")] = "",
    plaintext: Annotated[
        bool, typer.Option("--plaintext", help="The router is asked without certificates.")
    ] = False,
    use: Annotated[bool, typer.Option("--use", help="Use it from now on.")] = False,
    may_replace: Annotated[
        bool, typer.Option("--replace", help="Also if there is one of that name.")
    ] = False,
) -> None:
    """Save a context. Paths are kept as absolute ones; files stay where they are."""
    context = Context(
        edge=edge,
        ca=_path(ca),
        key_file=_path(key_file),
        user=user,
        router=router,
        certificate=_path(certificate),
        private_key=_path(private_key),
        router_ca=_path(router_ca),
        trust_domain=trust_domain,
        plaintext=plaintext,
    )
    saved = contexts.read().add(name, context, may_replace=may_replace)
    contexts.write(saved.use(name) if use else saved)
    print(f"saved context {name}" + ("" if use else f"; `outrider context use {name}` uses it"))
    if use:
        _say_used(name)


@app.command()
def use(
    name: Annotated[
        str,
        typer.Argument(metavar="[NAME]", help="Of a context.", autocompletion=contexts.completed),
    ] = "",
    none: Annotated[
        bool, typer.Option("--none", help="No context: the mesh of `outrider up`.")
    ] = False,
) -> None:
    """Choose the context of commands that are told no other."""
    if bool(name) == none:
        raise InvalidRequestError("give the name of a context, or --none")
    contexts.write(contexts.read().use(name))
    _say_used(name)


@app.command("list")
def list_(as_json: _Json = False) -> None:
    """Show all; the one in use has a star."""
    saved = contexts.read()
    if as_json:
        rows = {name: contexts.given(context) for name, context in saved.by_name.items()}
        print(json.dumps({"current": saved.current, "contexts": rows}))
        return
    if not saved.by_name:
        print("no context is saved; `outrider context add NAME --edge HOST:PORT` saves one")
        return
    cells = [
        (("* " if name == saved.current else "  ") + name, it.edge or "-", it.router or "-")
        for name, it in saved.by_name.items()
    ]
    for line in columns([("  NAME", "EDGE", "ROUTER"), *cells], num_names=3):
        print(line)


@app.command()
def show(name: Name = "", as_json: _Json = False) -> None:
    """Show one, by default the one in use."""
    saved = contexts.read()
    if not (name or saved.current):
        raise InvalidRequestError("no context is in use; name one: `outrider context list`")
    context = contexts.given(saved.get(name or saved.current))
    if as_json:
        print(json.dumps({"name": name or saved.current, **context}))
        return
    for key, value in context.items():
        print(f"{key}: {value}")


@app.command()
def remove(name: Name) -> None:
    """Forget one. The files that it names stay."""
    contexts.write(contexts.read().remove(name))
    print(f"removed context {name}")


def _say_used(name: str) -> None:
    if name:
        print(f"commands go to context {name} from now on")
    else:
        print("commands go to the mesh of `outrider up` from now on")


def _path(path: Path | None) -> str:
    """Raises InvalidRequestError for a file that is not there."""
    if path is None:
        return ""
    if not path.is_file():
        raise InvalidRequestError(f"there is no file {path}")
    return str(path.absolute())
