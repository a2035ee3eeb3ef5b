"""Each policy does on small fleets what its source says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from bench.oracle.policies import Gorgo, Policy, Scorers, SkyWalker, WaitAndWiden
from bench.scale.demand import BLOCK_TOKENS, Ask
from bench.scale.regions import REGIONS
from bench.scale.routers import Report, Site
from outrider.errors import NoReplicaError
from services.router.fleet.replica import ReplicaLoad
from services.router.prefix_index.kv_events import BlocksRemoved, BlocksStored

HOME = REGIONS[0].name
IDLE = ReplicaLoad(
    fixed_ms=10.0, row_ms=1.0, max_sessions=2, kv_blocks_total=100, kv_blocks_free=100
)
FULL = replace(IDLE, running_sessions=2, queued_sessions=1, queued_prompt_tokens=2000)
SITES = (
    Site("near-1", HOME, 1.0),
    Site("near-2", HOME, 1.0),
    Site("far", REGIONS[1].name, 80.0),
)


def ask(number: int = 1, at: float = 0.0, group: int = 0, num_blocks: int = 16) -> Ask:
    """A prompt of whole blocks that shares all of them with others of its group."""
    hashes = tuple(bytes([group, block]) for block in range(num_blocks))
    return Ask(number, at, 0, tuple(range(num_blocks * BLOCK_TOKENS)), hashes, 4)


def reported(policy: Policy, loads: dict[str, ReplicaLoad], now: float) -> None:
    policy.report([Report(name, load, ()) for name, load in loads.items()], now)


def policy_of(kind: type[Policy], sites: Sequence[Site] = SITES) -> Policy:
    made = kind(REGIONS[0], REGIONS[:2], 1)
    for site in sites:
        made.connect(site, 0.0)
    reported(made, {site.name: IDLE for site in sites}, 0.0)
    return made


def stored(policy: Policy, name: str, of: Ask, now: float) -> None:
    events = (BlocksStored(b"", of.hashes, len(of.hashes) * BLOCK_TOKENS),)
    policy.report([Report(name, policy.seen[name].load, events)], now)


ALL = (Gorgo, SkyWalker, Scorers, WaitAndWiden)


@pytest.mark.parametrize("kind", ALL)
def test_nobody_places_without_a_replica(kind: type[Policy]) -> None:
    policy = policy_of(kind)
    for site in SITES:
        policy.lose(site.name, 0.0)
    with pytest.raises(NoReplicaError):
        policy.place(ask(), 1.0)


@pytest.mark.parametrize("kind", ALL)
def test_what_was_sent_counts_until_a_report_can_include_it(kind: type[Policy]) -> None:
    policy = policy_of(kind, SITES[:1])
    seen = policy.seen["near-1"]
    assert policy.place(ask(num_blocks=4), 1.0) == "near-1"
    assert (seen.num_sessions, seen.queued_tokens) == (1, 4 * BLOCK_TOKENS)
    reported(policy, {"near-1": IDLE}, 1.0005)
    assert seen.num_sessions == 1, "the report left before it came in"
    reported(policy, {"near-1": replace(IDLE, running_sessions=1)}, 1.05)
    assert (seen.num_sessions, seen.queued_tokens) == (1, 0)


def test_blocks_are_known_as_replicas_tell() -> None:
    policy = policy_of(Gorgo)
    seen = policy.seen["near-1"]
    asked = ask(num_blocks=4)
    stored(policy, "near-1", asked, 1.0)
    assert seen.uncached(asked) == 1, "the last token is always computed"
    policy.report([Report("near-1", IDLE, (BlocksRemoved(asked.hashes[2:]),))], 1.0)
    assert seen.uncached(asked) == 2 * BLOCK_TOKENS


def test_gorgo_goes_far_for_a_prefix_that_is_worth_the_way() -> None:
    policy = policy_of(Gorgo)
    long, short = ask(group=1), ask(2, group=2, num_blocks=2)
    for asked in (long, short):
        stored(policy, "far", asked, 0.0)
    assert policy.place(long, 1.0) == "far"
    assert str(policy.place(short, 1.0)).startswith("near")
    reported(policy, {"near-1": FULL, "near-2": IDLE}, 2.0)
    assert policy.place(ask(3, group=3), 2.0) == "near-2"


def test_skywalker_pushes_only_to_replicas_without_a_queue_the_own_region_first() -> None:
    policy = policy_of(SkyWalker)
    stored(policy, "far", ask(), 0.0)
    stored(policy, "near-2", ask(), 0.0)
    assert policy.place(ask(1), 1.0) == "near-2", "the one with its prefix"
    reported(policy, {"near-1": FULL, "near-2": FULL}, 1.1)
    assert policy.place(ask(2, at=1.1), 1.1) == "far"
    reported(policy, {"far": FULL}, 1.2)
    assert policy.place(ask(3, at=1.2), 1.2) is None
    assert list(policy.wake(1.3)) == []
    reported(policy, {"near-1": IDLE}, 1.4)
    assert [(it.number, name) for it, name in policy.wake(1.5)] == [(3, "near-1")]


def test_who_waits_is_served_in_order() -> None:
    policy = policy_of(SkyWalker, SITES[:1])
    reported(policy, {"near-1": FULL}, 0.0)
    assert [policy.place(ask(number, group=number), 1.0) for number in (1, 2, 3)] == [None] * 3
    policy.release(ask(2), 1.1)
    reported(policy, {"near-1": IDLE}, 1.2)
    assert [it.number for it, _ in policy.wake(1.3)] == [1, 3]


def test_scorers_keep_a_request_in_its_region_until_that_is_saturated() -> None:
    policy = policy_of(Scorers)
    stored(policy, "far", ask(), 0.0)
    assert str(policy.place(ask(1), 1.0)).startswith("near")
    stored(policy, "near-2", ask(group=5), 1.0)
    assert policy.place(ask(2, group=5), 1.1) == "near-2"
    saturated = replace(FULL, queued_sessions=5)
    reported(policy, {"near-1": saturated, "near-2": saturated}, 2.0)
    assert policy.place(ask(3), 2.0) == "far"


def test_a_prompt_waits_for_its_two_replicas_before_it_widens() -> None:
    policy = policy_of(WaitAndWiden)
    assert isinstance(policy, WaitAndWiden)
    asked = ask(1, at=1.0)
    group = policy._group(asked)
    assert len(group) == 2
    assert group == policy._group(ask(9, num_blocks=15)), "its beginning decides"
    (other,) = {site.name for site in SITES} - set(group)
    reported(policy, dict.fromkeys(group, FULL), 1.0)
    assert policy.place(asked, 1.0) is None
    assert list(policy.wake(1.1)) == []
    # 200 ms for the two, then a quarter of what the other one would take longer.
    assert [name for _, name in policy.wake(3.0)] == [other]
