"""Whether the edge's drafts go up to the region, and how far the edge runs ahead.

The user's time decides: drafts go up while they are predicted to bring tokens sooner. Where they
do not, the region drafts for itself, and the edge's drafts are for the client's eyes, if at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from services.edge.session.control.acceptance import Acceptance, Averages, Outcome
from services.edge.session.control.model import (
    Conditions,
    alone_s,
    useful_lead,
    with_drafts_s,
)
from services.edge.session.control.pace import Pace, PaceBook
from services.edge.session.control.round_trip import RoundTrip
from services.edge.session.drafting import Progress

NO_DRAFTS: Final = 1
"""Level of overload from which the region takes drafts only where they cost nothing."""
_REVIEW_EVERY = 4
"""Commits per prediction, which costs as much as all else that a commit does here."""
_REACH = 64
"""Tokens of a chain that a prediction looks at."""


class Uploads(Enum):
    """Who decides whether drafts go up."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


class Mode(Enum):
    """What an edge does for a chat."""

    EDGE_DRAFTS = "edge_drafts"
    """Drafts go up; the region uses those that are there in time."""
    DISPLAY_ONLY = "display_only"
    """Drafts are shown to the client and stay here."""
    SERVER_ONLY = "server_only"
    """There are none, but to try now and then."""


@dataclass(frozen=True, slots=True)
class ControlPolicy:
    """How readily a controller changes its mind."""

    uploads: Uploads = Uploads.AUTO
    enter_gain: float = 0.10
    """Least share of the time per token that drafts must be predicted to save to begin..."""
    leave_gain: float = 0.05
    """...and to go on with them."""
    dwell_rounds: int = 24
    """Fewest commits between two changes."""
    probe_every: int = 50
    """One commit in so many is answered by drafts though they do not pay, to measure."""
    max_step: int = 2
    """Most tokens by which the lead changes per commit."""


@dataclass(slots=True)
class Tally:
    """Counts over one chat."""

    drafted: int = 0
    sent: int = 0
    checked: int = 0
    right: int = 0
    sending_rounds: int = 0
    holding_rounds: int = 0
    switches: int = 0


class Controller:
    """One chat's. Told what was sent, came back, was drafted and became final; asked what to do."""

    def __init__(
        self, policy: ControlPolicy, averages: Averages, *, max_lead: int, sends: bool, shows: bool
    ) -> None:
        """`sends` and `shows`: whether the chat's drafts may go up, and may be shown."""
        self._policy = policy
        self._averages = averages
        self._max_lead = max_lead
        self._may_send = sends and policy.uploads is not Uploads.NEVER
        self.shows = shows
        """Whether the client is shown drafts."""
        self._pays = True
        self._is_probe = False
        self._overloaded = False
        self._since_change = 0
        self._since_probe = 0
        self._regime = 0
        self._max_drafts = 0
        self.round_trip = RoundTrip()
        self.pace = PaceBook(averages.own_pace)
        self.acceptance = Acceptance(averages.acceptance)
        self.tally = Tally()
        self._lead = self._useful_lead = max_lead
        self.predicted_s: tuple[float, float] | None = None
        """Seconds per token without drafts from the edge and with them."""
        if averages.acceptance.is_seasoned:
            self._begin_as_others_went()

    @property
    def mode(self) -> Mode:
        """What the edge does for the chat now, probes aside."""
        if self._may_send and self._pays and not self._overloaded:
            return Mode.EDGE_DRAFTS
        return Mode.DISPLAY_ONLY if self.shows else Mode.SERVER_ONLY

    @property
    def sends(self) -> bool:
        """Whether drafts go up now."""
        return self.mode is Mode.EDGE_DRAFTS or self._is_probe

    @property
    def lead(self) -> int:
        """Drafts to have ahead of the commits now; 0 if there is no use for any."""
        if self.sends:
            return self._lead
        return self._max_lead if self.shows else 0

    @property
    def predicted_gain(self) -> float:
        """Share of the time per token that drafts from the edge are predicted to save; 0 while
        nothing can be said."""
        if self.predicted_s is None:
            return 0.0
        without_s, with_s = self.predicted_s
        return 1 - with_s / without_s

    @property
    def conditions(self) -> Conditions | None:
        """What predictions are made of; None until the chat knows a round trip and an interval."""
        rtt_s, interval_s = self.round_trip.median_s, self.pace.interval_s
        if rtt_s is None or not interval_s:
            return None
        limits = {"max_drafts": self._max_drafts} if self._max_drafts else {}
        return Conditions(
            rtt_s=rtt_s,
            draft_s=self.pace.draft_s,
            interval_s=interval_s,
            row_s=self.pace.row_s,
            own_tokens=self.pace.own_tokens,
            max_lead=self._max_lead,
            **limits,
        )

    def number(self, now: float) -> int:
        """The number for a frame to the region that leaves now, wanted back."""
        return self.round_trip.number(now)

    def opened(self, echo: int, held_s: float, max_drafts: int, now: float) -> None:
        """The replica took the session."""
        self.round_trip.returned(echo, held_s, now)
        self._max_drafts = max_drafts

    def drafted(self, progress: Progress) -> None:
        """The chain was drafted on."""
        self.tally.drafted += progress.num_kept
        if progress.num_made:
            self.pace.drafted(progress.num_made, progress.took_s)

    def sent(self, count: int) -> None:
        """So many drafts went up."""
        self.tally.sent += count

    def committed(
        self, pace: Pace, num_tokens: int, *, on_its_own: bool, by_drafts: bool, now: float
    ) -> None:
        """A commit of so many tokens came; `on_its_own`: no draft of the edge was in it,
        `by_drafts`: some were."""
        self.round_trip.returned(pace.echo, pace.held_s, now)
        self.pace.committed(pace, num_tokens, on_its_own=on_its_own, by_drafts=by_drafts)
        if self.mode is Mode.EDGE_DRAFTS:
            self.tally.sending_rounds += 1
        else:
            self.tally.holding_rounds += 1
        self._overloaded = pace.overload_level >= NO_DRAFTS
        self._review()
        self._probe()

    def checked(self, outcomes: tuple[Outcome, ...], ended_at: int | None) -> None:
        """Drafts were compared with what became final; see Acceptance.observe."""
        self.acceptance.observe(outcomes, ended_at)
        self._averages.acceptance.observe(outcomes, ended_at)
        for outcome in outcomes:
            self.tally.checked += outcome.decides
            self.tally.right += outcome.right

    def _begin_as_others_went(self) -> None:
        """Decide by what earlier chats showed, and again once there are figures of this one."""
        self._predict()
        self._decide(self.predicted_gain)
        self._since_change = self._policy.dwell_rounds
        self.tally.switches = 0

    def _review(self) -> None:
        self._since_change += 1
        is_new_path = self.round_trip.regime != self._regime
        self._regime = self.round_trip.regime
        if is_new_path or self._since_change % _REVIEW_EVERY == 0:
            self._predict()
        self._move_lead(at_once=is_new_path)
        if is_new_path or self._since_change >= self._policy.dwell_rounds:
            self._decide(self.predicted_gain)

    def _predict(self) -> None:
        conditions = self.conditions
        if conditions is not None:
            self._averages.conditions = conditions
        else:
            conditions = self._averages.conditions
        if conditions is not None:
            survival = self.acceptance.survival(_REACH)
            self.predicted_s = alone_s(conditions), with_drafts_s(conditions, survival)
            self._useful_lead = useful_lead(conditions)

    def _decide(self, gain: float) -> None:
        policy = self._policy
        if policy.uploads is not Uploads.AUTO or self.predicted_s is None:
            return
        least = policy.leave_gain if self._pays else policy.enter_gain
        if (gain >= least) != self._pays:
            self._pays = not self._pays
            self._since_change = self._since_probe = 0
            self.tally.switches += self._may_send

    def _move_lead(self, *, at_once: bool) -> None:
        step = self._max_lead if at_once else self._policy.max_step
        self._lead += max(-step, min(step, self._useful_lead - self._lead))

    def _probe(self) -> None:
        """A probe lasts from one commit to the next."""
        self._is_probe = False
        if not self._may_send or self._overloaded or self.mode is Mode.EDGE_DRAFTS:
            self._since_probe = 0
            return
        self._since_probe += 1
        if self._since_probe >= self._policy.probe_every:
            self._is_probe, self._since_probe = True, 0
