"""Round trips guessed from coordinates."""

from __future__ import annotations

import pytest

from services.router.config import RegionConfig
from services.router.fleet.geography import initial_rtt_ms

US_EAST = RegionConfig("us-east", 39.0, -77.5)
EU_WEST = RegionConfig("eu-west", 53.3, -6.3)
AP_SOUTHEAST = RegionConfig("ap-southeast", 1.35, 103.8)


def test_the_guess_grows_with_distance_and_is_of_the_right_size() -> None:
    regions = (US_EAST, EU_WEST, AP_SOUTHEAST)
    names = [region.name for region in regions]
    rtt = initial_rtt_ms("us-east", regions, names, 100.0)
    assert rtt["us-east"] == 1.0
    # Measured between the clouds' regions of these places: about 70 and 215 to 230 ms.
    assert rtt["eu-west"] == pytest.approx(82, abs=15)
    assert rtt["ap-southeast"] == pytest.approx(233, abs=25)


def test_the_guess_is_symmetric() -> None:
    there = initial_rtt_ms("us-east", (US_EAST, EU_WEST), ["eu-west"], 100.0)["eu-west"]
    back = initial_rtt_ms("eu-west", (US_EAST, EU_WEST), ["us-east"], 100.0)["us-east"]
    assert there == pytest.approx(back)


def test_without_coordinates_of_both_ends_the_default_stands() -> None:
    rtt = initial_rtt_ms("us-east", (EU_WEST,), ["us-east", "eu-west", "mars"], 150.0)
    assert rtt == {"us-east": 1.0, "eu-west": 150.0, "mars": 150.0}


def test_antipodes_do_not_break_the_formula() -> None:
    poles = (RegionConfig("n", 90.0, 0.0), RegionConfig("s", -90.0, 0.0))
    assert initial_rtt_ms("n", poles, ["s"], 0.0)["s"] == pytest.approx(301, abs=2)
