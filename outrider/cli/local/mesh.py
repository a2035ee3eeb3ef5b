"""What `outrider up` starts: a small mesh on this machine as a list of processes (pure)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from outrider.config import toml_literal
from outrider.errors import ConfigError
from outrider.models import definitions
from outrider.tls.config import TlsConfig
from outrider.tls.identity import is_label

ROLES = ("edge", "router", "tokenizer", "inference")
DEFAULT_REGIONS = ("us-east", "eu-west")

_REGION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
"""Files are named after it."""

Values = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class MeshOptions:
    """The shape of the mesh."""

    model: str = "smollm2-135m-instruct"
    regions: tuple[str, ...] = DEFAULT_REGIONS
    replicas_per_region: int = 1
    threads: int = 1
    """Engine threads of each replica."""
    engine: str = "openvino"
    host: str = "127.0.0.1"
    port: int = 4433
    """The edge's UDP port; 0 takes any free one."""
    draft_model: str = ""
    """What the edge drafts with: "" is what is shipped for the model."""
    settings: tuple[str, ...] = ()
    """ROLE.KEY=VALUE, passed on to every service of the role."""
    tables: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    """The same by role, from a file; `settings` win."""
    models: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    """Definitions besides the shipped ones, by name: a mesh keeps what it was started with."""
    plaintext: bool = False
    """Whether the services talk to each other without certificates."""

    def __post_init__(self) -> None:
        if not self.regions or len(set(self.regions)) != len(self.regions):
            raise ConfigError("a mesh needs at least one region, each named once")
        for region in self.regions:
            if _REGION.fullmatch(region) is None:
                raise ConfigError(
                    f"a region's name is letters, digits, '.', '_', '-': not {region!r}"
                )
            if not self.plaintext and not is_label(region):
                raise ConfigError(
                    f"a region's name in certificates is a-z, 0-9, '-': not {region!r}; use such a "
                    "name, or --plaintext"
                )
        if not 0 <= self.port < 1 << 16:
            raise ConfigError(f"port must be 0 to 65535, not {self.port}")
        if not 1 <= self.replicas_per_region <= 16:
            raise ConfigError("a region on one machine has 1 to 16 replicas")
        if self.engine == "fake" and self.draft_model not in ("", "none"):
            raise ConfigError(
                f"a fake model says nothing that the draft model {self.draft_model} could guess; "
                "leave --draft-model out, or use --engine openvino"
            )
        for setting in self.settings:
            role, dot, rest = setting.partition(".")
            if role not in ROLES or not dot or "=" not in rest:
                raise ConfigError(f"--set takes ROLE.KEY=VALUE, not {setting!r}")

    def settings_of(self, role: str) -> list[str]:
        """The KEY=VALUE settings of one role."""
        return [s.removeprefix(f"{role}.") for s in self.settings if s.startswith(f"{role}.")]


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """One process: its name, its role, and the keys of its config section."""

    name: str
    role: str
    values: Values


def replicas(options: MeshOptions) -> list[ProcessSpec]:
    """The inference replicas of every region."""
    return [
        _replica(options, region, number)
        for region in options.regions
        for number in range(options.replicas_per_region)
    ]


def _replica(options: MeshOptions, region: str, number: int) -> ProcessSpec:
    name = f"{region}-{number}"
    values: dict[str, object] = {
        "host": options.host,
        "port": 0,
        "admin": {"port": 0},
        "region": region,
        "replica": name,
        "model": options.model,
        "engine": options.engine,
        "threads": options.threads,
    }
    return ProcessSpec(name=name, role="inference", values=values)


def tokenizer(options: MeshOptions) -> ProcessSpec:
    """The tokenizer service."""
    values = {"host": options.host, "port": 0, "admin": {"port": 0}, "models": (options.model,)}
    return ProcessSpec(name="tokenizer", role="tokenizer", values=values)


def router(
    options: MeshOptions, replica_ports: Mapping[str, int], tokenizer_port: int
) -> ProcessSpec:
    """The router in front of `replica_ports` (process name -> gRPC port)."""
    table = tuple(
        {
            "name": spec.name,
            "region": str(spec.values["region"]),
            "address": f"{options.host}:{replica_ports[spec.name]}",
        }
        for spec in replicas(options)
    )
    values: dict[str, object] = {
        "host": options.host,
        "port": 0,
        "admin": {"port": 0},
        "region": options.regions[0],
        "tokenizers": (f"{options.host}:{tokenizer_port}",),
        "replicas": table,
    }
    return ProcessSpec(name="router", role="router", values=values)


def edge(options: MeshOptions, router_port: int, state_dir: Path) -> ProcessSpec:
    """The edge in front of the router."""
    values: dict[str, object] = {
        "host": options.host,
        "port": options.port,
        "admin": {"port": 0},
        "region": options.regions[0],
        "models": (options.model,),
        "routers": (f"{options.host}:{router_port}",),
        "state_dir": str(state_dir),
        # Not even the one that is shipped for the model.
        "drafter": {"model": "none" if options.engine == "fake" else options.draft_model},
    }
    return ProcessSpec(name="edge", role="edge", values=values)


def merged(values: Values, more: Values) -> dict[str, object]:
    """Settings, with `more` before `values`; tables are merged key by key."""
    result = dict(values)
    for key, value in more.items():
        before = result.get(key)
        if isinstance(value, Mapping) and isinstance(before, Mapping):
            value = {**before, **value}
        result[key] = value
    return result


def completed(spec: ProcessSpec, values: Values, tls: TlsConfig) -> ProcessSpec:
    """With the settings that the mesh was told, and the certificate of this process."""
    paths = {"certificate": tls.certificate, "private_key": tls.private_key, "ca": tls.ca}
    table = {"tls": {key: str(path) for key, path in paths.items()}} if tls.is_on else {}
    return replace(spec, values=merged({**spec.values, **table}, values))


def to_toml(spec: ProcessSpec, models: Mapping[str, Mapping[str, object]] | None = None) -> str:
    """The config file of a process: one section named after its role, and what models it knows."""
    given = {key: value for key, value in spec.values.items() if value is not None}
    plain = {k: v for k, v in given.items() if not (_is_table(v) or isinstance(v, Mapping))}
    lines = [f"[{spec.role}]", *(f"{key} = {toml_literal(value)}" for key, value in plain.items())]
    for key, value in given.items():
        if isinstance(value, Mapping):
            lines += ["", f"[{spec.role}.{key}]"]
            lines += [f"{name} = {toml_literal(cell)}" for name, cell in value.items()]
        for row in value if _is_table(value) and isinstance(value, tuple | list) else ():
            lines += ["", f"[[{spec.role}.{key}]]"]
            lines += [f"{name} = {toml_literal(cell)}" for name, cell in row.items()]
    return "\n".join(lines) + "\n" + (f"\n{definitions.to_toml(models)}" if models else "")


def _is_table(value: object) -> bool:
    return isinstance(value, tuple | list) and bool(value) and isinstance(value[0], Mapping)
