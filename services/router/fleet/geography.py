"""Round trips guessed from coordinates, until a probe measures them. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable

from services.router.config import RegionConfig

_EARTH_RADIUS_KM = 6371.0
_FIBRE_KM_PER_MS = 200.0
_DETOUR = 1.5
_LAST_MILE_MS = 1.0


def initial_rtt_ms(
    own: str, regions: Iterable[RegionConfig], wanted: Iterable[str], default_ms: float
) -> dict[str, float]:
    """First RTT estimate from region `own` to each wanted region, in milliseconds.

    Light in fibre runs at about 200 km/ms, and cables take detours: half as long again as the
    great circle. Without coordinates of both ends another region is `default_ms` away.
    """
    known = {region.name: region for region in regions}
    estimates = {}
    for name in wanted:
        if name == own:
            estimates[name] = _LAST_MILE_MS
        elif name in known and own in known:
            distance_km = _great_circle_km(known[own], known[name])
            estimates[name] = _LAST_MILE_MS + 2.0 * _DETOUR * distance_km / _FIBRE_KM_PER_MS
        else:
            estimates[name] = default_ms
    return estimates


def _great_circle_km(a: RegionConfig, b: RegionConfig) -> float:
    """Haversine distance."""
    lat_a, lat_b = math.radians(a.latitude), math.radians(b.latitude)
    half_lat = (lat_b - lat_a) / 2
    half_lon = math.radians(b.longitude - a.longitude) / 2
    chord = math.sin(half_lat) ** 2 + math.cos(lat_a) * math.cos(lat_b) * math.sin(half_lon) ** 2
    return 2.0 * _EARTH_RADIUS_KM * math.asin(math.sqrt(min(1.0, chord)))
