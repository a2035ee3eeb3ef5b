"""`outrider mesh`: which models the mesh on this machine serves; add one, remove one."""

from __future__ import annotations

import asyncio
import json
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from outrider.cli.local import control
from outrider.cli.local.mesh import ServedModel
from outrider.cli.local.preparing import check_memory, fair_share, fetched
from outrider.cli.local.state import (
    RunningMesh,
    StateDir,
    default_state_dir,
    no_mesh,
    running_mesh,
)
from outrider.cli.model_choice import MODEL_HELP, choose_all, is_name, source_of
from outrider.errors import ConfigError, UnavailableError
from outrider.models.definitions import (
    NO_DRAFT,
    ModelSpec,
    Place,
    as_table,
    read_definitions,
)
from outrider.models.sources import parse_source

app = typer.Typer(
    no_args_is_help=True,
    help="The models that the mesh on this machine serves (`outrider up` names the first ones).",
)


@app.command("list")
def list_(
    state_dir: StateDir = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per line.")] = False,
) -> None:
    """What the mesh serves; the first is the model of requests that name none."""
    mesh = _mesh(_folder(state_dir))
    for number, model in enumerate(mesh.models):
        rows = [row for row in mesh.services if row.get("model") == model["name"]]
        up = sum(row["is_up"] for row in rows)
        if as_json:
            print(json.dumps({**model, "is_default": number == 0, "replicas_up": up}))
            continue
        default = "  default" if number == 0 else ""
        print(f"{model['name']:<30} {up} of {len(rows)} replicas up{default}")


@app.command()
def add(
    model: Annotated[str, typer.Argument(metavar="MODEL", help=MODEL_HELP, show_default=False)],
    replicas: Annotated[
        int, typer.Option(min=1, max=64, help="Inference replicas per region.")
    ] = 1,
    regions: Annotated[
        str, typer.Option(help="Regions of the mesh, comma-separated; empty: all of them.")
    ] = "",
    threads: Annotated[
        int, typer.Option(min=0, max=1024, help="Engine threads per replica; 0: a fair share.")
    ] = 0,
    draft_model: Annotated[
        str,
        typer.Option(
            help='What the edge drafts with for it, named like MODEL, or "none"; "": as the model '
            "is defined, or what is shipped for it."
        ),
    ] = "",
    state_dir: StateDir = None,
) -> None:
    """Serve one more model; chats that run do not notice. Returns when chats with it are answered.

    If it cannot be served, the mesh stays as it was. Ctrl-C takes back what was done so far.
    """
    folder = _folder(state_dir)
    mesh = _mesh(folder)
    spec, definitions = _chosen(mesh, model, draft_model)
    names = tuple(name.strip() for name in regions.split(",") if name.strip())
    told = _told_replicas(mesh, folder)
    num_regions = len(names) or len({row["region"] for row in told})
    num_running = sum("model" in row for row in mesh.services)
    count = num_regions * replicas
    served = ServedModel(spec.name, replicas, threads or fair_share(num_running + count), names)
    settings = told[0]
    is_fake = settings["engine"] == "fake"
    if "model_store" not in settings:
        definitions = fetched([spec], () if is_fake else [spec.draft], definitions)
        if settings["engine"] == "openvino":
            check_memory([(spec, count)], settings, [(spec, spec.draft)])
    wish = {"do": "add", "model": asdict(served), "definitions": definitions}
    with _saying() as say:
        asyncio.run(control.ask(folder, wish, say))
    print(f"{spec.name} is served; try: outrider chat --model {spec.name}")


@app.command()
def remove(
    name: Annotated[str, typer.Argument(metavar="NAME", help="As `outrider mesh list` shows it.")],
    drain_s: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=86_400,
            help="Seconds that its chats may still take; then they end with an error.",
            show_default="as long as they take",
        ),
    ] = None,
    state_dir: StateDir = None,
) -> None:
    """Serve a model no more: no new chats with it, and its replicas stop when the last has ended.

    Ctrl-C before that puts it back. What the model store holds of it stays.
    """
    if drain_s is not None and not drain_s >= 0:
        raise ConfigError(f"--drain-s is a number of seconds from 0 on, not {drain_s}")
    folder = _folder(state_dir)
    _mesh(folder)
    with _saying() as say:
        asyncio.run(control.ask(folder, {"do": "remove", "name": name, "drain_s": drain_s}, say))
    print(f"{name} is not served any more")


def _folder(state_dir: Path | None) -> Path:
    return (state_dir or default_state_dir()).resolve()


def _mesh(folder: Path) -> RunningMesh:
    mesh = running_mesh(folder)
    if mesh is None:
        raise no_mesh(folder)
    return mesh


def _chosen(
    mesh: RunningMesh, model: str, draft_model: str
) -> tuple[ModelSpec, dict[str, Mapping[str, object]]]:
    """The model, and the definitions that the mesh needs for it. Raises ConfigError if the mesh
    serves it already, and what `choose_all` raises."""
    place = Place("the mesh", lambda text: parse_source(text, {}).text)
    known = read_definitions(mesh.definitions, place)
    served = [row["name"] for row in mesh.models]
    if not is_name(model):
        source = source_of(model)
        for spec in known:
            if spec.name in served and spec.source == source:
                raise ConfigError(
                    f"the mesh serves {model} already, as {spec.name}; if its bytes have changed: "
                    f"outrider mesh remove {spec.name}, then add it again"
                )
    is_draft = draft_model not in ("", NO_DRAFT)
    chosen = choose_all([model, draft_model] if is_draft else [model], known=known)
    spec = chosen.specs[0]
    if draft_model:
        spec = replace(spec, draft=chosen.specs[1].name if is_draft else NO_DRAFT)
    tables = {it.name: as_table(it) for it in chosen.definitions}
    if draft_model:
        tables[spec.name] = as_table(spec)
    needed = {spec.name, spec.draft}
    return spec, {name: table for name, table in tables.items() if name in needed}


def _told_replicas(mesh: RunningMesh, folder: Path) -> list[dict[str, Any]]:
    """What the replicas that run are told, from their files: a new one is told the same."""
    names = [row["name"] for row in mesh.services if "model" in row]
    files = [folder / "config" / f"{name}.toml" for name in names]
    try:
        return [tomllib.loads(file.read_text("utf-8"))["inference"] for file in files]
    except (OSError, ValueError, LookupError) as error:
        raise UnavailableError(f"the mesh changes right now ({error}); try again") from error


@contextmanager
def _saying() -> Iterator[Callable[[str], None]]:
    """What is under way: on a terminal as a line that changes, otherwise line by line."""
    console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    if not console.is_terminal:
        yield console.print
        return
    with console.status("asking the mesh") as status:

        def say(text: str) -> None:
            status.update(text)

        yield say
