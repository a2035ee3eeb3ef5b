"""What everything served by one edge shares."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from outrider.codec.tokens import TokenCoder
from outrider.tokenization.pool.pool import TokenizationPool
from outrider.tokenization.rewriting import Rewriter
from services.edge.drafter.link import DrafterLink
from services.edge.identity import Identities
from services.edge.resumption.chats import ResumableChats
from services.edge.session.machine import SessionPolicy
from services.edge.session.reply import ReplyTools
from services.edge.session.typeahead_plan import TypeaheadPolicy
from services.edge.telemetry import EdgeTelemetry
from services.edge.time_slicing import TimeSlicer
from services.edge.upstream.pool import RouterPool
from services.edge.wire import client as client_wire
from services.edge.wire.client import Offer


@dataclass(frozen=True)
class EdgeContext:
    """Made by the app, handed to connections, chats and typed text."""

    name: str
    region: str
    identities: Identities
    offer: Offer
    policy: SessionPolicy
    tools: ReplyTools
    coder: TokenCoder
    tokenization: TokenizationPool
    upstream: RouterPool
    drafter: DrafterLink
    telemetry: EdgeTelemetry
    resumable: ResumableChats
    typeahead: TypeaheadPolicy
    time_slicer: TimeSlicer
    """Runs what may come for many chats at once."""
    rewriter: Rewriter
    """For messages that a region tokenizes; `tokenization` has one of the same policy."""

    @cached_property
    def description(self) -> bytes:
        """The EdgeFrame that answers DESCRIBE."""
        return client_wire.describe(
            self.name,
            self.region,
            self.offer,
            self.policy.vocabulary_digest,
            self.resumable.window_s,
        )
