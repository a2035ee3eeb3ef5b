"""One replica as the router knows it, and its reports. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from outrider.engine_calls import Crash, EngineCall
from outrider.peers.health import PeerHealth, PeerState
from outrider.peers.round_trip import RoundTrip

CHUNK_TOKENS: Final = 256
"""Prompt tokens per engine call assumed of a replica that does not report its prefill limits."""
_RESTART_S: Final = 30.0
"""Time after which nobody waits any more for a replica that was to be started anew."""


@dataclass(frozen=True, slots=True)
class PrefillLimits:
    """How many prompt tokens an engine call of a replica takes, as it reports."""

    max_chunk_tokens: int
    """Most tokens of any call."""
    min_chunk_tokens: int
    """Tokens that a call with decoding sessions takes at least."""
    max_call_ms: float
    """A call with decoding sessions takes no more tokens than keep it within this..."""
    max_reply_calls: float
    """...or within so many calls for one session, if that is longer..."""
    min_stretch: float
    """...but always those within so many times its duration without them."""

    def chunk_tokens(self, call_ms: float, reply_ms: float, row_ms: float) -> float:
        """Prompt tokens in a call that takes `call_ms` without them; one for a single session takes
        `reply_ms`."""
        budget_ms = max(self.max_call_ms, self.max_reply_calls * reply_ms)
        longest_ms = max(budget_ms, self.min_stretch * call_ms)
        tokens = (longest_ms - call_ms) / row_ms if row_ms > 0.0 else self.max_chunk_tokens
        return min(max(self.min_chunk_tokens, tokens), self.max_chunk_tokens)


class StaticPrefix(NamedTuple):
    """A pinned beginning of many prompts, as a replica reports it."""

    name: str
    tokens: int
    tenants: tuple[str, ...]


class KvCounts(NamedTuple):
    """Sources of the KV of prompts since a replica started (KvCounts of the protocol)."""

    prompt_tokens: int = 0
    pool_tokens: int = 0
    store_tokens: int = 0
    sync_bytes: int = 0
    store_failures: int = 0
    peer_tokens: int = 0
    peer_bytes: int = 0
    peer_failures: int = 0


@dataclass(frozen=True, slots=True)
class ServedModel:
    """The model that a replica serves, as it reports."""

    name: str
    vocabulary_digest: bytes
    max_context_tokens: int = 0
    codecs: tuple[int, ...] = ()
    """Token codecs it reads (`TokenCodec` in common.proto)."""
    block_tokens: int = 0
    """Tokens of a block of its prefix cache; 0: not reported."""
    prefill_limits: PrefillLimits | None = None
    """None: not reported."""
    identity: bytes = b""
    """Model identity (outrider.model_identity); empty: not reported."""
    tokens_digest: bytes = b""
    """Digest of the vocabulary's ids without its other properties; rank tables belong to it. Empty:
    not reported."""
    static_prefixes: tuple[StaticPrefix, ...] = ()
    """Prefixes that are pinned in its KV pool."""
    dimensions: int = 0
    """Dimensions of its vectors, if it embeds; 0: it generates replies."""
    engine: str = ""
    """What computes there; empty: not reported."""
    guarantees: tuple[str, ...] = ()
    """What it promises of its replies (outrider.engines.guarantees)."""


@dataclass(frozen=True, slots=True)
class ReplicaIdentity:
    """Name, region and model of a replica, as it reports them."""

    name: str
    """Unique in the mesh."""
    region: str
    model: ServedModel
    process: bytes = b""
    """Id of the process that answers; empty: not reported."""
    crashes: tuple[Crash, ...] = ()
    """Crashes of the processes before it."""


class ClassLoad(NamedTuple):
    """Share of a replica's load that one class of sessions causes."""

    sessions: int = 0
    """Running and queued."""
    queued_prompt_tokens: int = 0
    kv_blocks: int = 0
    """Blocks of KV that they are expected to have at the most."""


_NO_CALL = EngineCall()
_NO_LOAD = ClassLoad()
_NO_KV = KvCounts()


@dataclass(frozen=True, slots=True)
class ReplicaLoad:
    """A replica's load report. A call of n rows is predicted to take `fixed_ms + row_ms * n`."""

    running_sessions: int = 0
    queued_sessions: int = 0
    queued_prompt_tokens: int = 0
    fixed_ms: float = 0.0
    row_ms: float = 0.0
    is_cost_guessed: bool = False
    """Whether the replica has computed too little to know these two."""
    max_sessions: int = 0
    """Sessions that run at once, further ones wait; 0: not reported."""
    max_queue: int | None = None
    """Sessions that may wait there, further ones are refused; None: not reported."""
    draining: bool = False
    is_restarting: bool = False
    """Beside `draining`: it lost its engine, and its supervisor will start it anew."""
    overload_level: int = 0
    """0 none to 4, as in WatchLoadResponse."""
    queues_low: bool = False
    """New LOW sessions stay in its queue."""
    refuses_sessions: bool = False
    """New sessions are refused."""
    low: ClassLoad = _NO_LOAD
    """Share of LOW sessions in the figures above; new sessions of higher classes are served before
    them."""
    medium: ClassLoad = _NO_LOAD
    """Share of MEDIUM sessions in the figures above."""
    service_ms: float = 0.0
    """Mean service time of a session; 0: not reported."""
    kv_blocks_total: int = 0
    """0: not reported."""
    kv_blocks_free: int = 0
    kv_blocks_owed: int = 0
    """Blocks that its sessions are expected to have at the most, beside those that they have."""
    reply_tokens: int = 0
    """Mean length of a reply; 0: not reported."""
    kv: KvCounts = _NO_KV
    peer_block_ms: float = 0.0
    """Recent milliseconds to fetch a block of KV from another replica; 0: none was fetched yet."""
    peer_first_ms: float = 0.0
    """Until its first bytes came."""
    running_call: EngineCall = _NO_CALL
    """Engine call that has run for a second or more; its duration is 0 if there is none."""

    def ahead_of(self, priority: int) -> ClassLoad:
        """Load that is served before a new session of a class (1 LOW to 3 HIGH): its own class and
        higher ones."""
        sessions = self.running_sessions + self.queued_sessions
        tokens = self.queued_prompt_tokens
        for part in (self.low, self.medium)[: priority - 1]:
            sessions -= part.sessions
            tokens -= part.queued_prompt_tokens
        return ClassLoad(max(0, sessions), max(0, tokens))

    def kv_room(self, priority: int) -> int:
        """Blocks of KV left for a new session of a class once its sessions have what they are
        expected to take; those of lower classes give theirs up. Below 0 if they will lack some."""
        room = self.kv_blocks_free - self.kv_blocks_owed
        room += sum(part.kv_blocks for part in (self.low, self.medium)[: priority - 1])
        return min(room, self.kv_blocks_total)


@dataclass(slots=True)
class Replica:
    """One replica. Only the Registry changes it."""

    name: str
    """Unique in the mesh; of a discovered replica its address until it reports its name."""
    region: str
    """Empty until it is known."""
    address: str
    expected_model: str
    health: PeerHealth
    rtt: RoundTrip
    source: str = ""
    """Target whose lookup found it; empty: it is configured."""
    is_leaving: bool = False
    """Lookups do not find it, or the configuration does not name it, any more: it gets no new
    sessions."""
    model: ServedModel | None = None
    load: ReplicaLoad | None = None
    process: bytes = b""
    """The process that its stream leads to, or led to."""
    sessions: set[int] = field(default_factory=set)
    """Sessions of this router on it."""
    reported_at: float = 0.0
    """When it last reported its load, or connected."""
    is_unanswering: bool = False
    """Whether the last health check got no answer."""
    is_attached: bool = False
    """Whether it has a stream: one that is given up (DOWN) has it until its link has ended."""
    lost_at: float | None = None
    """When its stream last broke."""
    num_contradictions: int = 0
    """Sessions that it opened as of another model identity than it reports, since one that agreed.
    Its stream ends with each, and it is asked anew."""
    opened_as: bytes = b""
    """The model identity of the last one of these."""
    _sent_at: dict[int, float] = field(default_factory=dict)
    """Times at which sessions were sent whose open it has not answered yet, by session."""

    @property
    def state(self) -> PeerState:
        """State of its health."""
        return self.health.state

    @property
    def takes_sessions(self) -> bool:
        """Whether a new session may go to it now."""
        return self.health.takes_sessions

    def may_return(self, return_s: float, now: float) -> bool:
        """Whether it may soon take a session that it does not take now: its stream is up and it is
        not stopping for good, or the stream broke less than `return_s` ago (`_RESTART_S` if it is
        to be started anew) and is being reconnected. On trial it takes one session, and the others
        once that one went well."""
        is_on_trial = self.state is PeerState.TRIAL
        if self.is_leaving or (self.takes_sessions and not is_on_trial):
            return False
        if self.health.is_up:
            return self.is_restarting or not self.is_draining
        if self.is_restarting:
            return_s = max(return_s, _RESTART_S)
        return self.lost_at is not None and now - self.lost_at < return_s

    @property
    def is_restarting(self) -> bool:
        """Whether its last report said that it will be started anew."""
        return self.load is not None and self.load.is_restarting

    @property
    def is_draining(self) -> bool:
        """Whether it gets no new sessions although it answers."""
        return self.is_leaving or (self.load is not None and self.load.draining)

    @property
    def is_busy(self) -> bool:
        """Whether it reports that sessions wait there."""
        return self.load is not None and bool(self.load.queued_sessions or self.load.overload_level)

    @property
    def model_name(self) -> str:
        """The model it serves or is configured to serve; empty: unknown."""
        return self.model.name if self.model else self.expected_model

    @property
    def model_identity(self) -> bytes:
        """Model identity that it reports; empty: unknown."""
        return self.model.identity if self.model else b""

    @property
    def is_inconsistent(self) -> bool:
        """Whether it contradicted its report again after it was asked anew: no other process has
        taken its place, so its report is wrong."""
        return self.num_contradictions > 1

    @property
    def max_chunk_tokens(self) -> int:
        """Most prompt tokens of an engine call."""
        limits = self.model.prefill_limits if self.model else None
        return limits.max_chunk_tokens if limits else CHUNK_TOKENS

    @property
    def longest_call_ms(self) -> float:
        """Duration of an engine call of as many prompt tokens as it takes at most, by the cost that
        it reports; 0 before its first report."""
        load = self.load or ReplicaLoad()
        return load.fixed_ms + load.row_ms * self.max_chunk_tokens

    def place(self, session: int, now: float) -> None:
        """A session was sent to it."""
        self.sessions.add(session)
        self._sent_at[session] = now
        self.health.begin_session(session)

    def opened(self, session: int, ack_delay_ms: float, now: float) -> None:
        """Take its answer to an open, which it sent `ack_delay_ms` after the open arrived (0: not
        reported); the rest was the round trip (RFC 9002, section 5.3). Only the first answer to an
        open counts."""
        sent_at = self._sent_at.pop(session, None)
        if sent_at is not None and ack_delay_ms > 0.0:
            rtt_ms = (now - sent_at) * 1000.0 - ack_delay_ms
            if rtt_ms > 0.0:  # the clocks of the two machines may differ in rate
                self.rtt.add(rtt_ms)

    def forget_sent(self) -> None:
        """Take no round trip from answers to opens that are under way."""
        self._sent_at.clear()

    def release(self, session: int) -> None:
        """A session ended or moved. Unknown ones are ignored."""
        self.sessions.discard(session)
        self._sent_at.pop(session, None)
        self.health.end_session(session)

    def report(self, load: ReplicaLoad, now: float) -> None:
        """Take a report."""
        self.load = load
        self.reported_at = now
