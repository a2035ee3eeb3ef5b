"""One replica as the router knows it. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from outrider.peers.health import PeerHealth, PeerState
from outrider.peers.round_trip import RoundTrip
from services.router.fleet.load import Load, Model


@dataclass(slots=True)
class Replica:
    """One row of the table. Changed by the Registry alone."""

    name: str
    """Unique in the mesh; its address until a replica that was discovered says who it is."""
    region: str
    """"" until that is known."""
    address: str
    expected_model: str
    health: PeerHealth
    rtt: RoundTrip
    source: str = ""
    """What it was discovered by; "" for one that is configured."""
    is_leaving: bool = False
    """It is not among those that there should be any more."""
    model: Model | None = None
    load: Load | None = None
    sessions: set[int] = field(default_factory=set)
    """Sessions of this router on it."""
    reported_at: float = 0.0
    """When it last reported its load, or connected."""
    is_unanswering: bool = False
    """The last health check got no answer."""
    lost_at: float | None = None
    """When its stream broke last."""
    _sent_at: dict[int, float] = field(default_factory=dict)
    """Sessions it has not answered yet."""

    @property
    def state(self) -> PeerState:
        """Its health."""
        return self.health.state

    @property
    def takes_sessions(self) -> bool:
        """Whether a new session may go to it now."""
        return self.health.takes_sessions

    def may_return(self, return_s: float, now: float) -> bool:
        """Whether it takes no sessions just now, but soon may again: its stream is up, and it may
        get well; or it was lost within `return_s`, and is being reconnected."""
        if self.is_leaving or self.takes_sessions:
            return False
        if self.health.is_up:
            return not self.is_draining
        return self.lost_at is not None and now - self.lost_at < return_s

    @property
    def is_draining(self) -> bool:
        """Whether it answers, but is to get no new sessions."""
        return self.is_leaving or (self.load is not None and self.load.draining)

    @property
    def is_busy(self) -> bool:
        """Whether it says that sessions have to wait there."""
        return self.load is not None and bool(self.load.queued_sessions or self.load.overload_level)

    @property
    def model_name(self) -> str:
        """What it serves, as far as known; "" if nothing is."""
        return self.model.name if self.model else self.expected_model

    def place(self, session: int, now: float) -> None:
        """A session was sent to it."""
        self.sessions.add(session)
        self._sent_at[session] = now
        self.health.begin_session(session)

    def opened(self, session: int, held_ms: float, now: float) -> None:
        """It answered the open after `held_ms` of its own: the rest was the way (RFC 9002, 5.3).

        0 stands for one that does not say. Only the first answer to an open counts.
        """
        sent_at = self._sent_at.pop(session, None)
        if sent_at is not None and held_ms > 0.0:
            rtt_ms = (now - sent_at) * 1000.0 - held_ms
            if rtt_ms > 0.0:  # the two clocks need not run alike
                self.rtt.add(rtt_ms)

    def forget_sent(self) -> None:
        """What it answers from now on to opens that it has measures nothing."""
        self._sent_at.clear()

    def release(self, session: int) -> None:
        """A session ended or moved. Unknown ones are ignored."""
        self.sessions.discard(session)
        self._sent_at.pop(session, None)
        self.health.end_session(session)

    def report(self, load: Load, now: float) -> None:
        """Take a report."""
        self.load = load
        self.reported_at = now
