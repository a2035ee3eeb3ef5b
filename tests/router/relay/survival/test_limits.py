"""How many may move, and how long a replica may be silent."""

from __future__ import annotations

from services.router.relay.survival.budget import MoveBudget, MovePolicy
from services.router.relay.survival.silence import Silence, SilencePolicy


def test_moves_within_the_window_are_a_share_of_the_sessions_and_some_more() -> None:
    budget = MoveBudget(MovePolicy(share=0.5, least=3, window_s=10.0))
    for second in range(8):
        assert budget.allows(10, float(second))
        budget.spend(float(second))
    assert not budget.allows(10, 9.9)
    assert budget.allows(12, 9.9), "more sessions, more moves"
    assert budget.allows(10, 10.0), "the first one is forgotten"


def test_a_replica_may_be_silent_for_as_long_as_its_calls_take() -> None:
    silence = Silence(SilencePolicy(least_s=2.0, num_calls=20.0))
    assert silence.limit_s(fixed_ms=10.0, row_ms=0.1) == 2.0
    assert silence.limit_s(fixed_ms=50.0, row_ms=1.0) == 20 * (50 + 256) / 1000


def test_any_frame_is_a_sign_of_life() -> None:
    silence = Silence(SilencePolicy())
    silence.heard(1, 5.0)
    assert not silence.is_quiet(1, 2.0, 6.9)
    assert silence.is_quiet(1, 2.0, 7.0)
    silence.detached(1)
    assert silence.is_quiet(1, 2.0, 5.0), "nothing was heard of it yet"
