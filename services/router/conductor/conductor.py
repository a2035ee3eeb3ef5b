"""How many replicas a region should have of a model. Pure.

Out by the objective: when more than a share of requests was late. How far, by utilisation: as many
as bring it to the target, one more at least (the rule of Kubernetes' horizontal autoscaler). In by
utilisation alone: when the busiest stretch of a long time would still have been idle, one at a
time. Between the two lies a gap, after each change a pause, so that the number does not swing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from services.router.conductor.policy import ConductorPolicy
from services.router.conductor.window import Window


class Post(NamedTuple):
    """What is scaled as one."""

    region: str
    model: str


@dataclass(frozen=True, slots=True)
class Fleet:
    """The replicas of one post."""

    num_replicas: int
    """Those that serve now."""
    utilization: float
    """Of 1, how far they are taken up, with those who wait for them; it may exceed 1."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What an autoscaler reads, and what it was reckoned from."""

    desired_replicas: int
    num_replicas: int
    late_share: float
    """Of the requests of the window."""
    num_requests: int
    utilization: float
    """Mean over the window."""


class _State:
    """What is remembered of one post."""

    def __init__(self, policy: ConductorPolicy, num_replicas: int, now: float) -> None:
        self.recent = Window(policy.window_s)
        self.long = Window(policy.idle_s)
        self.desired = num_replicas
        self.since = now
        self.changed_at = -math.inf
        self.was_cut = False
        """Whether the last change was to fewer."""


class Conductor:
    """The figures of every post. Verbs take `now` in seconds."""

    def __init__(self, policy: ConductorPolicy) -> None:
        self._policy = policy
        self._states: dict[Post, _State] = {}

    def first_token(self, post: Post, ttft_ms: float, now: float) -> None:
        """A request had its first token after so long, the way to the replica left out."""
        state = self._states.get(post)
        if state is not None:
            state.recent.request(ttft_ms > self._policy.slo_ttft_ms, now)

    def lacked(self, post: Post, now: float) -> None:
        """A request was refused or sent to another region for want of room."""
        state = self._states.get(post)
        if state is not None:
            state.recent.request(True, now)

    def review(self, fleets: Mapping[Post, Fleet], now: float) -> dict[Post, Figures]:
        """The figures of these posts; others are forgotten. To be called every second or so."""
        self._states = {post: s for post, s in self._states.items() if post in fleets}
        return {post: self._figures(post, fleet, now) for post, fleet in fleets.items()}

    def _figures(self, post: Post, fleet: Fleet, now: float) -> Figures:
        state = self._states.get(post)
        if state is None:
            first = self._clamped(fleet.num_replicas)
            state = self._states[post] = _State(self._policy, first, now)
        state.recent.look(fleet.utilization, now)
        state.long.look(fleet.utilization, now)
        share, num_requests = state.recent.late(now)
        self._follow(state, fleet)
        if share > self._policy.max_late_share and num_requests >= self._policy.min_requests:
            self._grow(state, fleet, now)
        else:
            self._shrink(state, fleet, now)
        return Figures(
            state.desired, fleet.num_replicas, share, num_requests, state.recent.utilization(now)
        )

    def _follow(self, state: _State, fleet: Fleet) -> None:
        """Replicas that somebody else added are there to stay until they idle."""
        if fleet.num_replicas > state.desired and not state.was_cut:
            state.desired = self._clamped(fleet.num_replicas)

    def _grow(self, state: _State, fleet: Fleet, now: float) -> None:
        policy, current = self._policy, max(1, fleet.num_replicas)
        utilization = state.recent.utilization(now)
        if now - state.changed_at < policy.out_cooldown_s or utilization < policy.idle_utilization:
            return
        wanted = math.ceil(current * utilization / policy.target_utilization - 1e-9)
        wanted = min(max(wanted, current + 1), math.ceil(current * policy.max_step))
        desired = self._clamped(wanted)
        if desired > state.desired or state.was_cut:
            state.desired, state.changed_at, state.was_cut = desired, now, False

    def _shrink(self, state: _State, fleet: Fleet, now: float) -> None:
        policy, current = self._policy, min(fleet.num_replicas, state.desired)
        is_new = now - state.since < policy.idle_s
        if is_new or now - state.changed_at < policy.in_cooldown_s:
            return
        peak = state.long.peak(now)
        if peak >= policy.idle_utilization:
            return
        # With one less the same load must not make the rest anything but idle enough.
        rest = current - 1
        if rest < 1 or peak * current / rest > policy.target_utilization:
            return
        desired = self._clamped(rest)
        if desired < state.desired:
            state.desired, state.changed_at, state.was_cut = desired, now, True

    def _clamped(self, num_replicas: int) -> int:
        return min(max(num_replicas, self._policy.min_replicas), self._policy.max_replicas)
