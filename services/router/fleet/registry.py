"""What the router knows of its replicas: health, model, load, distance. Pure: no I/O, no clock.

Health is the table TRANSITIONS. A replica's load is its last report plus what this router placed
on it since (the in-flight credit that keeps a burst from landing on one replica; the idea of
SGLang's least-load policy and Dynamo's router, which both count at dispatch).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum, IntEnum

from services.router.config import ReplicaConfig


class ReplicaState(IntEnum):
    """Health; the numbers are the wire's."""

    CONNECTING = 1
    """The first attempt to reach it is under way."""
    READY = 2
    """Its stream is up, it answers probes, it takes sessions."""
    SUSPECT = 3
    """Its stream is up but a probe got no answer: no new sessions until it answers."""
    DOWN = 4
    """No stream; reconnecting goes on."""
    DRAINING = 5
    """It answers but takes no new sessions; those it has go on."""


class Signal(Enum):
    """What can be observed of a replica."""

    CONNECTED = "connected"
    LOST = "lost"
    SERVING = "serving"
    NOT_SERVING = "not_serving"
    UNREACHED = "unreached"
    TIMEOUT = "timeout"


_C, _R, _S, _D, _G = (
    ReplicaState.CONNECTING,
    ReplicaState.READY,
    ReplicaState.SUSPECT,
    ReplicaState.DOWN,
    ReplicaState.DRAINING,
)

TRANSITIONS: dict[Signal, dict[ReplicaState, ReplicaState]] = {
    Signal.CONNECTED: {_C: _R, _R: _R, _S: _R, _D: _R, _G: _R},
    Signal.LOST: {_C: _D, _R: _D, _S: _D, _D: _D, _G: _D},
    # Health is heard over the same channel before the stream is up and after it broke: only the
    # stream itself brings a replica out of CONNECTING and DOWN.
    Signal.SERVING: {_C: _C, _R: _R, _S: _R, _D: _D, _G: _R},
    Signal.NOT_SERVING: {_C: _C, _R: _G, _S: _G, _D: _D, _G: _G},
    Signal.UNREACHED: {_C: _C, _R: _S, _S: _S, _D: _D, _G: _S},
    Signal.TIMEOUT: {_C: _D, _R: _R, _S: _D, _D: _D, _G: _G},
}


@dataclass(frozen=True, slots=True)
class Model:
    """What a replica serves, as it said itself."""

    name: str
    vocabulary_digest: bytes
    max_context_tokens: int = 0
    codecs: tuple[int, ...] = ()
    """Token codecs it reads; the numbers are the wire's."""


@dataclass(frozen=True, slots=True)
class Load:
    """A replica's load report. A call of n rows is expected to take fixed_ms + row_ms * n."""

    running_sessions: int = 0
    queued_sessions: int = 0
    queued_prompt_tokens: int = 0
    fixed_ms: float = 0.0
    row_ms: float = 0.0
    max_sessions: int = 0
    """Sessions that run at once, further ones wait; 0: no limit stated."""
    draining: bool = False
    num_instances: int = 1
    """Engines that share the sessions; the cost is that of one call of one of them."""


class RoundTrip:
    """Smoothed and least round trip of one path, in milliseconds.

    The smoothing is TCP's (RFC 6298, alpha 1/8). A sample counts for at most four times the
    least one of the last 64 plus 10 ms: a stalled event loop is not a longer path.
    """

    def __init__(self, initial_ms: float) -> None:
        self.smoothed_ms = initial_ms
        self._samples: deque[float] = deque(maxlen=64)

    @property
    def min_ms(self) -> float:
        """The least recent sample; the initial estimate before the first."""
        return min(self._samples, default=self.smoothed_ms)

    def add(self, sample_ms: float) -> None:
        """Take one measurement; the first replaces the estimate."""
        first = not self._samples
        self._samples.append(sample_ms)
        counted = min(sample_ms, 4.0 * self.min_ms + 10.0)
        self.smoothed_ms = counted if first else self.smoothed_ms + (counted - self.smoothed_ms) / 8


@dataclass(frozen=True, slots=True)
class _Placed:
    prompt_tokens: int
    at: float


@dataclass(slots=True)
class Replica:
    """One row of the table. Changed by the Registry alone."""

    name: str
    region: str
    address: str
    expected_model: str
    since: float
    """When `state` was entered."""
    rtt: RoundTrip
    state: ReplicaState = ReplicaState.CONNECTING
    model: Model | None = None
    load: Load | None = None
    reported_at: float = 0.0
    """When `load` came in."""
    sessions: set[int] = field(default_factory=set)
    """Sessions of this router on it."""
    placed_tokens: int = 0
    """Prompt tokens of the sessions the last report cannot have counted."""
    _placed: dict[int, _Placed] = field(default_factory=dict)

    @property
    def model_name(self) -> str:
        """What it serves, as far as known; "" if nothing is."""
        return self.model.name if self.model else self.expected_model

    @property
    def num_sessions(self) -> int:
        """Sessions it has, of every router: those reported and those placed since."""
        load = self.load or Load()
        return load.running_sessions + load.queued_sessions + len(self._placed)

    @property
    def num_excess(self) -> int:
        """Sessions that have to end before one more could start, 0 with a place free."""
        limit = self.load.max_sessions if self.load else 0
        return max(0, self.num_sessions + 1 - limit) if limit else 0

    def place(self, session: int, prompt_tokens: int, now: float) -> None:
        """Count a session sent to it."""
        self.sessions.add(session)
        self._placed[session] = _Placed(prompt_tokens, now)
        self.placed_tokens += prompt_tokens

    def release(self, session: int) -> None:
        """Uncount a session that ended or moved. Unknown ones are ignored."""
        self.sessions.discard(session)
        placed = self._placed.pop(session, None)
        if placed:
            self.placed_tokens -= placed.prompt_tokens

    def report(self, load: Load, now: float) -> None:
        """Take a report: what was sent a round trip or longer ago is in it."""
        self.load, self.reported_at = load, now
        counted_until = now - self.rtt.smoothed_ms / 1000.0
        for session, placed in list(self._placed.items()):
            if placed.at > counted_until:
                break
            del self._placed[session]
            self.placed_tokens -= placed.prompt_tokens


@dataclass(frozen=True, slots=True)
class Transition:
    """A replica changed its state."""

    replica: str
    before: ReplicaState
    after: ReplicaState


class Registry:
    """The replica table. `signal` alone changes a state."""

    def __init__(
        self,
        replicas: Iterable[ReplicaConfig],
        *,
        rtt_ms: dict[str, float],
        suspect_s: float,
        connect_s: float,
        now: float,
    ) -> None:
        """`rtt_ms` is the first estimate per region, for every region of `replicas`."""
        self._limits_s = {_S: suspect_s, _C: connect_s}
        self._replicas = {
            config.name: Replica(
                name=config.name,
                region=config.region,
                address=config.address,
                expected_model=config.model,
                since=now,
                rtt=RoundTrip(rtt_ms[config.region]),
            )
            for config in replicas
        }
        self.changed = set(self._replicas)
        """Replicas whose row changed since whoever keeps terms of them looked, and emptied this."""

    def __iter__(self) -> Iterator[Replica]:
        return iter(self._replicas.values())

    def __getitem__(self, name: str) -> Replica:
        return self._replicas[name]

    def signal(self, name: str, signal: Signal, now: float) -> Transition | None:
        """Apply one observation; the transition if the state changed."""
        replica = self._replicas[name]
        if signal is Signal.SERVING and replica.load and replica.load.draining:
            signal = Signal.NOT_SERVING
        after = TRANSITIONS[signal][replica.state]
        if after is replica.state:
            return None
        self.changed.add(name)
        transition = Transition(name, replica.state, after)
        replica.state, replica.since = after, now
        return transition

    def connected(self, name: str, model: Model, now: float) -> Transition | None:
        """The stream is up and the replica said what it serves; its old load is void."""
        replica = self._replicas[name]
        replica.model, replica.load = model, None
        self.changed.add(name)
        return self.signal(name, Signal.CONNECTED, now)

    def probed(self, name: str, rtt_ms: float, serving: bool, now: float) -> Transition | None:
        """A health check was answered after `rtt_ms`."""
        self._replicas[name].rtt.add(rtt_ms)
        self.changed.add(name)
        return self.signal(name, Signal.SERVING if serving else Signal.NOT_SERVING, now)

    def report(self, name: str, load: Load, now: float) -> Transition | None:
        """A load report came in."""
        self._replicas[name].report(load, now)
        self.changed.add(name)
        return self.signal(name, Signal.NOT_SERVING, now) if load.draining else None

    def expire(self, now: float) -> list[Transition]:
        """Give up on replicas that were CONNECTING or SUSPECT for too long."""
        late = [
            replica.name
            for replica in self
            if now - replica.since >= self._limits_s.get(replica.state, float("inf"))
        ]
        found = (self.signal(name, Signal.TIMEOUT, now) for name in late)
        return [transition for transition in found if transition]

    def is_up(self, name: str) -> bool:
        """Whether its stream is worth keeping."""
        return self._replicas[name].state is not ReplicaState.DOWN

    def is_settled(self) -> bool:
        """Whether every replica was reached, or tried in vain, once."""
        return all(replica.state is not ReplicaState.CONNECTING for replica in self)

    def codecs_of(self, model: str) -> tuple[int, ...]:
        """Token codecs that every reachable replica of a model reads, best first."""
        offers = [r.model.codecs for r in self if r.model and r.model.name == model]
        return (
            tuple(codec for codec in offers[0] if all(codec in o for o in offers)) if offers else ()
        )

    def count(self) -> dict[ReplicaState, int]:
        """Replicas by state, every state named."""
        states = [replica.state for replica in self]
        return {state: states.count(state) for state in ReplicaState}
