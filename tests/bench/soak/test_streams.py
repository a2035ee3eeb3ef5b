"""Whether memory is flat, and the streams themselves in small."""

from __future__ import annotations

import pytest

from bench.peers.routing.fleets import Pace
from bench.soak.streams import Streams, flatness, growth


def test_flatness_is_the_farthest_from_the_mean() -> None:
    assert flatness([100.0, 100.0]) == 0.0
    assert flatness([90.0, 100.0, 110.0]) == pytest.approx(0.1)


def test_growth_compares_the_end_with_the_beginning() -> None:
    assert growth([100.0] * 10) == 0.0
    assert growth([100.0, 100.0, 105.0, 110.0, 110.0]) == pytest.approx(0.1)


async def test_streams_stay_as_many_and_end_whole() -> None:
    tally = await Streams(12, 1, Pace(1.0, 0.0)).run(0.5, warm_up_s=0.5)
    assert tally.ends["finished"] >= 12
    assert set(tally.ends) == {"finished"}
    assert tally.wrong == 0
    assert set(tally.rss_mib) == {"router", "replica"}
    assert all(sample > 1 for samples in tally.rss_mib.values() for sample in samples)
