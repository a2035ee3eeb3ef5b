"""Policies for every pod of Outrider."""

from __future__ import annotations

from collections.abc import Iterator

from tools.deploy_checks.manifests import Manifests, label

MIN_UID = 10_000
PROBES = ("startupProbe", "readinessProbe", "livenessProbe")


def pods_are_not_root(manifests: Manifests) -> Iterator[str]:
    """Pods run as a numeric user outside the system's range, and the kernel is told to insist."""
    for where, pod in manifests.pods():
        context = pod.get("securityContext", {})
        if context.get("runAsNonRoot") is not True:
            yield f"{where}: set securityContext.runAsNonRoot: true"
        if context.get("runAsUser", 0) < MIN_UID or context.get("runAsGroup", 0) < MIN_UID:
            yield f"{where}: runAsUser and runAsGroup must be at least {MIN_UID}"


def system_calls_are_filtered(manifests: Manifests) -> Iterator[str]:
    """The runtime's seccomp profile."""
    for where, pod in manifests.pods():
        if pod.get("securityContext", {}).get("seccompProfile", {}).get("type") != "RuntimeDefault":
            yield f"{where}: set securityContext.seccompProfile.type: RuntimeDefault"


def root_file_systems_are_read_only(manifests: Manifests) -> Iterator[str]:
    """Writes go to declared volumes alone."""
    for where, container in manifests.containers():
        if container.get("securityContext", {}).get("readOnlyRootFilesystem") is not True:
            yield f"{where}: set securityContext.readOnlyRootFilesystem: true"


def containers_have_no_privileges(manifests: Manifests) -> Iterator[str]:
    """No capabilities, no way to gain any."""
    for where, container in manifests.containers():
        context = container.get("securityContext", {})
        if context.get("allowPrivilegeEscalation") is not False or context.get("privileged"):
            yield f"{where}: set securityContext.allowPrivilegeEscalation: false"
        if context.get("capabilities", {}).get("drop") != ["ALL"]:
            yield f"{where}: drop ALL capabilities"
        if context.get("capabilities", {}).get("add"):
            yield f"{where}: add no capabilities"


def hosts_are_left_alone(manifests: Manifests) -> Iterator[str]:
    """No namespaces, ports or paths of the node."""
    for where, pod in manifests.pods():
        for field in ("hostNetwork", "hostPID", "hostIPC"):
            if pod.get(field):
                yield f"{where}: {field} is not allowed"
        for volume in pod.get("volumes", ()):
            if "hostPath" in volume:
                yield f"{where}: volume {volume['name']} is a path of the host"
    for where, container in manifests.containers():
        if any("hostPort" in port for port in container.get("ports", ())):
            yield f"{where}: hostPort is not allowed"


def resources_are_bounded(manifests: Manifests) -> Iterator[str]:
    """CPU and memory requested, memory limited; CPU is not: throttling only adds latency."""
    for where, container in manifests.containers():
        resources = container.get("resources", {})
        for group, name in (("requests", "cpu"), ("requests", "memory"), ("limits", "memory")):
            if name not in resources.get(group, {}):
                yield f"{where}: set resources.{group}.{name}"


def pods_are_probed(manifests: Manifests) -> Iterator[str]:
    """Started, ready and alive; readiness over the admin port, which asks for no certificate: the
    kubelet has none."""
    for where, pod in manifests.pods():
        for container in pod["containers"]:
            for probe in PROBES:
                if probe not in container:
                    yield f"{where} {container['name']}: set {probe}"
            serves_grpc = any(port.get("name") == "grpc" for port in container.get("ports", ()))
            asked = container.get("readinessProbe", {}).get("httpGet", {})
            if serves_grpc and (asked.get("path"), asked.get("port")) != ("/ready", "admin"):
                yield f"{where} {container['name']}: readinessProbe must ask /ready of port admin"


def tokens_are_not_mounted(manifests: Manifests) -> Iterator[str]:
    """Every role has an account of its own and no way to speak to the API server."""
    accounts = {thing["metadata"]["name"] for thing in manifests.of_kind("ServiceAccount")}
    for where, pod in manifests.pods():
        if pod.get("automountServiceAccountToken") is not False:
            yield f"{where}: set automountServiceAccountToken: false"
        if pod.get("serviceAccountName") not in accounts:
            yield f"{where}: serviceAccountName names no ServiceAccount of this overlay"


def service_links_are_off(manifests: Manifests) -> Iterator[str]:
    """Kubernetes would inject NAME_PORT variables, which read like settings of a role."""
    for where, pod in manifests.pods():
        if pod.get("enableServiceLinks") is not False:
            yield f"{where}: set enableServiceLinks: false"


def images_are_pinned(manifests: Manifests) -> Iterator[str]:
    """A tag that says which version, or a digest."""
    for where, container in manifests.containers():
        image = container["image"]
        tag = image.rpartition("/")[2].partition(":")[2]
        if "@sha256:" not in image and tag in ("", "latest"):
            yield f"{where}: image {image} has no version; set newTag in the overlay"


def pods_are_spread(manifests: Manifests) -> Iterator[str]:
    """Over zones and nodes, by constraints that count the workload's own pods."""
    for workload in manifests.workloads():
        template = workload["spec"]["template"]
        labels = template["metadata"]["labels"]
        keys = {
            constraint["topologyKey"]
            for constraint in template["spec"].get("topologySpreadConstraints", ())
            if constraint.get("labelSelector", {}).get("matchLabels", {}).items() <= labels.items()
        }
        for key in ("topology.kubernetes.io/zone", "kubernetes.io/hostname"):
            if key not in keys:
                yield f"{label(workload)}: spread its pods over {key}"
