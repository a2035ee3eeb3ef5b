"""All replicas that a router knows, by name, and what their events do to their health. Pure.

Changes of a replica's state are collected for `take_transitions`.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from outrider.errors import UnavailableError
from outrider.model_identity import short_form
from outrider.peers.health import Change, HealthPolicy, PeerHealth, PeerState, Quarantine, Signal
from outrider.peers.round_trip import RoundTrip
from services.router.fleet.entries import ReplicaConfig
from services.router.fleet.replica import Replica, ReplicaIdentity, ReplicaLoad, ServedModel

_MAX_TRANSITIONS: Final = 4096


@dataclass(frozen=True, slots=True)
class FleetPolicy:
    """When replicas change their state."""

    health: HealthPolicy = field(default_factory=HealthPolicy)
    silence_s: float = 3.0
    """A replica without a load report for so long is SUSPECT."""


@dataclass(frozen=True, slots=True)
class ReplicaTransition:
    """A change of a replica's state."""

    replica: str
    before: PeerState
    after: PeerState
    why: str = ""


class Registry:
    """Replicas by name. Methods take `now` in seconds."""

    def __init__(
        self,
        replicas: Iterable[ReplicaConfig],
        *,
        rtt_ms: Callable[[str], float],
        policy: FleetPolicy | None = None,
        now: float,
    ) -> None:
        """`rtt_ms` estimates the round trip to a region in which no replica is measured."""
        self._rtt_ms = rtt_ms
        self._replicas: dict[str, Replica] = {}
        self.changed: set[str] = set()
        """Names of replicas that were changed, added or removed. Emptied by its only reader,
        placement, which keeps a table derived from all replicas."""
        self._policy = policy or FleetPolicy()
        self._transitions: deque[ReplicaTransition] = deque(maxlen=_MAX_TRANSITIONS)
        self.num_transitions = 0
        """Changes of states so far."""
        for config in replicas:
            self.add(config, now)

    def __iter__(self) -> Iterator[Replica]:
        return iter(self._replicas.values())

    def __len__(self) -> int:
        return len(self._replicas)

    def __getitem__(self, name: str) -> Replica:
        return self._replicas[name]

    def find(self, name: str) -> Replica | None:
        """The replica of that name; None if there is none."""
        return self._replicas.get(name)

    def take_transitions(self) -> list[ReplicaTransition]:
        """The changes since the last call, in order."""
        taken = list(self._transitions)
        self._transitions.clear()
        return taken

    # --- membership ---

    def add(self, config: ReplicaConfig, now: float) -> Replica:
        """Add a configured replica."""
        return self._add(
            Replica(
                name=config.name,
                region=config.region,
                address=config.address,
                expected_model=config.model,
                health=PeerHealth(self._policy.health, now),
                rtt=RoundTrip(self._estimated_rtt_ms(config.region)),
            )
        )

    def discover(self, address: str, source: str, region: str, now: float) -> Replica:
        """Add a replica of which only the address is known; it will report its name."""
        return self._add(
            Replica(
                name=address,
                region=region,
                address=address,
                expected_model="",
                health=PeerHealth(self._policy.health, now),
                rtt=RoundTrip(self._estimated_rtt_ms(region)),
                source=source,
            )
        )

    def identify(self, name: str, identity: ReplicaIdentity) -> None:
        """Take the name and region that a replica reports, before `connected`; a discovered one is
        renamed.

        Raises UnavailableError if its region is not the configured one, or if its name belongs to a
        configured replica or to one that is connected or whose stream has not ended yet. Any other
        discovered replica loses the name: its host has a new address.
        """
        replica = self._replicas[name]
        if identity.region not in ("", replica.region):
            raise UnavailableError(
                f"it reports region {identity.region} and is configured in {replica.region}; "
                "nothing is sent there until both are the same"
            )
        if replica.source and self._claim_name(replica, identity.name or replica.address):
            # Another replica than before at the same address: what was known is void.
            replica.model = None
            replica.load = None
            replica.num_contradictions = 0
            replica.health.quarantine = Quarantine(self._policy.health.quarantine)
        replica.process = identity.process

    def remove(self, name: str) -> None:
        """Forget a replica that has no sessions of this router any more."""
        del self._replicas[name]
        self.changed.add(name)

    def leave(self, name: str, now: float, why: str) -> None:
        """Give a replica no new sessions, because lookups or the configuration no longer name it;
        its sessions continue."""
        self._replicas[name].is_leaving = True
        self.signal(name, Signal.NOT_SERVING, now, why)

    def stay(self, name: str, now: float) -> None:
        """Undo `leave`: lookups or the configuration name the replica again."""
        self._replicas[name].is_leaving = False
        self.signal(name, Signal.SERVING, now, "it is there again")

    # --- connection, health checks, load reports ---

    def connected(self, name: str, model: ServedModel, now: float) -> None:
        """Record that its stream is open and that it reported its model; its last load is void."""
        replica = self._replicas[name]
        replica.model = model
        replica.load = None
        replica.reported_at = now
        replica.is_unanswering = False
        replica.is_attached = True
        self.changed.add(name)
        self.signal(name, Signal.CONNECTED, now)
        if replica.is_leaving:
            self.signal(name, Signal.NOT_SERVING, now)

    def lost(self, name: str, why: str, now: float, *, is_own: bool = False) -> None:
        """Record a broken stream or a failed attempt to connect. A stream that breaks while the
        replica may take sessions counts as one failure, however many sessions it had, unless this
        router was the cause (`is_own`): it was late, or did not read."""
        replica = self._replicas[name]
        health = replica.health
        replica.is_attached = False
        if health.is_up:
            replica.lost_at = now
        takes_none = (PeerState.DRAINING, PeerState.QUARANTINED)
        is_failure = health.is_up and health.state not in takes_none and not is_own
        is_quarantined = (
            is_failure and health.fail(now) and self._may_quarantine(self._replicas[name])
        )
        self.signal(name, Signal.LOST, now, why)
        if is_quarantined:
            self._note(name, health.condemn(now), why)

    def signal(self, name: str, signal: Signal, now: float, why: str = "") -> None:
        """Apply one signal to its health."""
        replica = self._replicas[name]
        if signal is Signal.SERVING:
            if replica.is_draining:
                signal = Signal.NOT_SERVING
            elif replica.is_unanswering or (replica.health.is_up and self._is_silent(replica, now)):
                return  # SERVING needs both: load reports and an answered health check
        self._note(name, replica.health.signal(signal, now), why)

    def probed(self, name: str, rtt_ms: float, serving: bool, now: float) -> None:
        """A health check was answered after `rtt_ms`."""
        replica = self._replicas[name]
        replica.rtt.add(rtt_ms)
        self.changed.add(name)
        replica.is_unanswering = False
        self.signal(name, Signal.SERVING if serving else Signal.NOT_SERVING, now)

    def unanswered(self, name: str, now: float) -> None:
        """A health check was not answered in time."""
        self._replicas[name].is_unanswering = True
        self.signal(name, Signal.SILENT, now, "no answer to a health check")

    def report(self, name: str, load: ReplicaLoad, now: float) -> None:
        """A load report came in. Reports at intervals are the heartbeat."""
        replica = self._replicas[name]
        replica.report(load, now)
        self.changed.add(name)
        if load.draining:
            self.signal(name, Signal.NOT_SERVING, now, "it says that it takes no sessions")
        elif replica.state is PeerState.SUSPECT:
            self.signal(name, Signal.SERVING, now)

    # --- sessions ---

    def place(self, name: str, session: int, now: float) -> None:
        """A session was sent to it."""
        self._replicas[name].place(session, now)
        self.changed.add(name)

    def release(self, name: str, session: int) -> None:
        """A session ended or moved away. Unknown ones are ignored."""
        self._replicas[name].release(session)
        self.changed.add(name)

    def opened(self, name: str, session: int, ack_delay_ms: float, now: float) -> None:
        """Record the answer to a session's open, sent after `ack_delay_ms`; 0: not reported."""
        self._replicas[name].opened(session, ack_delay_ms, now)
        self._replicas[name].num_contradictions = 0
        self.changed.add(name)

    def contradicted(self, name: str, opened_as: bytes, now: float) -> None:
        """Record that a replica opened a session with another model identity than it reports.

        Its stream is closed, and it is asked again, because another process may have taken its
        place. If it happens again nothing can be sent there, even if it is the only replica: it is
        quarantined, for longer after each failed trial.
        """
        replica = self._replicas[name]
        replica.num_contradictions += 1
        replica.opened_as = opened_as
        if replica.is_inconsistent:
            why = f"reports {short_form(replica.model_identity)}, opens as {short_form(opened_as)}"
            self._note(name, replica.health.condemn(now), why)

    def was_late(self) -> None:
        """This process was late: opens that are under way measure no round trip."""
        for replica in self:
            replica.forget_sent()

    def served(self, name: str, session: int, now: float) -> None:
        """A session got its first tokens from it, which ends its quarantine if it was the trial."""
        health = self._replicas[name].health
        if health.trial is not None and health.trial == session:
            self._note(name, health.signal(Signal.CLEARED, now), "a trial went well")

    def failed(self, name: str, why: str, now: float) -> None:
        """A session failed by the replica's fault while its stream is up: an error that the request
        did not cause, or no progress. Refusals for load do not count."""
        self._fail(name, why, now)

    def hung(self, name: str, why: str, now: float) -> None:
        """Quarantine a replica that makes no progress with any session although its stream is up:
        at once, and for longer each time."""
        self._note(name, self._replicas[name].health.condemn(now), why)

    def expire(self, now: float) -> None:
        """Timeouts of states, missing load reports, the end of quarantine."""
        for replica in self:
            self._note(replica.name, replica.health.expire(now), "time")
            if replica.health.is_up and self._is_silent(replica, now):
                change = replica.health.signal(Signal.SILENT, now)
                self._note(replica.name, change, "no load reports")

    # --- queries ---

    def is_up(self, name: str) -> bool:
        """Whether its stream is worth keeping."""
        return self._replicas[name].state is not PeerState.DOWN

    def is_settled(self) -> bool:
        """Whether every replica was tried once, successfully or not."""
        return all(replica.state is not PeerState.CONNECTING for replica in self)

    def codecs_of(self, model: str) -> tuple[int, ...]:
        """Token codecs that every reachable replica of a model reads, best first."""
        offers = [r.model.codecs for r in self if r.model and r.model.name == model]
        return (
            tuple(codec for codec in offers[0] if all(codec in o for o in offers)) if offers else ()
        )

    def vocabularies_of(self, model: str) -> list[bytes]:
        """Vocabulary digests of a model's replicas that take sessions, the most frequent first."""
        models = (r.model for r in self if r.model and r.takes_sessions and r.model.name == model)
        return [digest for digest, _ in Counter(m.vocabulary_digest for m in models).most_common()]

    def longest_context(self, model: str) -> int:
        """Longest context of a model's replicas, prompt and reply, in tokens; 0: unknown."""
        limits = (r.model.max_context_tokens for r in self if r.model and r.model.name == model)
        return max(limits, default=0)

    def models(self) -> set[str]:
        """Models that replicas serve or are configured to serve."""
        return {replica.model_name for replica in self if replica.model_name}

    def count(self) -> dict[PeerState, int]:
        """Number of replicas in every state."""
        states = [replica.state for replica in self]
        return {state: states.count(state) for state in PeerState}

    # --- internals ---

    def _add(self, replica: Replica) -> Replica:
        self._replicas[replica.name] = replica
        self.changed.add(replica.name)
        return replica

    def _claim_name(self, replica: Replica, name: str) -> bool:
        """Give a discovered replica the name it reports; whether it had another one before. Raises
        UnavailableError."""
        if name == replica.name:
            return False
        other = self._replicas.get(name)
        if other is not None:
            if other.health.is_up or other.is_attached or not other.source:
                raise UnavailableError(
                    f"it calls itself {name}, as the replica at {other.address} does; give every "
                    "replica a name of its own"
                )
            self._rename(other, other.address)
        self._rename(replica, name)
        return True

    def _rename(self, replica: Replica, name: str) -> None:
        self.remove(replica.name)
        replica.name = name
        self._add(replica)

    def _estimated_rtt_ms(self, region: str) -> float:
        """RTT of the nearest measured replica of the region, else the estimate from its
        coordinates."""
        measured = [r.rtt.min_ms for r in self if r.region == region and r.rtt.is_measured]
        return min(measured, default=None) or self._rtt_ms(region)

    def _is_silent(self, replica: Replica, now: float) -> bool:
        return now - replica.reported_at >= self._policy.silence_s

    def _fail(self, name: str, why: str, now: float) -> None:
        health = self._replicas[name].health
        if health.fail(now) and self._may_quarantine(self._replicas[name]):
            self._note(name, health.condemn(now), why)

    def _may_quarantine(self, replica: Replica) -> bool:
        """At most half of a model's replicas are in quarantine, so that a fault of all of them or
        of the requests themselves leaves some (Envoy: max_ejection_percent)."""
        peers = [r for r in self if r.model_name == replica.model_name]
        others = sum(r.health.quarantine.is_active for r in peers if r is not replica)
        return 2 * (others + 1) <= len(peers)

    def _note(self, name: str, change: Change | None, why: str) -> None:
        if change:
            self.changed.add(name)
            self.num_transitions += 1
            self._transitions.append(ReplicaTransition(name, change.before, change.after, why))
