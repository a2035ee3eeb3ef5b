"""What may happen to a mesh. Each fault is a context: it happens at its beginning, and is healed at
its end; its value says whom it happened to."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import dns.rcode

from bench.chaos.disk import SmallDisk
from bench.chaos.redis import Redis
from bench.chaos.schedule import PlannedFault
from bench.chaos.supervisor import Supervisor
from bench.harness.mesh import Service
from bench.regions.mesh import CLIENTS, NEAR, ONE_WAY_MS, REGIONS, SITE, RegionalMesh
from bench.regions.network import Way
from bench.relay.lane import Conditions
from outrider import children
from outrider.cli.local.certificates import OPERATOR, of_process
from outrider.durable_files import write_atomic
from outrider.tls.certificates import utc_now
from outrider.tls.development import DevelopmentCa, write
from outrider.tls.identity import PeerIdentity, Role

_RELOAD_S: Final = 3.0
"""Services look at their certificates' files every second."""
_LOSS: Final = 0.05
_JITTER_MS: Final = 40.0
_NOBODY: Final = "10.77.200.1"
"""An address that no host has."""
_NUM_BUSY: Final = 4


@dataclass(slots=True)
class Stage:
    """A mesh, and what is needed to do it harm."""

    mesh: RegionalMesh
    supervisor: Supervisor
    disk: SmallDisk
    """State of the edges, and of one replica of the nearest region."""
    redis: Mapping[str, Redis]
    """By region; empty without a redis-server."""
    _cuts: Counter[Way] = field(default_factory=Counter)
    """How many faults cut each way."""

    def services(self, role: Role) -> list[Service]:
        """All of a role."""
        return [it for it in self.mesh.made.services if it.role == role]

    async def cut(self, ways: list[Way]) -> None:
        """They carry nothing, until every fault that cut them is healed."""
        self._cuts.update(ways)
        await self.mesh.hosts.cut(ways)

    async def mend(self, ways: list[Way]) -> None:
        """The inverse of `cut`."""
        self._cuts.subtract(ways)
        await self.mesh.hosts.mend([way for way in ways if self._cuts[way] <= 0])

    def spared(self, role: Role) -> Service:
        """One service of each role never ends, so that its memory shows what grows with time."""
        return self.services(role)[-1]


Fault: TypeAlias = Callable[[Stage, PlannedFault], AbstractAsyncContextManager[str]]


def _killed(role: Role) -> Fault:
    @asynccontextmanager
    async def fault(stage: Stage, plan: PlannedFault) -> AsyncIterator[str]:
        service = plan.choose([it for it in stage.services(role) if it is not stage.spared(role)])
        stage.supervisor.expect_end(service)
        service.kill()
        yield service.name

    return fault


def _terminated(role: Role) -> Fault:
    @asynccontextmanager
    async def fault(stage: Stage, plan: PlannedFault) -> AsyncIterator[str]:
        service = plan.choose([it for it in stage.services(role) if it is not stage.spared(role)])
        stage.supervisor.expect_end(service)
        service.signal(signal.SIGTERM)
        yield service.name

    return fault


def _stopped(role: Role) -> Fault:
    @asynccontextmanager
    async def fault(stage: Stage, plan: PlannedFault) -> AsyncIterator[str]:
        service = plan.choose(stage.services(role))
        service.signal(signal.SIGSTOP)
        yield service.name
        service.signal(signal.SIGCONT)

    return fault


def _cut(chosen: Callable[[Stage, PlannedFault], tuple[str, list[Way]]]) -> Fault:
    @asynccontextmanager
    async def fault(stage: Stage, plan: PlannedFault) -> AsyncIterator[str]:
        whom, ways = chosen(stage, plan)
        await stage.cut(ways)
        yield whom
        await stage.mend(ways)

    return fault


def _region(stage: Stage, plan: PlannedFault) -> tuple[str, list[Way]]:
    region = plan.choose(REGIONS)
    return region, stage.mesh.hosts.around(region)


def _from_region(stage: Stage, plan: PlannedFault) -> tuple[str, list[Way]]:
    region = plan.choose(REGIONS)
    return region, [way for way in stage.mesh.hosts.around(region) if way[0] == region]


def _to_region(stage: Stage, plan: PlannedFault) -> tuple[str, list[Way]]:
    region = plan.choose(REGIONS)
    return region, [way for way in stage.mesh.hosts.around(region) if way[1] == region]


def _regions_apart(stage: Stage, plan: PlannedFault) -> tuple[str, list[Way]]:
    one = plan.choose(REGIONS)
    ways = [way for way in stage.mesh.hosts.around(one) if {*way} <= {*REGIONS}]
    return f"{one} and the others", ways


def _clients_apart(stage: Stage, plan: PlannedFault) -> tuple[str, list[Way]]:
    ways = [(CLIENTS, SITE), (SITE, CLIENTS)]
    both, out, back = ways, ways[:1], ways[1:]
    return plan.choose([("both ways", both), ("to the edges", out), ("from the edges", back)])


@asynccontextmanager
async def _lossy(stage: Stage, plan: PlannedFault) -> AsyncIterator[str]:
    for (one, other), delay_ms in ONE_WAY_MS.items():
        conditions = Conditions(delay_ms, jitter_ms=_JITTER_MS, loss=_LOSS)
        await stage.mesh.hosts.set(one, other, conditions)
    yield "all hosts"
    for (one, other), delay_ms in ONE_WAY_MS.items():
        await stage.mesh.hosts.set(one, other, Conditions(delay_ms))


@asynccontextmanager
async def _power_lost(stage: Stage, plan: PlannedFault) -> AsyncIterator[str]:
    region = plan.choose([it for it in REGIONS if it != REGIONS[-1]])  # the last one's are spared
    services = stage.mesh.regions[region]
    ways = stage.mesh.hosts.around(region)
    stage.supervisor.hold(services)
    await stage.cut(ways)
    for service in services:
        stage.supervisor.expect_end(service)
    stage.mesh.kill(region)
    yield region
    await stage.mend(ways)
    if region in stage.redis:
        stage.redis[region].start()
    stage.supervisor.release(services)


@asynccontextmanager
async def _names_fail(stage: Stage, plan: PlannedFault) -> AsyncIterator[str]:
    stage.mesh.names.rcode = plan.choose([dns.rcode.SERVFAIL, dns.rcode.REFUSED])
    yield dns.rcode.to_text(stage.mesh.names.rcode)
    stage.mesh.names.rcode = dns.rcode.NOERROR


@asynccontextmanager
async def _names_silent(stage: Stage, plan: PlannedFault) -> AsyncIterator[str]:
    stage.mesh.names.is_silent = True
    yield "the name server"
    stage.mesh.names.is_silent = False


@asynccontextmanager
async def _names_wrong(stage: Stage, plan: PlannedFault) -> AsyncIterator[str]:
    names = stage.mesh.names
    right = dict(names.records)
    whom, wrong = plan.choose(
        [
            ("names of nobody", {name: [_NOBODY] for name in right}),
            ("no such names", {}),
            ("names of other hosts", dict(zip(right, reversed(right.values()), strict=True))),
        ]
    )
    names.records = wrong
    yield whom
    names.records = right


@asynccontextmanager
async def _reissued(stage: Stage, plan: PlannedFault) -> AsyncIterator[str]:
    """A new CA takes the old one's place, in the three steps of docs/guides/certificates.md."""
    trusted = of_process(stage.mesh.made.folder, OPERATOR).ca
    assert trusted is not None, "the mesh has certificates"
    new = DevelopmentCa(utc_now())
    both = trusted.read_bytes() + new.pem
    write_atomic(trusted, both)
    yield "all services"
    await asyncio.sleep(_RELOAD_S)
    for owner, name in _owners(stage):
        write(trusted.parent, name, new.issue(owner, utc_now()), both)
    await asyncio.sleep(_RELOAD_S)
    write_atomic(trusted, new.pem)


def _owners(stage: Stage) -> Iterable[tuple[PeerIdentity, str]]:
    """Whom certificates are issued to, and the names of their files."""
    yield PeerIdentity(Role.OPERATOR), OPERATOR
    for service in stage.mesh.made.services:
        region = str(service.values.get("region", ""))
        owner = PeerIdentity(Role(service.role), region, service.name if region else "")
        yield owner, service.name


@asynccontextmanager
async def _redis_gone(stage: Stage, plan: PlannedFault) -> AsyncIterator[str]:
    region = plan.choose([*stage.redis])
    stage.redis[region].kill()
    yield region
    stage.redis[region].start()


@asynccontextmanager
async def _disk_full(stage: Stage, plan: PlannedFault) -> AsyncIterator[str]:
    """A process whose state is there ends, saving it or not, and starts on the full disk."""
    stage.disk.fill()
    edge, replica = stage.mesh.edges[0], stage.mesh.regions[NEAR][2]
    numbers = signal.SIGTERM, signal.SIGKILL
    service, number = plan.choose([(it, how) for it in (edge, replica) for how in numbers])
    stage.supervisor.expect_end(service)
    service.signal(number)
    yield f"{service.name} starts anew meanwhile, after {number.name}"
    stage.disk.empty()


@asynccontextmanager
async def _cores_busy(stage: Stage, plan: PlannedFault) -> AsyncIterator[str]:
    busy = [
        children.start(
            (sys.executable, "-c", "while True: pass"),
            stdin=subprocess.DEVNULL,
            ends_with_parent=signal.SIGKILL,
        )
        for _ in range(_NUM_BUSY)
    ]
    yield f"{_NUM_BUSY} other processes compute"
    for process in busy:
        process.kill()
        process.join()


_ROLES: Final = {
    Role.INFERENCE: "replica",
    Role.ROUTER: "router",
    Role.TOKENIZER: "tokenizer",
    Role.EDGE: "edge",
}
REDIS_GONE: Final = "Redis killed"
FAULTS: Final[Mapping[str, Fault]] = {
    **{f"{name}, SIGKILL": _killed(role) for role, name in _ROLES.items()},
    **{f"{name}, SIGTERM": _terminated(role) for role, name in _ROLES.items()},
    **{f"{name}, SIGSTOP": _stopped(role) for role, name in _ROLES.items()},
    "region cut off": _cut(_region),
    "nothing arrives from a region": _cut(_from_region),
    "nothing arrives in a region": _cut(_to_region),
    "regions cut off from each other": _cut(_regions_apart),
    "clients cut off": _cut(_clients_apart),
    "power of a region lost": _power_lost,
    "packets lost and late": _lossy,
    "names fail": _names_fail,
    "names get no answer": _names_silent,
    "names are wrong": _names_wrong,
    "certificates replaced": _reissued,
    REDIS_GONE: _redis_gone,
    "disk full": _disk_full,
    "cores busy": _cores_busy,
}
"""By kind. Only killed processes, and those told to end, tell anybody: their kernel resets their
connections. SIGTERM ends a service at once (`drain_s` is 0)."""
