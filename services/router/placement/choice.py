"""Which of the replicas that could have a session gets it. Pure.

The cost is the session's own wait and, weighted, the work that its prompt makes: work delays who
comes next, the more the busier the region of the least wait is. Without that price a busy fleet
computes in many places what it has in one, for the sake of shorter queues, and has longer ones for
it.

Between near-equals the better of two random ones is taken (Mitzenmacher, "The power of two choices
in randomized load balancing", 2001), so that several routers with the same reports do not all run
to the same replica.
"""

from __future__ import annotations

from random import Random

import numpy as np

from services.router.placement.board import Bools, Floats, Ints
from services.router.placement.prediction import Waits
from services.router.placement.request import PlacementPolicy


def costs_ms(waits: Waits, able: Bools, regions: Ints, policy: PlacementPolicy) -> Floats:
    """[rows] what is to be least; infinite for a replica that may not have the session. [rows]
    `regions` are numbers. At least one replica has to be able."""
    costs = np.where(able, waits.total_ms, np.inf)
    home = regions == regions[costs.argmin()]
    share = _busy_share(waits, able & home)
    weight = policy.work_weight + (policy.busy_work_weight - policy.work_weight) * share
    costs += weight * waits.work_ms
    return costs


def _busy_share(waits: Waits, among: Bools) -> float:
    """How many of these replicas, at least one, have prompts waiting, 0 to 1."""
    num_busy = np.count_nonzero(among & (waits.queue_ms > 0.0))
    return num_busy / np.count_nonzero(among)


def choose(costs: Floats, policy: PlacementPolicy, rng: Random) -> int:
    """The row. At least one cost has to be finite."""
    best = int(costs.argmin())
    near = (costs <= costs[best] + policy.near_ms).nonzero()[0]
    if len(near) <= 2:
        return best
    one, other = rng.sample(range(len(near)), 2)
    return int(min(near[one], near[other], key=lambda row: (costs[row], row)))


def ranked(costs: Floats, count: int) -> list[int]:
    """The rows of the least finite costs, at most so many, best first."""
    if count < len(costs):
        rows = costs.argpartition(count - 1)[:count]
    else:
        rows = np.arange(len(costs))
    found = costs[rows]
    order = found.argsort(kind="stable")
    num_finite = np.count_nonzero(found < np.inf)
    ordered: list[int] = rows[order[:num_finite]].tolist()
    return ordered
