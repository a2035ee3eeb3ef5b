"""A placement that knows everything at once, and a bound that no placement can pass.

On each arrival it works out, on every replica that could be the best one, when the first token
would come: from its present queue, the length of every reply that runs or waits there, its cache,
what is on the way to it, and how long calls take on average. Nothing is delayed, and routers of all
regions share this knowledge. It takes the least sum of that time and a price of the work that the
prompt causes, since a replica's work delays everybody behind. It does not know later requests, and
never changes its mind: it is greedy, and the best possible placement may be better. So what
it reaches is a lower bound of the optimum, not the optimum.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from bench.oracle.replicas import ModelReplica, Speed
from bench.scale.calls import CallTimes
from bench.scale.clock import Clock
from bench.scale.demand import BLOCK_TOKENS, Ask
from bench.scale.regions import LOCAL_RTT_MS
from bench.scale.replicas import Hooks
from bench.scale.routers import Report, Site
from outrider.errors import NoReplicaError, OutriderError


class World:
    """All replicas of a fleet as they are; one for all regions' routers."""

    def __init__(self, times: CallTimes, work_price: float = 0.0) -> None:
        """`work_price`: milliseconds of a request's own wait that a millisecond of work costs."""
        self.speed = Speed(times)
        self.work_price = work_price
        self.replicas: dict[str, ModelReplica] = {}
        self.on_way: dict[str, deque[tuple[float, Ask]]] = {}
        """By replica, requests that have not come in there yet: when they will, and which."""

    def make_replica(
        self, name: str, clock: Clock, times: CallTimes, hooks: Hooks, seed: int
    ) -> ModelReplica:
        """A bench.scale.fleet.MakeReplica."""
        made = ModelReplica(clock, times, self.speed, hooks, seed)
        self.replicas[name] = made
        self.on_way[name] = deque()
        return made


class Omniscient:
    """The router of one region (bench.scale.routers.Router) that reads the world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._sites: dict[str, Site] = {}

    def connect(self, site: Site, now: float) -> None:
        self._sites[site.name] = site

    def lose(self, name: str, now: float) -> None:
        self._sites.pop(name, None)

    def report(self, reports: Sequence[Report], now: float) -> None:
        """Reports say nothing new."""

    def wake(self, now: float) -> Iterable[tuple[Ask, str | OutriderError]]:
        """No request waits."""
        return ()

    def release(self, ask: Ask, now: float) -> None:
        """Nothing is counted."""

    def place(self, ask: Ask, now: float) -> str:
        world = self._world
        bounds = []
        for name, site in self._sites.items():
            work_ms = world.speed.idle_ms(world.replicas[name].uncached(ask))
            bounds.append((site.rtt_ms + work_ms * (1.0 + world.work_price), name, work_ms))
        if not bounds:
            raise NoReplicaError("every replica is down")
        bounds.sort()
        best_ms, best = float("inf"), bounds[0][1]
        for bound_ms, name, work_ms in bounds:
            if bound_ms >= best_ms:
                break
            half_s = self._sites[name].rtt_ms / 2e3
            on_way = world.on_way[name]
            while on_way and on_way[0][0] <= now:
                on_way.popleft()
            until = now - half_s + (best_ms - world.work_price * work_ms) / 1e3
            replica = world.replicas[name]
            first_at = replica.first_token_at(ask, now + half_s, on_way, until)
            cost_ms = (first_at + half_s - now) * 1e3 + world.work_price * work_ms
            if cost_ms < best_ms:
                best_ms, best = cost_ms, name
        self._note(best, ask, now + self._sites[best].rtt_ms / 2e3)
        return best

    def _note(self, name: str, ask: Ask, reach_at: float) -> None:
        on_way = self._world.on_way[name]
        behind = []
        while on_way and on_way[-1][0] > reach_at:
            behind.append(on_way.pop())
        on_way.append((reach_at, ask))
        on_way.extend(reversed(behind))


def least_ttft_ms(ask: Ask, times: CallTimes, shared_tokens: int) -> float:
    """What no placement can go below: an idle replica of the user's region that has all of the
    prompt that any other prompt shares, and the fastest calls that were recorded. For requests
    without a shared beginning `shared_tokens` is 0."""
    left = max(1, len(ask.prompt) - shared_tokens // BLOCK_TOKENS * BLOCK_TOKENS)
    return LOCAL_RTT_MS + times.ms(max(2, left), 1, 0.0)
