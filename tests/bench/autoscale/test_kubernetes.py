"""What KEDA and the HPA make of a ScaledObject, by the examples of their documentation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.autoscale.kubernetes import (
    SYNC_S,
    Autoscaler,
    Policy,
    Rules,
    ScaledObject,
    Trigger,
)
from bench.autoscale.policies import DESIRED, ours, scrape_s

AT_ONCE = Rules(0.0, (Policy(True, 1000.0, 15.0),))
SPEC = ScaledObject((Trigger("load", 10.0),), 1, 50, up=AT_ONCE, down=AT_ONCE)


def reviewed(spec: ScaledObject, values: list[float], current: int = 4) -> list[int]:
    """The numbers that these values lead to, one review of the HPA after the other."""
    autoscaler, numbers = Autoscaler(spec), []
    for turn, value in enumerate(values):
        current = autoscaler.review([value], current, turn * SYNC_S)
        numbers.append(current)
    return numbers


@pytest.mark.parametrize(
    ("value", "wanted"),
    [(80.0, 8), (81.0, 9), (43.9, 4), (44.1, 5), (36.1, 4), (35.9, 4), (30.0, 3)],
)
def test_the_number_is_the_metric_over_the_target_beyond_the_tolerance(
    value: float, wanted: int
) -> None:
    assert reviewed(SPEC, [value]) == [wanted]


def test_the_larger_of_two_metrics_counts() -> None:
    spec = replace(SPEC, triggers=(Trigger("a", 10.0), Trigger("b", 1.0)))
    assert Autoscaler(spec).review([20.0, 7.0], 4, 0.0) == 7


def test_it_looks_every_fifteen_seconds() -> None:
    autoscaler = Autoscaler(SPEC)
    found = [autoscaler.review([value], 4, now) for value, now in ((40.0, 0.0), (80.0, 14.0))]
    assert found == [4, 4]
    assert autoscaler.review([80.0], 4, 15.0) == 8


def test_down_goes_to_the_most_of_its_window_and_up_to_the_least() -> None:
    down = replace(SPEC, down=replace(AT_ONCE, window_s=60.0))
    assert reviewed(down, [60.0, 20.0, 50.0, 20.0, 20.0, 20.0, 20.0]) == [6, 6, 6, 6, 5, 5, 2]
    up = replace(SPEC, up=replace(AT_ONCE, window_s=45.0))
    assert reviewed(up, [40.0, 90.0, 70.0, 90.0, 90.0]) == [4, 4, 4, 7, 7]


def test_policies_bound_a_change_within_their_period() -> None:
    double = replace(SPEC, up=Rules(0.0, (Policy(True, 100.0, 30.0),)))
    assert reviewed(double, [400.0] * 4) == [8, 8, 16, 16]
    defaults = replace(SPEC, up=ScaledObject(()).up)
    assert reviewed(defaults, [400.0] * 3, 1) == [5, 10, 20], "4 pods or 100 %, whichever is more"
    slow = replace(SPEC, down=Rules(0.0, (Policy(False, 1.0, 30.0),)))
    assert reviewed(slow, [0.0] * 4, 4) == [3, 3, 2, 2]


def test_from_zero_to_one_and_back() -> None:
    spec = replace(SPEC, min_replicas=0, polling_s=10.0, cooldown_s=60.0)
    autoscaler = Autoscaler(spec)

    def at(now: float, value: float, current: int) -> int:
        return autoscaler.review([value], current, now)

    assert at(0.0, 0.0, 0) == 0
    assert at(5.0, 7.0, 0) == 0, "it looks every ten seconds"
    assert at(10.0, 7.0, 0) == 1
    assert at(20.0, 0.0, 1) == at(60.0, 0.0, 1) == 1
    assert at(70.0, 0.0, 1) == 0
    inactive = replace(spec, triggers=(Trigger("load", 10.0, activation=7.0),))
    assert Autoscaler(inactive).review([7.0], 0, 0.0) == 0
    assert Autoscaler(inactive).review([7.1], 0, 0.0) == 1


@given(st.lists(st.floats(0.0, 1e4), min_size=1, max_size=40), st.integers(1, 50))
def test_whatever_the_metric_it_stays_in_bounds(values: list[float], current: int) -> None:
    spec = ScaledObject((Trigger("load", 10.0),), 2, 20)
    assert all(2 <= number <= 20 for number in reviewed(spec, values, current))


def test_a_manifest_is_read_with_keda_s_and_kubernetes_defaults() -> None:
    metadata = {"query": " load ", "threshold": "5"}
    thing: dict[str, Any] = {"spec": {"triggers": [{"type": "prometheus", "metadata": metadata}]}}
    assert ScaledObject.of(thing) == ScaledObject((Trigger("load", 5.0),))
    behavior: dict[str, Any] = {
        "scaleUp": {"policies": [{"type": "Pods", "value": 2, "periodSeconds": 60}]}
    }
    thing["spec"]["advanced"] = {"horizontalPodAutoscalerConfig": {"behavior": behavior}}
    assert ScaledObject.of(thing).up == Rules(0.0, (Policy(False, 2.0, 60.0),))
    behavior["scaleUp"] = {"selectPolicy": "Min"}
    with pytest.raises(ValueError, match="not modelled"):
        ScaledObject.of(thing)
    thing["spec"]["triggers"][0]["metricType"] = "Value"
    with pytest.raises(ValueError, match="AverageValue"):
        ScaledObject.of(thing)


def test_ours_is_what_is_deployed() -> None:
    found = ours()
    (trigger,) = found.triggers
    assert DESIRED in trigger.query and trigger.threshold == 1.0
    assert (found.min_replicas, found.max_replicas) == (0, 16)
    assert found.polling_s == scrape_s() == 5.0
