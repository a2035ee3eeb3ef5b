"""A mesh over hosts: a router, a tokenizer and replicas in each of three regions, two edges at a
site of their own, on one host or on two, mutual TLS, and names that a name server answers for."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from bench.harness.mesh import Mesh, Service, mesh
from bench.harness.name_server import NameServer, running_name_server
from bench.regions.hosts import Host, Hosts, hosts
from bench.relay.lane import Conditions
from outrider.cli import router_state
from outrider.cli.local.certificates import OPERATOR, of_process
from outrider.errors import UnavailableError
from outrider.tls import Tls

NEAR: Final = "us-east"
"""The region that is nearest to the edges."""
REGIONS: Final = (NEAR, "us-west", "eu-west")
SITE: Final = "site"
"""The edges' host."""
SECOND_SITE: Final = "site-2"
"""Host of the second edge, beside the first one's, in a mesh whose edges have a host each."""
CLIENTS: Final = "clients"
"""The host of this process."""
ONE_WAY_MS: Final[Mapping[tuple[str, str], float]] = {
    (CLIENTS, SITE): 5.0,
    (SITE, NEAR): 5.0,
    (SITE, "us-west"): 30.0,
    (SITE, "eu-west"): 40.0,
    (NEAR, "us-west"): 30.0,
    (NEAR, "eu-west"): 40.0,
    ("us-west", "eu-west"): 70.0,
}
"""Milliseconds from one host to another, SECOND_SITE being where SITE is; 0 between others, which
are beside each other or only operators use."""
TENANT: Final = "anywhere"
BOUND_TENANT: Final = "bound"
"""A tenant whose prompts may be in NEAR alone."""
NUM_REPLICAS: Final = 2
"""Of each region."""
MAX_SESSIONS: Final = 128
"""Of a replica at once: two regions have room for the chats of three."""
_ROUTER_PORT: Final = 7100
_REPLICA_PORT: Final = 7300
_TOKENIZER_PORT: Final = 7200
_EDGE_PORT: Final = 4433
_HTTP_PORT: Final = 8443
_IN_SERVICE: Final = ("READY", "TRIAL")
"""States of replicas that get sessions; one on trial after a quarantine needs one to be ready."""
_START_LIMIT_S: Final = 120.0
_POLL_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class RegionalMesh:
    """All processes, where they run, and the network between their hosts."""

    hosts: Hosts
    names: NameServer
    """Answers for the names of routers, tokenizers and replicas."""
    regions: Mapping[str, tuple[Service, ...]]
    """Services of a region: its router first, its tokenizer, its replicas."""
    edges: tuple[Service, ...]
    key: str
    """An API key of a tenant whose prompts may be anywhere."""
    bound_key: str
    """An API key of BOUND_TENANT."""
    made: Mesh

    @property
    def urls(self) -> list[str]:
        """Of the edges."""
        return [f"quic://{edge.address}" for edge in self.edges]

    @property
    def http_addresses(self) -> list[tuple[str, int]]:
        """Of the edges: host and TCP port. HTTP is encrypted, with the certificate `ca`."""
        return [(edge.host, _HTTP_PORT + number) for number, edge in enumerate(self.edges)]

    @property
    def ca(self) -> Path:
        """The certificate of the edges."""
        return Path(str(self.edges[0].values["state_dir"])) / "tls" / "cert.pem"

    @property
    def edge_hosts(self) -> tuple[str, ...]:
        """Names of the hosts that edges run on."""
        addresses = {edge.host for edge in self.edges}
        return tuple(it.name for it in self.hosts.by_name.values() if it.address in addresses)

    @property
    def has_tokenizers(self) -> bool:
        """Clients may send text without tokenizing it."""
        return True

    def router(self, region: str) -> Service:
        """The region's router."""
        return self.regions[region][0]

    async def replicas_seen(self, region: str) -> list[dict[str, Any]]:
        """Rows of `outrider status --json` on the replicas, as a region's router sees them. Raises
        UnavailableError."""
        operator = Tls.open(of_process(self.made.folder, OPERATOR))
        state = await router_state.ask(self.router(region).address, operator)
        return list(state["replicas"])

    async def until_whole(self) -> None:
        """Return once every router has all replicas of all regions in service. Raises
        TimeoutError."""
        async with asyncio.timeout(_START_LIMIT_S):
            for region in self.regions:
                while True:
                    with contextlib.suppress(UnavailableError):
                        rows = await self.replicas_seen(region)
                        num_in_service = sum(it["state"] in _IN_SERVICE for it in rows)
                        if num_in_service == NUM_REPLICAS * len(self.regions):
                            break
                    await asyncio.sleep(_POLL_S)

    def services_on(self, host: str) -> tuple[Service, ...]:
        """Services of a region, or the edges on a host of the site."""
        here = tuple(it for it in self.edges if it.host == self.hosts[host].address)
        return self.regions.get(host, here)

    def kill(self, host: str) -> None:
        """SIGKILL for every process of a region, or of a host of the site. The kernel resets their
        connections."""
        self.hosts[host].kill_all()
        for service in self.services_on(host):
            service.kill()  # it is dead; its end is awaited

    async def lose(self, host: str) -> None:
        """These machines have no power any more: nobody hears of their processes' ends."""
        await self.hosts.cut(self.hosts.around(host))
        self.kill(host)

    async def bring_back(self, host: str) -> None:
        """Power and network are there again, and its services are started. Returns when all routers
        have all replicas in service."""
        await self.hosts.mend(self.hosts.around(host))
        await self.made.start(*self.services_on(host))
        await self.until_whole()


Further: TypeAlias = Mapping[str, Mapping[str, object]]
"""Keys of services' sections that count before the mesh's own, by role or by service name."""


@contextlib.asynccontextmanager
async def running(
    call_ms: float,
    further: Callable[[Hosts], Further] | None = None,
    *,
    edge_hosts: Sequence[str] = (SITE, SITE),
    more_hosts: Sequence[str] = (),
) -> AsyncIterator[RegionalMesh]:
    """Start every process, from one that has a network of its own (hosts.enter_own_network); all
    are stopped when the context ends. Replicas have the fake engine, whose calls wait `call_ms`.
    There is an edge on each of `edge_hosts`, and nothing yet on `more_hosts`."""
    sites = tuple(dict.fromkeys(edge_hosts))
    async with (
        hosts(CLIENTS, (*sites, *more_hosts, *REGIONS)) as network,
        mesh("regions", is_secure=True) as made,
        running_name_server(network[CLIENTS].address) as names,
    ):
        more = further(network) if further else {}
        for (one, other), delay_ms in delays(sites).items():
            await network.set(one, other, Conditions(delay_ms=delay_ms))
        ports = f"{_REPLICA_PORT}-{_REPLICA_PORT + NUM_REPLICAS - 1}"
        for region in REGIONS:
            for what in ("router", "tokenizer", "replicas"):
                names.records[f"{what}.{region}.test", "A"] = [network[region].address]
        regions = {
            region: (
                _router(made, network[region], names, ports, more),
                _service(made, network[region], f"tokenizer-{region}", "tokenizer", {}, more),
                *(
                    _replica(made, network[region], number, call_ms, more)
                    for number in range(NUM_REPLICAS)
                ),
            )
            for region in REGIONS
        }
        key, bound_key = (_new_key(made.folder, tenant) for tenant in (TENANT, BOUND_TENANT))
        addresses = tuple(network[site].address for site in sites)
        edges = tuple(
            _edge(made, network[site], addresses, names, number, more)
            for number, site in enumerate(edge_hosts)
        )
        await made.start(*(it for services in regions.values() for it in services))
        # The first edge makes the certificate that the other one finds.
        for edge in edges:
            await made.start(edge)
        it = RegionalMesh(network, names, regions, edges, key, bound_key, made)
        await it.until_whole()
        yield it


def delays(edge_hosts: Iterable[str]) -> dict[tuple[str, str], float]:
    """Milliseconds from one host to another: ONE_WAY_MS, each host of edges being where SITE is."""
    return {
        (site if one == SITE else one, site if other == SITE else other): delay_ms
        for (one, other), delay_ms in ONE_WAY_MS.items()
        for site in (edge_hosts if SITE in (one, other) else (SITE,))
    }


def _service(
    made: Mesh,
    host: Host,
    name: str,
    role: str,
    values: Mapping[str, object],
    further: Further,
    port: int = 0,
) -> Service:
    return made.service(
        name,
        role,
        {**values, **further.get(role, {}), **further.get(name, {})},
        region=host.name if role in ("router", "inference") else "",
        host=host.address,
        within=host.within,
        port=port or _TOKENIZER_PORT,
    )


def _router(
    made: Mesh, host: Host, names: NameServer, replica_ports: str, further: Further
) -> Service:
    others = [region for region in REGIONS if region != host.name]
    values = {
        "replica_targets": tuple(
            {"target": f"dns:replicas.{region}.test:{replica_ports}", "region": region}
            for region in REGIONS
        ),
        "tokenizers": tuple(
            f"dns:tokenizer.{region}.test:{_TOKENIZER_PORT}" for region in (host.name, *others)
        ),
        "discovery": _discovery(names),
    }
    return _service(made, host, f"router-{host.name}", "router", values, further, _ROUTER_PORT)


def _replica(made: Mesh, host: Host, number: int, call_ms: float, further: Further) -> Service:
    name = f"{host.name}-{number}"
    values = {
        "replica": name,
        "engine": "fake",
        "fake_call_ms": call_ms,
        "threads": 1,
        # With the default 256 some of 115 sessions wait for memory until others end.
        "num_blocks": 16 * MAX_SESSIONS,
        "state_dir": str(made.folder / name),
        # Without drafts, so that replies last until something happens.
        "scheduler": {"max_sessions": MAX_SESSIONS, "max_draft_tokens": 0},
    }
    return _service(made, host, name, "inference", values, further, _REPLICA_PORT + number)


def _edge(
    made: Mesh,
    host: Host,
    addresses: tuple[str, ...],
    names: NameServer,
    number: int,
    further: Further,
) -> Service:
    """`addresses`: of all edges, which have one certificate."""
    name = f"edge-{number}"
    values = {
        "name": name,
        "routers": tuple(f"dns:router.{region}.test:{_ROUTER_PORT}" for region in REGIONS),
        "discovery": _discovery(names),
        "state_dir": str(made.folder),
        "server_names": addresses,
        "drafter.model": "none",
        "http": {"host": host.address, "port": _HTTP_PORT + number},
        # All clients have one address.
        "quic": {"max_connections_per_address": 1000, "max_chats_per_address": 1000},
        "access.keys_file": str(_keys_file(made.folder)),
        "tenants": ({"name": TENANT}, {"name": BOUND_TENANT, "regions": (NEAR,)}),
    }
    return _service(made, host, name, "edge", values, further, _EDGE_PORT + number)


def _discovery(names: NameServer) -> dict[str, object]:
    return {"nameservers": (names.address,)}


def _keys_file(folder: Path) -> Path:
    return folder / "keys.json"


def _new_key(folder: Path, tenant: str) -> str:
    command = (sys.executable, "-m", "outrider.cli.main", "keys", "create", tenant)
    options = ("--keys-file", str(_keys_file(folder)))
    done = subprocess.run((*command, *options), capture_output=True, text=True, check=True)
    return done.stdout.strip()
