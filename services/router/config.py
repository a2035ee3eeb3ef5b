"""The router's settings, written once, checked when built."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Annotated

from outrider.bounds import (
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    between,
    check_bounds,
)
from outrider.config import check_message_bytes
from outrider.errors import ConfigError
from outrider.peers.health import QuarantinePolicy
from outrider.peers.membership import DiscoveryPolicy, parse_target
from outrider.telemetry.config import AdminConfig
from outrider.tls.config import TlsConfig
from outrider.tls.identity import is_label
from outrider.workers.steering import MAX_PROCESSES
from services.router.admission.policy import AdmissionPolicy, LengthPolicy, WakeUpPolicy
from services.router.admission.pricing import Price, PriceTable
from services.router.admission.tenants import TenantPolicy
from services.router.autoscale.policy import AutoscalePolicy
from services.router.embedding.policy import EmbeddingPolicy
from services.router.fleet.entries import RegionConfig, ReplicaConfig, ReplicaTarget
from services.router.placement.types import PlacementPolicy
from services.router.prefix_index.index import PrefixIndexLimits
from services.router.relay.policy import FailoverPolicy, HangPolicy, KvAheadPolicy


@dataclass(frozen=True, slots=True)
class RouterConfig:
    """Everything a router is started with."""

    host: str = "127.0.0.1"
    """Address the gRPC listener binds."""
    port: int = 7100
    """Port of the gRPC listener; 0: any free one."""
    processes: Annotated[int, between(1, MAX_PROCESSES)] = 1
    """Processes, where one core is not enough: at `port` and the ports behind it. Each is a router
    of its own (docs/guides/processes.md); more than 1 needs Linux."""
    admin: AdminConfig = dataclasses.field(default_factory=AdminConfig)
    """Address and settings of /metrics, /health and /ready."""
    tls: TlsConfig = dataclasses.field(default_factory=TlsConfig)
    """Certificate of this process, of the role router."""
    region: str = "local"
    """The region this router stands in."""
    default_model: str = "smollm2-135m-instruct"
    """Model of a session that names none."""
    replicas: tuple[ReplicaConfig, ...] = ()
    """Replicas of every region this router may use."""
    replica_targets: tuple[ReplicaTarget, ...] = ()
    """DNS names that are looked up for further replicas, each with its region."""
    tokenizers: tuple[str, ...] = ()
    """Tokenizer services, `HOST:PORT`, `dns:HOST:PORT` or `srv:NAME`, best first; used for sessions
    that bring text."""
    discovery: DiscoveryPolicy = dataclasses.field(default_factory=DiscoveryPolicy)
    """How the names in `replica_targets` and `tokenizers` are looked up."""
    regions: tuple[RegionConfig, ...] = ()
    """Coordinates for the cold start; regions left out start at `default_rtt_ms`."""
    default_rtt_ms: NonNegativeFloat = 100.0
    """RTT in milliseconds assumed for another region until coordinates or a probe give a better
    estimate."""
    placement: PlacementPolicy = dataclasses.field(default_factory=PlacementPolicy)
    """How replicas are compared (docs/guides/placement.md)."""
    prefix_index: PrefixIndexLimits = dataclasses.field(default_factory=PrefixIndexLimits)
    """Bounds of the index of the replicas' prefix caches."""
    history: PositiveInt = 1024
    """Placements kept for `outrider explain`."""
    admission: AdmissionPolicy = dataclasses.field(default_factory=AdmissionPolicy)
    """Admission control (docs/guides/admission.md)."""
    tenants: tuple[TenantPolicy, ...] = ()
    """Limits of tenants; a tenant without an entry has none unless there is an entry "*"."""
    lengths: LengthPolicy = dataclasses.field(default_factory=LengthPolicy)
    """Classes by length of prompt (docs/guides/tokens.md)."""
    prices: tuple[Price, ...] = ()
    """Prices of tokens by tenant and model (docs/guides/tokens.md)."""
    currency: str = ""
    """Currency of the prices, as reported to clients, e.g. USD; required if there are prices."""
    autoscale: AutoscalePolicy = dataclasses.field(default_factory=AutoscalePolicy)
    """How many replicas a region should have."""
    wake_up: WakeUpPolicy = dataclasses.field(default_factory=WakeUpPolicy)
    """Models without replicas while nobody asks for them (docs/guides/autoscaling.md)."""
    embedding: EmbeddingPolicy = dataclasses.field(default_factory=EmbeddingPolicy)
    """Bounds of requests for vectors (docs/guides/embeddings.md)."""
    seed: int = 0
    """Seed of the choice between near-equal replicas; 0: from the operating system."""
    max_sessions: PositiveInt = 4096
    """Sessions relayed at once over all edge streams."""
    max_sessions_per_stream: PositiveInt = 1024
    """Sessions open at once on one edge stream."""
    max_early_frames: PositiveInt = 32
    """Drafts kept per session until its first commit, to be sent to another replica if the first
    one is lost."""
    max_kept_bytes: PositiveInt = 256 << 20
    """Bytes of opens and committed tokens kept over all sessions, to open them on another replica;
    beyond it the oldest sessions cannot move."""
    prompt_memory_bytes: NonNegativeInt = 64 << 20
    """Bytes of recent prompts kept, so that edges send only the new part of a prompt that continues
    one of them; a prompt of 3,000 tokens takes about 15 KB. 0: edges send every prompt whole."""
    edge_buffer_frames: PositiveInt = 2048
    """Frames that may wait for one edge; beyond it that edge's sessions end as OVERLOADED."""
    replica_buffer_frames: PositiveInt = 4096
    """Frames that may wait for one replica; beyond it drafts are dropped and opens go elsewhere."""
    max_message_bytes: int = 4 << 20
    """Largest message read from an edge or a replica, which is as long as its longest open at
    least; not below 65,536, as small frames come several in one."""
    probe_interval_s: PositiveFloat = 1.0
    """Time between two health and RTT probes of a replica."""
    probe_timeout_s: PositiveFloat = 1.0
    """A probe without an answer for this long makes its replica SUSPECT."""
    suspect_s: PositiveFloat = 5.0
    """A SUSPECT replica that stays silent this long is DOWN and its stream is closed."""
    connect_timeout_s: PositiveFloat = 5.0
    """Limit of one attempt to reach a replica."""
    max_backoff_s: PositiveFloat = 5.0
    """Longest pause between two attempts to reach a replica."""
    load_interval_ms: PositiveInt = 50
    """Shortest time between two load reports that a replica is asked for."""
    heartbeat_ms: PositiveInt = 1000
    """Longest time between two load reports that a replica is asked for, changed or not."""
    silence_s: PositiveFloat = 3.0
    """A replica that has sent no load report for this many seconds is SUSPECT."""
    quarantine: QuarantinePolicy = dataclasses.field(default_factory=QuarantinePolicy)
    """When a replica that fails gets no sessions, and for how long: failures are streams that break
    and sessions that fail by its fault. At most half of a model's replicas are in quarantine."""
    return_s: NonNegativeFloat = 2.0
    """If no other replica can take them, sessions wait for one that was lost less than this many
    seconds ago (30 s if it said that it lost its engine and will be started anew); afterwards they
    are refused at once, with NO_REPLICA."""
    tokenize_timeout_s: PositiveFloat = 10.0
    """Limit of tokenizing one session's messages, over all tokenizers tried."""
    max_tokenizing: PositiveInt = 256
    """Most sessions that wait for a tokenizer at once; more are refused as OVERLOADED. One tenant
    may have at most three times as many as there are free places: three quarters if no other
    waits."""
    hang: HangPolicy = dataclasses.field(default_factory=HangPolicy)
    """When a replica that sends no tokens is taken to hang, and its sessions move."""
    failover: FailoverPolicy = dataclasses.field(default_factory=FailoverPolicy)
    """How many sessions may move to other replicas, and for how long they look for one."""
    kv_ahead: KvAheadPolicy = dataclasses.field(default_factory=KvAheadPolicy)
    """Whether replicas copy KV of sessions that they would take over."""
    cancel_timeout_s: PositiveFloat = 5.0
    """A cancelled session whose replica does not confirm within this many seconds is ended."""
    drain_s: NonNegativeFloat = 10.0
    """Time running sessions get to finish when the router stops."""
    mesh_page: bool = False
    """Whether edges may ask for what `outrider status` shows, without addresses and names of
    tenants: for their page /ui/mesh (docs/guides/mesh-page.md)."""
    log_level: str = "info"
    """Least severe level that is logged."""

    def __post_init__(self) -> None:
        check_bounds(self)
        self._check_targets()
        self._check_unique("replica", [replica.name for replica in self.replicas])
        self._check_unique("tenant", [tenant.name for tenant in self.tenants])
        self._check_unique("region", [region.name for region in self.regions])
        self.price_table()
        if self.silence_s * 1000.0 <= self.heartbeat_ms:
            raise ConfigError(
                f"silence_s is {self.silence_s} and heartbeat_ms {self.heartbeat_ms}, so every "
                "replica would be suspect between two reports; leave room for at least two"
            )
        check_message_bytes(self.max_message_bytes)
        for tenant in self.tenants:
            for key in ("max_sessions", "tokens_per_minute"):
                if 0 < getattr(tenant, key) < self.processes:
                    raise ConfigError(
                        f"{key} of tenant {tenant.name} is {getattr(tenant, key)}, which "
                        f"{self.processes} processes cannot divide; use fewer processes"
                    )
        if not 0 <= self.port <= 65536 - self.processes:
            raise ConfigError(f"port is {self.port}; use 0 to {65536 - self.processes}")

    def price_table(self) -> PriceTable:
        """The prices as a table. Raises ConfigError."""
        return PriceTable(self.prices, self.currency)

    def _check_targets(self) -> None:
        for tokenizer in self.tokenizers:
            parse_target(tokenizer, "each of tokenizers")
        self._check_unique("target", [entry.target for entry in self.replica_targets])
        if self.tls.is_on:
            regions = [replica.region for replica in self.replicas]
            regions += [entry.region for entry in self.replica_targets]
            for region in regions:
                if not is_label(region):
                    raise ConfigError(
                        f"the region {region!r} fits no certificate; use a-z, 0-9 and -"
                    )

    @staticmethod
    def _check_unique(kind: str, names: list[str]) -> None:
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ConfigError(f"two entries share the {kind} name {twice[0]}; rename one")
