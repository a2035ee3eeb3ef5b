"""The edge that a command connects to, and its credentials: from flags, or of the mesh of `outrider
up`."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from outrider.access.client_key import KEY_VARIABLE, configured_key, read_key_file
from outrider.cli.local import development_key
from outrider.cli.local.state import default_state_dir, no_mesh, running_mesh
from outrider.errors import InvalidRequestError, UnavailableError

Edge = Annotated[
    str | None,
    typer.Option(
        help="HOST:PORT of the edge, HOST:PORT?tcp=PORT if its TCP port is another number; "
        "default: the mesh of `outrider up`."
    ),
]
Ca = Annotated[Path | None, typer.Option(help="PEM certificate to trust for the edge.")]
Insecure = Annotated[bool, typer.Option(help="Trust any certificate of the edge.")]
KeyFile = Annotated[
    Path | None,
    typer.Option(help="File with the API key."),
]
ApiKey = Annotated[
    str | None,
    typer.Option(
        help="The API key. Other users of this machine can see it: prefer --key-file, "
        f"{KEY_VARIABLE} in the environment, or api_key in the table [client] of "
        "~/.config/outrider/config.toml. Default: the development key of `outrider up`."
    ),
]
User = Annotated[str, typer.Option(help="The user, among those of the key, who asks.")]


@dataclass(frozen=True, slots=True)
class EdgeAddress:
    """Address of an edge, and which certificate to trust for it."""

    host: str
    port: int
    ca: Path | None
    insecure: bool
    http_port: int | None = None
    """TCP port, if it is not the same number."""

    @property
    def url(self) -> str:
        """As `outrider.client.connect` takes it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        tcp = "" if self.http_port is None else f"?tcp={self.http_port}"
        return f"quic://{host}:{self.port}{tcp}"


@dataclass(frozen=True, slots=True)
class Caller:
    """Credentials of a request."""

    key: str = field(default="", repr=False)
    user: str = ""


@dataclass(frozen=True, slots=True)
class ChosenEdge:
    """An edge and the credentials to use."""

    address: EdgeAddress
    caller: Caller
    is_here: bool
    """Whether the edge belongs to the mesh of `outrider up`."""


def choose(
    edge: str | None,
    ca: Path | None,
    key_file: Path | None,
    api_key: str | None,
    user: str,
    state_dir: Path | None,
    *,
    insecure: bool,
) -> ChosenEdge:
    """By the flags of a command. Raises InvalidRequestError, UnavailableError, ConfigError."""
    state = (state_dir or default_state_dir()).resolve()
    address = _address(edge, ca, state, insecure=insecure)
    key = given_key(key_file, api_key)
    if not key and edge is None and not insecure:
        key = development_key.read(state)
    return ChosenEdge(address, Caller(key, user), is_here=edge is None)


def given_key(file: Path | None, flag: str | None) -> str:
    """The API key that the user gave; "": none. Raises InvalidRequestError, ConfigError."""
    if file is not None and flag is not None:
        raise InvalidRequestError("give either --api-key or --key-file")
    if flag is not None:
        return flag.strip()
    return configured_key(os.environ) if file is None else read_key_file(file)


def _address(edge: str | None, ca: Path | None, state: Path, *, insecure: bool) -> EdgeAddress:
    if edge is not None:
        where, query, tcp = edge.partition("?tcp=")
        host, _, port = where.rpartition(":")
        if not (host and _is_port(port) and (_is_port(tcp) if query else True)):
            raise InvalidRequestError(f"--edge takes HOST:PORT or HOST:PORT?tcp=PORT, not {edge!r}")
        http_port = int(tcp) if query else None
        return EdgeAddress(host.strip("[]"), int(port), ca, insecure, http_port)
    mesh = running_mesh(state)
    if mesh is None:
        raise UnavailableError(f"{no_mesh(state).message}, or give --edge")
    return EdgeAddress(
        mesh.host, mesh.service("edge")["port"], ca or state / "tls" / "cert.pem", insecure
    )


def _is_port(text: str) -> bool:
    return text.isdecimal() and 0 < int(text) < 1 << 16
