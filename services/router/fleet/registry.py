"""The replicas a router knows, and what it makes of what it hears of them. Pure: no I/O, no clock.

Every verb that may change a replica's state leaves the change in `take_transitions`.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from outrider.errors import UnavailableError
from outrider.peers.health import Change, HealthPolicy, PeerHealth, PeerState, Quarantine, Signal
from outrider.peers.round_trip import RoundTrip
from services.router.config import ReplicaConfig
from services.router.fleet.load import Identity, Load, Model
from services.router.fleet.replica import Replica
from services.router.fleet.roster import Roster

_MAX_TRANSITIONS: Final = 4096


@dataclass(frozen=True, slots=True)
class FleetPolicy:
    """What the operator decides."""

    health: HealthPolicy = field(default_factory=HealthPolicy)
    silence_s: float = 3.0
    """A replica whose load reports stay away for so long is SUSPECT."""


@dataclass(frozen=True, slots=True)
class Transition:
    """A replica changed its state."""

    replica: str
    before: PeerState
    after: PeerState
    why: str = ""


class Registry:
    """The replica table, by name."""

    def __init__(
        self,
        replicas: Iterable[ReplicaConfig],
        *,
        rtt_ms: Callable[[str], float],
        policy: FleetPolicy | None = None,
        now: float,
    ) -> None:
        """`rtt_ms` guesses the round trip to a region, where no replica of it is measured."""
        self._roster = Roster(rtt_ms)
        self._policy = policy or FleetPolicy()
        self._transitions: deque[Transition] = deque(maxlen=_MAX_TRANSITIONS)
        for config in replicas:
            self.add(config, now)

    def __iter__(self) -> Iterator[Replica]:
        return iter(self._roster)

    def __len__(self) -> int:
        return len(self._roster)

    @property
    def changed(self) -> set[str]:
        """Names whose rows changed, came or went, for the one reader that empties it: what was
        derived from the other rows may be kept."""
        return self._roster.changed

    def __getitem__(self, name: str) -> Replica:
        return self._roster[name]

    def find(self, name: str) -> Replica | None:
        """The replica of that name, if there is one."""
        return self._roster.find(name)

    def take_transitions(self) -> list[Transition]:
        """The changes since the last time, in order."""
        taken = list(self._transitions)
        self._transitions.clear()
        return taken

    # --- who there is ---

    def add(self, config: ReplicaConfig, now: float) -> Replica:
        """A replica that is configured."""
        return self._roster.add(
            Replica(
                name=config.name,
                region=config.region,
                address=config.address,
                expected_model=config.model,
                health=PeerHealth(self._policy.health, now),
                rtt=RoundTrip(self._roster.guess_ms(config.region)),
            )
        )

    def discover(self, address: str, source: str, region: str, now: float) -> Replica:
        """A replica of which no more is known than where it is; it will say its name."""
        return self._roster.add(
            Replica(
                name=address,
                region=region,
                address=address,
                expected_model="",
                health=PeerHealth(self._policy.health, now),
                rtt=RoundTrip(self._roster.guess_ms(region)),
                source=source,
            )
        )

    def introduce(self, name: str, said: Identity) -> None:
        """A replica says who it is, before `connected`; a discovered one gets its name so.

        Raises UnavailableError if it says another region than the configured one, which is the one
        that counts, and if another replica of that name is there. One that is not reached any more
        gives its name up: its host has a new address.
        """
        replica = self._roster[name]
        if said.region not in ("", replica.region):
            raise UnavailableError(
                f"it says that it stands in {said.region}, and is configured as in "
                f"{replica.region}: nothing is sent there until both are the same"
            )
        if replica.source and self._roster.claim(replica, said.name or replica.address):
            # Another one than before, at the same place: what was known of that one is void.
            replica.model, replica.load = None, None
            replica.health.quarantine = Quarantine(self._policy.health.quarantine)

    def remove(self, name: str) -> None:
        """Forget a replica, which has no sessions of this router any more."""
        self._roster.remove(name)

    def leave(self, name: str, now: float) -> None:
        """It is not among those that there should be: no new sessions, those it has go on."""
        self._roster[name].is_leaving = True
        self.signal(name, Signal.NOT_SERVING, now, "it is not found any more")

    def stay(self, name: str, now: float) -> None:
        """It is found again."""
        self._roster[name].is_leaving = False
        self.signal(name, Signal.SERVING, now, "it is found again")

    # --- what is heard of them ---

    def connected(self, name: str, model: Model, now: float) -> None:
        """The stream is up and the replica said what it serves; its old load is void."""
        replica = self._roster[name]
        replica.model, replica.load = model, None
        replica.reported_at, replica.is_unanswering = now, False
        self._roster.changed.add(name)
        self.signal(name, Signal.CONNECTED, now)
        if replica.is_leaving:
            self.signal(name, Signal.NOT_SERVING, now)

    def lost(self, name: str, why: str, now: float, *, is_own: bool = False) -> None:
        """Its stream broke, or an attempt to reach it failed. A stream that breaks while it is
        good for sessions counts as a failure, however many sessions it had, unless it broke by
        this router's own fault (`is_own`): it was late, or did not read."""
        replica = self._roster[name]
        health = replica.health
        if health.is_up:
            replica.lost_at = now
        is_failure = health.is_up and health.state is not PeerState.DRAINING and not is_own
        is_condemned = is_failure and health.fail(now) and self._may_condemn(self._roster[name])
        self.signal(name, Signal.LOST, now, why)
        if is_condemned:
            self._note(name, health.condemn(now), why)

    def signal(self, name: str, signal: Signal, now: float, why: str = "") -> None:
        """Apply one observation."""
        replica = self._roster[name]
        if signal is Signal.SERVING:
            if replica.is_draining:
                signal = Signal.NOT_SERVING
            elif replica.is_unanswering or (replica.health.is_up and self._is_silent(replica, now)):
                return  # one of its two signs of life is still missing
        self._note(name, replica.health.signal(signal, now), why)

    def probed(self, name: str, rtt_ms: float, serving: bool, now: float) -> None:
        """A health check was answered after `rtt_ms`."""
        replica = self._roster[name]
        replica.rtt.add(rtt_ms)
        self._roster.changed.add(name)
        replica.is_unanswering = False
        self.signal(name, Signal.SERVING if serving else Signal.NOT_SERVING, now)

    def unanswered(self, name: str, now: float) -> None:
        """A health check got no answer in time."""
        self._roster[name].is_unanswering = True
        self.signal(name, Signal.SILENT, now, "no answer to a health check")

    def report(self, name: str, load: Load, now: float) -> None:
        """A load report came in. Reports come at intervals: they are the heartbeat."""
        replica = self._roster[name]
        replica.report(load, now)
        self._roster.changed.add(name)
        if load.draining:
            self.signal(name, Signal.NOT_SERVING, now, "it says that it stops")
        elif replica.state is PeerState.SUSPECT:
            self.signal(name, Signal.SERVING, now)

    # --- what becomes of sessions ---

    def place(self, name: str, session: int, now: float) -> None:
        """A session was sent to it."""
        self._roster[name].place(session, now)
        self._roster.changed.add(name)

    def release(self, name: str, session: int) -> None:
        """A session ended or moved away. Unknown ones are ignored."""
        self._roster[name].release(session)
        self._roster.changed.add(name)

    def opened(self, name: str, session: int, held_ms: float, now: float) -> None:
        """It answered a session's open, which it had for `held_ms`; 0: it does not say."""
        self._roster[name].opened(session, held_ms, now)
        self._roster.changed.add(name)

    def was_late(self) -> None:
        """This router was late: what it sent till now measures no way."""
        for replica in self:
            replica.forget_sent()

    def served(self, name: str, session: int, now: float) -> None:
        """A session got its first tokens from it: a trial went well."""
        health = self._roster[name].health
        if health.trial is not None and health.trial == session:
            self._note(name, health.signal(Signal.CLEARED, now), "a trial went well")

    def failed(self, name: str, why: str, now: float) -> None:
        """A session failed there by the replica's fault, while its stream is up: an error that is
        not the request's, no progress. Refusals for load are none."""
        self._fail(name, why, now)

    def hung(self, name: str, why: str, now: float) -> None:
        """It makes no progress with any session, though its stream is up and it may answer health
        checks: quarantine at once, and for longer each time."""
        self._note(name, self._roster[name].health.condemn(now), why)

    def expire(self, now: float) -> None:
        """What passes with time alone: limits of states, silence, the end of quarantine."""
        for replica in self:
            self._note(replica.name, replica.health.expire(now), "time")
            if replica.health.is_up and self._is_silent(replica, now):
                change = replica.health.signal(Signal.SILENT, now)
                self._note(replica.name, change, "no load reports")

    # --- for others to read ---

    def is_up(self, name: str) -> bool:
        """Whether its stream is worth keeping."""
        return self._roster[name].state is not PeerState.DOWN

    def is_settled(self) -> bool:
        """Whether every replica was reached, or tried in vain, once."""
        return all(replica.state is not PeerState.CONNECTING for replica in self)

    def codecs_of(self, model: str) -> tuple[int, ...]:
        """Token codecs that every reachable replica of a model reads, best first."""
        offers = [r.model.codecs for r in self if r.model and r.model.name == model]
        return (
            tuple(codec for codec in offers[0] if all(codec in o for o in offers)) if offers else ()
        )

    def vocabularies_of(self, model: str) -> list[bytes]:
        """Digests of the replicas of a model that take sessions, the most frequent one first."""
        models = (r.model for r in self if r.model and r.takes_sessions and r.model.name == model)
        return [digest for digest, _ in Counter(m.vocabulary_digest for m in models).most_common()]

    def longest_context(self, model: str) -> int:
        """Most tokens of prompt and reply that a reachable replica of a model takes; 0: none has
        said."""
        said = (r.model.max_context_tokens for r in self if r.model and r.model.name == model)
        return max(said, default=0)

    def count(self) -> dict[PeerState, int]:
        """Replicas by state, every state named."""
        states = [replica.state for replica in self]
        return {state: states.count(state) for state in PeerState}

    # --- how ---

    def _is_silent(self, replica: Replica, now: float) -> bool:
        return now - replica.reported_at >= self._policy.silence_s

    def _fail(self, name: str, why: str, now: float) -> None:
        health = self._roster[name].health
        if health.fail(now) and self._may_condemn(self._roster[name]):
            self._note(name, health.condemn(now), why)

    def _may_condemn(self, replica: Replica) -> bool:
        """No more than half of a model's replicas: a fault that all of them show, or requests that
        are at fault themselves, must leave somebody (Envoy's max_ejection_percent)."""
        peers = [r for r in self if r.model_name == replica.model_name]
        others = sum(r.health.quarantine.is_active for r in peers if r is not replica)
        return 2 * (others + 1) <= len(peers)

    def _note(self, name: str, change: Change | None, why: str) -> None:
        if change:
            self._roster.changed.add(name)
            self._transitions.append(Transition(name, change.before, change.after, why))
