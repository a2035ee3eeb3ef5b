"""The configurations in the manifests, read by the services' own loaders."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from outrider.cli.local.settings import config_class
from outrider.config import load
from outrider.errors import ConfigError, OutriderError
from outrider.models.catalog import MODELS_VARIABLE, ModelCatalog, ModelSpec, load_catalog
from outrider.peers.membership import Lookup, Target, parse_target
from outrider.redis_settings import RedisAddress
from outrider.tls.identity import Role, server_name
from tools.deploy_checks.manifests import NAME_LABEL, Manifests, Object, label

ROLES = ("edge", "router", "tokenizer", "tokenizer-worker", "inference")
CONFIG_PATH = "/etc/outrider/outrider.toml"
_MARGIN_S = 5
_MIB = 1 << 20
_RESTING_MIB = 75
"""Memory of a router process that keeps nothing yet, in MiB."""
_CACHED_BLOCK_BYTES = 250
"""Memory of one block of the prefix index (`prefix_index.max_blocks`), in bytes."""
_KEPT_SHARE = 0.75
"""Share of a memory limit for kept data; the rest is for sessions, streams and the allocator."""
_UNITS = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "k": 10**3, "M": 10**6, "G": 10**9}
"""Kubernetes' suffixes for numbers of bytes."""
_REDIS_TABLES = ("shared_limits", "shared_replies", "shared_cache", "prefix_store")


def configurations_load(manifests: Manifests) -> Iterator[str]:
    """Keys and values are ones the service knows, ConfigMap and environment together."""
    for workload, role in _roles(manifests):
        try:
            _load(manifests, workload, role)
        except (OutriderError, LookupError) as error:
            yield f"{label(workload)}: {error}"


def ports_are_those_configured(manifests: Manifests) -> Iterator[str]:
    """The container ports are those that the service binds, and reachable from outside the pod."""
    for workload, role, config in loaded(manifests):
        ports = {port["name"]: port["containerPort"] for port in main_container(workload)["ports"]}
        main = ports.get("quic" if role == "edge" else "grpc")
        found = (main, ports.get("work"), ports.get("admin"))
        # A worker listens for its operators alone.
        bound = (getattr(config, name, None) for name in ("port", "worker_port"))
        if (*bound, config.admin.port) != found:
            yield f"{label(workload)}: container ports {ports} are not what outrider.toml binds"
        if getattr(config, "host", "0.0.0.0") != "0.0.0.0" or config.admin.host != "0.0.0.0":
            yield f"{label(workload)}: host and admin.host must be 0.0.0.0 in a pod"


def pods_have_time_to_drain(manifests: Manifests) -> Iterator[str]:
    """SIGKILL comes only after the pause before SIGTERM, the drain itself, and a margin."""
    for workload, _, config in loaded(manifests):
        pod = workload["spec"]["template"]["spec"]
        pause = main_container(workload).get("lifecycle", {}).get("preStop", {})
        pause_s = pause.get("sleep", {}).get("seconds", 0)
        if pause_s < 1:
            yield f"{label(workload)}: sleep before SIGTERM, senders learn late of the end"
        needed = pause_s + config.drain_s + _MARGIN_S
        if pod.get("terminationGracePeriodSeconds", 30) < needed:
            yield f"{label(workload)}: terminationGracePeriodSeconds must be {needed:g} or more"


def routers_have_memory_for_what_they_keep(manifests: Manifests) -> Iterator[str]:
    """Up to the bounds in their configuration: a router that reaches the limit before them is
    killed, where it would refuse or forget something."""
    for workload, role, config in loaded(manifests):
        limit = main_container(workload).get("resources", {}).get("limits", {}).get("memory")
        if role != "router" or limit is None:  # `resources_are_bounded` says so
            continue
        kept = config.max_kept_bytes + config.embedding.max_bytes + config.prompt_memory_bytes
        indexed = config.prefix_index.max_blocks * _CACHED_BLOCK_BYTES
        needed = (kept + config.processes * (indexed + _RESTING_MIB * _MIB)) / _KEPT_SHARE
        if _num_bytes(limit) < needed:
            yield (
                f"{label(workload)}: its bounds (max_kept_bytes, embedding.max_bytes, "
                "prompt_memory_bytes, prefix_index.max_blocks) need a memory limit of "
                f"{needed / _MIB:.0f}Mi, not {limit}"
            )


def services_are_found(manifests: Manifests) -> Iterator[str]:
    """Every name looked up in the own cluster is a headless service with that port."""
    services = {it["metadata"]["name"]: it["spec"] for it in manifests.of_kind("Service")}
    for workload, role, config in loaded(manifests):
        for target in _targets(role, config):
            if target.lookup is not Lookup.ADDRESSES or "." in target.host:
                continue
            spec = services.get(target.host)
            if spec is None or spec.get("clusterIP") != "None":
                yield f"{label(workload)}: {target.text} is not a headless service"
            elif target.port not in {port["port"] for port in spec["ports"]}:
                yield f"{label(workload)}: {target.text} is not a port of that service"


def routers_find_their_replicas(manifests: Manifests) -> Iterator[str]:
    """Every replica of the own region is among those that a router looks up."""
    routers = [config for _, role, config in loaded(manifests) if role == "router"]
    for workload, _, config in loaded(manifests):
        if workload["kind"] == "StatefulSet":
            wanted = f"dns:{workload['spec']['serviceName']}:{config.port}"
            for router in routers:
                regions = {it.target: it.region for it in router.replica_targets}
                if regions.get(wanted) != config.region:
                    yield f"router looks up {regions}, not {wanted} in {config.region}"


def chats_wait_for_replicas(manifests: Manifests) -> Iterator[str]:
    """Where KEDA scales replicas to zero, routers let chats wait for them: nothing else would ask
    for one."""
    zero = [it for it in manifests.of_kind("ScaledObject") if it["spec"]["minReplicaCount"] == 0]
    for workload, role, config in loaded(manifests):
        if zero and role == "router" and not config.wake_up.models:
            yield f"{label(workload)}: set OUTRIDER_ROUTER_WAKE_UP_MODELS, or no replica starts"


def services_have_certificates(manifests: Manifests) -> Iterator[str]:
    """Each role reads a certificate that cert-manager writes for it, with the names that others
    expect of it, for both ends of a connection."""
    issuers = {thing["metadata"]["name"] for thing in manifests.of_kind("Issuer")}
    issued = {it["spec"]["secretName"]: it["spec"] for it in manifests.of_kind("Certificate")}
    for workload, role, config in loaded(manifests):
        where, tls = label(workload), config.tls
        if not tls.is_on:
            yield f"{where}: its outrider.toml has no [{role}.tls]"
            continue
        paths = {
            f"{mount['mountPath']}/{file}": mount["name"]
            for mount in main_container(workload)["volumeMounts"]
            for file in ("tls.crt", "tls.key", "ca.crt")
        }
        volumes = {it["name"]: it for it in workload["spec"]["template"]["spec"]["volumes"]}
        names = {paths.get(str(it), "") for it in (tls.certificate, tls.private_key, tls.ca)}
        secrets = {volumes.get(it, {}).get("secret", {}).get("secretName", "") for it in names}
        spec = issued.get(min(secrets), {}) if len(secrets) == 1 else {}
        expected = {server_name(Role(role), tls.trust_domain)}
        if hasattr(config, "region"):  # tokenizers and workers do not know where they stand
            expected.add(server_name(Role(role), tls.trust_domain, config.region))
        if not expected <= set(spec.get("dnsNames", ())):
            yield f"{where}: no Certificate for its secret has the names {sorted(expected)}"
        elif not {"server auth", "client auth"} <= set(spec.get("usages", ())):
            yield f"{where}: its certificate must be for server auth and client auth"
        elif spec["issuerRef"] not in ({"name": name, "kind": "Issuer"} for name in issuers):
            yield f"{where}: its certificate's issuer is not here"


def redis_addresses_are_taken(manifests: Manifests) -> Iterator[str]:
    """The Redis address that a service is given is valid together with the password from its
    secret, and the files that it names exist."""
    for workload, _, config in loaded(manifests):
        mounts = {it["mountPath"] for it in main_container(workload).get("volumeMounts", ())}
        for table in _REDIS_TABLES:
            told = getattr(config, table, None)
            if told is None or not told.url:
                continue
            password = told.password or ("of a file" if told.password_file else "")
            try:
                RedisAddress(told.url, told.user, password, told.ca).check()
            except ValueError as error:
                yield f"{label(workload)}: {table}.url: {error}"
            for path in (told.password_file, told.ca, getattr(told, "key_file", None)):
                if path is not None and str(path.parent) not in mounts:
                    yield f"{label(workload)}: {table}: nothing is mounted at {path.parent}"


def models_are_known(manifests: Manifests) -> Iterator[str]:
    """Every model that is served is defined where it is served, fetched before, and everywhere the
    same; all roles of a region serve the same ones, and agree on the default."""
    served: dict[str, dict[str, str]] = {}
    """Source of the weights, by role and model."""
    defaults: dict[str, str] = {}
    defined: dict[str, ModelSpec] = {}
    for workload, role, config in loaded(manifests):
        if role == "router":  # takes names as they come
            defaults[role] = config.default_model
            continue
        if role == "tokenizer-worker":  # gets vocabularies from the tokenizers
            continue
        value = getattr(config, "model" if role == "inference" else "models")
        names = value or ("",) if isinstance(value, tuple) else (value,)
        try:
            specs = [_catalog(manifests, workload, role).lookup(name) for name in names]
            fetched = _fetched(manifests, workload, role)
        except OutriderError as error:
            yield f"{label(workload)}: {error}"
            continue
        if role != "inference":
            defaults[role] = specs[0].name
        for spec in specs:
            if replace(defined.setdefault(spec.name, spec), engine=spec.engine) != spec:
                yield f"{label(workload)}: {spec.name} is defined otherwise than elsewhere"
            if spec.source not in fetched:
                yield f"{label(workload)}: no init container pulls {spec.name}"
            served.setdefault(role, {})[spec.name] = spec.source
    sets = {role: sorted(models) for role, models in served.items()}
    if len({tuple(models) for models in sets.values()}) > 1:
        yield f"the roles serve different models: {sets}"
    if len(set(defaults.values())) > 1:
        yield f"the roles have different defaults: {defaults}"


def _fetched(manifests: Manifests, workload: Object, role: str) -> set[str]:
    """Sources of the artifacts that the init containers pull. Raises UnknownModelError,
    ConfigError."""
    sources: set[str] = set()
    for container in workload["spec"]["template"]["spec"].get("initContainers", ()):
        name = _environment(manifests, container, role, prefix="").get("MODEL", "")
        with _models_file(manifests, workload, container) as environ:
            catalog = load_catalog(environ=environ)
            sources.add(name if ":" in name else catalog.lookup(name).source)
    return sources


def _catalog(manifests: Manifests, workload: Object, role: str) -> ModelCatalog:
    """The catalogue of the serving container: shipped models, its models file, and the tables
    [models.NAME] of its configuration. Raises ConfigError."""
    container = main_container(workload)
    with (
        _models_file(manifests, workload, container) as environ,
        _config_file(manifests, workload) as file,
    ):
        return load_catalog(file, environ)


@contextmanager
def _models_file(
    manifests: Manifests, workload: Object, container: Object
) -> Iterator[dict[str, str]]:
    """Environment variables that name a copy of the container's models file for the catalogue.
    Raises ConfigError if that file is not part of a ConfigMap."""
    variables = {it["name"]: it.get("value", "") for it in container.get("env", ())}
    path = variables.get(MODELS_VARIABLE, "")
    if not path:
        yield {MODELS_VARIABLE: os.devnull}
        return
    folder, _, name = path.rpartition("/")
    volumes = {it["name"]: it for it in workload["spec"]["template"]["spec"]["volumes"]}
    mounted = {it["mountPath"]: it["name"] for it in container.get("volumeMounts", ())}
    map_name = volumes.get(mounted.get(folder, ""), {}).get("configMap", {}).get("name", "")
    try:
        text = _config_map(manifests, map_name)[name]
    except LookupError as error:
        raise ConfigError(f"{path} of {container['name']} is in no ConfigMap here") from error
    with _written(text) as file:
        yield {MODELS_VARIABLE: str(file)}


@contextmanager
def _config_file(manifests: Manifests, workload: Object) -> Iterator[Path]:
    volumes = workload["spec"]["template"]["spec"]["volumes"]
    (volume,) = (v for v in volumes if v["name"] == "config")
    with _written(_config_map(manifests, volume["configMap"]["name"])["outrider.toml"]) as file:
        yield file


@contextmanager
def _written(text: str) -> Iterator[Path]:
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write(text)
        file.flush()
        yield Path(file.name)


def _roles(manifests: Manifests) -> Iterator[tuple[Object, str]]:
    for workload in manifests.workloads():
        role = workload["spec"]["template"]["metadata"]["labels"].get(NAME_LABEL, "")
        if role in ROLES:
            yield workload, role


def loaded(manifests: Manifests) -> Iterator[tuple[Object, str, Any]]:
    """Workloads with the configuration they would start with; those that fail are left out."""
    for workload, role in _roles(manifests):
        try:
            yield workload, role, _load(manifests, workload, role)
        except (OutriderError, LookupError):
            continue  # `configurations_load` says so


def _load(manifests: Manifests, workload: Object, role: str) -> Any:
    container = main_container(workload)
    if CONFIG_PATH not in container.get("args", ()):
        raise LookupError(f"its arguments do not name {CONFIG_PATH}")
    section = role.replace("-", "_")
    with _config_file(manifests, workload) as file:
        return load(
            config_class(section),
            section,
            file=file,
            environ=_environment(manifests, container, role),
        )


def _environment(
    manifests: Manifests, container: Object, role: str, *, prefix: str = "OUTRIDER_"
) -> dict[str, str]:
    """The container's variables as the kubelet sets them, references resolved."""
    values = {"POD": f"{role}-0"}
    for variable in container.get("env", ()):
        name = variable["name"]
        source = variable.get("valueFrom", {})
        reference = source.get("configMapKeyRef")
        if "secretKeyRef" in source:
            values[name] = "what nobody here knows"
        elif reference is not None:
            values[name] = _config_map(manifests, reference["name"])[reference["key"]]
        elif "value" in variable:
            values[name] = _expand(variable["value"], values)
    return {name: value for name, value in values.items() if name.startswith(prefix)}


def _expand(text: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        text = text.replace(f"$({name})", value)
    return text


def _config_map(manifests: Manifests, name: str) -> Mapping[str, str]:
    for thing in manifests.of_kind("ConfigMap"):
        if thing["metadata"]["name"] == name:
            data: Mapping[str, str] = thing["data"]
            return data
    raise LookupError(f"there is no ConfigMap {name}")


def main_container(workload: Object) -> Object:
    """The one that serves."""
    containers: list[Object] = workload["spec"]["template"]["spec"]["containers"]
    return containers[0]


def _num_bytes(quantity: object) -> float:
    """Bytes of a Kubernetes quantity. Raises ValueError for a suffix that memory does not have."""
    text = str(quantity)
    for unit, size in _UNITS.items():
        if text.endswith(unit):
            return float(text.removesuffix(unit)) * size
    return float(text)


def _targets(role: str, config: Any) -> list[Target]:
    """Names that a service of this role looks up."""
    if role == "edge":
        texts = [*config.routers, *config.long_texts.tokenizers]
        return [parse_target(text, "the edge's targets") for text in texts]
    if role == "tokenizer-worker":
        return [parse_target(text, "services") for text in config.services]
    if role == "router":
        texts = [*config.tokenizers, *(entry.target for entry in config.replica_targets)]
        return [parse_target(text, "the router's targets") for text in texts]
    return []
