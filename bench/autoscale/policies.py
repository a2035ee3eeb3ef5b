"""How many replicas there are to be: our manifest, and what others have published.

Theirs, read on 2026-11-30:

- llm-d: guides/workload-autoscaling/keda-epp of llm-d/llm-d, its default signal, by the queue of
  its endpoint picker and its running requests (`LLMD`), scaled to zero as its guide says; and the
  saturation analyzer of llm-d/llm-d-workload-variant-autoscaler (`Saturation`, deprecated there).
- Stargate: the function autoscaler beside it in NVIDIA/nvcf, its static policy (`Factors`).
- vLLM production-stack: docs/source/use_cases/autoscaling-keda.rst (`VLLM`).
- The plain one: an HPA with Kubernetes' defaults on running requests, at 70 % of the places.

Whatever a policy reads of queues is all that waits, in the router or in a replica, as our router
holds back what others send to replicas. All may have as many replicas as ours.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import yaml

from bench.autoscale.kubernetes import SYNC_S, Autoscaler, Rules, ScaledObject, Trigger
from bench.harness.provenance import ROOT
from bench.scale.demand import Ask

COMPONENTS: Final = ROOT / "deploy" / "components"
DESIRED: Final = "outrider_router_desired_replicas"
WAITING, RUNNING, INCOMING = "waiting", "running", "incoming"


@dataclass(frozen=True, slots=True)
class ReplicaSample:
    """What a replica that serves exports."""

    running: int
    queued: int
    kv_share: float
    """Of its KV blocks in use."""


@dataclass(frozen=True, slots=True)
class Sample:
    """What Prometheus has from its latest scrape."""

    desired: int
    """Our router's figure."""
    waiting: int
    """Chats that wait, anywhere."""
    num_places: int
    """Chats that a replica runs at once."""
    replicas: tuple[ReplicaSample, ...] = ()
    num_arrived: int = 0
    """Chats since the scrape before."""

    @property
    def running(self) -> int:
        """Chats that replicas run."""
        return sum(it.running for it in self.replicas)

    @property
    def values(self) -> dict[str, float]:
        """Metrics that triggers name."""
        return {
            DESIRED: self.desired,
            WAITING: self.waiting,
            RUNNING: self.running,
            INCOMING: float(self.num_arrived > 0),
        }


class ScalingPolicy(ABC):
    """One autoscaler for one day."""

    @abstractmethod
    def review(self, sample: Sample, current: int, now: float) -> int:
        """How many replicas to set, where `current` are set; called every few seconds."""


class Keda(ScalingPolicy):
    """A ScaledObject. Each trigger's query names one of the metrics of a sample."""

    def __init__(self, spec: ScaledObject) -> None:
        self.spec = spec
        self._autoscaler = Autoscaler(spec)

    def review(self, sample: Sample, current: int, now: float) -> int:
        known = sample.values
        names = [next(it for it in known if it in one.query) for one in self.spec.triggers]
        return self._autoscaler.review([known[name] for name in names], current, now)


def ours() -> ScaledObject:
    """deploy/components/inference-keda with deploy/components/scale-to-zero."""
    (thing,) = yaml.safe_load_all(
        (COMPONENTS / "inference-keda" / "scaled-object.yaml").read_text(encoding="utf-8")
    )
    patch = yaml.safe_load(
        (COMPONENTS / "scale-to-zero" / "scaled-object.yaml").read_text(encoding="utf-8")
    )
    thing["spec"].update(patch["spec"])
    return ScaledObject.of(thing)


def scrape_s() -> float:
    """Time between two scrapes of the figure, as deployed; what others read is as new."""
    file = COMPONENTS / "inference-keda" / "figure.yaml"
    monitor = yaml.safe_load(file.read_text(encoding="utf-8"))
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    return float(endpoint["interval"].removesuffix("s"))


_DOUBLING = ScaledObject(()).down.policies
"""Percent 100 within 15 seconds."""


def llmd(max_replicas: int, running: float = 16.0, window_s: float = 300.0) -> ScaledObject:
    """The queue leaf of its guide. `running`: requests that a replica runs; `window_s`: the window
    of growth, which its guide sizes near a replica's start. The defaults are as published."""
    return ScaledObject(
        (Trigger(WAITING, 1.0), Trigger(RUNNING, running)),
        max_replicas=max_replicas,
        polling_s=15.0,
        cooldown_s=300.0,
        up=Rules(window_s, _DOUBLING),
        down=Rules(300.0, _DOUBLING),
    )


def vllm(max_replicas: int) -> ScaledObject:
    """Its example, with its trigger that keeps replicas while requests come."""
    return ScaledObject(
        (Trigger(WAITING, 5.0), Trigger(INCOMING, 1.0)),
        max_replicas=max_replicas,
        polling_s=15.0,
        cooldown_s=360.0,
    )


def plain(max_replicas: int, num_places: int) -> ScaledObject:
    """An HPA with its defaults, which cannot go to zero."""
    return ScaledObject(
        (Trigger(RUNNING, 0.7 * num_places),), min_replicas=1, max_replicas=max_replicas
    )


class Factors(ScalingPolicy):
    """Stargate's: more by a factor where the utilisation is high, fewer by one where it is low."""

    loop_s, window_s, idle_s = 15.0, 70.0, 1800.0
    above, below, more, fewer = 0.70, 0.30, 1.2, 0.8

    def __init__(self, max_replicas: int) -> None:
        self._max_replicas = max_replicas
        self._reviewed_at = -math.inf
        self._used: deque[tuple[float, float]] = deque()
        self._arrived_at = -math.inf

    def review(self, sample: Sample, current: int, now: float) -> int:
        if now - self._reviewed_at < self.loop_s:
            return current
        self._reviewed_at = now
        if sample.num_arrived or sample.waiting:
            self._arrived_at = now
        count = len(sample.replicas)
        if count:
            self._used.append(
                (now, (sample.running + sample.waiting) / (count * sample.num_places))
            )
        while self._used and self._used[0][0] <= now - self.window_s:
            self._used.popleft()
        if not count and current:
            return current  # they are starting
        used = sum(share for _, share in self._used) / len(self._used) if self._used else 0.0
        wanted = max(1, count)
        if used > self.above:
            wanted = math.ceil(wanted * self.more)
        elif self._used and used < self.below:
            wanted = max(1, int(wanted * self.fewer))
        if now - self._arrived_at >= self.idle_s and used < self.below:
            wanted = 0
        return min(wanted, self._max_replicas)


class Saturation(ScalingPolicy):
    """llm-d's: one more while replicas that are not saturated have little to spare, one fewer where
    the rest would still have enough. While some are starting nothing changes."""

    interval_s = 60.0
    kv_share, queued = 0.80, 5.0
    spare_kv, spare_queue = 0.1, 3.0

    def __init__(self, max_replicas: int) -> None:
        self._max_replicas = max_replicas
        self._reviewed_at = -math.inf

    def review(self, sample: Sample, current: int, now: float) -> int:
        if now - self._reviewed_at < max(self.interval_s, SYNC_S):
            return max(1, current)
        self._reviewed_at = now
        count = len(sample.replicas)
        if count != current or not count:
            return max(1, current)
        waiting = (sample.waiting - sum(it.queued for it in sample.replicas)) / count
        loads = [(it.kv_share, it.queued + waiting) for it in sample.replicas]
        free = [it for it in loads if it[0] < self.kv_share and it[1] < self.queued]
        kv = self.kv_share - sum(it[0] for it in free) / len(free) if free else 0.0
        queue = self.queued - sum(it[1] for it in free) / len(free) if free else 0.0
        if kv < self.spare_kv or queue < self.spare_queue:
            return min(current + 1, self._max_replicas)
        if len(free) >= 2:
            scale = len(free) / (len(free) - 1)
            rest_kv = self.kv_share - (self.kv_share - kv) * scale
            rest_queue = self.queued - (self.queued - queue) * scale
            if rest_kv >= self.spare_kv and rest_queue >= self.spare_queue:
                return current - 1
        return current


class Foresight(ScalingPolicy):
    """Knows every chat of the day: has the replicas that serve them ready just before, and no
    longer. No autoscaler can."""

    step_s = 15.0
    target = 0.7
    """Share of the replicas' capacity that is used, for what comes at chance within a step."""
    margin_s = 30.0

    def __init__(
        self, asks: Sequence[Ask], start_s: float, capacity: float, max_replicas: int
    ) -> None:
        """`capacity`: chats a second that a replica serves."""
        counts = [0] * (int(asks[-1].at / self.step_s) + 1 if asks else 1)
        for ask in asks:
            counts[int(ask.at / self.step_s)] += 1
        rates = [count / self.step_s for count in counts]
        self._needed = [
            min(max_replicas, math.ceil(rate / (capacity * self.target))) for rate in rates
        ]
        self._ahead = int((start_s + self.margin_s) / self.step_s) + 1

    def review(self, sample: Sample, current: int, now: float) -> int:
        step = int(now / self.step_s)
        wanted = max(self._needed[step : step + self._ahead], default=0)
        if wanted >= current:
            return wanted
        busy = math.ceil((sample.running + sample.waiting) / sample.num_places / self.target)
        return max(wanted, min(busy, current))
