"""Round trips estimated from coordinates, until a probe measures them. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from services.router.fleet.entries import RegionConfig

_EARTH_RADIUS_KM = 6371.0
_FIBRE_KM_PER_MS = 200.0
"""Speed of light in fibre."""
_DETOUR = 1.5
"""Ratio of the length of cables to the great circle."""
_LAST_MILE_MS = 1.0


@dataclass(frozen=True, slots=True)
class Geography:
    """Coordinates of the regions, and the router's own region."""

    own: str
    regions: Iterable[RegionConfig]
    default_ms: float
    """Round trip assumed if the coordinates of either region are unknown."""

    def rtt_ms(self, region: str) -> float:
        """First estimate of the round trip to a region."""
        if region == self.own:
            return _LAST_MILE_MS
        known = {entry.name: entry for entry in self.regions}
        if region not in known or self.own not in known:
            return self.default_ms
        distance_km = _great_circle_km(known[self.own], known[region])
        return _LAST_MILE_MS + 2.0 * _DETOUR * distance_km / _FIBRE_KM_PER_MS


def _great_circle_km(a: RegionConfig, b: RegionConfig) -> float:
    """Haversine distance."""
    lat_a, lat_b = math.radians(a.latitude), math.radians(b.latitude)
    half_lat = (lat_b - lat_a) / 2
    half_lon = math.radians(b.longitude - a.longitude) / 2
    chord = math.sin(half_lat) ** 2 + math.cos(lat_a) * math.cos(lat_b) * math.sin(half_lon) ** 2
    return 2.0 * _EARTH_RADIUS_KM * math.asin(math.sqrt(min(1.0, chord)))
