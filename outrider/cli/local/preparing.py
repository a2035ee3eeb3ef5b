"""Before processes of a model start: it is fetched, and there is room for all of its replicas.

Done by the command, where it is seen and may take its time; the services would fetch it unseen.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Mapping

from outrider.cli import models
from outrider.cli.model_choice import is_name
from outrider.engines.free_memory import known_free_memory
from outrider.errors import UnavailableError
from outrider.models.definitions import NO_DRAFT, ModelSpec
from outrider.models.store import ModelStore, default_root

Table = Mapping[str, object]


def fetched(
    specs: Iterable[ModelSpec], drafts: Iterable[str], definitions: Mapping[str, Table]
) -> dict[str, Table]:
    """Have models and their drafts in the store. Of `definitions`, those of the models get the
    digest of what was fetched. Raises UnknownModelError, ModelStoreError."""
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
    """Raises InsufficientMemoryError for replicas, so many of each model, that have no room here
    together with the drafters of models, as `drafter_bytes` takes them, and edge, router and
    tokenizers. `settings` are what every replica is told; they win over a model's definition."""
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
    """Raises UnavailableError where something else listens on a port that an edge is to have, of
    `count` edges: before models are loaded, and not when the edges start at last."""
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
    """Of this machine's cores, for each replica's engine."""
    return max(1, (os.cpu_count() or 1) // max(1, num_replicas))
