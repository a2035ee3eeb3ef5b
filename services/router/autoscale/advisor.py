"""How many replicas each region should have of each model. Pure.

More are advised when too large a share of requests was late, as many as bring utilisation to the
target, at least one more (the rule of Kubernetes' horizontal pod autoscaler); and at once, however
many, when there are more sessions than places. Fewer are advised when fewer would have been enough
in the busiest part of a long time. Late requests alone ask for more, and a pause after each change
keeps the number from swinging.

Models that are scaled to zero lose their last replica when nobody has asked for them for that long,
and get as many as the sessions that wait for one need.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from services.router.autoscale.policy import AutoscalePolicy
from services.router.fleet.replica import Replica, ReplicaLoad

NUM_SLICES: Final = 12
"""Parts of a sliding window; the oldest is dropped as a whole."""
_CROWD_S: Final = 10.0
"""Time over which there have to be more sessions than places, on average."""
_TOLERANCE: Final = 0.1
"""Kubernetes' horizontal pod autoscaler leaves the number as it is if it would change by no more
than this share of it."""


class FleetKey(NamedTuple):
    """The replicas of one model in one region, which are scaled together."""

    region: str
    model: str


@dataclass(frozen=True, slots=True)
class FleetUsage:
    """How many replicas serve, and how busy they are."""

    num_replicas: int
    """Replicas that take sessions now; 0: the fleet has replicas, but none takes sessions."""
    utilization: float
    """Used share of their capacity, waiting sessions included; it may exceed 1."""
    num_sessions: int = 0
    """Sessions that they run, that wait for a place on them, and in this router's queue."""
    num_slots: int = 0
    """Sessions that they run at once, all together; 0: not reported."""


@dataclass(frozen=True, slots=True)
class ScalingAdvice:
    """Advice for an autoscaler, and the figures it was computed from."""

    desired_replicas: int
    num_replicas: int
    late_share: float
    """Share of the window's requests that were late."""
    num_requests: int
    utilization: float
    """Mean over the window."""


class _FleetState:
    """State of one fleet between reviews."""

    def __init__(self, policy: AutoscalePolicy, num_replicas: int, now: float) -> None:
        self.recent = SlidingWindow(policy.window_s)
        self.long = SlidingWindow(policy.idle_s)
        self.crowd = SlidingWindow(_CROWD_S)
        """Of sessions over places."""
        self.desired = num_replicas
        self.created_at = now
        self.changed_at = -math.inf
        self.has_shrunk = False
        """Whether the last change was to fewer replicas."""
        self.replica_slots = 0.0
        """Sessions that a replica runs at once, by the last report; 0: none came yet."""

    def record_request(self, is_late: bool, now: float) -> None:
        """A request had its first token, or was refused."""
        self.recent.record_request(is_late, now)
        self.long.record_request(is_late, now)


class AutoscaleAdvisor:
    """Advice for every fleet. Methods take `now` in seconds."""

    def __init__(self, policy: AutoscalePolicy, wake_up_models: Collection[str] = ()) -> None:
        """`wake_up_models` are scaled to zero."""
        self._policy = policy
        self._wake_up_models = wake_up_models
        self._states: dict[FleetKey, _FleetState] = {}

    def record_ttft(
        self,
        fleet: FleetKey,
        ttft_ms: float,
        now: float,
        *,
        prompt_ms: float = 0.0,
        round_trip_ms: float = 0.0,
    ) -> None:
        """A request had its first token `ttft_ms` after it came. Of that, an idle replica would
        have needed `prompt_ms` to compute its prompt, and the network `round_trip_ms`."""
        state = self._states.get(fleet)
        if state is not None:
            policy = self._policy
            ttft_ms -= 0.0 if policy.counts_prompt else prompt_ms
            ttft_ms -= 0.0 if policy.counts_round_trip else round_trip_ms
            state.record_request(ttft_ms > policy.slo_ttft_ms, now)

    def record_shortage(self, fleet: FleetKey, now: float) -> None:
        """Record that a request was refused or sent to another region for lack of room."""
        state = self._states.get(fleet)
        if state is not None:
            state.record_request(True, now)

    def advise(
        self, fleets: Mapping[FleetKey, FleetUsage], now: float
    ) -> dict[FleetKey, ScalingAdvice]:
        """Compute the advice for these fleets; all others are forgotten. A fleet whose replicas
        have never taken sessions gets no advice, unless it is scaled to zero: how many are about to
        start is unknown. Call it about once a second."""
        self._states = {key: state for key, state in self._states.items() if key in fleets}
        known = {
            key: usage
            for key, usage in fleets.items()
            if usage.num_replicas or key in self._states or self._is_woken(key)
        }
        return {key: self._advice(key, usage, now) for key, usage in known.items()}

    def _advice(self, key: FleetKey, usage: FleetUsage, now: float) -> ScalingAdvice:
        state = self._states.get(key)
        if state is None:
            first = self._clamped(key, usage.num_replicas)
            state = self._states[key] = _FleetState(self._policy, first, now)
        if not usage.num_replicas:
            # For a moment, maybe: what was advised stands, and those that are starting are wanted.
            if usage.num_sessions and self._is_woken(key):
                self._wake(key, state, usage, now)
            return self._told(state, usage, now)
        state.replica_slots = usage.num_slots / usage.num_replicas
        state.recent.record_utilization(usage.utilization, now)
        state.long.record_utilization(usage.utilization, now)
        if usage.num_slots:
            state.crowd.record_utilization(usage.num_sessions / usage.num_slots, now)
        if usage.num_replicas > state.desired and not state.has_shrunk:
            # Somebody else added replicas: they stay until they are idle.
            state.desired = self._clamped(key, usage.num_replicas)
        wanted = max(self._for_late(state, usage, now), self._for_crowd(state, usage, now))
        if not state.desired and (usage.num_sessions or state.recent.late_share(now)[1]):
            # It is scaled to zero, and asked before its last replica has gone.
            wanted = max(wanted, 1)
        if wanted:
            self._grow(key, state, wanted, now)
        else:
            self._shrink(key, state, usage, now)
        return self._told(state, usage, now)

    def _told(self, state: _FleetState, usage: FleetUsage, now: float) -> ScalingAdvice:
        late_share, num_requests = state.recent.late_share(now)
        return ScalingAdvice(
            desired_replicas=state.desired,
            num_replicas=usage.num_replicas,
            late_share=late_share,
            num_requests=num_requests,
            utilization=state.recent.utilization(now),
        )

    def _wake(self, key: FleetKey, state: _FleetState, usage: FleetUsage, now: float) -> None:
        """No replica takes sessions, and some wait for one."""
        slots = state.replica_slots * self._policy.target_utilization
        wanted = math.ceil(usage.num_sessions / slots) if slots else 1
        self._grow(key, state, max(1, wanted), now)

    def _for_late(self, state: _FleetState, usage: FleetUsage, now: float) -> int:
        """How many are wanted because requests are late; 0: they are not."""
        policy = self._policy
        late_share, num_requests = state.recent.late_share(now)
        if late_share <= policy.max_late_share or num_requests < policy.min_requests:
            return 0
        current = usage.num_replicas
        utilization = state.recent.utilization(now)
        if now - state.changed_at < policy.out_cooldown_s or utilization < policy.idle_utilization:
            return state.desired
        wanted = math.ceil(current * utilization / policy.target_utilization - 1e-9)
        return min(max(wanted, current + 1), math.ceil(current * policy.max_step))

    def _for_crowd(self, state: _FleetState, usage: FleetUsage, now: float) -> int:
        """How many are wanted because there are more sessions than places; 0: there are not.
        Replicas that are starting make no difference to the number of sessions, so this needs no
        pause after a change, and no limit."""
        crowd = state.crowd.utilization(now)
        if crowd <= 1.0:
            return 0
        return math.ceil(usage.num_replicas * crowd - 1e-9)

    def _grow(self, key: FleetKey, state: _FleetState, wanted: int, now: float) -> None:
        desired = self._clamped(key, wanted)
        if desired <= state.desired:
            return
        least = int(state.desired * (1 + _TOLERANCE)) + 1
        state.desired = self._clamped(key, max(wanted, least))
        state.changed_at = now
        state.has_shrunk = False

    def _shrink(self, key: FleetKey, state: _FleetState, usage: FleetUsage, now: float) -> None:
        policy = self._policy
        current = min(usage.num_replicas, state.desired)
        is_new = now - state.created_at < policy.idle_s
        if is_new or now - state.changed_at < policy.in_cooldown_s:
            return
        peak = state.long.peak(now)
        rest = math.ceil(current * peak / policy.idle_utilization - 1e-9)
        if not rest and state.long.late_share(now)[1]:
            rest = 1  # reports miss a short session between them
        desired = self._clamped(key, rest if self._is_woken(key) else max(1, rest))
        if desired < current * (1 - _TOLERANCE) and desired < state.desired:
            state.desired = desired
            state.changed_at = now
            state.has_shrunk = True

    def _is_woken(self, key: FleetKey) -> bool:
        return key.model in self._wake_up_models

    def _clamped(self, key: FleetKey, num_replicas: int) -> int:
        least = 0 if self._is_woken(key) else self._policy.min_replicas
        return min(max(num_replicas, least), self._policy.max_replicas)


@dataclass(slots=True)
class _Slice:
    """A twelfth of the window."""

    began_at: float
    num_requests: int = 0
    num_late: int = 0
    utilization_sum: float = 0.0
    num_samples: int = 0


class SlidingWindow:
    """Requests and utilisation over the last `window_s` seconds, to within one slice."""

    def __init__(self, window_s: float) -> None:
        self._slice_s = window_s / NUM_SLICES
        self._window_s = window_s
        self._slices: deque[_Slice] = deque()

    def record_request(self, is_late: bool, now: float) -> None:
        """A request had its first token, or was refused."""
        found = self._at(now)
        found.num_requests += 1
        found.num_late += is_late

    def record_utilization(self, utilization: float, now: float) -> None:
        """A sample of the utilisation."""
        found = self._at(now)
        found.utilization_sum += utilization
        found.num_samples += 1

    def late_share(self, now: float) -> tuple[float, int]:
        """Share of late requests, and the number of requests."""
        self._forget(now)
        num_requests = sum(part.num_requests for part in self._slices)
        num_late = sum(part.num_late for part in self._slices)
        return (num_late / num_requests if num_requests else 0.0), num_requests

    def utilization(self, now: float) -> float:
        """Mean of the samples."""
        self._forget(now)
        num_samples = sum(part.num_samples for part in self._slices)
        total = sum(part.utilization_sum for part in self._slices)
        return total / num_samples if num_samples else 0.0

    def peak(self, now: float) -> float:
        """Mean of the busiest slice."""
        self._forget(now)
        means = (
            part.utilization_sum / part.num_samples for part in self._slices if part.num_samples
        )
        return max(means, default=0.0)

    def _at(self, now: float) -> _Slice:
        if not self._slices or now - self._slices[-1].began_at >= self._slice_s:
            self._slices.append(_Slice(now))
            self._forget(now)
        return self._slices[-1]

    def _forget(self, now: float) -> None:
        while self._slices and now - self._slices[0].began_at >= self._window_s:
            self._slices.popleft()


def fleet_usage(
    replicas: Iterable[Replica],
    num_waiting: Mapping[FleetKey, int],
    slo_ms: float,
    woken: Iterable[FleetKey] = (),
) -> dict[FleetKey, FleetUsage]:
    """The usage of every fleet, from the load reports of its replicas that take sessions.
    `num_waiting`: sessions in this router's queue, by their home fleet. `slo_ms`: objective for the
    time to first token. `woken`: fleets that may have no replica at all."""
    loads_by_fleet: dict[FleetKey, list[ReplicaLoad]] = {key: [] for key in woken}
    for replica in replicas:
        if not (replica.model_name and replica.region):
            continue
        loads = loads_by_fleet.setdefault(FleetKey(replica.region, replica.model_name), [])
        if replica.takes_sessions:
            loads.append(replica.load or ReplicaLoad())
    return {
        key: _usage(loads, num_waiting.get(key, 0), slo_ms) for key, loads in loads_by_fleet.items()
    }


def _usage(loads: list[ReplicaLoad], num_waiting: int, slo_ms: float) -> FleetUsage:
    num_slots = sum(load.max_sessions for load in loads)
    num_sessions = sum(load.running_sessions + load.queued_sessions for load in loads)
    used = utilization(loads, num_waiting, slo_ms)
    return FleetUsage(len(loads), used, num_sessions + num_waiting, num_slots)


def utilization(loads: list[ReplicaLoad], num_waiting: int, slo_ms: float) -> float:
    """Used share of the replicas' capacity: sessions over slots, or the time of queued prompts
    over the objective, whichever is larger; 0 without replicas."""
    if not loads:
        return 0.0
    num_sessions = sum(load.running_sessions + load.queued_sessions for load in loads)
    num_slots = sum(load.max_sessions for load in loads)
    by_sessions = (num_sessions + num_waiting) / num_slots if num_slots else 0.0
    backlog_ms = sum(load.queued_prompt_tokens * load.row_ms for load in loads)
    by_prompts = backlog_ms / (len(loads) * slo_ms)
    return max(by_sessions, by_prompts)
