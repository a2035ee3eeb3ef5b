"""Every process of a mesh is replaced by one of another version, one after the other, while chats
run."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from bench.faults.chats import ChatLoad, ChatTotals, ReferenceChat, RunningChat
from bench.harness.mesh import Service
from bench.upgrade.http_load import HttpLoad
from bench.upgrade.mesh import UpgradedMesh
from bench.upgrade.versions import Version
from outrider.tls import Role

SERVERS_FIRST: Final = (Role.INFERENCE, Role.TOKENIZER, Role.ROUTER, Role.EDGE)
"""The order in docs/guides/upgrades.md: nobody is asked for what only a later version knows."""
EDGES_FIRST: Final = SERVERS_FIRST[::-1]
_RECONNECT_S: Final = {Role.TOKENIZER: 3.0}
"""Time until routers use a process again of which nobody tells that it is back: they try a
tokenizer that is gone every 2 seconds, and earlier versions fail a chat if they reach none."""
_LIMIT_S: Final = 120.0
_POLL_S: Final = 0.05


@dataclass(slots=True)
class Replaced:
    """All processes of one role, replaced one after the other."""

    role: Role
    num_processes: int = 0
    pauses_ms: list[float] = field(default_factory=list)
    """For each process, of each chat that ran meanwhile: its longest time without a commit."""


@dataclass(slots=True)
class Rolled:
    """A mesh that went from one version to another."""

    to: str
    """The version."""
    roles: list[Replaced]
    """In their order."""
    chats: ChatTotals
    """Over QUIC."""
    http: ChatTotals
    identities: set[str]
    """Model identities of the replicas, before and after."""

    @property
    def totals(self) -> tuple[ChatTotals, ChatTotals]:
        """Of all chats."""
        return self.chats, self.http

    @property
    def problems(self) -> list[str]:
        """What went wrong; empty: every reply was the reference's."""
        return [totals.problem for totals in self.totals if totals.problem]


async def roll(
    mesh: UpgradedMesh,
    version: Version,
    order: Sequence[Role],
    references: list[ReferenceChat],
    num_chats: int,
) -> Rolled:
    """Replace every process. Returns when all run `version` and all chats have ended. Raises
    RuntimeError and TimeoutError if a process or a chat does not do as it should."""
    services: dict[Role, tuple[Service, ...]] = {
        Role.INFERENCE: mesh.replicas,
        Role.TOKENIZER: mesh.tokenizers,
        Role.ROUTER: mesh.routers,
        Role.EDGE: mesh.edges,
    }
    identities, roles = await mesh.identities(), list[Replaced]()
    http_load = HttpLoad(mesh.edges, mesh.key, references, max(1, num_chats // 4))
    async with ChatLoad(mesh, references, num_chats) as load, http_load:
        await _until_all_stream(load)
        for role in order:
            roles.append(Replaced(role))
            for service in services[role]:
                roles[-1].pauses_ms += await _replace(mesh, service, version, load)
                roles[-1].num_processes += 1
                await asyncio.sleep(_RECONNECT_S.get(role, 0.0))
            print(f"to {version.label}: {role}, {load.totals.problem or 'exact'}", file=sys.stderr)
    for error in (*load.totals.errors, *http_load.totals.errors):
        print(f"FAILED on the way to {version.label}: {error}", file=sys.stderr)
    identities |= await mesh.identities()
    return Rolled(version.label, roles, load.totals, http_load.totals, identities)


async def _replace(
    mesh: UpgradedMesh, service: Service, version: Version, load: ChatLoad
) -> list[float]:
    """SIGTERM, and once the process has ended the other version in its place, until routers have it
    in service and every chat goes on. Returns the chats' longest pauses meanwhile, ms."""
    began_at, seen = time.monotonic(), set[RunningChat]()
    watching = asyncio.create_task(_watch(load, seen))
    try:
        await service.stop()
        service.spawn(version.environment)
        await service.ready()
        await version.check_runs(service)
        await mesh.until_whole()
        await _until_all_go_on(load)
    finally:
        watching.cancel()
    return [run.longest_pause_ms(began_at) for run in seen]


async def _watch(load: ChatLoad, seen: set[RunningChat]) -> None:
    while True:
        seen |= load.running
        await asyncio.sleep(_POLL_S)


async def _until_all_stream(load: ChatLoad) -> None:
    async with asyncio.timeout(_LIMIT_S):
        while not all(run.times for run in load.running):
            load.check()
            await asyncio.sleep(_POLL_S)


async def _until_all_go_on(load: ChatLoad) -> None:
    """Return once each chat has ended or got another token."""
    since, waiting = time.monotonic(), set(load.running)
    async with asyncio.timeout(_LIMIT_S):
        while any(run in load.running and run.last_at < since for run in waiting):
            load.check()
            await asyncio.sleep(_POLL_S)
