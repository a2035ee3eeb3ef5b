"""When the edge is told of new guesses: a reply's first at once, later ones a few at a time."""

from __future__ import annotations

from itertools import accumulate
from operator import mul

from services.edge.drafter.core.session import DraftSession
from services.edge.drafter.messages import Guess
from services.edge.drafter.settings import DrafterLimits


class Telling:
    """Of one session. A frame costs the edge's loop tens of microseconds; a guess that is told a
    few milliseconds later costs nothing unless it is the next one needed."""

    def __init__(self, limits: DrafterLimits, now: float) -> None:
        self._limits = limits
        self._told_at = now
        self.touched = now
        """When the edge last spoke of the session."""

    def is_due(self, session: DraftSession, now: float) -> bool:
        """Whether to tell the chain now."""
        num_new = len(session.main.chain) - session.num_told
        if not session.has_news or not session.main.chain:
            return False
        return (
            session.num_told == 0
            or session.num_reply + session.num_told <= self._limits.first_tokens
            or num_new >= self._limits.report_tokens
            or not session.main.wants_row
            or now - self._told_at >= self._limits.report_s
        )

    def tell(self, session: DraftSession, call_us: int, now: float) -> Guess:
        """The chain as it is; it counts as told."""
        chain = session.main.chain
        session.num_told, session.has_news = len(chain), False
        self._told_at = now
        return Guess(
            session=session.number,
            base=session.num_reply,
            ids=tuple(entry.token for entry in chain),
            survival=tuple(accumulate((entry.chance for entry in chain), mul)),
            sources=tuple(entry.source for entry in chain),
            call_us=call_us,
        )
