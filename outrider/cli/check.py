"""`outrider check`: whether a mesh, here or elsewhere, serves; what to do where it does not."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from outrider import edge_list
from outrider.access.client_key import read_key_file
from outrider.cli import operator
from outrider.cli.findings import Finding, report
from outrider.cli.local import development_key
from outrider.cli.local.state import StateDir, default_state_dir
from outrider.cli.router_choice import mesh_here, router_of
from outrider.cli.router_state import State, ask
from outrider.config import check_address
from outrider.errors import EdgeListError, OutriderError

if TYPE_CHECKING:
    from outrider.tls import Tls

_DAY_S: Final = 86_400.0
_SOON_DAYS: Final = 7
"""A certificate or list of edges with fewer days left is reported as ending soon."""
_LATEST_S: Final = int(datetime(9999, 12, 31, tzinfo=UTC).timestamp())
"""A list may be valid for longer than the calendar goes."""
_TROUBLE: Final = {
    "CONNECTING": "it has not been reached yet; check again in a few seconds",
    "SUSPECT": "it is silent; look at its process, its log and its network",
    "DOWN": "no stream to it; look at its process, its log and its network",
    "DRAINING": "it takes no new sessions; `outrider drain NAME --undo` if that is not wanted",
    "QUARANTINED": "it failed too often of late; look at its log",
    "TRIAL": "it failed too often of late, and takes one session at a time until one goes well",
}
"""By state of a replica: what to do."""


@dataclass(frozen=True, slots=True)
class CheckedMesh:
    """A mesh to check. "" and None: that part is not checked."""

    router: str = ""
    tls: Tls | None = None
    edge: str = ""
    ca: Path | None = None
    key: str = field(default="", repr=False)


def check(
    router: Annotated[str, typer.Option(help="HOST:PORT of a router elsewhere.")] = "",
    edge: Annotated[str, typer.Option(help="HOST:PORT of an edge elsewhere.")] = "",
    edge_ca: Annotated[
        Path | None, typer.Option(help="PEM certificate to trust for --edge.")
    ] = None,
    key_file: Annotated[
        Path | None, typer.Option(help="File with the API key for the chat through --edge.")
    ] = None,
    timeout: Annotated[
        float, typer.Option(min=0.1, max=600, help="Longest time for each step, in seconds.")
    ] = 10.0,
    has_chat: Annotated[
        bool, typer.Option("--chat/--no-chat", help="Ask the edge for a reply of one token.")
    ] = True,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a list of JSON objects with ok, what and fix.")
    ] = False,
    state_dir: StateDir = None,
    certificate: operator.Certificate = None,
    private_key: operator.PrivateKey = None,
    ca: operator.Ca = None,
    trust_domain: operator.TrustDomain = operator.TRUST_DOMAIN,
    plaintext: operator.Plaintext = False,
) -> None:
    """Check that a mesh works: its router, the replicas of each model and region, an edge, a chat.

    Without --router and --edge it checks the mesh of `outrider up`. Exit status 1 if a check fails.
    """
    if router or edge:
        for address, flag in ((router, "--router"), (edge, "--edge")):
            if address:
                check_address(address, flag)
        flags = (certificate, private_key, ca, trust_domain, plaintext)
        tls = operator.of_flags(*flags) if router else None
        place = CheckedMesh(router, tls, edge, edge_ca, read_key_file(key_file) if key_file else "")
    else:
        place = _place_here((state_dir or default_state_dir()).resolve())
    status = report(_findings(place, timeout, has_chat=has_chat), as_json=as_json)
    raise typer.Exit(status)


def _place_here(folder: Path) -> CheckedMesh:
    mesh = mesh_here(folder)
    return CheckedMesh(
        router=router_of(mesh),
        tls=operator.of_mesh(folder),
        edge=f"{mesh.host}:{mesh.service('edge')['port']}",
        ca=folder / "tls" / "cert.pem",
        key=development_key.read(folder),
    )


def _findings(place: CheckedMesh, timeout_s: float, *, has_chat: bool) -> Iterator[Finding]:
    """In order; what needs something that failed is left out."""
    if place.router:
        reached = _reached(place.router, timeout_s)
        yield reached
        if place.tls is not None and place.tls.current is not None:
            yield of_certificate(place.tls.current.expires_at, datetime.now(UTC))
        if reached.ok and place.tls is not None:
            yield from _router(place.router, place.tls)
    if place.edge:
        yield from asyncio.run(_edge(place, timeout_s, has_chat=has_chat))


def _reached(address: str, timeout_s: float) -> Finding:
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=timeout_s):
            return Finding(True, f"the router's address {address} takes connections")
    except OSError as error:
        return Finding(
            False,
            f"the router's address {address} takes no connections: {error.strerror or error}",
            "check host, port (7100 by default) and firewall, and that a router runs there",
        )


def of_certificate(expires_at: datetime, now: datetime) -> Finding:
    """Whether the operator certificate of this command is still valid."""
    return _ending("the operator's certificate", expires_at, now, "ask for another one")


def of_edge_list(text: bytes, now: datetime) -> Finding:
    """Whether clients would still use the list of edges that an edge gives them. Its signature is
    not checked: that takes the public key of `outrider edges key`."""
    try:
        edges = edge_list.read(text).edges
    except EdgeListError as error:
        return Finding(False, f"its list of edges: {error.message}", "sign it again")
    ends_at = datetime.fromtimestamp(min(edges.valid_until, _LATEST_S), UTC)
    what = f"its list of edges ({len(edges.edges)})"
    return _ending(what, ends_at, now, "sign it again: `outrider edges sign`")


def _ending(what: str, ends_at: datetime, now: datetime, fix: str) -> Finding:
    left_days = (ends_at - now).total_seconds() / _DAY_S
    is_soon = 0 < left_days <= _SOON_DAYS
    told = f"{what} ends on {ends_at:%Y-%m-%d}" + (" (soon)" if is_soon else "")
    return Finding(left_days > 0, told, f"it has ended: {fix}")


def _router(address: str, tls: Tls) -> Iterator[Finding]:
    began = time.monotonic()
    try:
        state = asyncio.run(ask(address, tls))
    except OutriderError as error:
        yield Finding(
            False,
            error.message,
            "a router answers operators alone: check --certificate, --private-key and --ca",
        )
        return
    took_ms = (time.monotonic() - began) * 1e3
    yield Finding(True, f"the router answers an operator, in {took_ms:.0f} ms with its handshake")
    yield from of_state(state)


def of_state(state: State) -> Iterator[Finding]:
    """Findings about models and replicas, as a router reports them."""
    if not state["models"]:
        yield Finding(
            False,
            "the router knows no model that is served",
            "start replicas, and name them in [[router.replicas]] or [[router.replica_targets]]",
        )
    for model in state["models"]:
        for region in model["regions"]:
            yield Finding(
                region["ready_replicas"] > 0,
                f"{model['name']}: {region['ready_replicas']} of {region['replicas']} replicas in "
                f"{region['name']} take sessions",
                "its sessions go to other regions, or are refused; what is wrong with its "
                "replicas is said below",
            )
    for replica in state["replicas"]:
        fix = _TROUBLE.get(replica["state"])
        if fix is not None:
            told = f"{replica['name']} at {replica['address']} is {replica['state']}"
            yield Finding(False, f"{told} for {replica['state_s']:.0f} s", fix)
        if replica["inconsistent"]:
            yield Finding(
                False,
                f"{replica['name']} opens sessions as another model than it reports",
                "restart it, or ask what answers at its address",
            )


async def _edge(place: CheckedMesh, timeout_s: float, *, has_chat: bool) -> list[Finding]:
    # Imported here: roles that only serve have no client's packages.
    from outrider.client import Message, SamplingParams, connect

    host, _, port = place.edge.rpartition(":")
    found: list[Finding] = []
    settings: dict[str, Any] = {"ca": place.ca, "key": place.key or None}
    try:
        async with asyncio.timeout(2 * timeout_s):
            async with connect(
                host, int(port), timeout_s=timeout_s, reconnect=None, **settings
            ) as client:
                edge = await client.describe()
                where = f"the edge {edge.name} in {edge.region or 'no region'} answers over QUIC"
                found.append(Finding(True, f"{where} at {place.edge}"))
                if edge.edge_list:
                    found.append(of_edge_list(edge.edge_list, datetime.now(UTC)))
                if has_chat:
                    one = SamplingParams(max_tokens=1)
                    async with client.chat([Message("user", "hello")], sampling=one) as stream:
                        reply = await stream.result()
                    found.append(Finding(True, f"a chat through it has text from {reply.model}"))
    except TimeoutError:
        found.append(Finding(False, f"{place.edge} took too long", "raise --timeout, or see above"))
    except OutriderError as error:
        what = "a chat through it fails" if found else f"the edge at {place.edge}"
        fix = (
            "look at what is said above, and at the logs of edge and router"
            if found
            else "check host, port (UDP, 4433 by default), firewall, and --edge-ca"
        )
        found.append(Finding(False, f"{what}: {error.message}", fix))
    return found
