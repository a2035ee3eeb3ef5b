"""The Helm chart renders what kustomize builds, for every site, and keeps the same policies."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from tools.check_deploy import DEPLOY, component_manifests
from tools.deploy_checks import helm, kustomize
from tools.deploy_checks.manifests import Manifests, schema_problems
from tools.deploy_checks.policies import policy_problems
from tools.helm_chart import CHART, REGION, chart_problems, plain

EXAMPLES = CHART.parent / "examples"
SITES = ("us-east", "eu-west", "ap-southeast", "edge-site")

Objects = dict[tuple[str, str], dict[str, Any]]


@cache
def rendered(*examples: str, settings: tuple[str, ...] = ()) -> Manifests:
    """The chart with these files of examples and settings."""
    files = [EXAMPLES / f"{name}.yaml" for name in examples]
    return Manifests.parse(helm.render(CHART, files, *settings))


def built(folder: Path) -> Manifests:
    return Manifests.parse(kustomize.build(folder))


def compared(manifests: Manifests) -> Objects:
    """The objects by kind and name, without what both ways write otherwise and a cluster treats
    alike: names of settings that kustomize ends with a hash, the sums of settings that Helm's pods
    have instead, the order of named lists, blanks at the ends of settings."""
    found: Objects = {}
    for thing in map(plain, manifests.objects):
        thing = copy.deepcopy(thing)
        if "template" in thing.get("spec", {}):
            metadata = thing["spec"]["template"]["metadata"]
            assert metadata.pop("annotations", {}).keys() <= {"checksum/config"}
            pod = thing["spec"]["template"]["spec"]
            pod["volumes"].sort(key=lambda it: it["name"])
            for container in pod["containers"]:
                container["volumeMounts"].sort(key=lambda it: it["mountPath"])
        if "outrider.toml" in thing.get("data", {}):
            thing["data"]["outrider.toml"] = thing["data"]["outrider.toml"].strip()
        found[thing["kind"], thing["metadata"]["name"]] = thing
    assert len(found) == len(manifests.objects)
    return found


def test_the_templates_are_what_the_base_makes() -> None:
    assert chart_problems() == []


@pytest.mark.parametrize("site", SITES)
def test_the_chart_makes_the_objects_of_an_overlay(site: str) -> None:
    ours, theirs = compared(rendered(site)), compared(built(DEPLOY / "overlays" / site))
    assert ours.keys() == theirs.keys()
    for key, thing in theirs.items():
        assert ours[key] == thing, key


def test_without_values_it_makes_the_base_with_a_name_of_the_region() -> None:
    theirs = compared(built(DEPLOY / "base"))
    ours = compared(rendered())
    assert ours.keys() == theirs.keys()
    for workload in rendered().workloads():  # the base's images have no tag
        pod = ours[workload["kind"], workload["metadata"]["name"]]["spec"]["template"]["spec"]
        for container in (*pod["containers"], *pod.get("initContainers", ())):
            container["image"] = container["image"].removesuffix(":0.1.0")
    for key, thing in theirs.items():
        labels = ours[key]["metadata"]["labels"]
        assert labels.pop("mesh-region") == "local"
        if not labels:
            del ours[key]["metadata"]["labels"]
        for nested in ("template", "volumeClaimTemplates"):
            found = ours[key].get("spec", {}).get(nested, [])
            for it in found if isinstance(found, list) else [found]:
                del it["metadata"]["labels"]["mesh-region"]
        assert ours[key] == thing, key


@pytest.mark.parametrize(
    ("component", "render"),
    [
        ("inference-gpu", lambda: rendered(REGION, "gpu")),
        ("inference-keda", lambda: rendered(REGION, settings=("inference.keda.enabled=true",))),
        (
            "scale-to-zero",
            lambda: rendered(
                REGION, settings=("inference.keda.enabled=true", "inference.keda.minReplicas=0")
            ),
        ),
        ("monitoring", lambda: rendered(REGION, settings=("monitoring.enabled=true",))),
    ],
)
def test_values_make_the_objects_of_a_component(
    component: str, render: Callable[[], Manifests]
) -> None:
    ours = compared(render())
    theirs = compared(component_manifests(DEPLOY / "components" / component))
    assert ours.keys() == theirs.keys()
    for key, thing in theirs.items():
        assert ours[key] == thing, key


@pytest.mark.parametrize("examples", [(), *((it,) for it in SITES), (REGION, "stock-engine")])
def test_what_it_makes_fits_the_schemas_and_keeps_the_policies(examples: tuple[str, ...]) -> None:
    manifests = rendered(*examples)
    assert list(schema_problems(manifests)) == []
    if examples:  # the base alone has no way to its models
        assert list(policy_problems(manifests)) == []


def test_a_release_goes_into_its_namespace_with_images_of_a_registry() -> None:
    manifests = rendered(
        settings=("image.registry=registry.example.org/outrider/", "image.tag=0.1.0-7")
    )
    images = {container["image"] for _, container in manifests.containers()}
    roles = ("edge", "router", "tokenizer", "inference")
    assert images == {f"registry.example.org/outrider/outrider-{it}:0.1.0-7" for it in roles}


def test_routers_wake_up_replicas_only_where_their_site_has_none_at_times() -> None:
    zero = "inference.keda.minReplicas=0"
    for settings in ((zero,), (zero, "inference.keda.enabled=true", "inference.enabled=false")):
        names = [
            env["name"]
            for workload, container in rendered(settings=settings).containers()
            for env in container.get("env", ())
        ]
        assert names and "OUTRIDER_ROUTER_WAKE_UP_MODELS" not in names


def test_other_settings_start_other_pods() -> None:
    def sums(*settings: str) -> dict[str, str]:
        return {
            it["metadata"]["name"]: it["spec"]["template"]["metadata"]["annotations"][
                "checksum/config"
            ]
            for it in rendered(settings=settings).workloads()
        }

    before, after = sums(), sums("inference.config=[inference]")
    assert {name for name in before if before[name] != after[name]} == {"inference"}
    others = sums("models={a,b}")
    assert all(before[name] != others[name] for name in before)


def test_every_value_is_used() -> None:
    """A value that no template has would be set in vain."""
    text = "".join(it.read_text("utf-8") for it in (CHART / "templates").iterdir())
    values = yaml.safe_load((CHART / "values.yaml").read_text("utf-8"))
    unused = [
        f"{name}.{key}"
        for name, value in values.items()
        for key in (value if isinstance(value, dict) else ("",))
        if f".Values.{name}.{key}".rstrip(".") not in text
    ]
    assert unused == []
