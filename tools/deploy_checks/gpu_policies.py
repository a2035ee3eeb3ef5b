"""Policies for replicas on GPUs: they request what their engine uses, and run where it can."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

from tools.deploy_checks.config_policies import loaded, main_container
from tools.deploy_checks.manifests import Manifests, Object, label

GPU = "nvidia.com/gpu"
"""NVIDIA's device plugin's name of a GPU, both as a resource and as a taint."""
_LEAST_START_S = 600


def gpus_are_those_the_engine_uses(manifests: Manifests) -> Iterator[str]:
    """The serving container alone has GPUs: whole ones, as many as share the model."""
    wanted = {
        label(workload): config.trtllm.tensor_parallel_size
        for workload, role, config in loaded(manifests)
        if role == "inference" and config.engine == "tensorrt-llm"
    }
    for workload in manifests.workloads():
        pod, main = workload["spec"]["template"]["spec"], main_container(workload)
        for container in (*pod.get("initContainers", ()), *pod["containers"]):
            where = f"{label(workload)} {container['name']}"
            resources = container.get("resources", {})
            limit = resources.get("limits", {}).get(GPU)
            request = resources.get("requests", {}).get(GPU, limit)
            number = wanted.get(label(workload), 0) if container is main else 0
            if number and (limit is None or str(limit) != str(number)):
                yield f"{where}: set resources.limits.{GPU} to {number}, not {limit}"
            elif not number and (limit is not None or request is not None):
                yield f"{where}: it uses no GPU; remove {GPU} from its resources"
            elif request != limit:
                yield f"{where}: resources.requests.{GPU} must be its limit, {limit}"


def gpu_pods_find_their_nodes(manifests: Manifests) -> Iterator[str]:
    """Nodes with GPUs are chosen, and keep others out by a taint that these pods tolerate."""
    for where, pod, _ in _gpu_pods(manifests):
        affinity = pod.get("affinity", {}).get("nodeAffinity", {})
        needed = "requiredDuringSchedulingIgnoredDuringExecution"
        if not pod.get("nodeSelector") and needed not in affinity:
            yield f"{where}: choose nodes with GPUs by nodeSelector or a required nodeAffinity"
        if not any(_tolerates(toleration) for toleration in pod.get("tolerations", ())):
            yield f"{where}: tolerate the taint {GPU} of nodes with GPUs"


def gpu_pods_have_a_checkpoint(manifests: Manifests) -> Iterator[str]:
    """A volume that holds the weights, or that an init container fills; and time to load them."""
    for workload, _, config in loaded(manifests):
        if getattr(config, "engine", "") != "tensorrt-llm":
            continue
        where, pod = label(workload), workload["spec"]["template"]["spec"]
        folder = config.trtllm.model_dir
        if folder is None:
            yield f"{where}: outrider.toml must set trtllm.model_dir"
            continue
        name = _mounted_at(main_container(workload), str(folder))
        lasting = {
            it["metadata"]["name"] for it in workload["spec"].get("volumeClaimTemplates", ())
        }
        lasting |= {it["name"] for it in pod["volumes"] if "emptyDir" not in it}
        filled = {
            mount["name"]
            for container in pod.get("initContainers", ())
            for mount in container.get("volumeMounts", ())
            if not mount.get("readOnly")
        }
        if name not in lasting | filled:
            yield f"{where}: nothing brings a checkpoint to {folder}; mount a volume that has one"
        probe = main_container(workload).get("startupProbe", {})
        start_s = probe.get("periodSeconds", 10) * probe.get("failureThreshold", 3)
        if start_s < _LEAST_START_S:
            yield f"{where}: give startupProbe {_LEAST_START_S} s, loading takes minutes"


def gpu_pods_have_shared_memory(manifests: Manifests) -> Iterator[str]:
    """The runtime's processes exchange data in /dev/shm, of which a container has 64 MiB."""
    for where, pod, container in _gpu_pods(manifests):
        name = _mounted_at(container, "/dev/shm")
        volumes = {it["name"]: it.get("emptyDir", {}).get("medium") for it in pod["volumes"]}
        if volumes.get(name) != "Memory":
            yield f"{where}: mount an emptyDir of medium Memory at /dev/shm"


def _gpu_pods(manifests: Manifests) -> Iterator[tuple[str, Object, Object]]:
    """Pods whose serving container requests a GPU or runs an engine that needs one."""
    engines = {label(it): getattr(config, "engine", "") for it, _, config in loaded(manifests)}
    for workload in manifests.workloads():
        container = main_container(workload)
        asks = GPU in container.get("resources", {}).get("limits", {})
        if asks or engines.get(label(workload)) == "tensorrt-llm":
            yield label(workload), workload["spec"]["template"]["spec"], container


def _mounted_at(container: Object, path: str) -> str:
    """The volume whose mount is nearest to a path; empty if none holds it."""
    mounts: list[Any] = [
        mount
        for mount in container.get("volumeMounts", ())
        if PurePosixPath(path).is_relative_to(mount["mountPath"])
    ]
    return str(max(mounts, key=lambda mount: len(mount["mountPath"]))["name"]) if mounts else ""


def _tolerates(toleration: Object) -> bool:
    """Whether it lets a pod onto a node that is tainted as one with GPUs."""
    return toleration.get("key") == GPU and toleration.get("effect", "NoSchedule") == "NoSchedule"
