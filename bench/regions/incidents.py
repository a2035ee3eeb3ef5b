"""What can happen to the region that is nearest to the edges while chats run."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final

from bench.faults.chats import ChatLoad, ChatTotals, ReferenceChat, RunningChat
from bench.regions.mesh import NEAR, REGIONS, RegionalMesh

_MIN_UNDER_WAY: Final = 0.75
"""Share of the chats that have tokens, and so are under way, when it happens; the others have just
begun."""
_LIMIT_S: Final = 180.0
_POLL_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class Incident:
    """It happens, and is over later."""

    strike: Callable[[RegionalMesh], Awaitable[None]]
    undo: Callable[[RegionalMesh], Awaitable[None]]
    """Returns when all routers have all replicas in service again."""


async def _power(mesh: RegionalMesh) -> None:
    await mesh.lose(NEAR)


async def _processes(mesh: RegionalMesh) -> None:
    mesh.kill(NEAR)


async def _off(mesh: RegionalMesh) -> None:
    await mesh.hosts.cut(mesh.hosts.around(NEAR))


async def _mute(mesh: RegionalMesh) -> None:
    await mesh.hosts.cut((NEAR, site) for site in mesh.edge_hosts)


async def _regions_apart(mesh: RegionalMesh) -> None:
    others = [it for it in REGIONS if it != NEAR]
    await mesh.hosts.cut(way for it in others for way in ((NEAR, it), (it, NEAR)))


async def _bring_back(mesh: RegionalMesh) -> None:
    await mesh.bring_back(NEAR)


async def _mend(mesh: RegionalMesh) -> None:
    await mesh.hosts.mend(mesh.hosts.around(NEAR))
    await mesh.until_whole()


INCIDENTS: Final[Mapping[str, Incident]] = {
    "power lost": Incident(_power, _bring_back),
    "all processes killed": Incident(_processes, _bring_back),
    "network cut": Incident(_off, _mend),
    "answers to the edges lost": Incident(_mute, _mend),
    "network to the other regions cut": Incident(_regions_apart, _mend),
}
"""By what happens to the region. Only where its processes are killed is anybody told: its kernel
then resets their connections."""


async def interrupted(
    mesh: RegionalMesh, incident: Incident, references: list[ReferenceChat], num_chats: int
) -> tuple[ChatTotals, list[float]]:
    """An incident while `num_chats` chats run, until those that had tokens have ended; then it is
    undone. Returns what came of all chats, and of those that had tokens the longest pause since, in
    ms. Raises RuntimeError if one does not end."""
    async with ChatLoad(mesh, references, num_chats) as load:

        def under_way_now() -> list[RunningChat]:
            return [it for it in load.running if it.times]

        await _until(lambda: len(under_way_now()) >= _MIN_UNDER_WAY * num_chats, load)
        under_way, struck_at = under_way_now(), time.monotonic()
        await incident.strike(mesh)
        await _until(lambda: not any(it in load.running for it in under_way), load)
    await incident.undo(mesh)
    return load.totals, [it.longest_pause_ms(struck_at) for it in under_way]


async def _until(is_so: Callable[[], bool], load: ChatLoad) -> None:
    limit = time.monotonic() + _LIMIT_S
    while not is_so():
        load.check()
        if time.monotonic() > limit:
            raise RuntimeError(f"chats did not go on within {_LIMIT_S:g} s: {load.totals}")
        await asyncio.sleep(_POLL_S)
