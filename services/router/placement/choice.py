"""Which of the replicas that could have a session gets it. Pure.

The cost is the session's own wait and, weighted, the work that its prompt makes: work delays who
comes next. Between near-equals the better of two random ones is taken (Mitzenmacher, "The power of
two choices in randomized load balancing", 2001), so that several routers with the same reports do
not all run to the same replica.
"""

from __future__ import annotations

from random import Random

import numpy as np

from services.router.placement.board import Bools, Floats
from services.router.placement.prediction import Waits
from services.router.placement.request import PlacementPolicy


def costs_ms(waits: Waits, able: Bools, policy: PlacementPolicy) -> Floats:
    """[rows] what is to be least; infinite for a replica that may not have the session."""
    costs = waits.total_ms + policy.work_weight * (waits.prefill_ms + waits.transfer_ms)
    return np.where(able, costs, np.inf)


def choose(costs: Floats, policy: PlacementPolicy, rng: Random) -> int:
    """The row. At least one cost has to be finite."""
    best = int(costs.argmin())
    near = np.flatnonzero(costs <= costs[best] + policy.near_ms)
    if len(near) <= 2:
        return best
    one, other = rng.sample(range(len(near)), 2)
    return int(min(near[one], near[other], key=lambda row: (costs[row], row)))


def ranked(costs: Floats, count: int) -> list[int]:
    """The rows of the least finite costs, at most so many, best first."""
    if count < len(costs):
        rows = np.argpartition(costs, count - 1)[:count]
    else:
        rows = np.arange(len(costs))
    rows = rows[np.argsort(costs[rows], kind="stable")]
    return [int(row) for row in rows if costs[row] < np.inf]
