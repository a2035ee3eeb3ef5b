"""Settings of an edge."""

from __future__ import annotations

import os
import secrets
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

from outrider.access.api_keys import ALL_MODELS, check_listed
from outrider.bounds import (
    NonNegativeFloat,
    NonNegativeInt,
    Port,
    PositiveFloat,
    PositiveInt,
    between,
    check_bounds,
)
from outrider.errors import ConfigError
from outrider.load_table import LoadLimits
from outrider.mirrors.config import MirrorConfig
from outrider.models.definitions import ModelCatalog, ModelSpec
from outrider.peers.health import HealthPolicy
from outrider.peers.membership import DiscoveryPolicy, parse_target
from outrider.rpc.server import MAX_MESSAGE_BYTES
from outrider.speculation.learnt import LearntConfig
from outrider.static_prefixes import StaticPrefixConfig, check_prefixes
from outrider.telemetry.config import AdminConfig
from outrider.tls.config import TlsConfig
from outrider.tokenization.pool.config import TokenizationConfig
from outrider.tokenization.rewriting import AS_IT_IS, RewritingPolicy
from outrider.tokenizer_client import LongTextsConfig
from outrider.workers.steering import MAX_PROCESSES
from services.edge.access.config import AccessConfig, JwtConfig, SharedLimitsConfig
from services.edge.access.identity import (
    AccessPolicy,
    Identities,
    TenantConfig,
    Tenants,
    TokenChecker,
    Trust,
    priority_of,
    trust_of,
)
from services.edge.chat.resumption_table import ResumeLimits
from services.edge.chat.shared_replies import SharedRepliesConfig
from services.edge.drafter.settings import (
    NO_DRAFT_MODEL,
    DrafterConfig,
    DrafterLimits,
    DrafterSettings,
)
from services.edge.http.config import HttpConfig
from services.edge.http3.limits import Http3Limits
from services.edge.limits import memory
from services.edge.limits.listener import ListenerLimits
from services.edge.models.keys import EdgeModel
from services.edge.models.settings import ModelSettings
from services.edge.session.ahead_plan import AheadPolicy
from services.edge.session.display import DisplayPolicy
from services.edge.session.draft_chain import DraftLimits
from services.edge.session.reopening import ReopenPolicy
from services.edge.session.reply import ReplyPolicy
from services.edge.session.upload_control import UploadPolicy, Uploads
from services.edge.upstream.link import LinkPolicy
from services.edge.upstream.pool import RouterPoolPolicy


def default_state_dir() -> Path:
    """$XDG_STATE_HOME/outrider/edge, or ~/.local/state/outrider/edge."""
    base = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(base).expanduser() / "outrider" / "edge"


@dataclass(frozen=True, slots=True)
class EdgeConfig:
    """Settings of an edge; section `[edge]`. Raises ConfigError for values that cannot work."""

    host: str = "127.0.0.1"
    """Address of the QUIC listener."""
    port: Port = 4433
    """UDP port of the QUIC listener; 0: any free one."""
    processes: Annotated[int, between(1, MAX_PROCESSES)] = 1
    """Processes that serve this port and that of HTTP together, if one core is not enough
    (docs/guides/processes.md); more than 1 needs Linux."""
    tls: TlsConfig = field(default_factory=TlsConfig)
    """Mutual TLS with routers, in the role edge; clients see `certificate`."""
    admin: AdminConfig = field(default_factory=AdminConfig)
    """Address of /metrics, /health and /ready."""
    name: str = "edge"
    """The name clients are given."""
    region: str = ""
    """Region of this edge, for placement; empty: unknown."""
    tenant: str = ""
    """Tenant of chats without a key; empty: none. A router's queue takes turns between tenants:
    such chats count as this one, and without it each address prefix counts by itself."""
    tenants: tuple[TenantConfig, ...] = ()
    """Permissions and limits of tenants: `[[edge.tenants]]`. Followed while the edge runs."""
    access: AccessConfig = field(default_factory=AccessConfig)
    """API keys."""
    jwt: JwtConfig = field(default_factory=JwtConfig)
    """Tokens of an issuer."""
    shared_limits: SharedLimitsConfig = field(default_factory=SharedLimitsConfig)
    """Through what edges hold the limits of tenants together."""
    shared_replies: SharedRepliesConfig = field(default_factory=SharedRepliesConfig)
    """Through what edges find each other's replies to requests with an idempotency key."""
    anonymous: bool = False
    """Whether clients without a key are served over QUIC."""
    trust: str = "connection"
    """Which clients without a key share what is learned from chats and kept of them, in drafts and
    caches. `connection`: each client by itself; `chat`: each chat by itself, so that none is faster
    because of another; `tenant`: all of them, if clients may know of each other."""
    max_priority: str = "medium"
    """The highest priority that clients without a key may ask for: low, medium or high."""
    trust_trace: bool = False
    """Whether the traces of clients without a key are continued; otherwise the edge's own traces
    link to them."""
    cache_salt_key: str = ""
    """Secret from which the names of trust groups are derived. Edges with the same secret share the
    cached prefixes of a group, and recognize a chat that moves between them; empty: a random one
    per process."""
    models: tuple[str, ...] = ()
    """The models served; the first is the default of requests that name none. Empty: only the
    default model."""
    anonymous_models: tuple[str, ...] = ALL_MODELS
    """Models of `models` that clients without a key may use; "*": all; empty: none."""
    max_loaded_models: PositiveInt = 4
    """Models loaded at a time, each with its vocabulary, its tokenization threads and its drafter.
    A chat that asks for another one waits while the least recently used one without a chat gives
    way. While chats on changed or removed definitions end, there may be twice as many."""
    loading: LoadLimits = field(default_factory=LoadLimits)
    """How models are loaded while the edge runs."""
    routers: tuple[str, ...] = ("127.0.0.1:7100",)
    """Routers, `HOST:PORT`, `dns:HOST:PORT` or `srv:NAME`. Sessions go to the nearest region by
    measured round trip, to the first listed of equals, and to another one when it is lost."""
    discovery: DiscoveryPolicy = field(default_factory=DiscoveryPolicy)
    """How the names in `routers` are looked up."""
    probe_interval_s: PositiveFloat = 1.0
    """Time between two probes of a router, which measure the round trip and whether it answers."""
    probe_timeout_s: PositiveFloat = 1.0
    """A router that does not answer a probe for so long gets no new sessions."""
    suspect_s: PositiveFloat = 2.0
    """A router that does not answer for so much longer loses its sessions to others."""
    model_store: Path | None = None
    """Source of vocabularies; None: the machine's default store."""
    mirrors: MirrorConfig = field(default_factory=MirrorConfig)
    """Mirrors for models and draft models that are not in the store, asked before their own
    source."""
    state_dir: Path = field(default_factory=default_state_dir)
    """Keeps the development certificate, tls/cert.pem, and its key, tls/key.pem, and what chats
    taught, learnt/."""
    certificate: Path | None = None
    """PEM chain of the listener; None: a self-signed one for development is made in `state_dir`."""
    private_key: Path | None = None
    """PEM key of `certificate`."""
    server_names: tuple[str, ...] = ()
    """Names and addresses in the development certificate, besides localhost."""
    edge_list: Path | None = None
    """File of `outrider edges sign` with the mesh's edges, for clients that know its key; None:
    there is none. Read again when it changes."""
    log_level: str = "info"

    quic: ListenerLimits = field(default_factory=ListenerLimits)
    """Limits of clients of the QUIC listener, together and each; chats and connections over HTTP
    count too."""
    http: HttpConfig = field(default_factory=HttpConfig)
    """How HTTP is served over TCP."""
    http3: Http3Limits = field(default_factory=Http3Limits)
    """Additional limits of clients of HTTP/3, on the QUIC port."""
    reopen_s: NonNegativeFloat = 20.0
    """A chat whose router or replica was lost fails after this time without a token from
    another."""
    resumption: ResumeLimits = field(default_factory=ResumeLimits)
    """Limits on the chats that are kept for clients that may resume."""
    min_prefill_tokens: NonNegativeInt = 16
    """Least new tokens of a prompt being typed that a region is asked to prefill; 0: no prefill."""
    ahead: AheadPolicy = field(default_factory=AheadPolicy)
    """How replies are begun before their prompts are sent, for clients whose users agreed
    (docs/guides/typing.md)."""
    request_timeout_s: NonNegativeFloat = 10.0
    """How long a stream may be open before its request has come."""
    added_distance: bool = False
    """For development: whether a chat may ask for a longer way to its region (`added_rtt_ms`), to
    see what distance does; the chat page then has a slider for it."""
    drain_s: NonNegativeFloat = 10.0
    """How long running chats may continue when the edge stops."""

    max_context_tokens: NonNegativeInt = 0
    """Most tokens of prompt and reply together, within the model definition's limit; prompts that
    leave no room for a reply are refused. 0: the definition's limit, or 8,192 without one."""
    rewriting: RewritingPolicy = AS_IT_IS
    """How chats are rewritten before they are tokenized (docs/guides/tokens.md)."""
    tokenization: TokenizationConfig = field(default_factory=TokenizationConfig)
    """How prompts are tokenized, for each loaded model."""
    long_texts: LongTextsConfig = field(default_factory=LongTextsConfig)
    """Tokenizer services for the long texts of `/tokenize` (docs/guides/long-texts.md)."""
    max_queued_frames: PositiveInt = 4096
    """Frames that may wait for one router."""
    prompt_memory_bytes: NonNegativeInt = 16 << 20
    """Memory for prompts that a router was sent, for each connected router: prompts that continue
    one of them are sent without it. 0: prompts are sent whole."""

    drafter: DrafterConfig = field(default_factory=DrafterConfig)
    """The draft model and its process, one for each loaded model. `drafter.model` is for the first
    model; others draft by their definitions. "none" is for all."""
    prefixes: tuple[StaticPrefixConfig, ...] = ()
    """Common beginnings of chats (docs/guides/static-prefixes.md): drafters compute them before
    they are ready, and keep them, in half of their KV pool at most."""
    learnt: LearntConfig = field(default_factory=LearntConfig)
    """How statistics of chats are kept for drafts after the next start; without cache_salt_key none
    are."""
    drafts: DraftLimits = field(default_factory=DraftLimits)
    """How far ahead and how boldly replies are drafted."""
    coalesce_ms: NonNegativeFloat = 1.0
    """Drafting starts so long after the prompt and after each commit."""
    uploads: str = "auto"
    """Whether drafts are sent to the region: "auto" while they bring tokens sooner, "always" or
    "never"."""
    display: DisplayPolicy = field(default_factory=DisplayPolicy)
    """How bold provisional text is."""

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.quic.max_frame_bytes > _MAX_FRAME_BYTES:
            raise ConfigError(
                f"quic.max_frame_bytes is {self.quic.max_frame_bytes}; use 1 to {_MAX_FRAME_BYTES}"
            )
        if (self.certificate is None) != (self.private_key is None):
            raise ConfigError("certificate and private_key go together; give both or neither")
        check_prefixes(self.prefixes)
        if not self.routers:
            raise ConfigError("routers is empty; name at least one as host:port")
        for router in self.routers:
            parse_target(router, "each of routers")
        if self.uploads not in {kind.value for kind in Uploads}:
            raise ConfigError(f"uploads is auto, always or never, not {self.uploads!r}")
        if trust_of(self.trust, "trust") is Trust.USER:
            raise ConfigError("trust is chat, connection or tenant; users have a tenant's key")
        if self.shared_replies.url and not self.cache_salt_key:
            raise ConfigError(
                "shared_replies needs cache_salt_key, the same at all edges: by it they know whose "
                "a reply is"
            )
        self._check_models()
        self.identities()

    def _check_models(self) -> None:
        if len(set(self.models)) != len(self.models):
            raise ConfigError("models names one of them twice; name each once")
        # They may name models that are not served now: those can be added while the edge runs.
        check_listed(self.anonymous_models, "anonymous_models")

    @property
    def keys_file(self) -> Path:
        """Path of the API keys."""
        return self.access.keys_file or self.state_dir / "keys.json"

    def listener_limits(self) -> ListenerLimits:
        """The limits of the QUIC side."""
        most = self.quic.max_resident_bytes or memory.limit_bytes() * 4 // 5
        return replace(self.quic, max_resident_bytes=most // self.processes)

    @property
    def tls_folder(self) -> Path:
        """Folder of the development certificate."""
        return self.state_dir / "tls"

    def identities(
        self, tokens: TokenChecker | None = None, salt_key: bytes | None = None
    ) -> Identities:
        """Identifies the owners of chats; no API keys are set yet. `salt_key` replaces an empty
        `cache_salt_key`. Raises ConfigError."""
        anonymous = AccessPolicy(
            self.tenant,
            trust_of(self.trust, "trust"),
            priority_of(self.max_priority, "max_priority"),
            self.trust_trace,
            self.anonymous_models,
        )
        key = self.cache_salt_key.encode() or salt_key or secrets.token_bytes(32)
        return Identities(
            key,
            anonymous=anonymous if self.anonymous else None,
            clock=time.time,
            tenants=Tenants(self.tenants),
            tokens=tokens,
            key_lasts=bool(self.cache_salt_key),
        )

    def edge_models(self, catalog: ModelCatalog) -> tuple[EdgeModel, ...]:
        """The models that write replies, as `catalog` defines them, the default first. Raises
        UnknownModelError."""
        named = self.drafter.model
        made = []
        served = [catalog.lookup(name) for name in self.models or ("",)]
        for number, spec in enumerate(spec for spec in served if not spec.embeds):
            own = named if number == 0 or named == NO_DRAFT_MODEL else ""
            draft = own or spec.draft
            draft_spec = catalog.lookup(draft) if draft in catalog.names else None
            made.append(EdgeModel(spec, draft, draft_spec))
        return tuple(made)

    def embedders(self, catalog: ModelCatalog) -> tuple[ModelSpec, ...]:
        """The models that make vectors, the default first. Raises UnknownModelError."""
        return tuple(spec for name in self.models if (spec := catalog.lookup(name)).embeds)

    def model_settings(self) -> ModelSettings:
        """How models are loaded and chatted with."""
        return ModelSettings(
            store=self.model_store,
            mirrors=self.mirrors,
            max_loaded=self.max_loaded_models,
            loading=self.loading,
            max_context_tokens=self.max_context_tokens,
            tokenization=self.tokenization,
            edge_processes=self.processes,
            rewriting=self.rewriting,
            prefixes=self.prefixes,
            drafter=self._drafter_settings(),
            learnt=self.kept_learnt,
            learnt_folder=self.learnt_folder,
            request_timeout_s=self.request_timeout_s,
            reply=self._reply_policy(),
            reopen=ReopenPolicy(give_up_after_s=self.reopen_s),
            min_prefill_tokens=self.min_prefill_tokens,
        )

    def _drafter_settings(self) -> DrafterSettings:
        return DrafterSettings(
            model="",
            drafter=self.drafter,
            learnt=self.kept_learnt,
            learnt_folder=str(self.learnt_folder),
            model_store=str(self.model_store or ""),
            mirrors=self.mirrors,
            tls=self.tls,
            log_level=self.log_level,
            limits=DrafterLimits(
                max_sessions=self.drafter.max_sessions,
                max_lead=self.drafts.max_lead,
                min_survival=self.drafts.min_survival,
                first_tokens=self.drafts.first_tokens,
                first_survival=self.drafts.first_survival,
            ),
        )

    def _reply_policy(self) -> ReplyPolicy:
        return ReplyPolicy(
            drafts=self.drafts,
            display=self.display,
            upload=UploadPolicy(uploads=Uploads(self.uploads)),
            coalesce_s=self.coalesce_ms / 1000,
        )

    @property
    def kept_learnt(self) -> LearntConfig:
        """`learnt`, as far as groups' names last."""
        return replace(self.learnt, keep=self.learnt.keep and bool(self.cache_salt_key))

    @property
    def learnt_folder(self) -> Path:
        """Folder of kept statistics."""
        return self.state_dir / "learnt"

    def upstream_policy(self) -> RouterPoolPolicy:
        """How routers are found, watched and given up."""
        return RouterPoolPolicy(
            targets=tuple(parse_target(router, "each of routers") for router in self.routers),
            discovery=self.discovery,
            health=HealthPolicy(suspect_s=self.suspect_s),
            link=LinkPolicy(
                self.max_queued_frames,
                prompt_memory_bytes=self.prompt_memory_bytes,
                probe_interval_s=self.probe_interval_s,
                probe_timeout_s=self.probe_timeout_s,
            ),
            return_s=self.reopen_s,
        )

    def resume_limits(self) -> ResumeLimits:
        """Limits on the chats that are kept for clients that may resume; all 0 without a window."""
        if self.resumption.window_s:
            return self.resumption
        return replace(self.resumption, max_detached=0, max_bytes=0)


_MAX_FRAME_BYTES = MAX_MESSAGE_BYTES - (1 << 16)
"""A thin client's frame goes to the router as one message with a little more in it. A message too
large for gRPC would end the stream of all chats."""
