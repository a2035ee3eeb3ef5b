"""Decisions on a chat's drafts: whether they are uploaded to the region, and how many are made
ahead of the commits.

Drafts are uploaded while the speedup model predicts that they save time per token. Otherwise the
region drafts by itself, and the edge drafts only for provisional text, if that is wanted.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from outrider.session.region import Pace
from services.edge.session.acceptance import Acceptance, Averages, DraftOutcome
from services.edge.session.draft_chain import DraftProgress
from services.edge.session.speedup_model import (
    SessionConditions,
    useful_lead,
    with_drafts_s,
    without_drafts_s,
)
from services.edge.session.timing import PaceTracker, RoundTrip

NO_DRAFTS: Final = 1
"""Overload level of a replica from which no drafts are uploaded: from there on it takes drafts only
where they cost it nothing."""
_PREDICT_EVERY: Final = 4
"""Commits per prediction: one takes as long as all else that the edge does for a commit..."""
_PREDICT_SELDOM_EVERY: Final = 16
"""...and this many while drafts are not uploaded: only probes bring anything new then."""
_HORIZON_TOKENS: Final = 64
"""Tokens of a chain that a prediction considers."""


class Uploads(Enum):
    """Whether drafts are uploaded: as the controller decides, always, or never."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


class DraftMode(Enum):
    """Use that an edge makes of its drafts in a chat, apart from probes."""

    EDGE_DRAFTS = "edge_drafts"
    """Drafts are uploaded; the region uses those that arrive in time."""
    DISPLAY_ONLY = "display_only"
    """Drafts are shown to the client but not uploaded."""
    SERVER_ONLY = "server_only"
    """None are made."""


@dataclass(frozen=True, slots=True)
class UploadPolicy:
    """When uploads begin and end."""

    uploads: Uploads = Uploads.AUTO
    enter_gain: float = 0.10
    """Uploads begin when they are predicted to save at least this share of the time per token."""
    leave_gain: float = 0.05
    """Uploads end when the predicted saving falls below this share."""
    dwell_commits: int = 24
    """Fewest commits between two changes, unless the network path changes."""
    probe_every: int = 50
    """While uploads do not pay, one commit in this many is followed by an upload, to measure."""
    max_step: int = 2
    """Most tokens by which the lead changes per commit."""


@dataclass(slots=True)
class UploadCounts:
    """Drafts of one chat by fate, and its commits by whether drafts were uploaded."""

    drafted: int = 0
    sent: int = 0
    checked: int = 0
    right: int = 0
    commits_with_uploads: int = 0
    commits_without_uploads: int = 0
    switches: int = 0


class UploadController:
    """Decides for one chat, from its round trips, pace and acceptance.

    `opened`, `drafted`, `sent`, `checked` and `committed` report events to it; `sends` and `lead`
    are the decisions.
    """

    def __init__(
        self, policy: UploadPolicy, averages: Averages, *, max_lead: int, sends: bool, shows: bool
    ) -> None:
        """`sends` and `shows`: whether the chat's drafts may be uploaded, and may be shown."""
        self._policy = policy
        self._averages = averages
        self._max_lead = max_lead
        self._may_send = sends and policy.uploads is not Uploads.NEVER
        self.shows = shows
        """Whether drafts are made for the client to be shown, though they are not uploaded."""
        self._pays = True
        """Whether uploads are predicted to pay."""
        self._is_probe = False
        """Whether drafts are uploaded until the next commit only to measure."""
        self._overloaded = False
        self._since_change = 0
        """Commits since `_pays` changed."""
        self._since_probe = 0
        """Commits since the last probe."""
        self._has_news = False
        """Whether something came since the last prediction that may change it."""
        self._is_decided = False
        """Whether the last prediction has led to a decision: another look at it changes nothing."""
        self._num_path_changes = 0
        self.max_drafts = 0
        """Most drafts of a session in one call of the replica's model; 0: it did not say."""
        self.round_trip = RoundTrip()
        self.pace = PaceTracker(averages.own_tokens)
        self.acceptance = Acceptance(averages.acceptance)
        self.counts = UploadCounts()
        self._lead = self._useful_lead = max_lead
        self.predicted_s: tuple[float, float] | None = None
        """Seconds per token without drafts from the edge and with them."""
        if averages.acceptance.is_reliable:
            self._decide_by_earlier_chats()

    @property
    def mode(self) -> DraftMode:
        """Present use of the edge's drafts, apart from probes."""
        if self._uploads_pay:
            return DraftMode.EDGE_DRAFTS
        return DraftMode.DISPLAY_ONLY if self.shows else DraftMode.SERVER_ONLY

    @property
    def sends(self) -> bool:
        """Whether drafts are uploaded now."""
        return self._uploads_pay or self._is_probe

    @property
    def _uploads_pay(self) -> bool:
        return self._may_send and self._pays and not self._overloaded

    @property
    def lead(self) -> int:
        """Most drafts wanted ahead of the commits now; 0 if they are neither uploaded nor shown."""
        if self.sends:
            return self._lead
        return self._max_lead if self.shows else 0

    @property
    def predicted_gain(self) -> float:
        """Share of the time per token that drafts from the edge are predicted to save; 0 before the
        first prediction."""
        if self.predicted_s is None:
            return 0.0
        without_s, with_s = self.predicted_s
        return 1 - with_s / without_s

    @property
    def conditions(self) -> SessionConditions | None:
        """Inputs of the predictions; None until a round trip and a commit interval were
        measured."""
        rtt_s, interval_s = self.round_trip.median_s, self.pace.interval_s
        if rtt_s is None or not interval_s:
            return None
        limits = {"max_drafts": self.max_drafts} if self.max_drafts else {}
        return SessionConditions(
            rtt_s=rtt_s,
            draft_s=self.pace.draft_s,
            interval_s=interval_s,
            row_s=self.pace.row_s,
            own_tokens=self.pace.own_tokens,
            max_lead=self._max_lead,
            **limits,
        )

    def opened(self, echo: int, ack_delay_s: float, max_drafts: int, now: float) -> None:
        """The replica opened the session."""
        self.round_trip.returned(echo, ack_delay_s, now)
        self.max_drafts = max_drafts

    def drafted(self, progress: DraftProgress) -> None:
        """The chain was advanced."""
        self.counts.drafted += progress.num_kept
        if progress.num_made:
            self.pace.drafted(progress.num_made, progress.took_s)

    def sent(self, count: int) -> None:
        """So many drafts were uploaded."""
        self.counts.sent += count

    def committed(
        self, pace: Pace | None, num_tokens: int, *, on_its_own: bool, now: float
    ) -> None:
        """A commit of so many tokens came; `on_its_own`: no draft of the edge was in its call.
        `pace` as in Commit."""
        if pace is not None:
            self.round_trip.returned(pace.echo, pace.ack_delay_s, now)
            self.pace.told(pace)
            self._has_news = True
            self._overloaded = pace.overload_level >= NO_DRAFTS
        if on_its_own:
            self.pace.observe_own(num_tokens)
        if self._uploads_pay:
            self.counts.commits_with_uploads += 1
        else:
            self.counts.commits_without_uploads += 1
        self._review()
        self._probe()

    def checked(self, outcomes: tuple[DraftOutcome, ...], ended_at: int | None) -> None:
        """Drafts were compared with what became final; `ended_at` as in Acceptance.observe."""
        self._has_news = True
        self.acceptance.observe(outcomes, ended_at)
        self._averages.acceptance.observe(outcomes, ended_at)
        for outcome in outcomes:
            self.counts.checked += outcome.decides
            self.counts.right += outcome.right

    def _decide_by_earlier_chats(self) -> None:
        """Decide by earlier chats until this chat has figures; then it decides at once, before
        `dwell_commits` commits."""
        self._predict()
        self._decide(self.predicted_gain)
        self._since_change = self._policy.dwell_commits
        self.counts.switches = 0

    def _review(self) -> None:
        self._since_change += 1
        is_new_path = self.round_trip.num_path_changes != self._num_path_changes
        self._num_path_changes = self.round_trip.num_path_changes
        if not self._may_send:
            return
        every = _PREDICT_EVERY if self._pays else _PREDICT_SELDOM_EVERY
        if self._has_news and (is_new_path or self._since_change % every == 0):
            self._has_news = False
            self._predict()
        if self._lead != self._useful_lead:
            self._move_lead(at_once=is_new_path)
        is_due = is_new_path or self._since_change >= self._policy.dwell_commits
        if is_due and not self._is_decided:
            self._is_decided = True
            self._decide(self.predicted_gain)

    def _predict(self) -> None:
        conditions = self.conditions
        if conditions is not None:
            self._averages.conditions = conditions
        else:
            conditions = self._averages.conditions
        if conditions is not None:
            survival = self.acceptance.survival(_HORIZON_TOKENS)
            self.predicted_s = without_drafts_s(conditions), with_drafts_s(conditions, survival)
            self._is_decided = False
            self._useful_lead = useful_lead(conditions)

    def _decide(self, gain: float) -> None:
        policy = self._policy
        if policy.uploads is not Uploads.AUTO or self.predicted_s is None:
            return
        least = policy.leave_gain if self._pays else policy.enter_gain
        if (gain >= least) != self._pays:
            self._pays = not self._pays
            self._is_decided = False
            self._since_change = self._since_probe = 0
            self.counts.switches += self._may_send

    def _move_lead(self, *, at_once: bool) -> None:
        step = self._max_lead if at_once else self._policy.max_step
        self._lead += max(-step, min(step, self._useful_lead - self._lead))

    def _probe(self) -> None:
        """A probe lasts from one commit to the next."""
        self._is_probe = False
        if not self._may_send or self._overloaded or self._pays:
            self._since_probe = 0
            return
        self._since_probe += 1
        if self._since_probe >= self._policy.probe_every:
            self._is_probe = True
            self._since_probe = 0
