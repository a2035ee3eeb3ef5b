"""Round trips guessed from coordinates."""

from __future__ import annotations

import pytest

from services.router.fleet.entries import RegionConfig
from services.router.fleet.geography import Geography

US_EAST = RegionConfig("us-east", 39.0, -77.5)
EU_WEST = RegionConfig("eu-west", 53.3, -6.3)
AP_SOUTHEAST = RegionConfig("ap-southeast", 1.35, 103.8)


def test_the_guess_grows_with_distance_and_is_of_the_right_size() -> None:
    here = Geography("us-east", (US_EAST, EU_WEST, AP_SOUTHEAST), 100.0)
    assert here.rtt_ms("us-east") == 1.0
    # Measured between the clouds' regions of these places: about 70 and 215 to 230 ms.
    assert here.rtt_ms("eu-west") == pytest.approx(82, abs=15)
    assert here.rtt_ms("ap-southeast") == pytest.approx(233, abs=25)


def test_without_coordinates_of_both_ends_the_default_stands() -> None:
    here = Geography("us-east", (EU_WEST,), 150.0)
    guesses = [here.rtt_ms(name) for name in ("us-east", "eu-west", "mars")]
    assert guesses == [1.0, 150.0, 150.0]


def test_antipodes_do_not_break_the_formula() -> None:
    poles = (RegionConfig("n", 90.0, 0.0), RegionConfig("s", -90.0, 0.0))
    assert Geography("n", poles, 0.0).rtt_ms("s") == pytest.approx(301, abs=2)
