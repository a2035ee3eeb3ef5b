"""The replicas of a router grouped by model and region. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import NamedTuple

from services.router.fleet.replica import Replica


class RegionFleet(NamedTuple):
    """The replicas of one model in one region."""

    region: str
    num_replicas: int
    num_ready: int
    """Replicas that take sessions."""
    num_sessions: int
    """Sessions that they have, as far as this router knows."""
    predicted_wait_ms: float
    """The least predicted wait for a first token at a ready one; 0 without any."""


class ModelFleet(NamedTuple):
    """The replicas of one model."""

    model: str
    vocabulary_digests: tuple[bytes, ...]
    """Digests of its replicas' vocabularies, the most frequent first."""
    regions: tuple[RegionFleet, ...]
    """By name."""


class PredictedLoad(NamedTuple):
    """Load that a new session would meet on a replica."""

    num_sessions: int
    predicted_wait_ms: float


def model_fleets(
    replicas: Iterable[Replica], load: Callable[[str], PredictedLoad]
) -> list[ModelFleet]:
    """Group replicas by model, sorted by name; `load` takes the name of a replica. Replicas whose
    model is not known yet are left out."""
    by_model: dict[str, dict[str, list[Replica]]] = {}
    for replica in replicas:
        if replica.model_name and replica.region:
            regions = by_model.setdefault(replica.model_name, {})
            regions.setdefault(replica.region, []).append(replica)
    return [_model_fleet(model, by_model[model], load) for model in sorted(by_model)]


def _model_fleet(
    model: str, by_region: dict[str, list[Replica]], load: Callable[[str], PredictedLoad]
) -> ModelFleet:
    digests = Counter(
        replica.model.vocabulary_digest
        for replicas in by_region.values()
        for replica in replicas
        if replica.model
    )
    regions = tuple(_region_fleet(name, by_region[name], load) for name in sorted(by_region))
    return ModelFleet(model, tuple(digest for digest, _ in digests.most_common()), regions)


def _region_fleet(
    region: str, replicas: list[Replica], load: Callable[[str], PredictedLoad]
) -> RegionFleet:
    loads = {replica.name: load(replica.name) for replica in replicas}
    waits = [loads[it.name].predicted_wait_ms for it in replicas if it.takes_sessions]
    return RegionFleet(
        region=region,
        num_replicas=len(replicas),
        num_ready=len(waits),
        num_sessions=sum(found.num_sessions for found in loads.values()),
        predicted_wait_ms=min(waits, default=0.0),
    )
