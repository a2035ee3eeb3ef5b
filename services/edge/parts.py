"""What all chats of an edge share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from outrider.codec.tokens import TokenCoder
from outrider.tokenization.front.front import Front
from outrider.tokenization.rewriting import Rewriter
from services.edge.drafter.link import DrafterLink
from services.edge.prefill.plan import PrefillPolicy
from services.edge.resumption.reception import Reception
from services.edge.routers.upstream import Upstream
from services.edge.session.policy import SessionPolicy
from services.edge.session.reply import ReplyTools
from services.edge.telemetry import EdgeTelemetry
from services.edge.wire.client import Offer
from services.edge.wire.identity import Identity


@dataclass(frozen=True, slots=True)
class EdgeParts:
    """What all chats of an edge share."""

    name: str
    region: str
    identity: Callable[[], Identity]
    """Whose chat the next one is."""
    offer: Offer
    policy: SessionPolicy
    tools: ReplyTools
    """Their averages are of the region and of how often drafts are right, never of words."""
    coder: TokenCoder
    tokenization: Front
    upstream: Upstream
    drafter: DrafterLink
    telemetry: EdgeTelemetry
    reception: Reception
    prefill: PrefillPolicy
    rewriter: Rewriter
    """For messages that a region tokenizes; `tokenization` has one of the same policy."""
