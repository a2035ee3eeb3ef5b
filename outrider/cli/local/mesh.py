"""The processes of the small mesh that `outrider up` starts on this machine (pure)."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
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

KEYS_FILE = "keys.json"
"""Name of the file with the edge's API keys, in the state folder."""
MAX_MODELS = 16
MAX_REPLICAS_PER_REGION = 16
MAX_PER_ROLE = 16
"""Routers, and edges."""
MAX_RTT_MS = 2000.0
_DRAFTER_WAIT_S = 240.0
"""How long a mesh that starts waits for its drafter, so that its first reply has drafts. Less than
a process may take without progress."""
_MAX_BACKOFF_S = 0.5
"""Longest pause between a router's attempts to reach a replica."""
_MAX_LABEL = 63
"""Letters of a name in a certificate (outrider/tls/identity.py)."""
OF_MODELS = (
    ("edge", "model"),
    ("edge", "models"),
    ("tokenizer", "models"),
    ("router", "replicas"),
    ("router", "default_model"),
    ("inference", "model"),
)
"""Settings derived from the models; nothing else may set them."""

Values = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model of the mesh, and how many replicas serve it."""

    name: str
    replicas_per_region: int = 1
    threads: int = 1
    """Engine threads of each replica."""
    embeds: bool = False
    """Whether it makes vectors, and no replies."""

    def __post_init__(self) -> None:
        definitions.check_model_name(self.name, "the mesh")


@dataclass(frozen=True, slots=True)
class MeshOptions:
    """The shape of the mesh."""

    models: tuple[ServedModel, ...]
    """Models served; the first is the default of requests that name none."""
    regions: tuple[str, ...] = DEFAULT_REGIONS
    num_routers: int = 1
    """They stand in the regions in turn."""
    num_edges: int = 1
    router_processes: int = 1
    """Number of processes of each router."""
    edge_processes: int = 1
    """Number of processes of each edge."""
    rtt_ms: float = 0.0
    """Round trip that is put between edges and routers; 0: none."""
    engine: str = "openvino"
    host: str = "127.0.0.1"
    port: int = 4433
    """UDP port of the first edge, the others have the next ones; 0: any free ones."""
    http_port: int | None = None
    """TCP port for HTTP of the first edge, the others have the next ones; 0: any free ones; None:
    no HTTP."""
    draft_model: str = ""
    """Draft model of edges for the first model; "" is the shipped one. Other models have the draft
    of their definitions."""
    settings: tuple[str, ...] = ()
    """ROLE.KEY=VALUE, passed on to every service of the role."""
    tables: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    """The same by role, from a file; `settings` win."""
    definitions: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    """Definitions of models besides the shipped ones, by name: a mesh keeps those it was started
    with."""
    prefix_store: str = ""
    """redis: start one, for the replicas' prefixes; empty: none."""
    plaintext: bool = False
    """Whether the services talk to each other without certificates."""

    def __post_init__(self) -> None:
        names = [model.name for model in self.models]
        if not 1 <= len(names) <= MAX_MODELS or len(set(names)) != len(names):
            raise ConfigError(f"a mesh serves 1 to {MAX_MODELS} models, each named once")
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
        if not 0 <= self.port <= (1 << 16) - self.num_edges:
            raise ConfigError(f"port must be 0 to {(1 << 16) - self.num_edges}, not {self.port}")
        if self.http_port is not None and not 0 <= self.http_port <= (1 << 16) - self.num_edges:
            raise ConfigError(
                f"http-port must be 0 to {(1 << 16) - self.num_edges}, or -1, not {self.http_port}"
            )
        if self.prefix_store not in ("", "redis"):
            raise ConfigError(f"prefix-store is redis, or left out: not {self.prefix_store!r}")
        if self.prefix_store and "prefix_store" in self.tables.get("inference", {}):
            raise ConfigError(
                "the file of --config names a prefix store already; leave out --prefix-store, "
                "which starts another one"
            )
        if self.engine == "fake" and self.draft_model not in ("", "none"):
            raise ConfigError(
                f"a fake model says nothing that the draft model {self.draft_model} could guess; "
                "leave --draft-model out, or use --engine openvino"
            )
        for setting in self.settings:
            role, dot, rest = setting.partition(".")
            if role not in ROLES or not dot or "=" not in rest:
                raise ConfigError(f"--set takes ROLE.KEY=VALUE, not {setting!r}")
        for role, key in OF_MODELS:
            if key in self.tables.get(role, {}) or any(
                setting.partition("=")[0].strip().replace("-", "_") == key
                for setting in self.settings_of(role)
            ):
                raise ConfigError(f"{role}.{key} follows from --model; name every model with it")

    def num_replicas(self, model: ServedModel) -> int:
        """In all regions together."""
        return len(self.regions) * model.replicas_per_region

    @property
    def router_names(self) -> list[str]:
        """Names of the routers' processes."""
        return _numbered("router", self.num_routers)

    @property
    def edge_names(self) -> list[str]:
        """Names of the edges' processes."""
        return _numbered("edge", self.num_edges)

    def settings_of(self, role: str) -> list[str]:
        """The KEY=VALUE settings of one role."""
        return [s.removeprefix(f"{role}.") for s in self.settings if s.startswith(f"{role}.")]


def dump(options: MeshOptions) -> bytes:
    """For `load`, in another process."""
    return json.dumps(asdict(options), default=str).encode()


def load(data: bytes) -> MeshOptions:
    """Read the options that `dump` wrote."""
    values = json.loads(data)
    models = tuple(ServedModel(**row) for row in values.pop("models"))
    lists = {key: tuple(value) for key, value in values.items() if isinstance(value, list)}
    return MeshOptions(models=models, **values | lists)


def _numbered(role: str, count: int) -> list[str]:
    return [role, *(f"{role}-{number}" for number in range(2, count + 1))]


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """One process: its name, its role, and the keys of its config section."""

    name: str
    role: str
    values: Values


def replicas(options: MeshOptions) -> list[ProcessSpec]:
    """The inference replicas of every model in every region."""
    specs: dict[str, ProcessSpec] = {}
    for model, region in itertools.product(options.models, options.regions):
        for _ in range(model.replicas_per_region):
            name = _replica_name(region, model.name, specs)
            specs[name] = _replica(options, model, region, name)
    return list(specs.values())


def _replica_name(region: str, model: str, used: Collection[str]) -> str:
    """With region and model in it, and the first number that makes it unique: names of certificates
    are labels (outrider/tls/identity.py), so that two models may look alike in them."""
    part = re.sub("[^a-z0-9]+", "-", model)
    for number in itertools.count():
        end = f"-{number}"
        name = f"{region}-{part}"[: _MAX_LABEL - len(end)].rstrip("-") + end
        if name not in used:
            return name
    raise AssertionError("numbers do not end")


def _replica(options: MeshOptions, model: ServedModel, region: str, name: str) -> ProcessSpec:
    values: dict[str, object] = {
        "host": options.host,
        "port": 0,
        "admin": {"port": 0},
        "region": region,
        "replica": name,
        "model": model.name,
        "engine": options.engine,
        "threads": model.threads,
    }
    return ProcessSpec(name=name, role="inference", values=values)


def phases(options: MeshOptions) -> list[dict[str, str]]:
    """Names and roles of all processes, in the groups that start one after the other: further edges
    need the certificate that the first one makes."""
    engines = {spec.name: spec.role for spec in replicas(options)}
    first, *others = options.edge_names
    routers = dict.fromkeys(options.router_names, "router")
    together = {**engines, "tokenizer": "tokenizer", **routers, first: "edge"}
    return [together, *([dict.fromkeys(others, "edge")] if others else [])]


def tokenizer(options: MeshOptions) -> ProcessSpec:
    """The tokenizer service."""
    values = {"host": options.host, "port": 0, "admin": {"port": 0}, "models": _names(options)}
    return ProcessSpec(name="tokenizer", role="tokenizer", values=values)


def routers(
    options: MeshOptions,
    replicas: Iterable[ProcessSpec],
    ports: Mapping[str, int],
    tokenizer_port: int,
) -> list[ProcessSpec]:
    """The routers in front of `replicas`; `ports`: process name -> gRPC port."""
    table = tuple(
        {
            "name": spec.name,
            "region": str(spec.values["region"]),
            "address": f"{options.host}:{ports[spec.name]}",
            "model": str(spec.values["model"]),
        }
        for spec in replicas
    )
    values: dict[str, object] = {
        "host": options.host,
        "port": 0,
        "admin": {"port": 0},
        "processes": options.router_processes,
        "tokenizers": (f"{options.host}:{tokenizer_port}",),
        "default_model": options.models[0].name,
        "replicas": table,
        # On one machine a refused connection costs nothing, and a replica that has just started is
        # to be used at once.
        "max_backoff_s": _MAX_BACKOFF_S,
        # For the page /ui/mesh, which the development key may see.
        "mesh_page": True,
    }
    regions = itertools.cycle(options.regions)
    return [
        ProcessSpec(name, "router", {**values, "region": region})
        for name, region in zip(options.router_names, regions, strict=False)
    ]


def edges(options: MeshOptions, router_ports: Sequence[int], state_dir: Path) -> list[ProcessSpec]:
    """The edges in front of the routers, the one that makes the certificate of all first;
    `router_ports`: the first port of each router. Each edge lists another router first: it prefers
    that one among equals."""
    more = options.router_processes - 1
    addresses = [
        f"{options.host}:{port}-{port + more}" if more else f"{options.host}:{port}"
        for port in router_ports
    ]
    specs = []
    for number, name in enumerate(options.edge_names):
        first = number % len(addresses)
        own = {
            "name": name,
            "port": options.port and options.port + number,
            "routers": (*addresses[first:], *addresses[:first]),
            "state_dir": str(state_dir if number == 0 else state_dir / name),
        }
        if options.http_port is not None:
            http_port = options.http_port and options.http_port + number
            own["http"] = {"host": options.host, "port": http_port}
        if number > 0:
            certificate = {"certificate": "cert.pem", "private_key": "key.pem"}
            own |= {key: str(state_dir / "tls" / file) for key, file in certificate.items()}
        specs.append(ProcessSpec(name, "edge", {**_edge(options, state_dir), **own}))
    return specs


def _edge(options: MeshOptions, state_dir: Path) -> dict[str, object]:
    """Settings common to all edges."""
    return {
        "host": options.host,
        "processes": options.edge_processes,
        "admin": {"port": 0},
        "region": options.regions[0],
        "models": _names(options),
        # Its QUIC port is this machine's alone; over HTTP a key is needed all the same.
        "anonymous": True,
        "access": {"keys_file": str(state_dir / KEYS_FILE)},
        # Not even the one that is shipped for the model.
        "drafter": {
            "model": "none" if options.engine == "fake" else options.draft_model,
            "ready_wait_s": _DRAFTER_WAIT_S,
        },
    }


def _names(options: MeshOptions) -> tuple[str, ...]:
    return tuple(model.name for model in options.models)


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
    """The process with the settings given for the mesh, and its own certificate."""
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
