"""What all chats of an edge share."""

from __future__ import annotations

from dataclasses import dataclass

from outrider.codec.tokens import TokenCoder
from outrider.tokenization.pool.pool import TokenizationPool
from outrider.tokenization.rewriting import Rewriter
from services.edge.drafter.link import DrafterLink
from services.edge.identity import Identities
from services.edge.prefill.plan import PrefillPolicy
from services.edge.resumption.reception import Reception
from services.edge.routers.upstream import Upstream
from services.edge.session.policy import SessionPolicy
from services.edge.session.reply import ReplyTools
from services.edge.slices import Slices
from services.edge.telemetry import EdgeTelemetry
from services.edge.wire.client import Offer


@dataclass(frozen=True, slots=True)
class EdgeParts:
    """What all chats of an edge share."""

    name: str
    region: str
    identities: Identities
    """Whose chats are."""
    offer: Offer
    policy: SessionPolicy
    tools: ReplyTools
    coder: TokenCoder
    tokenization: TokenizationPool
    upstream: Upstream
    drafter: DrafterLink
    telemetry: EdgeTelemetry
    reception: Reception
    prefill: PrefillPolicy
    slices: Slices
    """Where what may come for many chats at once is done."""
    rewriter: Rewriter
    """For messages that a region tokenizes; `tokenization` has one of the same policy."""
