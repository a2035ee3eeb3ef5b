"""A StatefulSet of replicas, our router before it, its clients, and an autoscaler: one day.

A pod takes `start_s` until it serves. One that goes, the highest ordinal first, takes no more chats
and lets those it has end within its `drain_s`; the rest move to others with all tokens that they
have. One that is killed loses nothing that was committed, and is started again in its place.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial

from bench.autoscale.policies import ReplicaSample, Sample, ScalingPolicy
from bench.autoscale.replicas import FluidReplica
from bench.autoscale.router import ScaledRouter
from bench.oracle.replicas import MAX_SESSIONS, Speed
from bench.scale.clock import Clock
from bench.scale.demand import Ask
from bench.scale.regions import LOCAL_RTT_MS, REGIONS
from bench.scale.replicas import Hooks
from bench.scale.routers import Report, Site
from outrider.errors import OutriderError

REGION = REGIONS[0]
_ONE_WAY_S = LOCAL_RTT_MS / 2e3
_REPORT_S = 1.0
"""Time between two reports of a replica: its longest, as a day of short ones would take hours."""
_REVIEW_S = 5.0
"""Time between two looks of an autoscaler's loops at their own clocks."""
_PATIENCE_S = 300.0
"""Time for which a refused client tries again when it is told to."""
_RETRY_S = 1.0
"""Time after which it tries again if it is not told when."""
_ARRIVED_S = 60.0


class PodState(Enum):
    """What becomes of a replica."""

    STARTING = auto()
    READY = auto()
    DRAINING = auto()
    GONE = auto()


class Pod:
    """One pod of the set."""

    def __init__(self, ordinal: int, began_at: float) -> None:
        self.ordinal = ordinal
        self.name = f"inference-{ordinal}"
        self.began_at = began_at
        self.state = PodState.STARTING
        self.replica: FluidReplica | None = None
        self.asks: dict[int, Ask] = {}
        """Chats that it was given and that have not ended."""


@dataclass(frozen=True, slots=True)
class Setup:
    """What is the same for all policies."""

    start_s: float
    drain_s: float
    scrape_s: float
    outage_at_s: float


@dataclass(slots=True)
class Day:
    """What happened."""

    asks: list[Ask] = field(default_factory=list)
    woken: list[Ask] = field(default_factory=list)
    """Chats that came while no replica served."""
    replica_s: float = 0.0
    """Seconds of all pods, from their start to their end."""
    refused: set[Ask] = field(default_factory=set)
    """Chats that were refused at least once."""
    num_moves: int = 0
    num_changes: int = 0
    """Of the number of replicas, by the autoscaler."""


class Fleet:
    """One day under one policy."""

    def __init__(
        self, setup: Setup, router: ScaledRouter, speed: Speed, policy: ScalingPolicy
    ) -> None:
        self._setup = setup
        self._router = router
        self._speed = speed
        self._policy = policy
        self._clock = Clock()
        self._pods: list[Pod] = []
        """Those that are to be there, by ordinal."""
        self._leaving: list[Pod] = []
        self._at: dict[int, Pod] = {}
        self._arrived: deque[float] = deque()
        self._sample = Sample(0, 0, MAX_SESSIONS)
        self._desired = 0
        self._num_open = 0
        self._is_over = False
        """Whether no further chat comes."""
        self.day = Day()

    def run(self, asks: Iterator[Ask], until_s: float) -> Day:
        """The day, and until every chat has ended."""
        self._asks = asks
        clock = self._clock
        self._expect()
        clock.after(_REPORT_S, self._report)
        clock.after(self._setup.scrape_s, self._scrape)
        clock.after(_REVIEW_S, self._review)
        clock.at(self._setup.outage_at_s, self._outage)
        clock.run(until_s)
        while self._num_open or not self._is_over:
            clock.run(clock.now + 60.0)
        for pod in (*self._pods, *self._leaving):
            self._charge(pod)
        return self.day

    # --- clients ---

    def _expect(self) -> None:
        ask = next(self._asks, None)
        self._is_over = ask is None
        if ask is not None:
            self._clock.at(ask.at, self._arrive, ask)

    def _arrive(self, ask: Ask) -> None:
        self.day.asks.append(ask)
        self._num_open += 1
        self._arrived.append(ask.at)
        if not any(pod.state is PodState.READY for pod in self._pods):
            self.day.woken.append(ask)
        self._place(ask)
        self._expect()

    def _place(self, ask: Ask) -> None:
        try:
            name = self._router.place(ask, self._clock.now)
        except OutriderError as error:
            self._refused(ask, error)
        else:
            if name is not None:
                self._send(ask, name)
        self._wake()

    def _wake(self) -> None:
        for ask, outcome in self._router.wake(self._clock.now):
            if isinstance(outcome, OutriderError):
                self._refused(ask, outcome)
            else:
                self._send(ask, outcome)

    def _refused(self, ask: Ask, error: OutriderError) -> None:
        now = self._clock.now
        self._router.refused(error, now)
        self.day.refused.add(ask)
        delay_s = (error.retry_delay_ms or 0) / 1e3 or _RETRY_S
        if now + delay_s > ask.at + _PATIENCE_S:
            ask.error = error.reason
            self._num_open -= 1
        else:
            self._clock.after(delay_s, self._place, ask)

    def _send(self, ask: Ask, name: str) -> None:
        (pod,) = (it for it in self._pods if it.name == name)
        ask.num_places += 1
        self._at[ask.number] = pod
        pod.asks[ask.number] = ask
        self._clock.after(_ONE_WAY_S, self._reach, ask, pod)

    def _reach(self, ask: Ask, pod: Pod) -> None:
        if pod.replica is not None and self._at.get(ask.number) is pod:
            pod.replica.open(ask)

    # --- replicas ---

    def _committed(self, ask: Ask, count: int) -> None:
        ask.committed += count
        if not ask.first_at and count:
            ask.first_at = self._clock.now + _ONE_WAY_S
            self._router.first_token(ask, ask.first_at)

    def _finished(self, pod: Pod, ask: Ask) -> None:
        now = self._clock.now
        ask.ended_at = now + _ONE_WAY_S
        self._num_open -= 1
        del pod.asks[ask.number], self._at[ask.number]
        self._router.release(ask, now)
        if pod.state is PodState.DRAINING and not pod.asks:
            self._go(pod)
        self._wake()

    def _start(self, ordinal: int) -> Pod:
        pod = Pod(ordinal, self._clock.now)
        self._clock.after(self._setup.start_s, self._serve, pod)
        return pod

    def _serve(self, pod: Pod) -> None:
        if pod.state is not PodState.STARTING:
            return
        if any(it.name == pod.name for it in self._leaving):  # a StatefulSet waits for its end
            self._clock.after(_REPORT_S, self._serve, pod)
            return
        pod.state = PodState.READY
        hooks = Hooks(self._committed, partial(self._finished, pod), lambda ask, why: None)
        pod.replica = FluidReplica(self._clock, self._speed, hooks)
        self._router.connect(Site(pod.name, REGION.name, LOCAL_RTT_MS), self._clock.now)
        self._router.report([_report(pod)], self._clock.now)
        self._wake()

    def _drain(self, pod: Pod) -> None:
        self._leaving.append(pod)
        if pod.state is PodState.STARTING:
            self._go(pod)
            return
        pod.state = PodState.DRAINING
        self._router.drain(_report(pod), self._clock.now)
        if not pod.asks:
            self._go(pod)
            return
        self._clock.after(self._setup.drain_s, self._hand_over, pod)

    def _hand_over(self, pod: Pod) -> None:
        if pod.state is PodState.DRAINING:
            self._go(pod)

    def _go(self, pod: Pod) -> None:
        """A pod that was to leave ends."""
        self._leaving.remove(pod)
        self._stop(pod)

    def _stop(self, pod: Pod) -> None:
        """It ends now; what it has moves."""
        was_serving = pod.replica is not None
        moving = list(pod.asks.values())
        pod.state = PodState.GONE
        if pod.replica is not None:
            pod.replica.stop()
            pod.replica = None
        self._charge(pod)
        if was_serving:
            self._router.lose(pod.name, self._clock.now)
        for ask in moving:
            del pod.asks[ask.number], self._at[ask.number]
            self.day.num_moves += 1
            self._router.release(ask, self._clock.now)
            self._place(ask)

    def _charge(self, pod: Pod) -> None:
        self.day.replica_s += self._clock.now - pod.began_at

    def _outage(self) -> None:
        """Half of those that serve are killed, and started again."""
        ready = [pod for pod in self._pods if pod.state is PodState.READY]
        for pod in ready[: math.ceil(len(ready) / 2)]:
            self._pods[pod.ordinal] = self._start(pod.ordinal)
            self._stop(pod)

    # --- what is done at intervals ---

    def _report(self) -> None:
        now = self._clock.now
        ready = [_report(pod) for pod in self._pods if pod.state is PodState.READY]
        self._router.report(ready, now)
        self._desired = self._router.advise(now)
        self._wake()
        self._clock.after(_REPORT_S, self._report)

    def _scrape(self) -> None:
        now = self._clock.now
        while self._arrived and self._arrived[0] <= now - _ARRIVED_S:
            self._arrived.popleft()
        loads = [
            pod.replica.load()
            for pod in self._pods
            if pod.state is PodState.READY and pod.replica is not None
        ]
        replicas = tuple(
            ReplicaSample(
                it.running_sessions,
                it.queued_sessions,
                1.0 - it.kv_blocks_free / it.kv_blocks_total,
            )
            for it in loads
        )
        self._sample = Sample(
            self._desired,
            self._router.num_waiting + sum(it.queued for it in replicas),
            MAX_SESSIONS,
            replicas,
            len(self._arrived),
        )
        self._clock.after(self._setup.scrape_s, self._scrape)

    def _review(self) -> None:
        current = len(self._pods)
        wanted = self._policy.review(self._sample, current, self._clock.now)
        self.day.num_changes += wanted != current
        while len(self._pods) > wanted:
            self._drain(self._pods.pop())
        while len(self._pods) < wanted:
            self._pods.append(self._start(len(self._pods)))
        self._clock.after(_REVIEW_S, self._review)


def _report(pod: Pod) -> Report:
    assert pod.replica is not None
    return Report.of(pod.name, pod.replica.load(), ())
