"""Policies for the objects around the pods: budgets, networks, services, autoscalers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Final
from urllib.parse import urlsplit

from tools.deploy_checks.manifests import NAME_LABEL, Manifests, Object, label

_FIGURE: Final = "outrider_router_desired_replicas"


def everything_is_in_the_namespace(manifests: Manifests) -> Iterator[str]:
    """One namespace, with the restricted Pod Security Standard enforced."""
    namespaces = list(manifests.of_kind("Namespace"))
    if len(namespaces) != 1:
        yield f"there are {len(namespaces)} namespaces, not one"
        return
    metadata = namespaces[0]["metadata"]
    if metadata.get("labels", {}).get("pod-security.kubernetes.io/enforce") != "restricted":
        yield f"{label(namespaces[0])}: enforce the restricted Pod Security Standard"
    for thing in manifests.objects:
        if thing["kind"] != "Namespace" and thing["metadata"].get("namespace") != metadata["name"]:
            yield f"{label(thing)} is not in namespace {metadata['name']}"


def no_secrets_are_committed(manifests: Manifests) -> Iterator[str]:
    """Secrets are made in the cluster, never kept here."""
    for thing in manifests.of_kind("Secret"):
        yield f"{label(thing)}: a secret does not belong into a repository"


def nothing_passes_by_default(manifests: Manifests) -> Iterator[str]:
    """A policy over all pods that allows nothing in, and only name resolution out."""
    for thing in manifests.of_kind("NetworkPolicy"):
        spec = thing["spec"]
        ports = {port["port"] for rule in spec.get("egress", ()) for port in rule["ports"]}
        if (
            spec["podSelector"] == {}
            and set(spec["policyTypes"]) == {"Ingress", "Egress"}
            and not spec.get("ingress")
            and ports <= {53, 5353}
        ):
            return
    yield "there is no NetworkPolicy that denies by default"


def workloads_have_network_policies(manifests: Manifests) -> Iterator[str]:
    """Every workload has network policies of its own, for both directions, with every rule bound to
    ports."""
    for workload in manifests.workloads():
        policies = manifests.selecting("NetworkPolicy", workload)
        if not policies:
            yield f"{label(workload)} has no NetworkPolicy"
        for policy in policies:
            spec = policy["spec"]
            if set(spec["policyTypes"]) != {"Ingress", "Egress"}:
                yield f"{label(policy)}: rule both Ingress and Egress"
            for rule in (*spec.get("ingress", ()), *spec.get("egress", ())):
                if not rule.get("ports"):
                    yield f"{label(policy)}: a rule without ports lets everything through"


def names_are_reached_not_the_world(manifests: Manifests) -> Iterator[str]:
    """No pod may send to arbitrary addresses: the data of a serving pod could leave that way."""
    for policy in manifests.of_kind("NetworkPolicy"):
        for rule in policy["spec"].get("egress") or ():
            for peer in rule.get("to") or ({"ipBlock": {"cidr": "0.0.0.0/0"}},):
                if peer.get("ipBlock", {}).get("cidr") in ("0.0.0.0/0", "::/0"):
                    yield f"{label(policy)}: egress to everywhere; name what is to be reached"


def replicas_reach_one_another(manifests: Manifests) -> Iterator[str]:
    """Replicas reach each other, both ways, wherever routers reach replicas: a replica that
    continues a session fetches its KV from the one that has it, in another region too."""
    workloads = {
        role: [it for it in manifests.workloads() if _role(it) == role]
        for role in ("router", "inference")
    }
    for replica in workloads["inference"]:
        ports = {
            port
            for name, number in _numbered_ports(replica)
            if name == "grpc"
            for port in (name, number)
        }
        own = manifests.selecting("NetworkPolicy", replica)
        for router in workloads["router"]:
            reached = _networks(manifests.selecting("NetworkPolicy", router), "egress", ports)
            for direction in ("egress", "ingress"):
                for network in sorted(reached - _networks(own, direction, ports)):
                    yield f"{label(replica)}: routers reach {network}, and no {direction} names it"


def workloads_survive_disruptions(manifests: Manifests) -> Iterator[str]:
    """At least two pods, or none while nobody asks (`chats_wait_for_replicas`), and a budget that
    keeps one and still lets nodes drain."""
    minimum = {
        thing["spec"]["scaleTargetRef"]["name"]: low for thing, low, _, _ in _scalers(manifests)
    }
    for workload in manifests.workloads():
        name, spec = workload["metadata"]["name"], workload["spec"]
        if name in minimum and "replicas" in spec:
            yield f"{label(workload)}: replicas would fight its autoscaler"
        if minimum.get(name, max(1, spec.get("replicas", 1))) == 1:
            yield f"{label(workload)}: run at least two pods"
        budgets = manifests.selecting("PodDisruptionBudget", workload)
        if len(budgets) != 1:
            yield f"{label(workload)} has {len(budgets)} disruption budgets, not one"
        if any(budget["spec"].get("maxUnavailable") != 1 for budget in budgets):
            yield f"{label(workload)}: its budget must let one pod go at a time"


def autoscalers_have_targets(manifests: Manifests) -> Iterator[str]:
    """That exist, with a range, and a slow way down, unless they follow the routers' figure, which
    itself is slow to fall."""
    names = {label(workload) for workload in manifests.workloads()}
    scaled = set()
    for thing, low, high, behavior in _scalers(manifests):
        target = (
            f"{thing['spec']['scaleTargetRef']['kind']}/{thing['spec']['scaleTargetRef']['name']}"
        )
        if target not in names:
            yield f"{label(thing)} scales {target}, which is not here"
        if target in scaled:
            yield f"{label(thing)}: {target} has two autoscalers"
        scaled.add(target)
        if high <= low:
            yield f"{label(thing)}: the most replicas must be above the fewest"
        least_s = 60 if _FIGURE in str(thing["spec"]) else 300
        if behavior.get("scaleDown", {}).get("stabilizationWindowSeconds", 0) < least_s:
            yield f"{label(thing)}: scale down over {least_s} seconds or more, streams are long"


def services_reach_pods(manifests: Manifests) -> Iterator[str]:
    """Every service selects a workload of this overlay and a named port of it."""
    for service in manifests.of_kind("Service"):
        pods = [
            workload["spec"]["template"]["spec"]
            for workload in manifests.workloads()
            if workload in _selected(service, manifests)
        ]
        if not pods:
            yield f"{label(service)} selects no pod"
        for port in service["spec"]["ports"]:
            wanted = (port.get("targetPort"), port.get("protocol", "TCP"))
            if any(wanted not in _ports(pod) for pod in pods):
                yield f"{label(service)} port {port['name']}: no such container port"


def the_edge_speaks_quic(manifests: Manifests) -> Iterator[str]:
    """UDP, kept on the node it arrives at so that a connection stays with its pod."""
    for service in manifests.of_kind("Service"):
        spec = service["spec"]
        if spec["selector"].get(NAME_LABEL) != "edge":
            continue
        if all(port.get("protocol") != "UDP" for port in spec["ports"]):
            yield f"{label(service)} exposes no UDP port"
        if (
            spec.get("externalTrafficPolicy") != "Local"
            or spec.get("sessionAffinity") != "ClientIP"
        ):
            yield f"{label(service)}: set externalTrafficPolicy Local, sessionAffinity ClientIP"
        return
    yield "no service leads to the edge"


def grpc_services_are_headless(manifests: Manifests) -> Iterator[str]:
    """Callers hold few long connections, so they must choose the pod."""
    for service in manifests.of_kind("Service"):
        grpc = any(port["name"] == "grpc" for port in service["spec"]["ports"])
        headless = service["spec"].get("clusterIP") == "None"
        if grpc and not headless:
            yield f"{label(service)}: set clusterIP: None"


def routes_lead_to_the_edge(manifests: Manifests) -> Iterator[str]:
    """What a gateway sends on goes to the edges' port for HTTP, over TLS for the same host, and
    ends no stream."""
    ports = {
        (service["metadata"]["name"], port["port"]): port["name"]
        for service in manifests.of_kind("Service")
        for port in service["spec"]["ports"]
        if port.get("protocol", "TCP") == "TCP" and port.get("targetPort") == "https"
    }
    encrypted = {
        (target["name"], target.get("sectionName")): policy["spec"]["validation"]["hostname"]
        for policy in manifests.of_kind("BackendTLSPolicy")
        for target in policy["spec"]["targetRefs"]
    }
    for route in manifests.of_kind("HTTPRoute"):
        hosts = route["spec"].get("hostnames", ())
        for rule in route["spec"]["rules"]:
            if rule.get("timeouts", {}).get("request") != "0s":
                yield f"{label(route)}: set timeouts.request 0s, replies are long"
            for backend in rule["backendRefs"]:
                port = ports.get((backend["name"], backend["port"]))
                if port is None:
                    yield f"{label(route)}: {backend['name']} has no HTTP at {backend['port']}"
                elif encrypted.get((backend["name"], port)) not in hosts:
                    yield f"{label(route)}: no BackendTLSPolicy for {backend['name']} and its host"


def traces_find_their_way(manifests: Manifests) -> Iterator[str]:
    """Where pods are told of a collector, a policy lets them reach its port."""
    maps = {it["metadata"]["name"]: it["data"] for it in manifests.of_kind("ConfigMap")}
    for workload in manifests.workloads():
        for container in workload["spec"]["template"]["spec"]["containers"]:
            told = {
                key: str(value)
                for source in container.get("envFrom", ())
                for key, value in maps.get(source.get("configMapRef", {}).get("name"), {}).items()
            }
            told |= {it["name"]: str(it.get("value", "")) for it in container.get("env", ())}
            if not (endpoint := told.get("OTEL_EXPORTER_OTLP_ENDPOINT")):
                continue
            port = urlsplit(endpoint).port
            allowed = {
                it["port"]
                for policy in manifests.selecting("NetworkPolicy", workload)
                for rule in policy["spec"].get("egress") or ()
                for it in rule["ports"]
            }
            if port not in allowed:
                yield f"{label(workload)}: no policy lets traces out to {endpoint}"


def _scalers(manifests: Manifests) -> Iterator[tuple[Object, int, int, Object]]:
    """Autoscalers, Kubernetes' and KEDA's: the fewest and the most replicas, and how they scale."""
    for thing in manifests.of_kind("HorizontalPodAutoscaler"):
        spec = thing["spec"]
        yield thing, spec["minReplicas"], spec["maxReplicas"], spec.get("behavior", {})
    for thing in manifests.of_kind("ScaledObject"):
        spec = thing["spec"]
        advanced = spec.get("advanced", {}).get("horizontalPodAutoscalerConfig", {})
        low, high = spec.get("minReplicaCount", 0), spec.get("maxReplicaCount", 100)
        yield thing, low, high, advanced.get("behavior", {})


def _selected(service: Object, manifests: Manifests) -> list[Object]:
    wanted = service["spec"]["selector"].items()
    return [
        workload
        for workload in manifests.workloads()
        if wanted <= workload["spec"]["template"]["metadata"]["labels"].items()
    ]


def _role(workload: Object) -> str:
    name: str = workload["spec"]["template"]["metadata"]["labels"].get(NAME_LABEL, "")
    return name


def _networks(policies: Iterable[Object], direction: str, ports: Collection[str | int]) -> set[str]:
    """Those that rules of a direction name for one of the ports."""
    return {
        peer["ipBlock"]["cidr"]
        for policy in policies
        for rule in policy["spec"].get(direction) or ()
        if any(port.get("port") in ports for port in rule.get("ports", ()))
        for peer in rule.get("to" if direction == "egress" else "from", ())
        if "ipBlock" in peer
    }


def _numbered_ports(workload: Object) -> list[tuple[str, int]]:
    return [
        (port["name"], port["containerPort"])
        for container in workload["spec"]["template"]["spec"]["containers"]
        for port in container.get("ports", ())
    ]


def _ports(pod: Object) -> set[tuple[str, str]]:
    return {
        (port["name"], port.get("protocol", "TCP"))
        for container in pod["containers"]
        for port in container.get("ports", ())
    }
