"""The objects one overlay builds, and the strict schemas they must fit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import kubernetes_validate
import yaml

KUBERNETES = "1.37"
# Custom resources have no schema here; every other kind must have one.
_WITHOUT_SCHEMA = {
    ("multicluster.x-k8s.io/v1alpha1", "ServiceExport"),
    ("cert-manager.io/v1", "Certificate"),
    ("cert-manager.io/v1", "Issuer"),
    ("cilium.io/v2", "CiliumNetworkPolicy"),
    ("gateway.networking.k8s.io/v1", "BackendTLSPolicy"),
    ("gateway.networking.k8s.io/v1", "HTTPRoute"),
    ("keda.sh/v1alpha1", "ScaledObject"),
    ("monitoring.coreos.com/v1", "PodMonitor"),
    ("monitoring.coreos.com/v1", "PrometheusRule"),
}
_WORKLOADS = ("Deployment", "StatefulSet", "DaemonSet")
NAME_LABEL = "app.kubernetes.io/name"

Object = Mapping[str, Any]


@dataclass(frozen=True)
class Manifests:
    """The objects that one overlay builds."""

    objects: tuple[Object, ...]

    @classmethod
    def parse(cls, text: str) -> Manifests:
        """Parse YAML documents; empty ones are left out."""
        return cls(tuple(document for document in yaml.safe_load_all(text) if document))

    def of_kind(self, *kinds: str) -> Iterator[Object]:
        """The objects of these kinds."""
        return (thing for thing in self.objects if thing["kind"] in kinds)

    def workloads(self) -> Iterator[Object]:
        """Whatever runs pods."""
        return self.of_kind(*_WORKLOADS)

    def pods(self) -> Iterator[tuple[str, Object]]:
        """Every pod specification, with the name of its workload."""
        return ((label(thing), thing["spec"]["template"]["spec"]) for thing in self.workloads())

    def containers(self) -> Iterator[tuple[str, Object]]:
        """Every container, those of the start included, as `Kind/name container`."""
        for where, pod in self.pods():
            for container in (*pod.get("initContainers", ()), *pod["containers"]):
                yield f"{where} {container['name']}", container

    def selecting(self, kind: str, workload: Object) -> list[Object]:
        """The objects of a kind whose pod selector takes this workload's pods."""
        labels = workload["spec"]["template"]["metadata"]["labels"]
        return [thing for thing in self.of_kind(kind) if _selects(thing, labels)]


def label(thing: Object) -> str:
    """`Kind/name`."""
    return f"{thing['kind']}/{thing['metadata']['name']}"


def schema_problems(manifests: Manifests) -> Iterator[str]:
    """Problems that the API server would refuse: misspelt fields, wrong types, unknown kinds."""
    for thing in manifests.objects:
        if (thing["apiVersion"], thing["kind"]) in _WITHOUT_SCHEMA:
            continue
        try:
            kubernetes_validate.validate(dict(thing), KUBERNETES, strict=True)
        except kubernetes_validate.ValidationError as error:
            path = ".".join(str(part) for part in error.path)
            yield f"{label(thing)} {path}: {error.message}"
        except kubernetes_validate.SchemaNotFoundError as error:
            yield f"{label(thing)}: {error.message}"


def _selects(thing: Object, labels: Mapping[str, str]) -> bool:
    spec = thing["spec"]
    selector = spec.get("podSelector") or spec.get("selector") or {}
    expressions = selector.get("matchExpressions", ())
    plain = {} if "podSelector" in spec or expressions else selector
    wanted = selector.get("matchLabels", plain)
    return (
        bool(wanted or expressions)
        and wanted.items() <= labels.items()
        and all(
            it["operator"] == "In" and labels.get(it["key"]) in it["values"] for it in expressions
        )
    )
