"""Dependencies shared by everything that one edge serves."""

from __future__ import annotations

from dataclasses import dataclass

from outrider.fair_work.calls import FairThreads
from outrider.fair_work.places import FairPlaces
from outrider.tokenization.rewriting import Rewriter
from outrider.tokenizer_client import TokenizerClient
from services.edge.access.identity import Identities
from services.edge.access.limiter import Limiter
from services.edge.chat.resumption import ResumableChats
from services.edge.chat.revocation import KeyedChats
from services.edge.chat.shared_replies import SharedReplies
from services.edge.chat.time_slicing import TimeSlicer
from services.edge.chat.timers import SharedTimer
from services.edge.models.choice import usable
from services.edge.models.serving import EdgeModels
from services.edge.session.ahead_plan import AheadPolicy
from services.edge.telemetry.edge import EdgeTelemetry
from services.edge.upstream.pool import RouterPool
from services.edge.wire import client as client_wire


@dataclass(frozen=True)
class EdgeContext:
    """Made by the app, handed to connections, chats and typed text."""

    name: str
    region: str
    request_timeout_s: float
    """How long a stream may stay open without a request, in seconds."""
    added_distance: bool
    """Whether chats may ask for a longer way to the region."""
    identities: Identities
    limiter: Limiter
    keyed_chats: KeyedChats
    """Those that end when their keys do."""
    models: EdgeModels
    """Data shared by the chats of one model is kept with the model
    (services.edge.models.served)."""
    upstream: RouterPool
    ahead: AheadPolicy
    """How replies are begun before their prompts are sent."""
    embedding_calls: FairPlaces
    threads: FairThreads
    """For what requests have computed beside tokenizing: texts of ids, long JSON."""
    long_texts: TokenizerClient
    telemetry: EdgeTelemetry
    resumable: ResumableChats
    shared_replies: SharedReplies | None
    """Replies that other edges of the site may have; None: each edge has its own."""
    time_slicer: TimeSlicer
    """Runs work that may be due for many chats at once."""
    timer: SharedTimer
    """Timer shared by all chats."""
    rewriter: Rewriter
    """For messages that a region tokenizes; a model's own tokenization has one of the same
    policy."""
    description: Description


class Description:
    """The answer to DESCRIBE, made anew when the models or the list of edges have changed."""

    def __init__(
        self,
        name: str,
        region: str,
        identities: Identities,
        models: EdgeModels,
        resume_window_s: float,
    ) -> None:
        self._name = name
        self._region = region
        self._identities = identities
        self._models = models
        self._resume_window_s = resume_window_s
        self._edge_list = b""
        self._revision = -1
        self._frame = b""

    def set_edge_list(self, text: bytes) -> None:
        """Hand this signed list of edges to clients from now on."""
        self._edge_list, self._revision = text, -1

    @property
    def frame(self) -> bytes:
        """The EdgeFrame."""
        if self._revision != self._models.revision:
            self._revision = self._models.revision
            allowed = self._identities.anonymous_models
            names = [] if allowed is None else usable(self._models.names, allowed)
            self._frame = client_wire.describe(
                self._name,
                self._region,
                self._models.listed(names),
                self._resume_window_s,
                self._edge_list,
            )
        return self._frame
