"""Apply every site of deploy/ to a real API server, one after the other.

python -m tools.apply_manifests --kubeconfig FILE [SITE ...]

For a cluster to try things in that has no namespace `outrider`; it needs no nodes. A site is an
overlay, or a component in the overlay that may have it. Each is applied as a user applies it
(server-side, strictly validated). Then every workload must have a pod, so that the namespace's Pod
Security admits it; and to apply it once more must change nothing. After each the namespace is
deleted. Objects of kinds that the server does not know are named and left out.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from tools.check_deploy import component_manifests, components, overlay_manifests, overlays
from tools.deploy_checks import kustomize
from tools.deploy_checks.manifests import Manifests, Object, label

NAMESPACE: Final = "outrider"
LIMIT_S: Final = 60.0
"""For pods to be made, and for a namespace to be gone."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """An API server, by kubectl. Every method raises ValueError with kubectl's words."""

    kubeconfig: Path

    def kinds(self, version: str) -> set[str]:
        """Kinds of an `apiVersion` that it serves."""
        if version not in self._run("api-versions").split():
            return set()
        path = f"/apis/{version}" if "/" in version else f"/api/{version}"
        resources: list[dict[str, Any]] = json.loads(self._run("get", "--raw", path))["resources"]
        return {it["kind"] for it in resources}

    def apply(self, objects: Sequence[Object]) -> None:
        """Create or change them."""
        self._run("apply", "--server-side", "--validate=strict", *_STDIN, given=objects)

    def diff(self, objects: Sequence[Object]) -> str:
        """What `apply` would change now; empty: nothing."""
        return self._run("diff", "--server-side", *_STDIN, given=objects, good=(0, 1))

    def get(self, kinds: str) -> list[dict[str, Any]]:
        """Objects of the namespace."""
        answer = self._run("get", kinds, "--namespace", NAMESPACE, "--output", "json")
        found: list[dict[str, Any]] = json.loads(answer)["items"]
        return found

    def delete_namespace(self) -> None:
        """With all that is in it; waits until it is gone."""
        limit = f"--timeout={LIMIT_S:.0f}s"
        self._run("delete", "namespace", NAMESPACE, "--ignore-not-found", "--wait", limit)

    def _run(
        self, *arguments: str, given: Sequence[Object] = (), good: Sequence[int] = (0,)
    ) -> str:
        command = [kustomize.kubectl(), "--kubeconfig", str(self.kubeconfig), *arguments]
        text = yaml.safe_dump_all(given)
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
        if done.returncode not in good:
            raise ValueError(done.stderr.strip() or f"kubectl ended with {done.returncode}")
        return done.stdout


_STDIN: Final = ("--filename", "-")


def known(
    objects: Sequence[Object], kinds: Mapping[str, Collection[str]]
) -> tuple[list[Object], list[str]]:
    """The objects that a server takes which has these kinds of each `apiVersion`, and the kinds of
    the others."""
    taken, unknown = [], set()
    for it in objects:
        if it["kind"] in kinds[it["apiVersion"]]:
            taken.append(it)
        else:
            unknown.add(str(it["kind"]))
    return taken, sorted(unknown)


def problems(cluster: Cluster, manifests: Manifests) -> Iterator[str]:
    """What a cluster finds in a site's objects; each is a line."""
    kinds = {it: cluster.kinds(it) for it in {str(it["apiVersion"]) for it in manifests.objects}}
    applied, unknown = known(manifests.objects, kinds)
    left_out = f"; not known to this server: {', '.join(unknown)}" if unknown else ""
    print(f"  {len(applied)} objects{left_out}", flush=True)
    try:
        cluster.apply([it for it in applied if it["kind"] == "Namespace"])
        cluster.apply(applied)
        yield from _not_admitted(cluster)
        if changes := cluster.diff(applied):
            yield f"to apply it once more changes:\n{changes}"
    except ValueError as error:
        yield str(error)
    try:
        cluster.delete_namespace()
    except ValueError as error:
        yield str(error)


def _not_admitted(cluster: Cluster) -> Iterator[str]:
    """Workloads that have no pod, and why."""
    deadline = time.monotonic() + LIMIT_S
    while without := without_pods(cluster.get("deployments,statefulsets")):
        if time.monotonic() > deadline:
            yield from reasons(without, cluster.get("events"))
            return
        time.sleep(1)


def without_pods(workloads: Iterable[Object]) -> list[Object]:
    """Those that should have pods, and have none."""
    return [
        it
        for it in workloads
        if it["spec"]["replicas"] and not it.get("status", {}).get("replicas", 0)
    ]


def reasons(workloads: Iterable[Object], events: Iterable[Object]) -> Iterator[str]:
    """A line for each of these workloads without pods: what the last event says of one that could
    not be made."""
    said = [it["message"] for it in events if it["reason"] == "FailedCreate"]
    for it in workloads:
        of_it = [message for message in said if it["metadata"]["name"] in message]
        yield f"{label(it)} has no pod: {of_it[-1] if of_it else 'no event says why'}"


def main(arguments: list[str]) -> int:
    """Returns the exit status: 1 for a problem."""
    about = (__doc__ or "").partition("\n")[0]
    parser = argparse.ArgumentParser(prog="python -m tools.apply_manifests", description=about)
    parser.add_argument("--kubeconfig", type=Path, required=True)
    parser.add_argument("sites", nargs="*", metavar="SITE", help="by default all")
    told = parser.parse_args(arguments)
    cluster = Cluster(told.kubeconfig)
    sites = {it.name: (overlay_manifests, it) for it in overlays()}
    sites |= {it.name: (component_manifests, it) for it in components()}
    num_failed = 0
    for name in told.sites or sites:
        build, folder = sites[name]
        print(name, flush=True)
        found = list(problems(cluster, build(folder)))
        for line in found:
            print(f"  FAIL {line}")
        num_failed += bool(found)
    return int(num_failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
