"""How many replicas there should be."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from outrider.errors import ConfigError
from services.router.autoscale.advisor import (
    NUM_SLICES,
    AutoscaleAdvisor,
    FleetKey,
    FleetUsage,
    ScalingAdvice,
    SlidingWindow,
    fleet_usage,
    utilization,
)
from services.router.autoscale.policy import AutoscalePolicy
from services.router.fleet.replica import ReplicaLoad

FLEET = FleetKey("us", "m")
POLICY = AutoscalePolicy(min_replicas=2, max_replicas=12)
STEP_S = 5


class Region:
    """Replicas that come when they are wanted, a while later, and go at once."""

    def __init__(self, num_replicas: int = 4, starts_s: float = 60.0, **policy: Any) -> None:
        self.policy = AutoscalePolicy(**{"min_replicas": 2, "max_replicas": 12, **policy})
        self.advisor = AutoscaleAdvisor(self.policy)
        self.now = 0.0
        self.num_replicas = num_replicas
        self.starts_s = starts_s
        self.wanted: list[tuple[float, int]] = []
        self.advice: list[ScalingAdvice] = []
        self.step(0.4 * num_replicas, 0.0)

    def step(self, load: float, late: float) -> ScalingAdvice:
        """A step with `load` replicas' worth of work, of whose ten requests so many are late."""
        for count in range(10):
            ttft_ms = 500.0 if count < 10 * late else 50.0
            self.advisor.record_ttft(FLEET, ttft_ms, self.now)
        usage = FleetUsage(self.num_replicas, load / self.num_replicas)
        advice = self.advisor.advise({FLEET: usage}, self.now)[FLEET]
        self.advice.append(advice)
        self.wanted.append((self.now + self.starts_s, advice.desired_replicas))
        desired = advice.desired_replicas
        if desired < self.num_replicas:
            self.num_replicas = desired
        ready = [num for at, num in self.wanted if at <= self.now]
        self.num_replicas = max(self.num_replicas, min([*ready[-1:], desired]) if ready else 0)
        self.now += STEP_S
        return advice

    def run(self, seconds: int, load: float, late: float = 0.0) -> int:
        """The number wanted in the end."""
        for _ in range(seconds // STEP_S):
            self.step(load, late)
        return self.advice[-1].desired_replicas

    @property
    def changes(self) -> list[tuple[int, int]]:
        """When the number changed, and to what."""
        desired = [advice.desired_replicas for advice in self.advice]
        return [
            (STEP_S * i, desired[i]) for i in range(1, len(desired)) if desired[i] != desired[i - 1]
        ]


def test_at_first_as_many_as_there_are() -> None:
    assert Region(5).run(60, load=2.5) == 5


def test_late_requests_make_it_grow_to_the_target() -> None:
    region = Region(4)
    assert region.run(100, load=4.2) == 4
    assert region.run(30, load=4.2, late=0.2) == 6
    assert region.advice[-1].late_share == pytest.approx(0.1, abs=0.02)
    assert region.advice[-1].utilization == pytest.approx(1.05)


def test_few_late_requests_do_not() -> None:
    advisor = AutoscaleAdvisor(POLICY)
    usage = {FLEET: FleetUsage(4, 1.0)}
    advisor.advise(usage, 0.0)
    for count in range(1000):
        advisor.record_ttft(FLEET, 121.0 if count % 20 == 0 else 120.0, 30.0)
    assert advisor.advise(usage, 31.0)[FLEET].desired_replicas == 4
    advisor.record_ttft(FLEET, 121.0, 32.0)
    assert advisor.advise(usage, 33.0)[FLEET].desired_replicas == 6


@pytest.mark.parametrize(
    ("settings", "is_late"),
    [
        ({}, False),
        ({"counts_prompt": True}, True),
        ({"counts_round_trip": True}, True),
        ({"counts_round_trip": True, "slo_ttft_ms": 150.0}, False),
        ({"slo_ttft_ms": 29.0}, True),
    ],
)
def test_what_more_replicas_do_not_shorten_is_left_out_unless_asked_for(
    settings: dict[str, Any], is_late: bool
) -> None:
    """A slow model with a long prompt, far away, on a replica that has little else to do."""
    advisor = AutoscaleAdvisor(AutoscalePolicy(**settings))
    usage = {FLEET: FleetUsage(4, 0.8)}
    advisor.advise(usage, 0.0)
    for _ in range(POLICY.min_requests):
        advisor.record_ttft(FLEET, 330.0, 1.0, prompt_ms=200.0, round_trip_ms=100.0)
    advice = advisor.advise(usage, 1.0)[FLEET]
    assert advice.late_share == is_late and (advice.desired_replicas > 4) is is_late


def test_too_few_requests_say_nothing() -> None:
    advisor = AutoscaleAdvisor(POLICY)
    usage = {FLEET: FleetUsage(4, 1.0)}
    advisor.advise(usage, 0.0)
    for count in range(POLICY.min_requests):
        assert advisor.advise(usage, 1.0)[FLEET].desired_replicas == 4, count
        advisor.record_ttft(FLEET, 9999.0, 1.0)
    assert advisor.advise(usage, 1.0)[FLEET].desired_replicas > 4


def test_it_grows_by_one_at_least_and_to_twice_at_most() -> None:
    assert Region(4).run(40, load=2.4, late=1.0) == 5
    assert Region(4).run(20, load=400.0, late=1.0) == 8


def test_requests_that_are_late_for_being_long_do_not_make_it_grow() -> None:
    assert Region(4).run(300, load=0.4, late=1.0) == 4


def test_it_waits_for_what_it_asked_for() -> None:
    region = Region(2, starts_s=60.0)
    region.run(400, load=8.0, late=1.0)
    (first, six), *_ = region.changes
    assert six == 4
    pauses_s = [after - before for (before, _), (after, _) in pairwise(region.changes)]
    assert min(pauses_s) >= region.policy.out_cooldown_s
    assert first <= 2 * STEP_S
    assert region.advice[-1].desired_replicas == 12


def test_replicas_that_never_come_are_not_asked_for_again_and_again() -> None:
    region = Region(4, starts_s=math.inf)
    assert region.run(2000, load=8.0, late=1.0) == 8


def test_requests_that_found_no_room_count_as_late() -> None:
    advisor = AutoscaleAdvisor(POLICY)
    usage = {FLEET: FleetUsage(2, 1.0)}
    advisor.advise(usage, 0.0)
    for _ in range(POLICY.min_requests):
        advisor.record_shortage(FLEET, 1.0)
    assert advisor.advise(usage, 1.0)[FLEET].desired_replicas == 3


def test_long_idleness_makes_it_shrink_to_what_the_busiest_part_needed() -> None:
    region = Region(12)
    region.run(300, load=4.0)
    region.run(290, load=2.0)
    assert region.changes == []
    region.run(3000, load=2.0)
    (at, first), (later, second) = region.changes
    assert (first, second) == (8, 4), "the busiest part would have been at half"
    assert at >= region.policy.idle_s and later - at >= region.policy.in_cooldown_s


def crowd(count: int, num_replicas: int = 2) -> dict[FleetKey, FleetUsage]:
    """Replicas with eight places each before so many sessions."""
    slots = 8 * num_replicas
    return {FLEET: FleetUsage(num_replicas, count / slots, count, slots)}


def test_a_crowd_makes_it_grow_at_once_and_as_far_as_needed() -> None:
    """None of them has had its first token yet, and the last change was a moment ago."""
    advisor = AutoscaleAdvisor(POLICY)
    assert advisor.advise(crowd(10), 0.0)[FLEET].desired_replicas == 2
    assert advisor.advise(crowd(17), 20.0)[FLEET].desired_replicas == 3
    assert advisor.advise(crowd(60), 31.0)[FLEET].desired_replicas == 8
    assert advisor.advise(crowd(60), 32.0)[FLEET].desired_replicas == 8
    assert advisor.advise(crowd(99), 43.0)[FLEET].desired_replicas == 12, "the most there may be"


def test_a_moment_with_more_sessions_than_places_is_no_crowd() -> None:
    advisor = AutoscaleAdvisor(POLICY)
    for second in range(10):
        advisor.advise(crowd(12), float(second))
    assert advisor.advise(crowd(17), 10.0)[FLEET].desired_replicas == 2


@pytest.mark.parametrize("number", range(2, 12))
def test_no_change_is_so_small_that_kubernetes_leaves_it(number: int) -> None:
    """Its autoscaler's tolerance is a tenth."""
    advisor = AutoscaleAdvisor(AutoscalePolicy(max_replicas=50))
    advisor.advise(crowd(1, number), 0.0)
    slots = 8 * number
    usage = {FLEET: FleetUsage(number, 0.6, slots + 1, slots)}
    for second in range(20, 40):
        desired = advisor.advise(usage, float(second))[FLEET].desired_replicas
    assert desired / number > 1.1


def test_one_busy_stretch_keeps_them() -> None:
    region = Region(6)
    for _ in range(10):
        region.run(500, load=0.3)
        region.run(60, load=5.0)
    assert region.changes == []


def test_it_does_not_shrink_into_late_requests() -> None:
    """What is left after shrinking is below the target, so it does not swing."""
    region = Region(2, min_replicas=1, idle_utilization=0.6)
    assert region.run(5000, load=1.0) == 2
    assert Region(2, min_replicas=1).run(5000, load=0.6) == 2
    assert Region(2, min_replicas=1).run(5000, load=0.5) == 1


def test_replicas_that_somebody_else_starts_are_followed() -> None:
    region = Region(3)
    region.run(10, load=1.5)
    region.num_replicas = 7
    assert region.run(10, load=1.5) == 7


def test_fleets_without_replicas_are_forgotten() -> None:
    advisor = AutoscaleAdvisor(POLICY)
    other = FleetKey("eu", "m")
    advisor.record_ttft(other, 1.0, 0.0)  # not known yet
    assert set(advisor.advise({FLEET: FleetUsage(2, 0.1), other: FleetUsage(2, 0.1)}, 0.0)) == {
        FLEET,
        other,
    }
    assert set(advisor.advise({FLEET: FleetUsage(2, 0.1)}, 1.0)) == {FLEET}
    assert len(advisor._states) == 1


def test_a_moment_without_replicas_takes_back_no_advice() -> None:
    """Those that were advised are starting, in the middle of an overload."""
    advisor = AutoscaleAdvisor(POLICY)
    none = {FLEET: FleetUsage(0, 0.0)}
    assert advisor.advise(none, 0.0) == {}, "nobody knows how many there are about to be"
    advisor.advise({FLEET: FleetUsage(4, 1.0)}, 1.0)
    for _ in range(POLICY.min_requests):
        advisor.record_shortage(FLEET, 2.0)
    assert advisor.advise({FLEET: FleetUsage(4, 1.0)}, 3.0)[FLEET].desired_replicas == 6
    advised = ScalingAdvice(6, 0, 1.0, POLICY.min_requests, 1.0)
    assert advisor.advise(none, 4.0) == {FLEET: advised}
    assert advisor.advise(none, 3.0 + POLICY.out_cooldown_s)[FLEET].desired_replicas == 6
    assert advisor.advise({FLEET: FleetUsage(1, 4.0)}, 200.0)[FLEET].desired_replicas == 6


# --- scaled to zero ---

ASLEEP = {FLEET: FleetUsage(0, 0.0)}
IDLE = {FLEET: FleetUsage(1, 0.0, num_slots=8)}


def waiting(count: int) -> dict[FleetKey, FleetUsage]:
    return {FLEET: FleetUsage(0, 0.0, count)}


def woken(**policy: Any) -> AutoscaleAdvisor:
    return AutoscaleAdvisor(AutoscalePolicy(**policy), ["m"])


def desired(
    advisor: AutoscaleAdvisor, usage: dict[FleetKey, FleetUsage], until: float, since: float = 0.0
) -> int:
    """The number wanted in the end, reviewed every five seconds."""
    now = since
    while now < until:
        now += STEP_S
        advisor.advise(usage, now)
    return advisor.advise(usage, now)[FLEET].desired_replicas


def test_the_last_replica_goes_when_nobody_has_asked_for_as_long_as_idleness_takes() -> None:
    advisor = woken()
    assert desired(advisor, IDLE, POLICY.idle_s) == 1
    assert desired(advisor, IDLE, POLICY.idle_s + STEP_S, POLICY.idle_s) == 0
    assert desired(advisor, ASLEEP, 5000.0, POLICY.idle_s + STEP_S) == 0
    other = AutoscaleAdvisor(AutoscalePolicy(), ["another"])
    assert desired(other, IDLE, 5000.0) == 1, "this model is not scaled to zero"


def test_a_short_session_between_two_reports_keeps_the_last_replica() -> None:
    advisor = woken()
    desired(advisor, IDLE, 400.0)
    advisor.record_ttft(FLEET, 50.0, 400.0)
    assert desired(advisor, IDLE, 950.0, 400.0) == 1
    assert desired(advisor, IDLE, 1005.0, 950.0) == 0


def test_who_waits_wakes_one_where_it_is_unknown_how_many_fit_on_it() -> None:
    advisor = woken()
    assert advisor.advise(ASLEEP, 0.0)[FLEET].desired_replicas == 0
    assert advisor.advise(waiting(50), 1.0)[FLEET].desired_replicas == 1
    advice = AutoscaleAdvisor(AutoscalePolicy(), ["another"]).advise(waiting(50), 1.0)
    assert advice == {}, "as before"


def test_who_waits_wakes_as_many_as_they_fill_to_the_target() -> None:
    advisor = woken(max_replicas=9)
    assert desired(advisor, IDLE, POLICY.idle_s + STEP_S) == 0
    now = 2.0 * POLICY.idle_s
    for count, wanted in ((1, 1), (5, 1), (6, 2), (40, 8), (3, 8), (400, 9)):
        assert advisor.advise(waiting(count), now)[FLEET].desired_replicas == wanted, count
    assert advisor.advise(ASLEEP, now)[FLEET].desired_replicas == 9, "they are starting"


def test_one_that_was_woken_for_nobody_goes_again() -> None:
    advisor = woken()
    advisor.advise(waiting(1), 0.0)
    assert desired(advisor, IDLE, POLICY.idle_s - STEP_S) == 1
    assert desired(advisor, IDLE, POLICY.idle_s + STEP_S, POLICY.idle_s - STEP_S) == 0


@pytest.mark.parametrize("is_seen", [True, False], ids=["reported", "between two reports"])
def test_one_that_is_asked_before_it_has_gone_stays(is_seen: bool) -> None:
    advisor = woken()
    assert desired(advisor, IDLE, POLICY.idle_s + STEP_S) == 0
    now = POLICY.idle_s + 2 * STEP_S
    if not is_seen:
        advisor.record_ttft(FLEET, 50.0, now)
    usage = FleetUsage(1, 0.1, 1, num_slots=8) if is_seen else IDLE[FLEET]
    assert advisor.advise({FLEET: usage}, now)[FLEET].desired_replicas == 1
    forgotten = now + POLICY.idle_s - POLICY.idle_s / NUM_SLICES
    assert desired(advisor, IDLE, forgotten - STEP_S, now) == 1
    assert desired(advisor, IDLE, now + POLICY.idle_s + STEP_S, forgotten - STEP_S) == 0


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 50)), min_size=1, max_size=60))
@example([(1, 0)] * 5 + [(1, 1)])
def test_nobody_waits_without_a_replica_that_is_wanted(steps: list[tuple[int, int]]) -> None:
    advisor, now = woken(idle_s=20.0, in_cooldown_s=10.0), 0.0
    for num_replicas, num_waiting in steps:
        now += STEP_S
        busy = num_waiting / (8 * num_replicas) if num_replicas else 0.0
        usage = FleetUsage(num_replicas, busy, num_waiting, 8 * num_replicas)
        wanted = advisor.advise({FLEET: usage}, now)[FLEET].desired_replicas
        assert wanted or not num_waiting


@settings(max_examples=40)
@given(st.lists(st.tuples(st.floats(0.0, 20.0), st.floats(0.0, 1.0)), min_size=1, max_size=12))
def test_whatever_the_load_it_stays_in_bounds_and_does_not_swing(
    stretches: list[tuple[float, float]],
) -> None:
    region = Region(4)
    for load, late in stretches:
        region.run(150, load, late)
    for advice in region.advice:
        assert 2 <= advice.desired_replicas <= 12
    for (before, num), (after, then) in pairwise(region.changes):
        pause_s = region.policy.out_cooldown_s if then > num else region.policy.in_cooldown_s
        assert after - before >= pause_s


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ({"idle_utilization": 0.9}, "swings"),
        ({"max_replicas": 1, "min_replicas": 2}, "below min_replicas"),
    ],
)
def test_aims_that_cannot_work_are_refused(policy: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        AutoscalePolicy(**policy)


# --- usage ---


class Row:
    """As much of a replica as the advisor reads."""

    def __init__(
        self, region: str, load: ReplicaLoad | None, *, model: str = "m", up: bool = True
    ) -> None:
        self.region, self.model_name, self.load, self.takes_sessions = region, model, load, up


def test_fleets_are_regions_and_models_of_replicas_that_serve() -> None:
    busy = ReplicaLoad(running_sessions=6, queued_sessions=2, max_sessions=8)
    idle = ReplicaLoad(max_sessions=8)
    rows: list[Any] = [
        Row("us", busy),
        Row("us", idle),
        Row("us", busy, up=False),
        Row("eu", None),
        Row("eu", busy, model="other"),
        Row("ap", busy, up=False),
        Row("", busy),
        Row("us", busy, model=""),
    ]
    found = fleet_usage(rows, {FleetKey("us", "m"): 4, FleetKey("us", "other"): 9}, 120.0)
    assert found == {
        FleetKey("us", "m"): FleetUsage(2, 12 / 16, 12, 16),
        FleetKey("eu", "m"): FleetUsage(1, 0.0),
        FleetKey("eu", "other"): FleetUsage(1, 1.0, 8, 8),
        FleetKey("ap", "m"): FleetUsage(0, 0.0),
    }


def test_a_fleet_that_is_scaled_to_zero_counts_those_who_wait_for_it() -> None:
    key = FleetKey("us", "m")
    assert fleet_usage([], {key: 4}, 120.0, [key]) == {key: FleetUsage(0, 0.0, 4)}
    assert fleet_usage([], {key: 4}, 120.0) == {}


@pytest.mark.parametrize(
    ("loads", "num_waiting", "expected"),
    [
        ([ReplicaLoad()], 0, 0.0),
        ([ReplicaLoad(running_sessions=4, max_sessions=16)], 0, 0.25),
        ([ReplicaLoad(running_sessions=16, max_sessions=16)], 16, 2.0),
        ([ReplicaLoad(queued_prompt_tokens=60, row_ms=1.0, max_sessions=16)], 0, 0.5),
        ([ReplicaLoad(queued_prompt_tokens=240, row_ms=1.0), ReplicaLoad()], 0, 1.0),
    ],
)
def test_sessions_or_prompts_whichever_is_more(
    loads: list[ReplicaLoad], num_waiting: int, expected: float
) -> None:
    assert utilization(loads, num_waiting, 120.0) == pytest.approx(expected)


# --- SlidingWindow ---


def test_an_empty_one_says_nothing() -> None:
    window = SlidingWindow(60.0)
    assert window.late_share(0.0) == (0.0, 0)
    assert window.utilization(0.0) == window.peak(0.0) == 0.0


def test_the_peak_is_that_of_the_busiest_slice() -> None:
    window = SlidingWindow(60.0)
    for now in range(60):
        window.record_utilization(0.9 if 20 <= now < 25 else 0.1, float(now))
    assert window.peak(59.0) == pytest.approx(0.9)
    assert window.utilization(59.0) == pytest.approx((5 * 0.9 + 55 * 0.1) / 60)
    assert window.peak(85.1) == pytest.approx(0.1)


@given(st.lists(st.tuples(st.floats(0.0, 20.0), st.booleans()), max_size=100))
def test_it_holds_the_last_while_and_no_more_than_its_slices(
    requests: list[tuple[float, bool]],
) -> None:
    window, now, came = SlidingWindow(60.0), 0.0, []
    for pause_s, is_late in requests:
        now += pause_s
        window.record_request(is_late, now)
        came.append((now, is_late))
        share, num = window.late_share(now)
        assert len(window._slices) <= NUM_SLICES
        assert sum(now - at < 60.0 - 60.0 / NUM_SLICES for at, _ in came) <= num
        assert num <= sum(now - at < 60.0 for at, _ in came)
        late = [is_late for _, is_late in came[len(came) - num :]]
        assert share == pytest.approx(sum(late) / num)
