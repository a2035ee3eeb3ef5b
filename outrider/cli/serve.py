"""`outrider serve ROLE`: one service in this process."""

from __future__ import annotations

import asyncio
import importlib
import os
import signal
from collections.abc import Awaitable, Callable
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from outrider import process
from outrider.cli.local.settings import config_class, refuse_secret
from outrider.config import load
from outrider.config_following import ConfigSource
from outrider.errors import ConfigError
from outrider.models.catalog import load_catalog, use
from outrider.workers import worker


class Role(StrEnum):
    """The services; their names are those of tables in files."""

    edge = "edge"
    router = "router"
    tokenizer = "tokenizer"
    tokenizer_worker = "tokenizer-worker"
    inference = "inference"


def serve(
    role: Annotated[Role, typer.Argument(help="The service to run.")],
    config: Annotated[
        Path | None,
        typer.Option(
            help="TOML file, of which the service reads its own table, such as [edge], and tables "
            "[models.NAME]."
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Set a configuration key; it overrides the file and the environment. Repeatable.",
        ),
    ] = None,
    ready_file: Annotated[
        Path | None,
        typer.Option(help="File to write, as JSON with the service's ports, once it is ready."),
    ] = None,
) -> None:
    """Run one service until Ctrl-C or SIGTERM, which lets its running work end first.

    --set overrides the environment (OUTRIDER_ROLE_KEY), which overrides the file of --config, which
    overrides the defaults. The file is read again when it changes and on SIGHUP; changes that need
    a restart are logged. Tables and variables write tokenizer_worker for tokenizer-worker.

    Every service answers /health, /ready and /metrics on its admin port.
    """
    if config is not None:
        # It asks for the file to be read again, which is done anyway once the service is up; until
        # somebody listens for it, it would end the process.
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    # gRPC writes a line for each handshake that fails: as many as whoever can connect likes.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    # A router takes models' names as they come, a worker vocabularies.
    if looks_up_models := role not in (Role.router, Role.tokenizer_worker):
        use(load_catalog(config), config)
    app = importlib.import_module(f"services.{role.name}.app")
    kind = config_class(role.name)
    flags = flags_of(settings or [])
    loaded = load(kind, role.name, file=config, flags=flags)
    source = config and ConfigSource(kind, role.name, config, flags, with_models=looks_up_models)
    is_supervised = process.was_told_of_parent()
    if getattr(loaded, "processes", 1) > 1 and worker.this_worker() is None:
        _serve_many(role.name, loaded, config, settings or [], ready_file, has_parent=is_supervised)
        return
    process.run(
        partial(app.serve, source=source),
        loaded,
        ready_file=ready_file,
        on_hangup=source.read_at_once if source else None,
        has_parent=is_supervised or worker.this_worker() is not None,
    )


def _serve_many(
    role: str,
    config: Any,
    file: Path | None,
    settings: list[str],
    ready_file: Path | None,
    *,
    has_parent: bool,
) -> None:
    """Run the parent of several processes of a service."""
    # Imported here: a process that serves by itself does without.
    from outrider.workers.parent import Parent, command_of

    group = importlib.import_module(f"services.{role}.processes.group").open_group(config)
    parent = Parent(
        role,
        group,
        command_of(role, file, settings),
        admin=config.admin,
        drain_s=config.drain_s,
        log_level=config.log_level,
    )

    def serve(
        config: object,
        *,
        ready: Callable[[process.Ports], None] | None = None,
        stop: asyncio.Event | None = None,
    ) -> Awaitable[None]:
        return parent.serve(ready=ready, stop=stop)

    hangup = parent.hangup if file is not None else None
    process.run(serve, config, ready_file=ready_file, on_hangup=hangup, has_parent=has_parent)


def flags_of(settings: list[str]) -> dict[str, str]:
    """KEY=VALUE texts of `--set`, by key. Raises ConfigError."""
    flags: dict[str, str] = {}
    for setting in settings:
        key, sign, value = setting.partition("=")
        if not sign:
            raise ConfigError(f"--set takes KEY=VALUE, not {setting!r}")
        name = key.strip().replace("-", "_")
        refuse_secret(name, "in the file of --config, or in the environment")
        flags[name] = value
    return flags
