"""The most that any placement could serve of a day's demand: all replicas as one.

One queue for the whole fleet, no network, no deaths, every prompt cached, requests as a fluid. Only
the shape of the day is left: whoever serves its evening has replicas to spare at night.
"""

from __future__ import annotations

from collections.abc import Sequence

from bench.scale.regions import Region

_STEPS = 2400
"""Parts of a day."""
_ERROR = 1e-3


def most_of_linear(
    regions: Sequence[Region], day_s: float, *, objective_s: float, met_share: float
) -> float:
    """The highest mean load of a day, as a share of what the replicas serve at most, at which
    `met_share` of all requests wait no longer than `objective_s`."""
    low, high = 0.0, 2.0
    while high - low > _ERROR:
        load = (low + high) / 2
        if _met_share(regions, load, day_s, objective_s) >= met_share:
            low = load
        else:
            high = load
    return low


def _met_share(regions: Sequence[Region], load: float, day_s: float, objective_s: float) -> float:
    """Share of requests that wait no longer. Work and backlog are in seconds of the fleet."""
    step_s = day_s / _STEPS
    backlog_s = late = total = 0.0
    for step in range(_STEPS):
        demand = load * sum(region.demand(step / _STEPS) for region in regions) / len(regions)
        backlog_s = max(0.0, backlog_s + (demand - 1.0) * step_s)
        total += demand
        late += demand if backlog_s > objective_s else 0.0
    return 1.0 - late / total
