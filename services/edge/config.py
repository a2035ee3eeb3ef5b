"""What an edge is set up with."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from outrider.errors import ConfigError
from outrider.peers.health import HealthPolicy
from outrider.peers.membership import DiscoveryPolicy
from outrider.peers.targets import parse
from outrider.rpc.server import MAX_MESSAGE_BYTES
from outrider.tokenization.backends.choice import AUTO
from outrider.tokenization.rewriting import AS_IT_IS, RewritingPolicy
from services.edge.drafter.settings import MAX_LEAD, DrafterLimits, DrafterSettings
from services.edge.prefill.plan import PrefillPolicy
from services.edge.quic.listener import ListenerLimits
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
    admin_host: str = "127.0.0.1"
    """Address of /metrics, /health and /ready."""
    admin_port: int = 0
    """0: any free one."""
    name: str = "edge"
    """What clients are told they reached."""
    region: str = ""
    """Where this edge stands, for placement; empty: unknown."""
    tenant: str = ""
    """Whose chats come to this edge; empty: nobody's in particular."""
    cache_salt_key: str = ""
    """Secret from which tenants' cache salts are derived. Edges that share it share a tenant's
    cached prefixes; empty: a random one per process."""
    isolate_chats: bool = False
    """Whether every chat gets a cache salt of its own, and drafts of its own text alone: no chat is
    faster for what another one asked, and none can tell."""
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
    """A connection from which nothing comes for this long is closed."""
    validate_addresses: bool = False
    """QUIC Retry: clients prove their address first, one round trip more."""
    reopen_s: float = 10.0
    """How long a chat whose router or replica was lost tries to go on without a token; then its
    client is told."""
    resume_window_s: float = 30.0
    """How long a chat goes on when its client's connection is lost, and is remembered when it has
    ended; 0: it is cancelled at once."""
    max_detached_chats: int = 256
    """Chats that go on without their clients; those beyond are cancelled."""
    max_detached_chats_per_tenant: int = 64
    max_resume_bytes: int = 16 << 20
    """What is kept for clients that may come back: texts and ids of their chats."""
    early_data: bool = True
    """QUIC 0-RTT for clients that were here before. Chats in it wait for the handshake."""
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
    tokenizer_cache_bytes: int = 64 << 20
    """Memory for texts whose ids are kept; with isolate_chats the template's own texts alone."""
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
            parse(router, "each of routers")
        for name in ("port", "admin_port"):
            _check(name, getattr(self, name), 0, 65535)
        _check("max_frame_bytes", self.max_frame_bytes, 1, _MAX_FRAME_BYTES)
        _check("max_lead", self.max_lead, 0, MAX_LEAD)
        if self.uploads not in {kind.value for kind in Uploads}:
            raise ConfigError(f"uploads is auto, always or never, not {self.uploads!r}")
        if self.display not in BOLDNESS:
            raise ConfigError(f"display is {', '.join(BOLDNESS)}, not {self.display!r}")
        for name in ("min_survival", "first_survival", "theta", "first_theta", "line_theta"):
            if (value := getattr(self, name)) is not None:
                _check(name, value, 0.01, 1.0)
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
            validate_addresses=self.validate_addresses,
            early_data=self.early_data,
        )

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
            isolate_chats=self.isolate_chats,
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
            targets=tuple(parse(router, "each of routers") for router in self.routers),
            discovery=DiscoveryPolicy(
                self.nameservers, self.lookup_interval_s, self.lookup_grace_s
            ),
            health=HealthPolicy(suspect_s=self.suspect_s),
            link=LinkPolicy(
                self.max_queued_frames,
                probe_interval_s=self.probe_interval_s,
                probe_timeout_s=self.probe_timeout_s,
            ),
        )

    def prefill_policy(self) -> PrefillPolicy:
        """When prompts are computed while they are typed. A chat with a cache of its own would not
        find what was computed for it."""
        return PrefillPolicy(
            min_new_tokens=self.min_prefill_tokens,
            max_context_tokens=self.max_context_tokens,
            is_on=bool(self.min_prefill_tokens) and not self.isolate_chats,
        )

    def resume_limits(self) -> ResumeLimits:
        """What is kept for clients that may come back."""
        return ResumeLimits(
            window_s=self.resume_window_s,
            max_detached=self.max_detached_chats if self.resume_window_s else 0,
            max_detached_per_tenant=self.max_detached_chats_per_tenant,
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
_POSITIVE = (
    *("max_connections", "max_chats_per_connection", "max_unsent_bytes"),
    *("lookup_interval_s", "probe_interval_s", "probe_timeout_s", "suspect_s"),
    *("idle_timeout_s", "max_context_tokens", "tokenizer_workers", "max_queued_frames"),
    *("draft_threads", "draft_kv_bytes", "draft_sessions", "rewrite_burst"),
)
_NOT_NEGATIVE = (
    *("drain_s", "request_timeout_s", "reopen_s", "tokenizer_queue", "min_prefill_tokens"),
    *("resume_window_s", "max_detached_chats", "max_detached_chats_per_tenant", "max_resume_bytes"),
    *("coalesce_ms", "first_tokens", "rewrite_interval_ms"),
    *("draft_niceness", "lookup_grace_s", "tokenizer_cache_bytes", "tokenizer_processes"),
)


def _check(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise ConfigError(f"{name} must be {low:g} to {high:g}, not {value}")
