"""Twelve cloud regions and the round trips between them.

Between the first ten these are averages that were measured between a large cloud's regions and
published ("Latency Between AWS Global Regions", table of 2017; public measurements of later years
lie within some 10 % of it). The other two have the router's own estimate for a great circle.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from services.router.fleet.entries import RegionConfig
from services.router.fleet.geography import Geography

LOCAL_RTT_MS = 1.0
"""Between two hosts of one region, different zones."""


@dataclass(frozen=True, slots=True)
class Region:
    """Where users and replicas are."""

    name: str
    latitude: float
    longitude: float

    def demand(self, day: float) -> float:
        """How busy its users are at this part of the day, 0 to 1 at Greenwich: 1 on average, a
        fifth of the evening's peak at night."""
        local = day + self.longitude / 360.0
        return 1.0 - _SWING * math.cos(2.0 * math.pi * (local - _QUIET))

    @property
    def config(self) -> RegionConfig:
        """Its entry in a router's configuration."""
        return RegionConfig(self.name, self.latitude, self.longitude)


_SWING = 2 / 3
_QUIET = 4 / 24
"""The quietest part of the local day."""

REGIONS = (
    Region("us-east", 38.9, -77.4),
    Region("eu-west", 53.3, -6.3),
    Region("ap-tokyo", 35.7, 139.7),
    Region("us-oregon", 45.8, -119.7),
    Region("eu-frankfurt", 50.1, 8.7),
    Region("ap-singapore", 1.35, 103.8),
    Region("sa-saopaulo", -23.5, -46.6),
    Region("ap-sydney", -33.9, 151.2),
    Region("us-california", 37.4, -122.0),
    Region("ap-seoul", 37.6, 127.0),
    Region("ap-mumbai", 19.1, 72.9),
    Region("af-capetown", -33.9, 18.4),
)

_MEASURED = (
    "us-east us-california us-oregon eu-west eu-frankfurt ap-tokyo ap-seoul ap-singapore "
    "ap-sydney sa-saopaulo"
).split()
_UPPER_MS = (
    (72.7, 87.0, 80.6, 88.7, 145.3, 178.4, 216.7, 230.0, 119.5),
    (19.5, 153.2, 166.6, 102.5, 131.5, 174.0, 157.5, 192.7),
    (137.0, 159.5, 89.1, 118.3, 161.4, 162.2, 182.7),
    (19.6, 212.4, 242.4, 239.0, 309.6, 191.3),
    (236.5, 266.2, 325.9, 323.5, 194.9),
    (31.4, 73.8, 103.9, 256.8),
    (71.9, 134.0, 286.3),
    (175.3, 328.1),
    (322.5,),
)
_PUBLISHED_MS = {
    frozenset((_MEASURED[row], _MEASURED[row + 1 + column])): ms
    for row, line in enumerate(_UPPER_MS)
    for column, ms in enumerate(line)
}


def rtt_ms(a: Region, b: Region) -> float:
    """The round trip between two regions."""
    if a.name == b.name:
        return LOCAL_RTT_MS
    published = _PUBLISHED_MS.get(frozenset((a.name, b.name)))
    if published is not None:
        return published
    return Geography(a.name, (a.config, b.config), 0.0).rtt_ms(b.name)
