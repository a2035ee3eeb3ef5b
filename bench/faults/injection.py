"""Injects faults into the mesh, one at a time, and measures how long chats pause."""

from __future__ import annotations

import asyncio
import random
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from bench.faults.chats import REPLICA_KILL, ChatLoad, RunningChat
from bench.faults.fleet import Fleet, is_far
from bench.harness.mesh import Service

_SETTLE_LIMIT_S = 60.0
_POLL_S = 0.02
_RECONNECT_S = {"inference": 0.7, "router": 2.5, "edge": 0.1}
"""Time after a restart until the others use the process again: here routers retry a lost replica
every 0.5 s, edges a lost router every 2 s."""
_DETECT_S = 5.0
"""Enough for a stopped replica (router.hang.min_silence_s, 2 s) or a cut link (router.silence_s, 3
s) to be detected."""
_HELD_SHARE = 0.1
"""A chat whose pause lasted at least this share of a stop counts as interrupted by it."""
_HEAL_S = 3.0
"""A replica that hung gets trial sessions again after router.quarantine.first_s, 2 s."""


@dataclass(slots=True)
class FaultSeries:
    """One kind of fault, injected `count` times."""

    name: str
    count: int = 0
    hit: int = 0
    """Chats that were interrupted in the middle of their replies."""
    pauses_ms: list[float] = field(default_factory=list)
    """Of each of those: from its last commit before the fault to its first one after."""


class FaultInjector:
    """Injects faults one after the other; each waits until every chat goes on after the one
    before."""

    def __init__(self, fleet: Fleet, load: ChatLoad) -> None:
        self._fleet = fleet
        self._load = load
        self._random = random.Random(11)
        self._down: list[Service] = []

    async def kill_replicas(self, count: int) -> FaultSeries:
        """SIGKILL one replica after the other, each time the one with most sessions, until two are
        left; then start all of them again."""

        async def one(faults: FaultSeries) -> None:
            service, num_hit = await self._busiest()
            await self._hit(faults, num_hit, service.kill)
            self._down.append(service)
            if len(self._down) == len(self._fleet.replicas) - 2:
                await self._restart()

        return await self._repeat(REPLICA_KILL, count, one)

    async def kill(self, services: tuple[Service, ...], count: int) -> FaultSeries:
        """SIGKILL one after the other until one is left; then start all of them again."""

        async def one(faults: FaultSeries) -> None:
            service = services[faults.count % len(services)]
            await self._hit(faults, len(self._load.running) // 2, service.kill)
            self._down.append(service)
            if len(self._down) == len(services) - 1:
                await self._restart()

        return await self._repeat(f"{services[0].role}, SIGKILL", count, one)

    async def stop_replicas(self, count: int) -> FaultSeries:
        """SIGSTOP the replica with most sessions until chats have moved on; then SIGCONT."""

        async def one(faults: FaultSeries) -> None:
            service, num_hit = await self._busiest()
            await self._hit(faults, num_hit, lambda: service.signal(signal.SIGSTOP), _DETECT_S)
            service.signal(signal.SIGCONT)
            await asyncio.sleep(_HEAL_S)

        return await self._repeat("replica, SIGSTOP", count, one)

    async def stop(
        self, services: tuple[Service, ...], count: int, stop_s: float, pause_s: float = 2.0
    ) -> FaultSeries:
        """SIGSTOP one of them for `stop_s`, then SIGCONT; wait until every chat goes on, and
        `pause_s` longer."""

        async def one(faults: FaultSeries) -> None:
            service = services[faults.count % len(services)]
            struck_at, under_way = time.monotonic(), list(self._load.running)
            service.signal(signal.SIGSTOP)
            await asyncio.sleep(stop_s)
            under_way += [run for run in self._load.running if run not in under_way]
            service.signal(signal.SIGCONT)
            await self._gone_on(faults, under_way)
            pauses = [(run.longest_pause_ms(struck_at), run) for run in under_way]
            self._note(
                faults, [pause for pause in pauses if pause[0] >= _HELD_SHARE * stop_s * 1e3]
            )
            await asyncio.sleep(pause_s)

        return await self._repeat(f"{services[0].role}, SIGSTOP {stop_s:g} s", count, one)

    async def cut_region(self, count: int) -> FaultSeries:
        """Move all chats to the far region, cut its link, and heal it later."""

        async def one(faults: FaultSeries) -> None:
            near = [replica for replica in self._fleet.replicas if not is_far(replica)]
            for replica in near:
                replica.kill()
            self._down += near
            await self._restart()
            await self._streaming()
            sessions = await self._fleet.num_sessions()
            far = sum(sessions[r.name] for r in self._fleet.replicas if is_far(r))
            await self._hit(faults, far, self._fleet.far_link.cut, _DETECT_S)
            self._fleet.far_link.heal()
            await asyncio.sleep(_HEAL_S)

        return await self._repeat("region cut off", count, one)

    async def _repeat(
        self, name: str, count: int, one: Callable[[FaultSeries], Awaitable[None]]
    ) -> FaultSeries:
        faults = FaultSeries(name)
        while faults.count < count:
            await self._streaming()
            await one(faults)
            faults.count += 1
            if faults.count % 10 == 0 or faults.count == count:
                print(f"{name}: {faults.count} of {count}", file=sys.stderr, flush=True)
        await self._restart()
        return faults

    async def _busiest(self) -> tuple[Service, int]:
        """The replica with most sessions, and how many."""
        while True:
            self._load.check()
            sessions = await self._fleet.num_sessions(self._down)
            up = [replica for replica in self._fleet.replicas if replica not in self._down]
            service = max(up, key=lambda replica: sessions[replica.name])
            if sessions[service.name]:
                return service, sessions[service.name]
            await asyncio.sleep(_POLL_S)

    async def _hit(
        self, faults: FaultSeries, num_hit: int, strike: Callable[[], None], least_s: float = 0.1
    ) -> None:
        """Inject one fault by `strike` and wait, `least_s` or longer, until every chat goes on. The
        `num_hit` longest pauses since then count as caused by it: tokens that were in flight when
        it struck still arrive."""
        under_way = [run for run in self._load.running if run.times]
        struck_at = time.monotonic()
        strike()
        await asyncio.sleep(least_s)
        await self._gone_on(faults, under_way)
        pauses = [(run.longest_pause_ms(struck_at), run) for run in under_way]
        pauses.sort(key=lambda pause: -pause[0])
        self._note(faults, pauses[:num_hit])

    async def _gone_on(self, faults: FaultSeries, under_way: list[RunningChat]) -> None:
        """Return once each of these chats has ended or got another token."""
        goes_on_at, limit = time.monotonic(), time.monotonic() + _SETTLE_LIMIT_S
        while any(run in self._load.running and run.last_at < goes_on_at for run in under_way):
            if time.monotonic() > limit:
                raise RuntimeError(f"a chat did not go on within {_SETTLE_LIMIT_S:g} s: {faults}")
            await asyncio.sleep(_POLL_S)

    @staticmethod
    def _note(faults: FaultSeries, pauses: list[tuple[float, RunningChat]]) -> None:
        for pause_ms, run in pauses:
            run.hits.append((faults.name, pause_ms))
            faults.pauses_ms.append(pause_ms)
        faults.hit += len(pauses)

    async def _streaming(self) -> None:
        """Until a random moment while most chats are in the middle of their replies."""
        await asyncio.sleep(self._random.uniform(0.02, 0.15))
        while sum(bool(run.times) for run in self._load.running) * 2 < len(self._load.running):
            self._load.check()
            await asyncio.sleep(_POLL_S)

    async def _restart(self) -> None:
        """Start what was killed again, and wait until the others have reconnected to it."""
        for service in self._down:
            service.spawn()
        await asyncio.gather(*(service.ready() for service in self._down))
        if self._down:
            await asyncio.sleep(_RECONNECT_S[self._down[0].role])
        self._down.clear()
