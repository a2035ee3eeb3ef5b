"""Steps before the processes of a mesh start: checking packages, fetching models, and checking that
all replicas fit.

The command does this itself, so that the user sees its progress.
"""

from __future__ import annotations

import importlib.util
import os
import socket
from collections.abc import Iterable, Mapping

from outrider.cli import models
from outrider.cli.model_choice import is_name
from outrider.engines.free_memory import known_free_memory
from outrider.errors import ConfigError, UnavailableError
from outrider.extras import install_command
from outrider.models.definitions import NO_DRAFT, ModelSpec
from outrider.models.store import ModelStore, default_root

Table = Mapping[str, object]


def check_packages(engine: str) -> None:
    """Raises ConfigError that names all packages missing here of those that edges and, unless the
    engine is `fake`, replicas need."""
    of_replicas = {"openvino": ("openvino", "llguidance"), "torch": ("torch", "llguidance")}
    needed = ("aioquic", "starlette", *of_replicas.get(engine, ()))
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        extras = ("all", "torch") if engine == "torch" else ("all",)
        raise ConfigError(
            f"not installed: {', '.join(missing)}; a whole mesh needs: {install_command(*extras)}"
        )


def fetched(
    specs: Iterable[ModelSpec], drafts: Iterable[str], definitions: Mapping[str, Table]
) -> dict[str, Table]:
    """Fetch models and their drafts into the store. Returns `definitions`, with the digest of what
    was fetched in those of the models. Raises UnknownModelError, ModelStoreError."""
    pinned = dict(definitions)
    for spec in specs:
        held = models.have(spec.name)
        if spec.name in pinned:
            pinned[spec.name] = {**pinned[spec.name], "sha256": held.sha256}
    for draft in drafts:
        if draft not in ("", NO_DRAFT) and is_name(draft):
            models.have(draft)
    return pinned


def check_memory(
    replicas: Iterable[tuple[ModelSpec, int]],
    settings: Table,
    drafts: Iterable[tuple[ModelSpec, str]] = (),
) -> None:
    """Raises InsufficientMemoryError if the replicas, given as models with a number each, do not
    fit into this machine together with the models' drafters (`drafter_bytes`), edge, router and
    tokenizers. `settings` are those of every replica; they override a model's definition."""
    # Imported here: the reader of model files takes a while.
    from outrider.cli.local.room import SERVICES_BYTES, drafter_bytes, replica_footprint
    from outrider.engines.footprint import Group, check_together
    from outrider.engines.model_size import size_of

    store = ModelStore(default_root())
    groups = [
        Group(
            spec.name,
            replica_footprint(size_of(spec, store), {**spec.engine_settings(), **settings}),
            count,
        )
        for spec, count in replicas
    ]
    drafts_bytes = sum(drafter_bytes(spec, choice, store) for spec, choice in drafts)
    check_together(groups, known_free_memory(), drafts_bytes + SERVICES_BYTES)


def check_ports(host: str, port: int, http_port: int | None, count: int) -> None:
    """Raises UnavailableError if a port of one of `count` edges is taken: early, before models are
    loaded."""
    for flag, kind, first in (
        ("--port", socket.SOCK_DGRAM, port),
        ("--http-port", socket.SOCK_STREAM, http_port),
    ):
        for wanted in range(first, first + count) if first else ():
            _check_port(flag, kind, host, wanted)


def _check_port(flag: str, kind: socket.SocketKind, host: str, port: int) -> None:
    family, _, _, _, address = socket.getaddrinfo(host, port, type=kind)[0]
    with socket.socket(family, kind) as alone:
        if kind is socket.SOCK_STREAM:
            alone.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            alone.bind(address)
        except OSError as error:
            name = "UDP" if kind is socket.SOCK_DGRAM else "TCP"
            raise UnavailableError(
                f"{name} port {port} of {host} is not available ({error.strerror}), perhaps "
                f"because another mesh is up; give another {flag}, or 0 for any"
            ) from error


def fair_share(num_replicas: int) -> int:
    """Cores of this machine for each replica's engine."""
    return max(1, (os.cpu_count() or 1) // max(1, num_replicas))
