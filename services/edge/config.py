"""What an edge is set up with."""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass, field
from pathlib import Path

from outrider.errors import ConfigError
from outrider.peers.health import HealthPolicy
from outrider.peers.membership import DiscoveryPolicy, parse_target
from outrider.rpc.server import MAX_MESSAGE_BYTES
from outrider.tls.config import TlsConfig
from outrider.tokenization.backends.selection import AUTO
from outrider.tokenization.rewriting import AS_IT_IS, RewritingPolicy
from services.edge.addresses import Prefixes
from services.edge.drafter.settings import MAX_LEAD, DrafterLimits, DrafterSettings
from services.edge.identity import (
    Identities,
    Keys,
    TenantConfig,
    Terms,
    Trust,
    priority_of,
    trust_of,
)
from services.edge.prefill.plan import PrefillPolicy
from services.edge.quic import memory
from services.edge.quic.door import DoorLimits
from services.edge.quic.listener import ListenerLimits
from services.edge.quic.turns import Share
from services.edge.quotas import Count, QuotaLimits, Rate, RateLimit
from services.edge.resumption.held import ResumeLimits
from services.edge.routers.link import LinkPolicy
from services.edge.routers.upstream import UpstreamPolicy
from services.edge.session.control.controller import ControlPolicy, Uploads
from services.edge.session.display import BOLDNESS, DisplayPolicy
from services.edge.session.drafting import DraftLimits
from services.edge.session.reply import ReplyPolicy


def default_state_dir() -> Path:
    """$XDG_STATE_HOME/outrider/edge, or ~/.local/state/outrider/edge."""
    base = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(base).expanduser() / "outrider" / "edge"


@dataclass(frozen=True, slots=True)
class EdgeConfig:
    """Settings of an edge; section `[edge]`. Raises ConfigError for values that cannot work."""

    host: str = "127.0.0.1"
    """Address of the QUIC listener."""
    port: int = 4433
    """UDP port of the QUIC listener; 0: any free one."""
    tls: TlsConfig = field(default_factory=TlsConfig)
    """Certificate towards routers, of the role edge; clients see `certificate`."""
    admin_host: str = "127.0.0.1"
    """Address of /metrics, /health and /ready."""
    admin_port: int = 0
    """0: any free one."""
    name: str = "edge"
    """What clients are told they reached."""
    region: str = ""
    """Where this edge stands, for placement; empty: unknown."""
    tenant: str = ""
    """Under which chats without a key are accounted for; empty: nobody's in particular. In a
    router's queue they then take turns as this one tenant; without it, each address prefix has its
    own."""
    tenants: tuple[TenantConfig, ...] = ()
    """Who has keys, `[[edge.tenants]]`."""
    anonymous: bool = True
    """Whether clients without a key are served..."""
    trust: str = "connection"
    """...and who of them shares what is learnt from chats and kept of them, in drafts and caches:
    `connection`: each client by itself; `chat`: each chat, so that none is faster for what another
    one asked; `tenant`: all of them, where whoever reaches the edge may know of the others."""
    max_priority: str = "medium"
    """The highest class that they may ask for: low, medium or high."""
    trust_trace: bool = False
    """Whether their traces are continued here; otherwise the edge's own link to them."""
    cache_salt_key: str = ""
    """Secret from which the names of trust groups are derived. Edges that share it share a group's
    cached prefixes, and know a chat that moves between them; empty: a random one per process."""
    model: str = ""
    """The one model served; empty: the default model."""
    routers: tuple[str, ...] = ("127.0.0.1:7001",)
    """Routers, `HOST:PORT`, `dns:HOST:PORT` or `srv:NAME`. Sessions go to the nearest region by
    measured round trip; the order decides between equals. The others are there for its loss."""
    nameservers: tuple[str, ...] = ()
    """DNS servers, as IP:PORT; empty: this machine's."""
    lookup_interval_s: float = 5.0
    """Time between two lookups of one entry of `routers`."""
    lookup_grace_s: float = 15.0
    """A router that lookups do not find for so long gets no new sessions; those it has go on."""
    probe_interval_s: float = 1.0
    """Time between two questions to a router, which measure the way and whether it is there..."""
    probe_timeout_s: float = 1.0
    """...and without an answer for so long it gets no new sessions..."""
    suspect_s: float = 2.0
    """...and after so much more its sessions go elsewhere."""
    model_store: Path | None = None
    """Where the vocabulary comes from; None: the machine's default store."""
    state_dir: Path = field(default_factory=default_state_dir)
    """Keeps the development certificate, tls/cert.pem, and its key, tls/key.pem."""
    certificate: Path | None = None
    """PEM chain of the listener; None: one for development is made in state_dir."""
    private_key: Path | None = None
    """PEM key of `certificate`."""
    server_names: tuple[str, ...] = ()
    """Names and addresses in the development certificate, besides localhost."""
    log_level: str = "info"

    max_connections: int = 1000
    max_chats_per_connection: int = 64
    max_frame_bytes: int = 1 << 20
    """Largest frame a client may send; prompts come in one frame. Routers have to take it too."""
    max_unsent_bytes: int = 256 * 1024
    """A client that leaves more of a chat unread loses it."""
    idle_timeout_s: float = 30.0
    """A connection from which nothing comes for this long is closed, and so is one that has no chat
    and sends nothing but PINGs."""
    handshake_timeout_s: float = 5.0
    validate_addresses: bool = False
    """QUIC Retry for all: clients prove their address first, one round trip more..."""
    retry_from_half_open: int = 64
    """...and otherwise while so many handshakes are under way."""
    max_half_open: int = 1024
    """Handshakes under way; further ones are refused."""
    max_resident_bytes: int = 0
    """Memory of the edge's process above which it takes no new connections; 0: four fifths of the
    machine's, or of its container's."""
    max_received_bytes: int = 256 << 20
    """Kept for all clients of what is not whole or not in order yet..."""
    max_received_bytes_per_address: int = 16 << 20
    """...and for those of one address prefix. A connection that needs more is closed."""
    ipv4_prefix_bits: int = 32
    """What counts as one address..."""
    ipv6_prefix_bits: int = 56
    """...for the limits of each."""
    max_connections_per_address: int = 128
    """Handshakes under way count too."""
    max_chats_per_address: int = 128
    """Under way, whether their client is still there or not..."""
    max_chats_per_client: int = 64
    """...and of one client or user, from whatever address; what a whole tenant may do is the
    router's to say (docs/guides/admission.md)."""
    max_streams_per_address: int = 512
    """Open, with a chat or not."""
    handshakes_per_s: float = 100.0
    """From one address on average, five times as many at once."""
    loop_share_per_address: float = 0.25
    """Of the event loop's time, what datagrams of one address may take on average while others are
    there: some 1,700 a second, 2 s worth at once. Further ones wait, or are dropped where too many
    do. Raise it where many clients come through one address (a NAT, a load balancer)."""
    typed_bytes_per_s: float = 64 << 10
    """Text being typed from one address, and by one client, on average, 20 s worth at once; who
    types more gets no head start."""
    prefill_tokens_per_s: float = 500.0
    """Tokens computed ahead for one address, and one client, on average, 20 s worth at once;
    likewise."""
    reopen_s: float = 20.0
    """How long a chat whose router or replica was lost tries to go on without a token; then its
    client is told."""
    resume_window_s: float = 30.0
    """How long a chat goes on when its client's connection is lost, and is remembered when it has
    ended; 0: it is cancelled at once."""
    max_detached_chats: int = 256
    """Chats that go on without their clients; those beyond are cancelled."""
    max_detached_chats_each: int = 64
    """The same of one tenant, or of one client that belongs to none."""
    max_resume_bytes: int = 16 << 20
    """What is kept for clients that may come back: texts and ids of their chats."""
    early_data: bool = True
    """QUIC 0-RTT for clients that were here before: what the edge is is told a round trip sooner.
    Chats in it wait for the handshake, and begin no sooner than without it."""
    min_prefill_tokens: int = 16
    """Least new tokens of a prompt being typed that a region computes ahead; 0: none."""
    request_timeout_s: float = 10.0
    """How long an open stream may wait with its request."""
    drain_s: float = 10.0
    """How long chats under way may take when the edge stops."""

    max_context_tokens: int = 8192
    """Of prompt and reply; longer prompts are refused here."""
    rewriting: RewritingPolicy = AS_IT_IS
    """What is done to chats before they are tokenized (docs/guides/tokens.md)."""
    tokenizer_workers: int = 2
    tokenizer_queue: int = 64
    """Prompts that may wait for a worker."""
    tokenizer_backend: str = AUTO
    """`auto`: the fastest that equals `tokenizers` on this machine; or the name of one package."""
    tokenizer_cache_bytes: int = 32 << 20
    """Memory for texts whose ids are kept; of chats that trust nobody the template's own alone."""
    tokenizer_processes: int = 0
    """Processes that tokenize when as many chats wait as there are workers."""
    max_queued_frames: int = 4096
    """Frames that may wait for one router."""

    draft_model: str = ""
    """What drafts beside the text's own repetitions: the path of a GGUF file of the model's
    vocabulary, a name of the catalogue, "" for what is shipped for the model, or "none"."""
    draft_threads: int = 1
    """Threads of the drafter's process."""
    draft_niceness: int = 10
    """Of that process: serving comes first."""
    draft_kv_bytes: int = 64 << 20
    """Its KV pool, touched only as it fills."""
    draft_sessions: int = 64
    """Chats that it drafts for at once; others get what their text repeats."""
    max_lead: int = 32
    """Most drafts ahead of the commits."""
    min_survival: float = 0.2
    """Least estimated probability of a draft..."""
    first_survival: float = 0.01
    """...and of one of a reply's first `first_tokens`."""
    coalesce_ms: float = 1.0
    """Drafting follows the prompt and each commit after this time."""
    uploads: str = "auto"
    """Whether drafts go up to the region: "auto" while they bring tokens sooner, "always" or
    "never"."""
    display: str = "balanced"
    """How bold provisional text is: "balanced" shows what is rather right than wrong (theta 0.6,
    first_theta 0.5), "shy" what is likely (0.7), "eager" a reply's first tokens from 0.3 on and
    others from 0.4 on."""
    theta: float | None = None
    """Least estimated probability of text that is shown; None: as `display` says."""
    first_theta: float | None = None
    """The same for the first tokens of a reply..."""
    first_tokens: int = 4
    """...which are so many."""
    line_theta: float = 0.7
    """Least estimated probability of a line break that is shown."""
    rewrite_interval_ms: float = 150.0
    """Least time between two visible corrections, on average..."""
    rewrite_burst: int = 3
    """...over more than so many."""

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.private_key is None):
            raise ConfigError("certificate and private_key go together; give both or neither")
        if not self.routers:
            raise ConfigError("routers is empty; name at least one as host:port")
        for router in self.routers:
            parse_target(router, "each of routers")
        for name in ("port", "admin_port"):
            _check(name, getattr(self, name), 0, 65535)
        _check("ipv4_prefix_bits", self.ipv4_prefix_bits, 8, 32)
        _check("ipv6_prefix_bits", self.ipv6_prefix_bits, 16, 128)
        _check("max_frame_bytes", self.max_frame_bytes, 1, _MAX_FRAME_BYTES)
        _check("max_lead", self.max_lead, 0, MAX_LEAD)
        _check("max_resident_bytes", self.max_resident_bytes, 0, 2**50)
        if not 0.0 < self.loop_share_per_address <= 1.0:
            raise ConfigError(
                f"loop_share_per_address is {self.loop_share_per_address}: set it above 0, and to "
                "1 at most"
            )
        for name in ("max_received_bytes_per_address", "max_received_bytes"):
            _check(name, getattr(self, name), self.max_frame_bytes, 2**40)
        if self.uploads not in {kind.value for kind in Uploads}:
            raise ConfigError(f"uploads is auto, always or never, not {self.uploads!r}")
        if self.display not in BOLDNESS:
            raise ConfigError(f"display is {', '.join(BOLDNESS)}, not {self.display!r}")
        for name in ("min_survival", "first_survival", "theta", "first_theta", "line_theta"):
            if (value := getattr(self, name)) is not None:
                _check(name, value, 0.01, 1.0)
        if trust_of(self.trust, "trust") is Trust.USER:
            raise ConfigError("trust is chat, connection or tenant: users have a tenant's key")
        if not (self.anonymous or self.tenants):
            raise ConfigError("nobody is served: name tenants, or let anonymous clients in")
        self.identities()
        for name in _POSITIVE:
            _check(name, getattr(self, name), 1, 2**31)
        for name in _NOT_NEGATIVE:
            _check(name, getattr(self, name), 0, 2**31)

    def listener_limits(self) -> ListenerLimits:
        """The limits of the QUIC side."""
        return ListenerLimits(
            max_connections=self.max_connections,
            max_chats_per_connection=self.max_chats_per_connection,
            max_frame_bytes=self.max_frame_bytes,
            max_unsent_bytes=self.max_unsent_bytes,
            idle_timeout_s=self.idle_timeout_s,
            handshake_timeout_s=self.handshake_timeout_s,
            early_data=self.early_data,
            door=DoorLimits(
                retry_from_half_open=0 if self.validate_addresses else self.retry_from_half_open,
                max_half_open=self.max_half_open,
                max_resident_bytes=self.max_resident_bytes or memory.limit_bytes() * 4 // 5,
            ),
            quotas=self.address_quotas(),
            client_quotas=self.client_quotas(),
            prefixes=Prefixes(self.ipv4_prefix_bits, self.ipv6_prefix_bits),
            share=Share(self.loop_share_per_address),
            max_received_bytes=self.max_received_bytes,
            max_received_bytes_per_address=self.max_received_bytes_per_address,
        )

    def address_quotas(self) -> QuotaLimits:
        """What the clients of one address prefix may use together."""
        return QuotaLimits(
            counts={
                Count.CONNECTIONS: self.max_connections_per_address,
                Count.STREAMS: self.max_streams_per_address,
                Count.CHATS: self.max_chats_per_address,
            },
            rates={
                Rate.HANDSHAKES: _rate(self.handshakes_per_s, _HANDSHAKE_BURST_S),
                **self._typing_rates(),
            },
        )

    def client_quotas(self) -> QuotaLimits:
        """What one client or user may use, from whatever address."""
        counts = {Count.CHATS: self.max_chats_per_client}
        return QuotaLimits(counts=counts, rates=self._typing_rates())

    def _typing_rates(self) -> dict[Rate, RateLimit]:
        return {
            Rate.TYPED_BYTES: _rate(self.typed_bytes_per_s, _TYPING_BURST_S),
            Rate.PREFILL_TOKENS: _rate(self.prefill_tokens_per_s, _TYPING_BURST_S),
        }

    def identities(self) -> Identities:
        """Whose chats are. Raises ConfigError."""
        anonymous = Terms(
            self.tenant,
            trust_of(self.trust, "trust"),
            priority_of(self.max_priority, "max_priority"),
            self.trust_trace,
        )
        key = self.cache_salt_key.encode() or secrets.token_bytes(32)
        return Identities(key, Keys(self.tenants), anonymous if self.anonymous else None)

    @property
    def has_drafter(self) -> bool:
        """Whether a process is started that drafts with a model."""
        return self.draft_model != "none"

    def drafter_settings(self, model: str) -> DrafterSettings:
        """What the drafter of an edge that serves `model` is set up with."""
        return DrafterSettings(
            model=model,
            draft_model=self.draft_model,
            model_store=str(self.model_store or ""),
            threads=self.draft_threads,
            kv_bytes=self.draft_kv_bytes,
            niceness=self.draft_niceness,
            log_level=self.log_level,
            limits=DrafterLimits(
                max_sessions=self.draft_sessions,
                max_lead=self.max_lead,
                min_survival=self.min_survival,
                first_tokens=self.first_tokens,
                first_survival=self.first_survival,
            ),
        )

    def upstream_policy(self) -> UpstreamPolicy:
        """How routers are found, watched and given up."""
        return UpstreamPolicy(
            targets=tuple(parse_target(router, "each of routers") for router in self.routers),
            discovery=DiscoveryPolicy(
                self.nameservers, self.lookup_interval_s, self.lookup_grace_s
            ),
            health=HealthPolicy(suspect_s=self.suspect_s),
            link=LinkPolicy(
                self.max_queued_frames,
                probe_interval_s=self.probe_interval_s,
                probe_timeout_s=self.probe_timeout_s,
            ),
            return_s=self.reopen_s,
        )

    def prefill_policy(self) -> PrefillPolicy:
        """When prompts are computed while they are typed."""
        return PrefillPolicy(
            min_new_tokens=self.min_prefill_tokens,
            max_context_tokens=self.max_context_tokens,
            is_on=bool(self.min_prefill_tokens),
        )

    def resume_limits(self) -> ResumeLimits:
        """What is kept for clients that may come back."""
        return ResumeLimits(
            window_s=self.resume_window_s,
            max_detached=self.max_detached_chats if self.resume_window_s else 0,
            max_detached_each=self.max_detached_chats_each,
            max_bytes=self.max_resume_bytes if self.resume_window_s else 0,
        )

    def reply_policy(self) -> ReplyPolicy:
        """How replies are drafted and shown."""
        boldness = BOLDNESS[self.display]
        return ReplyPolicy(
            drafts=DraftLimits(
                max_lead=self.max_lead,
                min_survival=self.min_survival,
                first_tokens=self.first_tokens,
                first_survival=self.first_survival,
            ),
            display=DisplayPolicy(
                theta=boldness.theta if self.theta is None else self.theta,
                first_theta=(
                    boldness.first_theta if self.first_theta is None else self.first_theta
                ),
                first_tokens=self.first_tokens,
                line_theta=self.line_theta,
                rewrite_interval_s=self.rewrite_interval_ms / 1000,
                rewrite_burst=self.rewrite_burst,
            ),
            control=ControlPolicy(uploads=Uploads(self.uploads)),
            coalesce_s=self.coalesce_ms / 1000,
        )


_MAX_FRAME_BYTES = MAX_MESSAGE_BYTES - (1 << 16)
"""A thin client's frame goes up as one message with a little more in it. One that is too large for
gRPC would end the stream of all chats."""
_HANDSHAKE_BURST_S = 5.0
_TYPING_BURST_S = 20.0
"""Enough for a whole context and a whole frame by default."""
_POSITIVE = (
    *("handshake_timeout_s", "max_half_open", "max_connections_per_address"),
    *(
        "max_chats_per_address",
        "max_chats_per_client",
        "max_streams_per_address",
        "handshakes_per_s",
        "typed_bytes_per_s",
    ),
    "prefill_tokens_per_s",
    *("max_connections", "max_chats_per_connection", "max_unsent_bytes"),
    *("lookup_interval_s", "probe_interval_s", "probe_timeout_s", "suspect_s"),
    *("idle_timeout_s", "max_context_tokens", "tokenizer_workers", "max_queued_frames"),
    *("draft_threads", "draft_kv_bytes", "draft_sessions", "rewrite_burst"),
)
_NOT_NEGATIVE = (
    "retry_from_half_open",
    *("drain_s", "request_timeout_s", "reopen_s", "tokenizer_queue", "min_prefill_tokens"),
    *("resume_window_s", "max_detached_chats", "max_detached_chats_each", "max_resume_bytes"),
    *("coalesce_ms", "first_tokens", "rewrite_interval_ms"),
    *("draft_niceness", "lookup_grace_s", "tokenizer_cache_bytes", "tokenizer_processes"),
)


def _rate(per_s: float, burst_s: float) -> RateLimit:
    return RateLimit(per_s, per_s * burst_s)


def _check(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise ConfigError(f"{name} must be {low:g} to {high:g}, not {value}")
