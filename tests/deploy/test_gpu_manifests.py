"""A region with replicas on GPUs keeps the policies; wrong or missing GPU requests are found."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from tools.check_deploy import DEPLOY, component_manifests
from tools.deploy_checks import gpu_policies
from tools.deploy_checks.manifests import Manifests, schema_problems
from tools.deploy_checks.policies import POLICIES, policy_problems

GPU = "nvidia.com/gpu"
INFERENCE, EDGE = "StatefulSet/inference", "Deployment/edge"
Change = Callable[[dict[str, Any]], None]


@cache
def built() -> Manifests:
    """us-east with the component, built once per test run."""
    return component_manifests(DEPLOY / "components" / "inference-gpu")


def changed(change: Change) -> list[str]:
    """What the policies say after a change of the objects, by `Kind/name`."""
    objects = copy.deepcopy(built().objects)
    change({f"{thing['kind']}/{thing['metadata']['name']}": thing for thing in objects})
    return list(policy_problems(Manifests(objects)))


def pod(things: dict[str, Any], name: str = INFERENCE) -> Any:
    return things[name]["spec"]["template"]["spec"]


def resources(things: dict[str, Any], name: str = INFERENCE) -> Any:
    return pod(things, name)["containers"][0]["resources"]


def configure(things: dict[str, Any], old: str, new: str) -> None:
    (name,) = (n for n in things if n.startswith("ConfigMap/inference-config"))
    assert old in things[name]["data"]["outrider.toml"]
    text = things[name]["data"]["outrider.toml"].replace(old, new)
    things[name]["data"]["outrider.toml"] = text


def remove_volume(things: dict[str, Any], name: str) -> None:
    """And its mounts."""
    spec = pod(things)
    spec["volumes"] = [volume for volume in spec["volumes"] if volume["name"] != name]
    mounts = spec["containers"][0]["volumeMounts"]
    spec["containers"][0]["volumeMounts"] = [it for it in mounts if it["name"] != name]


def test_the_component_fits_the_schemas_and_keeps_the_policies() -> None:
    assert list(schema_problems(built())) == []
    assert list(policy_problems(built())) == []


def test_a_replica_gets_a_gpu_a_checkpoint_and_its_own_image() -> None:
    things = {f"{it['kind']}/{it['metadata']['name']}": it for it in built().objects}
    spec = pod(dict(things))
    container = spec["containers"][0]
    assert container["resources"]["limits"][GPU] == 1
    assert container["image"] == "outrider-inference-gpu:0.1.0"
    assert spec["initContainers"][0]["image"] == "outrider-inference:0.1.0"
    mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
    assert mounts["/checkpoint"]["readOnly"]
    assert {"/models", "/tmp", "/dev/shm", "/etc/outrider"} <= mounts.keys()


MISTAKES: dict[str, list[tuple[str, Change]]] = {
    "gpus_are_those_the_engine_uses": [
        ("to 1, not None", lambda t: resources(t)["limits"].pop(GPU)),
        ("to 1, not 2", lambda t: resources(t)["limits"].update({GPU: 2})),
        ("to 1, not 500m", lambda t: resources(t)["limits"].update({GPU: "500m"})),
        (
            "to 4, not 1",
            lambda t: configure(t, "tensor_parallel_size = 1", "tensor_parallel_size = 4"),
        ),
        ("must be its limit, 1", lambda t: resources(t)["requests"].update({GPU: 2})),
        (
            "Deployment/edge edge: it uses no GPU",
            lambda t: resources(t, EDGE)["limits"].update({GPU: 1}),
        ),
        (
            "StatefulSet/inference model: it uses no GPU",
            lambda t: pod(t)["initContainers"][0]["resources"]["limits"].update({GPU: 1}),
        ),
        (
            "it uses no GPU",
            lambda t: configure(t, 'engine = "tensorrt-llm"', 'engine = "openvino"'),
        ),
    ],
    "gpu_pods_find_their_nodes": [
        ("choose nodes", lambda t: pod(t).pop("nodeSelector")),
        ("tolerate the taint", lambda t: pod(t).pop("tolerations")),
        ("tolerate the taint", lambda t: pod(t)["tolerations"][0].update(effect="NoExecute")),
    ],
    "gpu_pods_have_a_checkpoint": [
        ("nothing brings a checkpoint to /checkpoint", lambda t: remove_volume(t, "checkpoint")),
        (
            "nothing brings a checkpoint to /tmp/checkpoint",
            lambda t: configure(t, '"/checkpoint"', '"/tmp/checkpoint"'),
        ),
        ("must set trtllm.model_dir", lambda t: configure(t, 'model_dir = "/checkpoint"', "")),
        (
            "give startupProbe 600 s",
            lambda t: pod(t)["containers"][0]["startupProbe"].update(failureThreshold=30),
        ),
    ],
    "gpu_pods_have_shared_memory": [
        ("medium Memory at /dev/shm", lambda t: remove_volume(t, "shared-memory")),
    ],
}


@pytest.mark.parametrize("policy", MISTAKES)
def test_each_mistake_is_noticed(policy: str) -> None:
    for words, mistake in MISTAKES[policy]:
        problems = changed(mistake)
        assert any(it.startswith(f"{policy}: ") and words in it for it in problems), problems


def test_what_fits_as_well_passes() -> None:
    def more_gpus(things: dict[str, Any]) -> None:
        configure(things, "tensor_parallel_size = 1", "tensor_parallel_size = 4")
        resources(things)["limits"][GPU] = "4"
        resources(things)["requests"][GPU] = "4"

    def filled_at_the_start(things: dict[str, Any]) -> None:
        configure(things, '"/checkpoint"', '"/models/checkpoint"')
        remove_volume(things, "checkpoint")

    def nodes_by_affinity(things: dict[str, Any]) -> None:
        del pod(things)["nodeSelector"]
        rule = {"matchExpressions": [{"key": "nvidia.com/gpu.product", "operator": "Exists"}]}
        required = {"nodeSelectorTerms": [rule]}
        key = "requiredDuringSchedulingIgnoredDuringExecution"
        pod(things)["affinity"] = {"nodeAffinity": {key: required}}

    for change in (more_gpus, filled_at_the_start, nodes_by_affinity):
        assert changed(change) == []


def test_every_policy_about_gpus_is_tried_with_a_mistake() -> None:
    about_gpus = {it.__name__ for it in POLICIES if it.__module__ == gpu_policies.__name__}
    assert MISTAKES.keys() == about_gpus
