"""What Kubernetes' HorizontalPodAutoscaler and KEDA make of a ScaledObject. Pure.

After their documentation: the HPA's rule for external metrics of target AverageValue,
tolerance, stabilization windows and policies; KEDA's activation from zero, and its cooldown before
zero. The object is read from its manifest, so what a manifest leaves out has their defaults.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

SYNC_S: Final = 15.0
"""Time between two reviews of the HPA (--horizontal-pod-autoscaler-sync-period)."""
TOLERANCE: Final = 0.1
"""The HPA leaves smaller relative changes alone (--horizontal-pod-autoscaler-tolerance)."""


@dataclass(frozen=True, slots=True)
class Policy:
    """How much the number may change within a period."""

    is_percent: bool
    value: float
    period_s: float


@dataclass(frozen=True, slots=True)
class Rules:
    """Behaviour in one direction."""

    window_s: float
    policies: tuple[Policy, ...]


_UP: Final = Rules(0.0, (Policy(True, 100.0, 15.0), Policy(False, 4.0, 15.0)))
_DOWN: Final = Rules(300.0, (Policy(True, 100.0, 15.0),))


@dataclass(frozen=True, slots=True)
class Trigger:
    """A metric, and how much of it one replica is to have."""

    query: str
    threshold: float
    activation: float = 0.0
    """Above it the trigger is active."""


@dataclass(frozen=True, slots=True)
class ScaledObject:
    """What KEDA and its HPA read of a ScaledObject."""

    triggers: tuple[Trigger, ...]
    min_replicas: int = 0
    max_replicas: int = 100
    polling_s: float = 30.0
    """Time between two looks at the triggers while there is no replica."""
    cooldown_s: float = 300.0
    """Time without an active trigger before the last replica goes."""
    up: Rules = _UP
    down: Rules = _DOWN

    @classmethod
    def of(cls, thing: Mapping[str, Any]) -> ScaledObject:
        """Of a parsed manifest. Raises ValueError for what is not modelled here."""
        spec = thing["spec"]
        advanced = spec.get("advanced", {}).get("horizontalPodAutoscalerConfig", {})
        behavior = advanced.get("behavior", {})
        return cls(
            tuple(map(_trigger, spec["triggers"])),
            spec.get("minReplicaCount", 0),
            spec.get("maxReplicaCount", 100),
            spec.get("pollingInterval", 30.0),
            spec.get("cooldownPeriod", 300.0),
            _rules(behavior.get("scaleUp", {}), _UP),
            _rules(behavior.get("scaleDown", {}), _DOWN),
        )

    @classmethod
    def read(cls, path: Path) -> ScaledObject:
        """Of a file with this object alone. Raises ValueError."""
        return cls.of(yaml.safe_load(path.read_text(encoding="utf-8")))


def _trigger(thing: Mapping[str, Any]) -> Trigger:
    if thing["type"] != "prometheus" or thing.get("metricType", "AverageValue") != "AverageValue":
        raise ValueError(f"a trigger is neither of Prometheus nor an AverageValue: {thing}")
    found = thing["metadata"]
    activation = float(found.get("activationThreshold", 0.0))
    return Trigger(found["query"].strip(), float(found["threshold"]), activation)


def _rules(thing: Mapping[str, Any], default: Rules) -> Rules:
    if thing.get("selectPolicy", "Max") != "Max" or "tolerance" in thing:
        raise ValueError(f"selectPolicy and tolerance are not modelled: {thing}")
    policies = tuple(
        Policy(it["type"] == "Percent", float(it["value"]), float(it["periodSeconds"]))
        for it in thing.get("policies", ())
    )
    window_s = float(thing.get("stabilizationWindowSeconds", default.window_s))
    return Rules(window_s, policies or default.policies)


@dataclass(slots=True)
class Autoscaler:
    """KEDA and its HPA for one object. `review` is called at least every few seconds."""

    spec: ScaledObject
    _polled_at: float = -math.inf
    _synced_at: float = -math.inf
    _active_at: float = -math.inf
    _recommended: deque[tuple[float, int]] = field(default_factory=deque)
    _changes: deque[tuple[float, int]] = field(default_factory=deque)
    """When the HPA changed the number, and by how much."""

    def review(self, values: Sequence[float], current: int, now: float) -> int:
        """The number of replicas to set, from the triggers' values, in their order, and the number
        that is set now."""
        if current == 0 or self.spec.min_replicas == 0:
            current = self._poll(values, current, now)
        if current and now - self._synced_at >= SYNC_S:
            self._synced_at = now
            return self._sync(values, current, now)
        return current

    def _poll(self, values: Sequence[float], current: int, now: float) -> int:
        if now - self._polled_at < self.spec.polling_s:
            return current
        self._polled_at = now
        pairs = zip(self.spec.triggers, values, strict=True)
        if any(value > trigger.activation for trigger, value in pairs):
            self._active_at = now
            return current or max(1, self.spec.min_replicas)
        if self.spec.min_replicas:
            return max(current, self.spec.min_replicas)
        return 0 if now - self._active_at >= self.spec.cooldown_s else current

    def _sync(self, values: Sequence[float], current: int, now: float) -> int:
        pairs = zip(self.spec.triggers, values, strict=True)
        wanted = max(_wanted(value, trigger.threshold, current) for trigger, value in pairs)
        wanted = self._stabilized(wanted, current, now)
        wanted = self._limited(wanted, current, now)
        wanted = min(max(wanted, self.spec.min_replicas, 1), self.spec.max_replicas)
        if wanted != current:
            self._changes.append((now, wanted - current))
        return wanted

    def _stabilized(self, wanted: int, current: int, now: float) -> int:
        """Up to the least that was recommended in the window of growth, down to the most in that of
        shrinking."""
        longest_s = max(self.spec.up.window_s, self.spec.down.window_s)
        while self._recommended and self._recommended[0][0] <= now - longest_s:
            self._recommended.popleft()
        self._recommended.append((now, wanted))
        least = min(self._within(self.spec.up.window_s, now))
        most = max(self._within(self.spec.down.window_s, now))
        return min(max(current, least), most)

    def _within(self, window_s: float, now: float) -> list[int]:
        """What was recommended in a window, the latest at least."""
        return [number for at, number in self._recommended if at > now - window_s or at == now]

    def _limited(self, wanted: int, current: int, now: float) -> int:
        """As far as the policies allow."""
        longest_s = max(
            it.period_s for rules in (self.spec.up, self.spec.down) for it in rules.policies
        )
        while self._changes and self._changes[0][0] <= now - longest_s:
            self._changes.popleft()
        if wanted > current:
            limits = []
            for policy in self.spec.up.policies:
                began = current - self._changed(policy.period_s, now, 1)
                more = began * policy.value / 100 if policy.is_percent else policy.value
                limits.append(math.ceil(began + more))
            return min(wanted, max(limits))
        limits = []
        for policy in self.spec.down.policies:
            began = current - self._changed(policy.period_s, now, -1)
            fewer = began * policy.value / 100 if policy.is_percent else policy.value
            limits.append(int(began - fewer))
        return max(wanted, min(limits))

    def _changed(self, period_s: float, now: float, sign: int) -> int:
        """By how much the number has changed in this direction within a period."""
        recent = (number for at, number in self._changes if at > now - period_s)
        return sum(number for number in recent if number * sign > 0)


def _wanted(value: float, threshold: float, current: int) -> int:
    """The HPA's rule: the metric over its target, unless that is about what there is."""
    if abs(value / (threshold * current) - 1.0) <= TOLERANCE:
        return current
    return math.ceil(value / threshold - 1e-9)
