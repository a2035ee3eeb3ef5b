"""Every policy, by name: a function that yields one sentence per violation."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tools.deploy_checks import config_policies, gpu_policies, pod_policies, service_policies
from tools.deploy_checks.manifests import Manifests

Policy = Callable[[Manifests], Iterator[str]]

POLICIES: tuple[Policy, ...] = (
    pod_policies.pods_are_not_root,
    pod_policies.system_calls_are_filtered,
    pod_policies.root_file_systems_are_read_only,
    pod_policies.containers_have_no_privileges,
    pod_policies.hosts_are_left_alone,
    pod_policies.resources_are_bounded,
    pod_policies.pods_are_probed,
    pod_policies.tokens_are_not_mounted,
    pod_policies.service_links_are_off,
    pod_policies.images_are_pinned,
    pod_policies.pods_are_spread,
    service_policies.everything_is_in_the_namespace,
    service_policies.no_secrets_are_committed,
    service_policies.nothing_passes_by_default,
    service_policies.workloads_have_network_policies,
    service_policies.names_are_reached_not_the_world,
    service_policies.replicas_reach_one_another,
    service_policies.workloads_survive_disruptions,
    service_policies.autoscalers_have_targets,
    service_policies.services_reach_pods,
    service_policies.the_edge_speaks_quic,
    service_policies.grpc_services_are_headless,
    service_policies.routes_lead_to_the_edge,
    service_policies.traces_find_their_way,
    config_policies.configurations_load,
    config_policies.ports_are_those_configured,
    config_policies.pods_have_time_to_drain,
    config_policies.routers_have_memory_for_what_they_keep,
    config_policies.services_are_found,
    config_policies.routers_find_their_replicas,
    config_policies.chats_wait_for_replicas,
    config_policies.services_have_certificates,
    config_policies.models_are_known,
    config_policies.redis_addresses_are_taken,
    gpu_policies.gpus_are_those_the_engine_uses,
    gpu_policies.gpu_pods_find_their_nodes,
    gpu_policies.gpu_pods_have_a_checkpoint,
    gpu_policies.gpu_pods_have_shared_memory,
)


def policy_problems(manifests: Manifests) -> Iterator[str]:
    """Every violation, with the policy's name before it."""
    for policy in POLICIES:
        for problem in policy(manifests):
            yield f"{policy.__name__}: {problem}"
