"""Round trips guessed from coordinates, until a probe measures them. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from services.router.config import RegionConfig

_EARTH_RADIUS_KM = 6371.0
_FIBRE_KM_PER_MS = 200.0
_DETOUR = 1.5
_LAST_MILE_MS = 1.0


@dataclass(frozen=True, slots=True)
class Geography:
    """Where regions are, as seen from `own`."""

    own: str
    regions: Iterable[RegionConfig]
    default_ms: float
    """For regions whose coordinates, or the own ones, are not known."""

    def rtt_ms(self, region: str) -> float:
        """First RTT estimate to a region, in milliseconds.

        Light in fibre runs at about 200 km/ms, and cables take detours: half as long again as the
        great circle.
        """
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
