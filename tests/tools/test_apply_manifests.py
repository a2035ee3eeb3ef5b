"""What is applied of a site's objects, and what is said of workloads that get no pods."""

from __future__ import annotations

from typing import Any

import pytest

from tools.apply_manifests import known, reasons, without_pods
from tools.check_deploy import DEPLOY, component_manifests

CORE = {"v1": {"Namespace", "ConfigMap", "Service"}, "apps/v1": {"Deployment"}}


def workload(name: str, replicas: int = 1, **status: int) -> dict[str, Any]:
    found: dict[str, Any] = {
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {"replicas": replicas},
    }
    return found | ({"status": status} if status else {})


def event(reason: str, message: str) -> dict[str, Any]:
    return {"reason": reason, "message": message}


def test_kinds_that_a_server_does_not_know_are_named_and_left_out() -> None:
    objects = [
        {"apiVersion": "v1", "kind": "ConfigMap"},
        {"apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject"},
        {"apiVersion": "apps/v1", "kind": "Deployment"},
        {"apiVersion": "apps/v1", "kind": "ConfigMap"},  # a kind of another version
        {"apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject"},
    ]
    taken, unknown = known(objects, CORE | {"keda.sh/v1alpha1": set()})
    assert taken == [objects[0], objects[2]]
    assert unknown == ["ConfigMap", "ScaledObject"]


def test_a_server_without_kedas_definitions_takes_the_rest_of_a_site() -> None:
    objects = component_manifests(DEPLOY / "components" / "scale-to-zero").objects
    kinds: dict[str, set[str]] = {}
    for it in objects:
        kinds.setdefault(it["apiVersion"], set()).add(it["kind"])
    assert known(objects, kinds) == ([*objects], [])
    taken, unknown = known(objects, kinds | {"keda.sh/v1alpha1": set()})
    assert unknown == ["ScaledObject"] and len(taken) == len(objects) - 1


@pytest.mark.parametrize(
    ("found", "has_pods"),
    [
        (workload("router", replicas=2, readyReplicas=0), False),
        (workload("router"), False),
        (workload("router", replicas=0), True),
    ],
)
def test_workloads_that_should_have_pods(found: dict[str, Any], has_pods: bool) -> None:
    assert without_pods([found]) == ([] if has_pods else [found])
    assert without_pods([found | {"status": {"replicas": 1}}]) == []


def test_the_last_refusal_says_why_a_workload_has_no_pod() -> None:
    events = [
        event("FailedCreate", 'pods "router-1" is forbidden: violates PodSecurity'),
        event("FailedCreate", 'pods "router-2" is forbidden: exceeded quota'),
        event("FailedScheduling", 'pods "edge-1" is forbidden: no nodes'),
    ]
    lines = list(reasons([workload("router"), workload("edge")], events))
    assert lines == [
        'Deployment/router has no pod: pods "router-2" is forbidden: exceeded quota',
        "Deployment/edge has no pod: no event says why",
    ]
