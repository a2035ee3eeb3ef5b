"""The overlays build and keep every policy; every policy notices what it is there for."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from outrider.models.catalog import DEFAULT_MODEL
from tools.check_deploy import DEPLOY, component_manifests, overlays
from tools.deploy_checks import gpu_policies, kustomize
from tools.deploy_checks.config_policies import loaded
from tools.deploy_checks.lint import dockerfile_problems, yaml_problems
from tools.deploy_checks.manifests import Manifests, schema_problems
from tools.deploy_checks.policies import POLICIES, policy_problems
from tools.prometheus_rules import rule_problems, rules

REGIONS = {"us-east", "eu-west", "ap-southeast"}
NAMES = [folder.name for folder in overlays()]


@cache
def built(name: str) -> Manifests:
    """One overlay, built once per test run."""
    return Manifests.parse(kustomize.build(DEPLOY / "overlays" / name))


def test_every_site_has_an_overlay() -> None:
    assert set(NAMES) == REGIONS | {"edge-site"}


@pytest.mark.parametrize("name", NAMES)
def test_an_overlay_fits_the_schemas(name: str) -> None:
    assert list(schema_problems(built(name))) == []


@pytest.mark.parametrize("name", NAMES)
def test_an_overlay_keeps_the_policies(name: str) -> None:
    assert list(policy_problems(built(name))) == []


@pytest.mark.parametrize("name", sorted(REGIONS))
def test_a_region_runs_every_role(name: str) -> None:
    workloads = {(w["kind"], w["metadata"]["name"]) for w in built(name).workloads()}
    assert workloads == {
        ("Deployment", "edge"),
        ("Deployment", "router"),
        ("Deployment", "tokenizer"),
        ("StatefulSet", "inference"),
    }


def test_an_edge_site_runs_edges_alone() -> None:
    assert [w["metadata"]["name"] for w in built("edge-site").workloads()] == ["edge"]


def test_files_are_clean() -> None:
    assert list(dockerfile_problems(DEPLOY / "docker")) == []
    assert list(yaml_problems(DEPLOY)) == []


Change = Callable[[dict[str, dict[str, Any]]], None]


def pod(things: dict[str, dict[str, Any]], name: str) -> Any:
    return things[name]["spec"]["template"]["spec"]


def container(things: dict[str, dict[str, Any]], name: str) -> Any:
    return pod(things, name)["containers"][0]


def config(things: dict[str, dict[str, Any]], role: str) -> Any:
    (name,) = (n for n in things if n.startswith(f"ConfigMap/{role}-config"))
    return things[name]["data"]


def replace(data: Any, old: str, new: str) -> None:
    assert old in data["outrider.toml"]
    data["outrider.toml"] = data["outrider.toml"].replace(old, new)


def define(data: Any, name: str) -> None:
    """Add a definition to a configuration, or to a models file."""
    (file,) = data
    data[file] += f'\n[models."{name}"]\nsource = "hf:Org/Repo@main#m.gguf"\n'


def set_models_file(things: dict[str, dict[str, Any]], name: str, path: str) -> None:
    """Name a models file in every container of a workload."""
    it = pod(things, name)
    for one in (*it["initContainers"], *it["containers"]):
        one["env"].append({"name": "OUTRIDER_MODELS", "value": path})


def set_limits(things: dict[str, dict[str, Any]], **settings: str) -> None:
    """Name a Redis of shared limits in the edges."""
    for key, value in settings.items():
        name = f"OUTRIDER_EDGE_SHARED_LIMITS_{key}"
        container(things, EDGE)["env"].append({"name": name, "value": value})


def add_route(
    things: dict[str, dict[str, Any]],
    port: int = 443,
    timeout: str = "0s",
    host: str = "chat.example.com",
) -> None:
    """Lead a gateway to the edges. They take the place of two other objects."""
    policy, route = things["HorizontalPodAutoscaler/edge"], things["PodDisruptionBudget/edge"]
    target = {"name": "edge", "sectionName": "https"}
    policy["kind"], route["kind"] = "BackendTLSPolicy", "HTTPRoute"
    policy["spec"] = {"targetRefs": [target], "validation": {"hostname": host}}
    rule = {"backendRefs": [{"name": "edge", "port": port}], "timeouts": {"request": timeout}}
    route["spec"] = {"hostnames": ["chat.example.com"], "rules": [rule]}


def add_scaled_object(things: dict[str, dict[str, Any]]) -> None:
    """In place of another autoscaler: KEDA scales replicas to zero."""
    target = {"kind": "StatefulSet", "name": "inference"}
    things["HorizontalPodAutoscaler/edge"].update(
        apiVersion="keda.sh/v1alpha1",
        kind="ScaledObject",
        spec={"scaleTargetRef": target, "minReplicaCount": 0, "maxReplicaCount": 4},
    )


EDGE, ROUTER, TOKENIZER = "Deployment/edge", "Deployment/router", "Deployment/tokenizer"
INFERENCE = "StatefulSet/inference"
MISTAKES: dict[str, list[Change]] = {
    "pods_are_not_root": [
        lambda t: pod(t, EDGE)["securityContext"].pop("runAsNonRoot"),
        lambda t: pod(t, EDGE)["securityContext"].update(runAsUser=0),
    ],
    "system_calls_are_filtered": [
        lambda t: pod(t, EDGE)["securityContext"].pop("seccompProfile"),
    ],
    "root_file_systems_are_read_only": [
        lambda t: pod(t, EDGE)["initContainers"][0].pop("securityContext"),
    ],
    "containers_have_no_privileges": [
        lambda t: container(t, EDGE)["securityContext"].update(capabilities={"drop": []}),
        lambda t: container(t, EDGE)["securityContext"].pop("allowPrivilegeEscalation"),
    ],
    "hosts_are_left_alone": [
        lambda t: pod(t, EDGE).update(hostNetwork=True),
        lambda t: pod(t, EDGE)["volumes"].append({"name": "h", "hostPath": {"path": "/"}}),
        lambda t: container(t, EDGE)["ports"][0].update(hostPort=443),
    ],
    "resources_are_bounded": [
        lambda t: container(t, EDGE)["resources"]["limits"].pop("memory"),
    ],
    "pods_are_probed": [
        lambda t: container(t, EDGE).pop("startupProbe"),
        lambda t: container(t, ROUTER).update(readinessProbe={"tcpSocket": {"port": "grpc"}}),
    ],
    "tokens_are_not_mounted": [
        lambda t: pod(t, EDGE).pop("automountServiceAccountToken"),
        lambda t: pod(t, EDGE).update(serviceAccountName="default"),
    ],
    "service_links_are_off": [
        lambda t: pod(t, EDGE).pop("enableServiceLinks"),
    ],
    "images_are_pinned": [
        lambda t: container(t, EDGE).update(image="host:5000/outrider-edge"),
        lambda t: container(t, EDGE).update(image="outrider-edge:latest"),
    ],
    "pods_are_spread": [
        lambda t: pod(t, EDGE)["topologySpreadConstraints"].pop(),
    ],
    "everything_is_in_the_namespace": [
        lambda t: t["Service/edge"]["metadata"].pop("namespace"),
        lambda t: t["Namespace/outrider"]["metadata"].pop("labels"),
    ],
    "no_secrets_are_committed": [
        lambda t: t["Service/edge"].update(kind="Secret"),
    ],
    "nothing_passes_by_default": [
        lambda t: t["NetworkPolicy/default-deny"]["spec"].update(ingress=[{}]),
    ],
    "workloads_have_network_policies": [
        lambda t: t["NetworkPolicy/edge"]["spec"]["podSelector"].update(matchLabels={"a": "b"}),
        lambda t: t["NetworkPolicy/edge"]["spec"]["egress"][0].pop("ports"),
    ],
    "names_are_reached_not_the_world": [
        lambda t: t["NetworkPolicy/edge"]["spec"]["egress"][0].update(
            to=[{"ipBlock": {"cidr": "0.0.0.0/0"}}]
        ),
        lambda t: t["NetworkPolicy/edge"]["spec"]["egress"][0].pop("to"),
    ],
    "replicas_reach_one_another": [
        lambda t: t["NetworkPolicy/inference-between-regions"]["spec"].update(egress=[]),
        lambda t: t["NetworkPolicy/inference-between-regions"]["spec"]["ingress"][0]["from"].pop(),
        lambda t: t["NetworkPolicy/inference-between-regions"]["spec"]["egress"][0].update(
            ports=[{"port": 7100, "protocol": "TCP"}]
        ),
    ],
    "workloads_survive_disruptions": [
        lambda t: t[INFERENCE]["spec"].update(replicas=1),
        lambda t: t[EDGE]["spec"].update(replicas=3),
        lambda t: t["PodDisruptionBudget/edge"]["spec"].update(maxUnavailable=0),
    ],
    "autoscalers_have_targets": [
        lambda t: t["HorizontalPodAutoscaler/edge"]["spec"]["scaleTargetRef"].update(name="e"),
        lambda t: t["HorizontalPodAutoscaler/edge"]["spec"].pop("behavior"),
    ],
    "services_reach_pods": [
        lambda t: t["Service/edge"]["spec"].update(selector={"a": "b"}),
        lambda t: t["Service/router"]["spec"]["ports"][0].update(targetPort="htpp"),
    ],
    "the_edge_speaks_quic": [
        lambda t: t["Service/edge"]["spec"]["ports"][0].pop("protocol"),
        lambda t: t["Service/edge"]["spec"].update(externalTrafficPolicy="Cluster"),
    ],
    "grpc_services_are_headless": [
        lambda t: t["Service/router"]["spec"].pop("clusterIP"),
    ],
    "routes_lead_to_the_edge": [
        lambda t: add_route(t, port=80),
        lambda t: add_route(t, timeout="15s"),
        lambda t: add_route(t, host="another.example.com"),
    ],
    "traces_find_their_way": [
        lambda t: container(t, EDGE)["env"].append(
            {"name": "OTEL_EXPORTER_OTLP_ENDPOINT", "value": "http://collector.tracing:4318"}
        ),
    ],
    "configurations_load": [
        lambda t: replace(config(t, "edge"), "drain_s", "drian_s"),
        lambda t: replace(config(t, "edge"), "port = 4433", "port = 99999"),
        lambda t: container(t, EDGE).update(args=[]),
        lambda t: container(t, EDGE)["env"].append(
            {"name": "OUTRIDER_EDGE_SERVICE_HOST", "value": "10.0.0.1"}
        ),
        lambda t: replace(config(t, "router"), 'ca = "', 'trust_domain = "'),
    ],
    "ports_are_those_configured": [
        lambda t: replace(config(t, "router"), "port = 7100", "port = 7101"),
        lambda t: replace(config(t, "router"), '"0.0.0.0"', '"127.0.0.1"'),
    ],
    "pods_have_time_to_drain": [
        lambda t: pod(t, EDGE).update(terminationGracePeriodSeconds=39),
        lambda t: container(t, EDGE).pop("lifecycle"),
    ],
    "routers_have_memory_for_what_they_keep": [
        lambda t: container(t, ROUTER)["resources"]["limits"].update(memory="512Mi"),
        # 1.2 GB
        lambda t: container(t, ROUTER)["resources"]["limits"].update(memory=1200000000),
        lambda t: replace(config(t, "router"), "drain_s", "max_kept_bytes = 805306368\ndrain_s"),
        lambda t: replace(config(t, "router"), "drain_s", "processes = 3\ndrain_s"),
    ],
    "routers_find_their_replicas": [
        lambda t: replace(config(t, "router"), '"dns:inference:7300"', '"dns:router:7100"'),
    ],
    "services_are_found": [
        lambda t: replace(config(t, "router"), '"dns:tokenizer:', '"dns:tokenisers:'),
        lambda t: replace(config(t, "router"), '"dns:tokenizer:7200"', '"dns:tokenizer:7201"'),
        lambda t: t["Service/router"]["spec"].pop("clusterIP"),
    ],
    "chats_wait_for_replicas": [
        lambda t: add_scaled_object(t),
    ],
    "services_have_certificates": [
        lambda t: replace(config(t, "edge"), "mesh/ca", "meshes/ca"),
        lambda t: t["Certificate/inference-mesh"]["spec"].update(
            dnsNames=["inference.outrider.internal", "eu-west.inference.outrider.internal"]
        ),
        lambda t: t["Certificate/router-mesh"]["spec"].update(usages=["server auth"]),
        lambda t: t["Issuer/mesh"]["metadata"].update(name="other"),
    ],
    "models_are_known": [
        lambda t: container(t, EDGE)["env"].append(
            {"name": "OUTRIDER_EDGE_MODELS", "value": "gpt-9"}
        ),
        # pulled nowhere, and served by the edge alone
        lambda t: container(t, EDGE)["env"].append(
            {"name": "OUTRIDER_EDGE_MODELS", "value": f"{DEFAULT_MODEL.name},qwen3-0.6b"}
        ),
        lambda t: container(t, ROUTER)["env"].append(
            {"name": "OUTRIDER_ROUTER_DEFAULT_MODEL", "value": "qwen3-0.6b"}
        ),
        # another model by the name of one that is shipped, at the edge alone
        lambda t: define(config(t, "edge"), DEFAULT_MODEL.name),
        lambda t: set_models_file(t, EDGE, "/nowhere/models.toml"),
    ],
    "redis_addresses_are_taken": [
        # a password that would be read on the way
        lambda t: set_limits(t, URL="redis://redis.redis:6379/0", PASSWORD="secret"),
        lambda t: set_limits(t, URL="rediss://redis.redis:6379/0", PASSWORD_FILE="/nowhere/it"),
    ],
}


@pytest.mark.parametrize("policy", MISTAKES)
def test_each_mistake_is_noticed(policy: str) -> None:
    for number, mistake in enumerate(MISTAKES[policy]):
        problems = changed("us-east", mistake)
        found = any(problem.startswith(f"{policy}: ") for problem in problems)
        assert found, f"mistake {number}: {problems}"


def dict_of(thing: Any) -> dict[str, Any]:
    assert isinstance(thing, dict)
    return thing


def changed(name: str, change: Change) -> list[str]:
    """The problems of an overlay after a change."""
    objects = copy.deepcopy(built(name).objects)
    change({f"{thing['kind']}/{thing['metadata']['name']}": dict_of(thing) for thing in objects})
    return list(policy_problems(Manifests(objects)))


def use(things: dict[str, dict[str, Any]], model: str) -> None:
    """Serve another model in the whole region."""
    for name, it in things.items():
        if name.startswith("ConfigMap/mesh"):
            it["data"].update(model=model, models=model)


def test_models_that_a_region_defines_for_itself_are_known() -> None:
    def with_models_file(things: dict[str, dict[str, Any]]) -> None:
        use(things, "our-own")
        (mesh,) = (name for name in things if name.startswith("ConfigMap/mesh"))
        things[mesh]["data"]["models.toml"] = ""
        data = {"models.toml": ""}
        define(data, "our-own")
        things[mesh]["data"].update(data)
        for name in (EDGE, TOKENIZER, INFERENCE):
            set_models_file(things, name, "/etc/outrider-models/models.toml")
            it = pod(things, name)
            it["volumes"].append({"name": "definitions", "configMap": {"name": mesh.split("/")[1]}})
            for one in (*it["initContainers"], *it["containers"]):
                mount = {"name": "definitions", "mountPath": "/etc/outrider-models"}
                one["volumeMounts"].append(mount)

    assert changed("us-east", with_models_file) == []


def test_tables_of_the_configuration_count() -> None:
    def with_tables(things: dict[str, dict[str, Any]]) -> None:
        use(things, "our-own")
        for role in ("edge", "tokenizer", "inference"):
            define(config(things, role), "our-own")
        for name in (EDGE, TOKENIZER, INFERENCE):
            for one in pod(things, name)["initContainers"]:
                one["env"] = [it for it in one["env"] if it["name"] != "MODEL"]
                one["env"].append({"name": "MODEL", "value": "hf:Org/Repo@main#m.gguf"})

    assert changed("us-east", with_tables) == []


def test_tokenizer_workers_on_nodes_of_their_own() -> None:
    manifests = component_manifests(DEPLOY / "components" / "tokenizer-workers")
    assert list(schema_problems(manifests)) == []
    assert list(policy_problems(manifests)) == []
    found = {role: config for _, role, config in loaded(manifests)}
    assert found["tokenizer-worker"].services == (
        f"dns:tokenizer:{found['tokenizer'].worker_port}",
    )
    assert found["edge"].long_texts.tokenizers == (f"dns:tokenizer:{found['tokenizer'].port}",)
    objects = copy.deepcopy(manifests.objects)
    things = {f"{it['kind']}/{it['metadata']['name']}": dict_of(it) for it in objects}
    things["Service/tokenizer"]["spec"]["ports"].pop()
    container(things, TOKENIZER)["ports"].pop()
    problems = list(policy_problems(Manifests(objects)))
    for policy in ("services_are_found", "ports_are_those_configured"):
        assert any(problem.startswith(f"{policy}: ") for problem in problems), problems


@pytest.mark.parametrize("component", ["second-model", "second-model-edge"])
def test_a_second_model(component: str) -> None:
    manifests = component_manifests(DEPLOY / "components" / component)
    assert list(schema_problems(manifests)) == []
    assert list(policy_problems(manifests)) == []
    served = [
        sorted(getattr(config, "models", None) or [config.model])
        for _, role, config in loaded(manifests)
        if role != "router"
    ]
    both = ["smollm2-135m-instruct", "smollm2-360m-instruct"]
    region = [both, both[:1], both[1:], both]
    assert sorted(served) == sorted(region if component == "second-model" else [both])


@pytest.mark.parametrize("component", ["edge-limits", "edge-replies"])
@pytest.mark.parametrize("overlay", ["us-east", "edge-site"])
def test_edges_reach_a_redis_where_a_site_has_one(component: str, overlay: str) -> None:
    def ports(manifests: Manifests) -> set[object]:
        return {
            port["port"]
            for policy in manifests.of_kind("NetworkPolicy")
            if policy["metadata"]["name"].split("-")[0] == "edge"
            for rule in policy["spec"]["egress"]
            for port in rule["ports"]
        }

    manifests = component_manifests(DEPLOY / "components" / component, overlay)
    assert list(schema_problems(manifests)) == []
    assert list(policy_problems(manifests)) == []
    assert ports(manifests) - ports(built(overlay)) == {6379}
    assert 7100 in ports(manifests), "and routers"


def test_edges_answer_over_tcp_at_every_site() -> None:
    for name in NAMES:
        (config,) = (it for _, role, it in loaded(built(name)) if role == "edge")
        assert (config.http.host, config.http.port) == (config.host, config.port), name


@pytest.mark.parametrize("component", ["gateway", "inference-keda", "monitoring", "otlp"])
@pytest.mark.parametrize("overlay", ["us-east", "edge-site"])
def test_what_a_cluster_brings(component: str, overlay: str) -> None:
    manifests = component_manifests(DEPLOY / "components" / component, overlay)
    assert list(schema_problems(manifests)) == []
    if (component, overlay) == ("inference-keda", "edge-site"):
        (problem,) = policy_problems(manifests)
        assert "StatefulSet/inference, which is not here" in problem
    else:
        assert list(policy_problems(manifests)) == []


def test_a_region_whose_replicas_go_to_zero() -> None:
    manifests = component_manifests(DEPLOY / "components" / "scale-to-zero")
    assert list(schema_problems(manifests)) == list(policy_problems(manifests)) == []
    (scaled,) = manifests.of_kind("ScaledObject")
    assert (scaled["spec"]["minReplicaCount"], scaled["spec"]["maxReplicaCount"]) == (0, 16)
    (router,) = (it for _, role, it in loaded(manifests) if role == "router")
    assert router.wake_up.models == (router.default_model,)


def test_the_operator_has_the_rules_of_prometheus() -> None:
    assert rule_problems() == []
    manifests = component_manifests(DEPLOY / "components" / "monitoring")
    (rule,) = manifests.of_kind("PrometheusRule")
    assert rule["spec"] == rules()["spec"]


def test_every_pod_with_metrics_is_scraped() -> None:
    manifests = component_manifests(DEPLOY / "components" / "monitoring")
    (monitor,) = manifests.of_kind("PodMonitor")
    wanted = monitor["spec"]["selector"]["matchLabels"].items()
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    for workload in manifests.workloads():
        labels = workload["spec"]["template"]["metadata"]["labels"]
        assert wanted <= labels.items() and labels["mesh-region"] == "us-east"
        ports = workload["spec"]["template"]["spec"]["containers"][0]["ports"]
        assert endpoint["port"] in {port["name"] for port in ports}


def test_traces_leave_every_role() -> None:
    objects = copy.deepcopy(component_manifests(DEPLOY / "components" / "otlp").objects)
    without = Manifests(tuple(it for it in objects if it["metadata"]["name"] != "otlp"))
    problems = [it for it in policy_problems(without) if it.startswith("traces_find_their_way")]
    assert len(problems) == 4, "each of the four roles has the settings, and needs the policy"


def test_replicas_reach_the_prefix_store_and_nobody_else_does() -> None:
    manifests = component_manifests(DEPLOY / "components" / "prefix-store")
    assert list(schema_problems(manifests)) == []
    assert list(policy_problems(manifests)) == []
    policies = {it["metadata"]["name"]: it["spec"] for it in manifests.of_kind("NetworkPolicy")}
    (rule,) = policies["prefix-store"]["ingress"]
    assert [peer["podSelector"]["matchLabels"] for peer in rule["from"]] == [
        {"app.kubernetes.io/name": "inference"}
    ]
    ports = {port["port"] for rule in policies["inference"]["egress"] for port in rule["ports"]}
    assert "redis" in ports


def test_every_policy_is_tried_with_a_mistake() -> None:
    """Those about GPUs are tried in test_gpu_manifests.py."""
    general = {it.__name__ for it in POLICIES if it.__module__ != gpu_policies.__name__}
    assert MISTAKES.keys() == general
