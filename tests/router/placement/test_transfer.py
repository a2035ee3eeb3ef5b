"""Whether a replica computes a prompt or asks another one for its KV."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.peers.health import PeerState
from services.router.fleet.replica import ServedModel
from services.router.placement.types import KvSource
from tests.router.placement.fleet import BLOCK, LOAD, MODEL, Town, mover

IDS = list(range(20 * BLOCK))
QUICK = replace(LOAD, peer_block_ms=1.0, peer_first_ms=2.0)
FULL = replace(LOAD, running_sessions=8, max_sessions=8)


def test_nothing_is_reckoned_with_that_is_not_known() -> None:
    """It is told all the same who has the prompt: that is how it comes to know."""
    town = Town(mover("a"), mover("b", FULL))
    town.hold("b", IDS)
    found = town.decide(town.asking(IDS))
    assert (found.replica, found.wait.transfer_ms) == ("a", 0.0)
    assert found.wait.prefill_ms == 20 * BLOCK + 2 * 10.0
    assert found.kv_source == KvSource("b", 20 * BLOCK)


def test_it_moves_where_that_is_sooner() -> None:
    town = Town(mover("a", QUICK), mover("b", FULL))
    town.hold("b", IDS[: 10 * BLOCK])
    found = town.decide(town.asking(IDS))
    assert found.replica == "a"
    compute_ms, load_ms = 340.0 - 170.0, 10 * 1.0
    moved_ms = compute_ms * (load_ms + 2.0) / (compute_ms + load_ms)
    assert found.wait.transfer_ms == pytest.approx(moved_ms) and found.wait.prefill_ms == 170.0


def test_what_was_sent_counts_with_the_time_that_its_kv_takes() -> None:
    town = Town(mover("a", QUICK), mover("b", FULL))
    town.hold("b", IDS[: 10 * BLOCK])
    asking = town.asking(IDS)
    wait = town.decide(asking).wait
    assert wait.transfer_ms > 0.0
    assert town.send(asking) == "a"
    status = town.placement.statuses(town.now)["a"]
    assert status.wait.queue_ms == pytest.approx(wait.transfer_ms + wait.prefill_ms)


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (PeerState.DRAINING, True),
        (PeerState.READY, True),
        (PeerState.DOWN, False),
        (PeerState.CONNECTING, False),
    ],
)
def test_who_takes_no_sessions_may_still_have_kv(state: PeerState, expected: bool) -> None:
    town = Town(mover("a", QUICK), mover("b", FULL, state=state))
    town.hold("b", IDS)
    found = town.decide(town.asking(IDS))
    assert found.replica == "a" and (found.kv_source is not None) == expected
    assert (found.wait.transfer_ms > 0.0) == expected


@pytest.mark.parametrize(
    "model",
    [
        replace(MODEL, identity=b"j" * 32),
        replace(MODEL, identity=b""),
        replace(MODEL, identity=b"i" * 32, vocabulary_digest=b"v" * 32),
        replace(MODEL, identity=b"i" * 32, name="other"),
    ],
)
def test_kv_of_other_numbers_is_nobodys(model: ServedModel) -> None:
    town = Town(mover("a", QUICK), mover("b", FULL, model=model))
    town.hold("b", IDS)
    found = town.decide(town.asking(IDS))
    assert found.replica == "a" and found.kv_source is None and not found.wait.transfer_ms


def test_the_nearest_of_those_that_have_most_is_asked() -> None:
    town = Town(
        mover("a", QUICK),
        mover("far", FULL, rtt_ms=30.0),
        mover("near", FULL, rtt_ms=2.0),
        mover("less", FULL),
    )
    for name, count in (("far", 20), ("near", 20), ("less", 19)):
        town.hold(name, IDS[: count * BLOCK])
    assert town.decide(town.asking(IDS)).kv_source == KvSource("near", 20 * BLOCK)


def test_less_than_a_block_is_nothing() -> None:
    town = Town(mover("a", QUICK), mover("b", FULL))
    for name in ("a", "b"):
        town.hold(name, IDS[:BLOCK])
    assert town.decide(town.asking(IDS)).kv_source is None
    assert town.decide(town.asking(IDS, b"another group")).kv_source is None


def test_another_region_is_as_far_as_this_router_knows() -> None:
    def moved_ms(region: str) -> float:
        town = Town(mover("a", QUICK, rtt_ms=5.0), mover("b", FULL, rtt_ms=7.0, region=region))
        town.hold("b", IDS)
        return town.decide(town.asking(IDS)).wait.transfer_ms

    compute_ms, load_ms = 340.0 - 11.0, 20.0
    more_ms = compute_ms * 12.0 / (compute_ms + load_ms)
    assert moved_ms("eu") == pytest.approx(moved_ms("us-east") + more_ms)


@given(
    st.floats(0, 500), st.floats(0, 5000), st.integers(0, 60), st.integers(0, 60),
    st.floats(0, 20), st.floats(0.01, 5),
)  # fmt: skip
def test_it_is_never_predicted_to_take_longer_than_computing(
    block_ms: float, first_ms: float, held: int, cached: int, fixed_ms: float, row_ms: float
) -> None:
    """And the more it takes to move, the longer."""
    ids = list(range(50 * BLOCK + 3))

    def wait_ms(block_ms: float, first_ms: float) -> float:
        load = replace(LOAD, fixed_ms=fixed_ms, row_ms=row_ms)
        told = replace(load, peer_block_ms=block_ms, peer_first_ms=first_ms)
        town = Town(mover("a", told), mover("b", replace(FULL, fixed_ms=fixed_ms, row_ms=row_ms)))
        town.hold("a", ids[: cached * BLOCK])
        town.hold("b", ids[: held * BLOCK])
        found = town.decide(town.asking(ids))
        assert found.replica == "a"
        return found.wait.total_ms

    computed_ms = wait_ms(0.0, 0.0)
    moved_ms = wait_ms(block_ms, first_ms)
    assert moved_ms <= computed_ms * (1 + 1e-9)
    if block_ms:
        assert wait_ms(2 * block_ms, first_ms + 1.0) >= moved_ms * (1 - 1e-9)
