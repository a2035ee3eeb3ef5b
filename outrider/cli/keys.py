"""`outrider keys`: API keys for the edges that follow a file of them."""

from __future__ import annotations

import json
import re
import secrets
import sys
import time
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final

import typer

from outrider.access import keys_file
from outrider.access.api_keys import (
    ALL_MODELS,
    ID_CHARS,
    SECRET_BYTES,
    USER_SCOPES,
    ApiKey,
    Scope,
    assemble,
    check_label,
    digest_of,
    scopes_of,
    without_long_dead,
)
from outrider.cli.columns import columns
from outrider.cli.local.mesh import KEYS_FILE
from outrider.cli.local.state import StateDir, default_state_dir, running_mesh
from outrider.errors import ConfigError, UnavailableError
from outrider.session.types import Priority

app = typer.Typer(
    no_args_is_help=True,
    help=(
        "Manage API keys of the mesh on this machine, or of edges elsewhere with --keys-file. "
        "Running edges apply a change within a second."
    ),
)

_TAKE_LIMIT_S: Final = 10.0
_POLL_S: Final = 0.05
_UNITS_S: Final = {"m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
_SPAN: Final = re.compile(r"(\d{1,6})([mhdw])")
_REVISION: Final = re.compile(r"^outrider_edge_keys_revision(?:\{.*\})? (\S+)$", re.MULTILINE)

_KeysFile = Annotated[
    Path | None,
    typer.Option(
        "--keys-file", help="File with the keys; default: the one of this machine's mesh."
    ),
]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
_Which = Annotated[
    str, typer.Argument(metavar="KEY", help="Id or name of the key.", show_default=False)
]


@dataclass(frozen=True, slots=True)
class MadeKey:
    """A key that has just been made: its text is nowhere else."""

    text: str
    key: ApiKey


def make(
    name: str,
    now: float,
    *,
    tenant: str = "",
    scopes: frozenset[Scope] = USER_SCOPES,
    expires: float | None = None,
    models: tuple[str, ...] = ALL_MODELS,
    max_priority: Priority | None = None,
) -> MadeKey:
    """A new key with a random id and secret; `tenant` "": the tenant has the key's name. Raises
    ConfigError."""
    check_label(name, "a key's name")
    text = assemble(secrets.token_hex(ID_CHARS // 2), secrets.token_bytes(SECRET_BYTES))
    key = ApiKey(
        id=text.split("_")[1],
        name=name,
        digest=digest_of(text),
        tenant=tenant or name,
        created=now,
        scopes=scopes,
        expires=expires,
        models=models,
        max_priority=max_priority,
    )
    return MadeKey(text, key)


@app.command()
def create(
    name: Annotated[
        str, typer.Argument(help="Name of the key, such as what it is for.", show_default=False)
    ],
    tenant: Annotated[
        str, typer.Option(help="Tenant of the key, which sets its limits and share; default: NAME.")
    ] = "",
    scope: Annotated[
        list[str] | None,
        typer.Option(
            help="Permission of the key: chat, models, tokenize or admin. Repeatable; default: the "
            "first three."
        ),
    ] = None,
    expires: Annotated[
        str,
        typer.Option(
            help="When the key expires: in 90m, 12h, 30d, 4w, or on 2027-01-31. Default: never."
        ),
    ] = "",
    models: Annotated[
        list[str] | None,
        typer.Option("--models", help="A model that the key may use. Repeatable; default: all."),
    ] = None,
    max_priority: Annotated[
        str, typer.Option(help="Highest priority: low, medium or high; default: as its tenant.")
    ] = "",
    as_json: _Json = False,
    file: _KeysFile = None,
    state_dir: StateDir = None,
) -> None:
    """Create a key and print it. It cannot be shown again: the file holds only its digest.

    With --json it prints an object with key, id, name and tenant.
    """
    now = time.time()
    made = make(
        name,
        now,
        tenant=tenant,
        scopes=scopes_of(scope, "--scope") if scope else USER_SCOPES,
        expires=moment(expires, now) if expires else None,
        models=tuple(models) if models else ALL_MODELS,
        max_priority=_priority(max_priority),
    )

    def edit(keys: tuple[ApiKey, ...]) -> Iterable[ApiKey]:
        if any(key.name == name and _is_live(key, now) for key in keys):
            raise ConfigError(
                f"a key named {name} is there; replace it with `outrider keys rotate {name}`, or "
                "choose another name"
            )
        return (*keys, made.key)

    _change(file, state_dir, edit)
    _show(made, as_json=as_json)


@app.command("list")
def list_(
    as_json: _Json = False,
    every: Annotated[
        bool, typer.Option("--all", help="List expired and revoked keys too.")
    ] = False,
    file: _KeysFile = None,
    state_dir: StateDir = None,
) -> None:
    """List the keys, without their secrets; with --json one object per line."""
    now = time.time()
    stored = keys_file.read(_file(file, _folder(state_dir)))
    rows = [("ID", "NAME", "TENANT", "STATE", "SCOPES", "MODELS", "UNTIL")]
    for key in stored.keys:
        state = _state(key, now)
        if state != "live" and not every:
            continue
        if as_json:
            print(json.dumps(_row(key) | {"state": state}))
            continue
        scopes = ",".join(sorted(scope.value for scope in key.scopes))
        models = ",".join(key.models) or "none"
        rows.append((f"or_{key.id}", key.name, key.tenant, state, scopes, models, _until(key)))
    if not as_json:
        print("\n".join(columns(rows, num_names=len(rows[0]))))


@app.command()
def revoke(
    which: _Which, as_json: _Json = False, file: _KeysFile = None, state_dir: StateDir = None
) -> None:
    """Revoke a key, or all keys of a name. Running chats may end; no new chat starts, and none is
    resumed."""
    now = time.time()
    ended: list[ApiKey] = []

    def edit(keys: tuple[ApiKey, ...]) -> Iterable[ApiKey]:
        ended.extend(replace(key, revoked=now) for key in _named(keys, which, now))
        return _replaced(keys, ended)

    _change(file, state_dir, edit)
    for key in ended:
        print(json.dumps({"id": key.id, "name": key.name}) if as_json else f"or_{key.id} revoked")


@app.command()
def rotate(
    which: _Which,
    keep: Annotated[
        str,
        typer.Option(
            help="How long the old key stays valid: 15m, 12h, 7d. Default: it ends at once."
        ),
    ] = "",
    as_json: _Json = False,
    file: _KeysFile = None,
    state_dir: StateDir = None,
) -> None:
    """Replace a key with a new one that allows the same, and print it."""
    now = time.time()
    made: list[MadeKey] = []

    def edit(keys: tuple[ApiKey, ...]) -> Iterable[ApiKey]:
        found = _named(keys, which, now)
        if len(found) > 1:
            ids = ", ".join(f"or_{key.id}" for key in found)
            raise ConfigError(f"several keys have the name {which}: {ids}; give one of these ids")
        (old,) = found
        new = make(old.name, now)
        kept = replace(old, id=new.key.id, digest=new.key.digest, created=now)
        made.append(MadeKey(new.text, kept))
        until = moment(keep, now) if keep else now
        ended = replace(old, expires=min(until, old.expires or until))
        if not keep:
            ended = replace(old, revoked=now)
        return (*_replaced(keys, [ended]), kept)

    _change(file, state_dir, edit)
    _show(made[0], as_json=as_json)


def moment(text: str, now: float) -> float:
    """The time, in seconds since 1970, of a text such as 30d (from now) or 2027-01-31T12:00 (UTC).
    Raises ConfigError."""
    if found := _SPAN.fullmatch(text):
        return now + int(found[1]) * _UNITS_S[found[2]]
    try:
        named = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(
            f"{text!r} is not a time; write 90m, 12h, 30d, 4w or 2027-01-31"
        ) from None
    at = (named if named.tzinfo else named.replace(tzinfo=UTC)).timestamp()
    if at <= now:
        raise ConfigError(f"{text} is in the past; choose a later time")
    return at


def _priority(name: str) -> Priority | None:
    if not name:
        return None
    try:
        return Priority[name.upper()]
    except KeyError:
        raise ConfigError(f"--max-priority is low, medium or high, not {name!r}") from None


def _named(keys: Iterable[ApiKey], which: str, now: float) -> list[ApiKey]:
    """The live keys with an id or a name. Raises ConfigError if none has it."""
    key_id = which.removeprefix("or_")
    live = [key for key in keys if _is_live(key, now)]
    found = [key for key in live if key.id == key_id] or [key for key in live if key.name == which]
    if not found:
        raise ConfigError(
            f"no live key has the id or name {which[:100]!r}; see: outrider keys list"
        )
    return found


def _replaced(keys: Iterable[ApiKey], changed: Iterable[ApiKey]) -> tuple[ApiKey, ...]:
    by_id = {key.id: key for key in changed}
    return tuple(by_id.get(key.id, key) for key in keys)


def _is_live(key: ApiKey, now: float) -> bool:
    return _state(key, now) == "live"


def _state(key: ApiKey, now: float) -> str:
    if key.revoked is not None:
        return "revoked"
    return "expired" if key.expires is not None and now >= key.expires else "live"


def _until(key: ApiKey) -> str:
    if key.expires is None:
        return "-"
    return f"{datetime.fromtimestamp(key.expires, UTC):%Y-%m-%d %H:%M} UTC"


def _row(key: ApiKey) -> dict[str, object]:
    """A key's fields without the digest, which readers of lists do not need."""
    return {
        "id": key.id,
        "name": key.name,
        "tenant": key.tenant,
        "scopes": sorted(scope.value for scope in key.scopes),
        "models": list(key.models),
        "created": key.created,
        "expires": key.expires,
        "revoked": key.revoked,
        "max_priority": None if key.max_priority is None else key.max_priority.name.lower(),
    }


def _show(made: MadeKey, *, as_json: bool) -> None:
    key = made.key
    if as_json:
        print(json.dumps({"key": made.text, "id": key.id, "name": key.name, "tenant": key.tenant}))
        return
    print(made.text)
    print("It is not shown again; keep it where only its user can read it.", file=sys.stderr)


def _folder(state_dir: Path | None) -> Path:
    return (state_dir or default_state_dir()).resolve()


def _file(file: Path | None, folder: Path) -> Path:
    """The file that was named, or the one that the mesh of a folder follows, or will follow."""
    if file is not None:
        return file
    try:
        edge = tomllib.loads((folder / "config" / "edge.toml").read_text("utf-8"))["edge"]
        named = edge.get("access", {}).get("keys_file")
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, LookupError, AttributeError):
        named = None
    return Path(named) if isinstance(named, str) else folder / KEYS_FILE


def _change(file: Path | None, state_dir: Path | None, edit: keys_file.Edit) -> None:
    """Change the file, and wait until the mesh on this machine has taken the change, if it follows
    that file. Raises ConfigError, UnavailableError."""
    folder = _folder(state_dir)
    path = _file(file, folder)
    now = time.time()
    stored = keys_file.change(path, lambda keys: without_long_dead(edit(keys), now))
    mesh = running_mesh(folder)
    if mesh is None or path.resolve() != _file(None, folder).resolve():
        return
    admin_port = mesh.service("edge")["admin_port"]
    limit = time.monotonic() + _TAKE_LIMIT_S
    while _taken(mesh.host, admin_port) < stored.revision:
        if time.monotonic() > limit:
            raise UnavailableError(
                f"{path} was changed, but the edge has not taken it yet; see `outrider status`"
            )
        time.sleep(_POLL_S)


def _taken(host: str, admin_port: int) -> float:
    """The keys file's revision that an edge has loaded; -1 if it does not answer."""
    from outrider.cli.local.admin_page import read_page

    try:
        found = _REVISION.search(read_page(host, admin_port))
    except UnavailableError:
        return -1.0
    return float(found[1]) if found else -1.0
