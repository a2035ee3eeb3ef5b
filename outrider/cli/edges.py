"""`outrider edges`: signed lists of a mesh's edges, from which clients learn where edges are."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import parse_qsl, urlsplit

import typer
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from outrider.cli.columns import columns
from outrider.cli.keys import moment
from outrider.durable_files import sync_directory, write_atomic
from outrider.edge_list import (
    MAX_BYTES,
    EdgeList,
    ListedEdge,
    SignedEdgeList,
    key_text,
    private_pem,
    read,
    read_key,
    read_private,
    sign,
)
from outrider.errors import ConfigError, EdgeListError

app = typer.Typer(
    no_args_is_help=True,
    help=(
        "Sign the list of a mesh's edges. Edges hand it to clients (`edge.edge_list`), and clients "
        "that know the public key use the edges in it."
    ),
)

_LIST_MODE: Final = 0o644
DEFAULT_PORT: Final = 4433
"""As outrider.client.protocol has it, which takes the client's packages."""
_List = Annotated[
    Path, typer.Argument(metavar="LIST", help="File of the signed list.", show_default=False)
]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command()
def key(
    file: Annotated[Path, typer.Argument(help="File for the private key, which must not exist.")],
    is_shown: Annotated[
        bool, typer.Option("--show", help="Print the public key of a file that exists.")
    ] = False,
) -> None:
    """Make a key to sign lists with, and print its public key for `edge_list_keys` of clients.

    Keep the file where edges and clients cannot read it: whoever has it can send clients to other
    edges, as far as their certificates are trusted.
    """
    if is_shown:
        print(key_text(_private(file).public_key()))
        return
    made = Ed25519PrivateKey.generate()
    _write_new(file, private_pem(made))
    print(key_text(made.public_key()))


@app.command("sign")
def sign_(
    file: _List,
    edges: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="EDGE...",
            help="The edges, `REGION=HOST:PORT?tcp=PORT&name=NAME`; all but HOST may be left out. "
            "NAME: the name in its certificate, if it is not HOST. Default: the edges of LIST "
            "again.",
            show_default=False,
        ),
    ] = None,
    key_file: Annotated[
        Path, typer.Option("--key-file", help="File with the private key.", show_default=False)
    ] = Path("edges.key"),
    edges_file: Annotated[
        Path | None, typer.Option(help="File with further edges, one a line; # begins a comment.")
    ] = None,
    expires: Annotated[
        str, typer.Option(help="When the list ends: in 12h, 30d, 4w, or on 2027-01-31.")
    ] = "90d",
) -> None:
    """Sign a list of edges and write it to LIST, in place of the one that it has.

    Clients refuse a list that has ended, and one that is older than one they know.
    """
    now = time.time()
    named = [*(edges or ()), *([] if edges_file is None else _lines(edges_file))]
    before = _stored(file).edges if file.exists() else None
    if named:
        listed = tuple(listed_edge(text) for text in named)
    elif before is not None:
        listed = before.edges
    else:
        raise ConfigError("name the edges of the list, as arguments or with --edges-file")
    version = max(int(now), 0 if before is None else before.version + 1)
    made = sign(EdgeList(listed, version, int(moment(expires, now))), _private(key_file))
    write_atomic(file, made.encoded(), mode=_LIST_MODE)
    print(f"{len(listed)} edges, until {_time(made.edges.valid_until)}", file=sys.stderr)


@app.command()
def show(
    file: _List,
    keys: Annotated[
        list[str] | None,
        typer.Option("--key", help="A public key to check the signature with. Repeatable."),
    ] = None,
    as_json: _Json = False,
) -> None:
    """Show a list, and check it if a public key is given: exit status 1 if none of them signed it,
    or if it has ended."""
    stored = _stored(file)
    edges = stored.edges
    refused = _refusal(stored, keys) if keys else None
    if as_json:
        shown: dict[str, Any] = {
            "version": edges.version,
            "valid_until": edges.valid_until,
            "verified": bool(keys) and refused is None,
            "edges": [_row(edge) for edge in edges.edges],
        }
        print(json.dumps(shown))
    else:
        rows = [("EDGE", "REGION", "TCP", "CERTIFICATE")]
        rows += [_cells(edge) for edge in edges.edges]
        print(*columns(rows, num_names=4), sep="\n")
        print(f"version {edges.version}, until {_time(edges.valid_until)}")
        if not keys:
            print("The signature was not checked; give --key.", file=sys.stderr)
    if refused is not None:
        raise refused


def listed_edge(text: str) -> ListedEdge:
    """An edge as it is written on the command line. Raises ConfigError."""
    place, _, query = text.partition("?")
    region, _, address = place.rpartition("=")
    try:
        parts = urlsplit(f"//{address}")
        port = parts.port
        further = dict(parse_qsl(query, keep_blank_values=True))
        tcp = int(further.pop("tcp")) if "tcp" in further else None
    except ValueError as error:
        raise ConfigError(f"{text!r:.300} is no edge: {error}") from error
    name = further.pop("name", "")
    if parts.netloc != address or parts.username is not None or further:
        raise ConfigError(
            f"{text!r:.300} is no edge; write REGION=HOST:PORT?tcp=PORT&name=NAME, of which only "
            "HOST is needed"
        )
    return ListedEdge(
        host=parts.hostname or "",
        port=DEFAULT_PORT if port is None else port,
        tcp_port=tcp,
        region=region,
        server_name=name.lower(),
    )


def _refusal(stored: SignedEdgeList, keys: list[str]) -> EdgeListError | None:
    trusted = [read_key(text) for text in keys]
    try:
        if stored.check(trusted).has_ended(time.time()):
            return EdgeListError("the list has ended; sign it again")
    except EdgeListError as error:
        return error
    return None


def _lines(file: Path) -> Iterator[str]:
    for line in file.read_text("utf-8").splitlines():
        if edge := line.partition("#")[0].strip():
            yield edge


def _stored(file: Path) -> SignedEdgeList:
    with file.open("rb") as source:
        text = source.read(MAX_BYTES + 1)
    try:
        return read(text)
    except EdgeListError as error:
        raise EdgeListError(f"{file}: {error.message}") from error


def _private(file: Path) -> Ed25519PrivateKey:
    try:
        return read_private(file.read_bytes())
    except EdgeListError as error:
        raise EdgeListError(f"{file}: {error.message}") from error


def _write_new(file: Path, data: bytes) -> None:
    """Write a file that only its owner reads, and that was not there. Raises ConfigError."""
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError as error:
        raise ConfigError(
            f"{file} is there already, and a key is never overwritten; name another file"
        ) from error
    try:
        with os.fdopen(descriptor, "wb") as target:
            target.write(data)
            target.flush()
            os.fsync(target.fileno())
    except BaseException:
        file.unlink(missing_ok=True)
        raise
    sync_directory(file.parent)


def _time(moment_s: int) -> str:
    try:
        return f"{datetime.fromtimestamp(moment_s, UTC):%Y-%m-%d %H:%M} UTC"
    except (OverflowError, ValueError, OSError):
        return str(moment_s)  # no calendar has it


def _row(edge: ListedEdge) -> dict[str, object]:
    return {
        "host": edge.host,
        "port": edge.port,
        "tcp_port": edge.tcp_port,
        "region": edge.region,
        "server_name": edge.server_name,
    }


def _cells(edge: ListedEdge) -> tuple[str, str, str, str]:
    return (
        edge.address,
        edge.region or "-",
        str(edge.tcp_port or edge.port),
        edge.server_name or edge.host,
    )
