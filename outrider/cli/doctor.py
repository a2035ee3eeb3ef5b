"""`outrider doctor`: numbered checks of this machine, each with what to do about a failure."""

from __future__ import annotations

import importlib.util
import shutil
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from outrider.cli.findings import Finding, report
from outrider.cli.local.mesh import DEFAULT_REGIONS
from outrider.cli.local.state import StateDir, default_state_dir, running_mesh
from outrider.cli.model_choice import MODEL_HELP, choose_all
from outrider.engines.cpu_features import cpu_flags
from outrider.engines.free_memory import FreeMemory, known_free_memory
from outrider.errors import ConfigError, ModelStoreError, OutriderError
from outrider.extras import install_command
from outrider.models.catalog import DEFAULT_MODEL, ModelSpec, load_catalog, lookup
from outrider.models.definitions import NO_DRAFT
from outrider.models.store import ModelStore, default_root
from outrider.usable_cores import usable_cores

if TYPE_CHECKING:
    from outrider.engines.model_size import ModelSize

_GIB = 1 << 30
_MIN_DISK_GIB = 1
_NUM_REPLICAS = len(DEFAULT_REGIONS)


def doctor(
    model: Annotated[
        list[str] | None,
        typer.Option(help=f"{MODEL_HELP} Repeatable.", show_default=DEFAULT_MODEL.name),
    ] = None,
    state_dir: StateDir = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a list of JSON objects with ok, what and fix.")
    ] = False,
) -> None:
    """Check that this machine can run Outrider with these models, and print what to do if it
    cannot."""
    specs = choose_all(model or [""]).specs
    findings = _findings(specs, state_dir or default_state_dir())
    raise typer.Exit(report(findings, as_json=as_json))


def _findings(specs: Sequence[ModelSpec], state_dir: Path) -> Iterator[Finding]:
    of_models = [partial(check, spec) for spec in specs for check in (_model, _tokenizer, _draft)]
    checks: tuple[Callable[[], Finding], ...] = (
        _python,
        _packages,
        _cpu,
        lambda: _memory(specs),
        _disk,
        *of_models,
        _udp,
        lambda: _mesh(state_dir),
    )
    for check in checks:
        yield check()


def _python() -> Finding:
    version = sys.version_info
    return Finding(
        (3, 11) <= version < (3, 13),
        f"Python {version.major}.{version.minor}.{version.micro}",
        "Outrider runs on Python 3.11 and 3.12; make the environment with one of them",
    )


def _packages() -> Finding:
    needed = {"aioquic": "edge", "openvino": "inference", "openvino_genai": "inference"}
    missing = {extra for name, extra in needed.items() if importlib.util.find_spec(name) is None}
    return Finding(
        not missing,
        "packages of every role" if not missing else f"packages missing for {sorted(missing)}",
        install_command(*sorted(missing)),
    )


def _cpu() -> Finding:
    flags = cpu_flags()
    found = [name for name in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if name in flags]
    return Finding(
        not flags or "avx2" in flags,
        f"CPU: {usable_cores()} cores, {', '.join(found) or 'no vector extensions known'}",
        "the OpenVINO engine needs AVX2 on x86; replicas of one mesh should be one CPU generation",
    )


def _memory(specs: Sequence[ModelSpec]) -> Finding:
    # Imported here: the reader of model files takes a while.
    from outrider.cli.local.room import drafter_bytes
    from outrider.engines.model_size import size_of

    free = known_free_memory()
    store = ModelStore(default_root())
    sizes: list[tuple[ModelSpec, ModelSize]] = []
    for spec in specs:
        try:
            sizes.append((spec, size_of(spec, store)))
        except (OutriderError, OSError):
            left = "unknown" if free is None else f"{free.num_bytes / _GIB:.1f} GiB free"
            what = f"what a replica takes is known once {spec.name} is in the store"
            return Finding(True, f"memory: {left}; {what}")
    return memory_finding(sizes, free, sum(drafter_bytes(it, it.draft, store) for it in specs))


def memory_finding(
    sizes: Sequence[tuple[ModelSpec, ModelSize]], free: FreeMemory | None, drafters_bytes: int = 0
) -> Finding:
    """Whether the replicas of a mesh as `outrider up` starts it by default fit, beside its other
    services and the models' drafters."""
    from outrider.cli.local.room import SERVICES_BYTES, replica_footprint
    from outrider.engines.footprint import Group, check_together

    groups = [
        Group(spec.name, replica_footprint(size, spec.engine_settings(), free), _NUM_REPLICAS)
        for spec, size in sizes
    ]
    takes = ", ".join(
        f"a replica of {it.model} takes {it.replica.needed_bytes / _GIB:.1f} GiB at least"
        for it in groups
    )
    if free is None:
        return Finding(True, f"memory: {takes}; what is free cannot be read here")
    try:
        check_together(groups, free, SERVICES_BYTES + drafters_bytes)
        problem = ""
    except ConfigError as error:
        problem = error.message
    fixed_bytes = sum(it.replica.fixed_bytes for it in groups)
    return Finding(
        not problem,
        f"memory: {free.num_bytes / _GIB:.1f} GiB free; {takes}, "
        f"{fixed_bytes / _GIB:.1f} GiB more for fast small calls, and its KV pool",
        f"{problem}; `outrider up --regions local` starts one replica of each model",
    )


def _disk() -> Finding:
    root = default_root()
    existing = next(folder for folder in (root, *root.parents) if folder.exists())
    free = shutil.disk_usage(existing).free / _GIB
    return Finding(
        free >= _MIN_DISK_GIB,
        f"disk: {free:.1f} GiB free for the model store {root}",
        "free some space, or point OUTRIDER_MODEL_STORE elsewhere",
    )


def _model(spec: ModelSpec) -> Finding:
    try:
        ModelStore(default_root()).path(spec.source, sha256=spec.sha256)
    except ModelStoreError as error:
        return Finding(False, f"model {spec.name}: {error.message}", _pull(spec))
    return Finding(True, f"model {spec.name} is in the store and intact")


def _pull(spec: ModelSpec) -> str:
    """The command that fetches it. What was pulled before its source changed is intact, so that a
    pull by source would keep it."""
    refresh = "--refresh " if _has_changed(spec) else ""
    return f"outrider models pull {refresh}{_argument(spec)}"


def _has_changed(spec: ModelSpec) -> bool:
    """Whether the store pulled other bytes from the source than the definition's sha256."""
    recorded = ModelStore(default_root()).recorded(spec.source)
    return bool(spec.sha256 and recorded) and recorded != spec.sha256


def _argument(spec: ModelSpec) -> str:
    """The model's argument for other commands; they do not know a name defined for this command."""
    return spec.name if spec in load_catalog() else f"'{spec.source}'"


def _tokenizer(spec: ModelSpec) -> Finding:
    # Imported here: the libraries take a while. The gate's seconds are spent once per version.
    from outrider.models.vocabulary import load_vocabulary
    from outrider.tokenization.backends.selection import load_backend
    from outrider.tokenization.pool.config import automatic_processes

    store = ModelStore(default_root())
    try:
        store.path(spec.source, sha256=spec.sha256)  # nothing is fetched here
        backend = load_backend(store, load_vocabulary(spec, store))
    except OutriderError as error:
        fix = _pull(spec) if _has_changed(spec) else "outrider models verify"
        return Finding(False, f"tokenizer: {error.message}", fix)
    helping = automatic_processes(usable_cores(), is_fast=backend.is_fast)
    return Finding(
        True,
        f"tokenizer for {spec.name}: {backend.name} ({backend.reason}); {helping} other processes "
        "help when an edge's threads are busy",
    )


def _draft(spec: ModelSpec) -> Finding:
    if spec.draft == NO_DRAFT:
        return Finding(True, f"draft model: none for {spec.name}, by its definition")
    if spec.draft:
        draft = _model(lookup(spec.draft))
        return replace(draft, what=f"draft {draft.what}")
    # Imported here: the reader of model files takes a while.
    from outrider.engines.draft_file import read_card
    from outrider.engines.draft_loading import shipped_draft

    path = shipped_draft(spec)
    if path is None:
        return Finding(
            True,
            f"draft model: none is shipped for {spec.name}; edges draft from what texts repeat",
        )
    try:
        card = read_card(path)
    except OutriderError as error:
        return Finding(False, f"draft model: {error.message}", "install the package again")
    ids = "all" if card is None else f"{len(card.head_ids):,}"
    return Finding(True, f"draft model for {spec.name}: {ids} of its ids can be drafted")


def _udp() -> Finding:
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender,
    ):
        receiver.bind(("127.0.0.1", 0))
        receiver.settimeout(1.0)
        sender.sendto(b"outrider", receiver.getsockname())
        try:
            ok = receiver.recv(16) == b"outrider"
        except TimeoutError:
            ok = False
    return Finding(ok, "UDP on the loopback", "a firewall drops UDP; QUIC needs it")


def _mesh(state_dir: Path) -> Finding:
    mesh = running_mesh(state_dir)
    what = "mesh: none up here"
    if mesh:
        models = ", ".join(row["name"] for row in mesh.models)
        what = f"mesh: {len(mesh.services)} services up, serving {models}"
    return Finding(True, what)
