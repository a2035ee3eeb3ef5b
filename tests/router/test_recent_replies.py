"""What `outrider status` shows of the last minute."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from services.router import recent_replies
from services.router.autoscale.advisor import FleetKey
from services.router.recent_replies import MAX_KEPT, WINDOW_S, Recent, RecentReplies, Reply

HERE, THERE = FleetKey("us", "m"), FleetKey("eu", "m")


@given(st.lists(st.tuples(st.floats(0, 200), st.floats(0, 1e5)), max_size=60))
def test_percentiles_are_of_the_window_alone(found: Sequence[tuple[float, float]]) -> None:
    replies = RecentReplies()
    for at, ttft_ms in sorted(found):
        replies.first_token(HERE, ttft_ms, at)
    now = 200.0
    kept = sorted(ttft_ms for at, ttft_ms in found if at > now - WINDOW_S)
    told = replies.of(HERE, now)
    assert told.num_first_tokens == len(kept)
    for share, value in ((0.5, told.ttft_p50_ms), (0.95, told.ttft_p95_ms)):
        if kept:
            assert sum(it <= value for it in kept) >= math.ceil(share * len(kept))
            assert sum(it < value for it in kept) < math.ceil(share * len(kept))
        else:
            assert value == 0.0


def test_replies_are_summed_by_fleet() -> None:
    replies = RecentReplies()
    replies.ended(HERE, Reply(10, 4, 3), 1.0)
    replies.ended(HERE, Reply(5, 0, 0), 2.0)
    replies.ended(THERE, Reply(1, 1, 0), 2.0)
    assert replies.of(HERE, 3.0) == Recent(num_ended=2, totals=Reply(15, 4, 3))
    assert replies.of(HERE, 1.0 + WINDOW_S).totals == Reply(5, 0, 0)
    assert replies.of(FleetKey("us", "other"), 3.0) == Recent()


def test_what_is_kept_is_bounded() -> None:
    replies = RecentReplies()
    for number in range(MAX_KEPT + 5):
        replies.first_token(HERE, float(number), 1.0)
        replies.ended(HERE, Reply(1, 0, 0), 1.0)
    told = replies.of(HERE, 1.0)
    assert (told.num_first_tokens, told.num_ended) == (MAX_KEPT, MAX_KEPT)


def test_the_fleet_that_is_longest_idle_is_forgotten_first() -> None:
    replies = RecentReplies()
    replies.first_token(HERE, 1.0, 1.0)
    replies.first_token(THERE, 1.0, 1.0)
    replies.first_token(HERE, 1.0, 1.0)
    for number in range(recent_replies.MAX_FLEETS - 1):
        replies.first_token(FleetKey(f"region-{number}", "m"), 1.0, 1.0)
    assert replies.of(THERE, 1.0) == Recent()
    assert replies.of(HERE, 1.0).num_first_tokens == 2
