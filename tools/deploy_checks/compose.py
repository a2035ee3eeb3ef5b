"""Check compose.yaml against the Dockerfile, the services' own settings and each other's ports."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import yaml

from outrider.cli.local.settings import config_class
from outrider.cli.serve import flags_of
from outrider.config import load
from outrider.errors import OutriderError
from outrider.models.catalog import DEFAULT_MODEL

Service: TypeAlias = Mapping[str, Any]

_VARIABLE = re.compile(r"\$\{\w+:-([^}]*)\}")
_HEALTH = re.compile(r"http://127\.0\.0\.1:(\d+)/ready")
_OWNED = re.compile(r"--owner 10001 --group 10001 \\\n +(.*)$", re.MULTILINE)
_ROLE_IMAGE = re.compile(r"outrider-(\w+):")


class Composition:
    """The file, read as Compose reads it, with its variables' defaults."""

    def __init__(self, file: Path) -> None:
        self.folder = file.parent
        document = yaml.safe_load(_VARIABLE.sub(r"\1", file.read_text("utf-8")))
        self.services: Mapping[str, Service] = document["services"]
        self.volumes: Mapping[str, object] = document["volumes"]
        self.networks: Mapping[str, Mapping[str, object]] = document["networks"]
        self.configs: dict[str, Any] = {}
        """What the services that run a role would run with, by name."""

    def build(self, service: Service) -> tuple[Path, str]:
        """The Dockerfile and the target of the image that a service runs. Raises ValueError unless
        all that build it name the same."""
        ((context, file, target),) = {
            tuple(str(it["build"][key]) for key in ("context", "dockerfile", "target"))
            for it in self.services.values()
            if it["image"] == service["image"] and "build" in it
        }
        return self.folder / context / file, target

    def role(self, service: Service) -> str:
        """The role that a service runs; empty: another command."""
        found = _ROLE_IMAGE.match(service["image"])
        return found[1] if found and "entrypoint" not in service else ""

    def mounts(self, service: Service) -> Iterator[tuple[str, str]]:
        """Volume or path, and where a service has it."""
        for mount in service.get("volumes", ()):
            source, target = mount.split(":")[:2]
            yield source, target

    def config(self, service: Service) -> Any:
        """The settings that a role would run with. Raises OutriderError, LookupError."""
        dockerfile, role = self.build(service)
        own = f"/etc/outrider/{role}.toml"
        arguments = service.get("command", ["--config", own])
        pairs = list(zip(arguments[::2], arguments[1::2], strict=True))
        flags = flags_of([value for flag, value in pairs if flag == "--set"])
        file = None
        if (path := dict(pairs).get("--config")) is not None:
            mounted = {target: source for source, target in self.mounts(service)}
            if path in mounted or path != own:
                file = self.folder / mounted[path]
            else:
                file = dockerfile.parent / "defaults" / f"{role}.toml"
        environ = {key: str(value) for key, value in service.get("environment", {}).items()}
        return load(config_class(role), role, file=file, environ=environ, flags=flags)

    def listening(self, address: str, caller: Service) -> str:
        """What is wrong with an address that a service calls; empty: nothing."""
        name, _, port = address.rpartition(":")
        callee = self.services.get(name)
        if callee is None or name not in self.configs:
            return f"{address}: no service {name} here"
        if not set(callee["networks"]) & set(caller["networks"]):
            return f"{address}: on no network of its caller"
        config = self.configs[name]
        if (config.host, str(config.port)) != ("0.0.0.0", port):
            return f"{address}: it listens at {config.host}:{config.port}"
        return ""


def compose_problems(file: Path) -> Iterator[str]:
    """Problems of a compose.yaml; none: its services start with their settings, find each other,
    are closed to other machines, and can write where they have to."""
    it = Composition(file)
    for name, service in it.services.items():
        yield from (f"{name}: {problem}" for problem in _image_problems(it, service))
        if it.role(service):
            try:
                it.configs[name] = it.config(service)
            except (OutriderError, LookupError, ValueError) as error:
                yield f"{name}: {error}"
    for name, config in it.configs.items():
        yield from (f"{name}: {problem}" for problem in _role_problems(it, name, config))
    yield from _model_problems(it)


def _image_problems(it: Composition, service: Service) -> Iterator[str]:
    try:
        dockerfile, target = it.build(service)
    except ValueError:
        yield f"{service['image']} is built by no service, or by two targets"
        return
    if not service["image"].startswith(f"outrider-{target}:"):
        yield f"{service['image']} is built from the target {target}"
    if not dockerfile.exists():
        yield f"there is no {dockerfile}"
        return
    owned = _OWNED.findall(dockerfile.read_text("utf-8"))
    for source, target in it.mounts(service):
        if source.startswith("."):
            if not (it.folder / source).is_file():
                yield f"there is no {source}"
        elif source not in it.volumes:
            yield f"volume {source} is not declared"
        elif target not in " ".join(owned).split():
            yield f"{target} does not belong to the image's user"
    for other in service.get("depends_on", {}):
        if other not in it.services:
            yield f"depends on {other}, which is not there"
    for network in service.get("networks", ()):
        if network not in it.networks:
            yield f"network {network} is not declared"


def _role_problems(it: Composition, name: str, config: Any) -> Iterator[str]:
    service = it.services[name]
    health = _HEALTH.search(str(service["healthcheck"]["test"]))
    if health is None or int(health[1]) != config.admin.port:
        yield f"its health check is not at its admin port, {config.admin.port}"
    if not config.tls.allow_plaintext:
        yield "it has no certificate, and tls.allow_plaintext is not set"
    role = it.role(service)
    open_networks = [key for key in service["networks"] if not it.networks[key].get("internal")]
    if role != "edge" and (open_networks or service.get("ports")):
        yield "without certificates it may be on internal networks alone"
    bound = {f"{config.port}/udp", f"{config.http.port}/tcp"} if role == "edge" else set()
    for published in service.get("ports", ()):
        host, _, port = published.partition(":")
        if host != "127.0.0.1":
            yield f"{published} is open to other machines"
        if port.partition(":")[2] not in bound:
            yield f"{published}: it binds {sorted(bound)}"
    for address in _called(role, config):
        if problem := it.listening(address, service):
            yield problem
    if role == "router":
        yield from _region_problems(it, config)


def _called(role: str, config: Any) -> Iterable[str]:
    if role == "edge":
        return [str(router) for router in config.routers]
    if role == "router":
        return [*config.tokenizers, *(replica.address for replica in config.replicas)]
    return ()


def _region_problems(it: Composition, config: Any) -> Iterator[str]:
    listed = {
        (replica.address.rpartition(":")[0], replica.name, replica.region)
        for replica in config.replicas
    }
    running = {
        (name, replica.replica, replica.region)
        for name, replica in it.configs.items()
        if it.role(it.services[name]) == "inference"
    }
    if listed != running:
        yield f"it lists the replicas {sorted(listed)}, and {sorted(running)} run"


def _model_problems(it: Composition) -> Iterator[str]:
    served: set[str] = set()
    for config in it.configs.values():
        default = getattr(config, "model", "") or DEFAULT_MODEL.name
        served |= set(getattr(config, "models", ())) or {default}
    said = " ".join(str(it.get("command", "")) for it in it.services.values())
    for model in served:
        if f"outrider models pull {model}" not in said:
            yield f"no service fetches {model}"
