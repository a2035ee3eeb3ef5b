"""Placement's data on every replica, as arrays with a row per replica (pure).

A thousand replicas are compared in a few array operations. A row is recomputed when the registry
marks its replica as changed or when this router places a session there. The number of a replica's
row is also its owner number in the prefix index.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from outrider.session.types import Priority
from services.router.fleet.call_costs import CallCosts
from services.router.fleet.replica import CHUNK_TOKENS, PrefillLimits, Replica, ReplicaLoad

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

REPLY_TOKENS: Final = 128
"""Tokens per reply assumed for a full replica that does not report how long sessions keep their
places."""

ROWS_PER_SESSION: Final = 2
"""Rows that a running session adds to every call (the two-row rule of bit-exactness)."""

UNREPORTED: Final = ReplicaLoad(fixed_ms=10.0, row_ms=1.0)
"""Assumed of a replica that has not reported yet: a small CPU engine, idle."""

NO_LIMIT: Final = 1 << 40
"""Places of a replica that reports no limit, and tokens of one that reports absurd ones."""

_REPORTED_FLOATS = (
    "rtt_ms",
    "reported_ms",
    "max_chunk_tokens",
    "peer_block_ms",
    "peer_first_ms",
)
_COMPUTED_FLOATS = ("row_ms", "fixed_ms", "call_ms", "slot_ms", "kv_token_ms", "chunk_tokens")
_REPORTED_INTS = (
    "model",
    "region",
    "block_tokens",
    "identity",
    "kv_tokens",
    "reply_tokens",
    "max_queue",
)
_COMPUTED_INTS = ("max_sessions", "min_priority")
"""`min_priority`: the lowest class whose new sessions the replica starts; above HIGH if it starts
none."""


class _ReportedLoad(NamedTuple):
    """A load report, and what a new session of each class finds ahead of it."""

    load: ReplicaLoad
    num_sessions: list[int]
    """By class."""
    num_tokens: list[int]
    """By class, of their prompts."""
    kv_room: list[int]
    """By class, blocks."""

    @classmethod
    def of(cls, load: ReplicaLoad) -> _ReportedLoad:
        ahead = [load.ahead_of(priority) for priority in Priority]
        tokens = [part.queued_prompt_tokens for part in ahead]
        room = [load.kv_room(priority) for priority in Priority]
        return cls(load, [part.sessions for part in ahead], tokens, room)


class CategoryCodes:
    """Integer codes for models and regions, so that columns of them compare as arrays."""

    def __init__(self) -> None:
        self._codes: dict[object, int] = {}

    def add(self, value: object) -> int:
        """The value's code, a new one for a new value."""
        return self._codes.setdefault(value, len(self._codes))

    def find(self, value: object) -> int:
        """The value's code; -1 for one that no replica has."""
        return self._codes.get(value, -1)


@dataclass(frozen=True, slots=True)
class _Placed:
    at: float
    work_ms: float
    kv_tokens: int
    priority: int


class UnreportedSessions:
    """Sessions that this router placed on one replica and its last report cannot include.

    Counting at dispatch keeps a burst from landing on one replica between two reports (as in
    SGLang's least-load policy and Dynamo's router). Their prompts drain with time at the predicted
    rate, so the estimate decays if no report comes. Replicas serve higher classes first, so each
    class has its own estimate: the work that is served before a new session of that class. Times
    `now` are seconds.
    """

    __slots__ = ("_placed", "drained_at", "kv_tokens", "num_sessions")

    def __init__(self) -> None:
        self._placed: dict[int, _Placed] = {}
        self.drained_at = [0.0 for _ in Priority]
        """[class] time at which the prompts ahead are predicted to be computed: of all sessions for
        LOW, of MEDIUM and HIGH ones for MEDIUM, of HIGH ones for HIGH."""
        self.num_sessions = [0 for _ in Priority]
        """By class, those that are served before a new session of it."""
        self.kv_tokens = [0 for _ in Priority]
        """By class, KV memory that these are expected to take."""

    def put(self, session: int, work_ms: float, kv_tokens: int, priority: int, now: float) -> None:
        """A session was sent that causes so much work and takes so much memory."""
        self._uncount(self._placed.pop(session, None))
        self._placed[session] = _Placed(now, work_ms, kv_tokens, priority)
        for entry in range(priority):
            self.num_sessions[entry] += 1
            self.kv_tokens[entry] += kv_tokens
            self.drained_at[entry] = max(self.drained_at[entry], now) + work_ms / 1000.0

    def release(self, session: int) -> None:
        """A session ended or moved. Those that were reported are ignored."""
        placed = self._placed.pop(session, None)
        self._uncount(placed)
        if placed is not None:
            for entry in range(placed.priority):
                self.drained_at[entry] -= placed.work_ms / 1000.0

    def reported(self, reported_at: float, rtt_ms: float) -> None:
        """A report came in: it includes what was sent a round trip or longer ago."""
        counted_until = reported_at - rtt_ms / 1000.0
        for session, placed in list(self._placed.items()):
            if placed.at > counted_until:
                break
            self._uncount(self._placed.pop(session))
        for entry, priority in enumerate(Priority):
            left_ms = _work_ms(self._placed.values(), priority)
            latest = reported_at + left_ms / 1000.0
            self.drained_at[entry] = min(self.drained_at[entry], latest)

    def _uncount(self, placed: _Placed | None) -> None:
        if placed is not None:
            for entry in range(placed.priority):
                self.num_sessions[entry] -= 1
                self.kv_tokens[entry] -= placed.kv_tokens


def _work_ms(placed: Iterable[_Placed], priority: int) -> float:
    """Milliseconds of work that is served before a new session of a class."""
    return sum(one.work_ms for one in placed if one.priority >= priority)


class ReplicaTable:
    """Columns by name. A free row is never schedulable."""

    def __init__(self) -> None:
        self.models = CategoryCodes()
        self.regions = CategoryCodes()
        self._identity_codes = CategoryCodes()
        self.names: list[str] = []
        """By row; empty in free rows."""
        self.region_names: list[str] = []
        self.identities: list[bytes] = []
        """By row, the model identity; empty: unknown."""
        self.schedulable: Bools = np.zeros(0, dtype=np.bool_)
        """[rows] whether the replica's health lets it have new sessions."""
        self.has_kv: Bools = np.zeros(0, dtype=np.bool_)
        """[rows] whether other replicas may fetch KV from it: its stream is up, it answers, and its
        model identity is known."""
        self.zeros: Floats = np.zeros(0)
        """[rows] zeros, for terms that cost nothing anywhere; read-only."""
        # All that is known of a replica is a column of two arrays, written at once; columns by name
        # and by class are views of their rows.
        self._floats: Floats = np.zeros((len(_REPORTED_FLOATS + _COMPUTED_FLOATS) + 6, 0))
        self._ints: Ints = np.zeros((len(_REPORTED_INTS + _COMPUTED_INTS) + 9, 0), dtype=np.int64)
        self.columns: dict[str, Floats]
        self.counts: dict[str, Ints]
        self.queue_ms: Floats
        """[classes, rows] time of the reported prompts that are ahead of a new session of the
        class."""
        self.drained_ms: Floats
        """[classes, rows] when the prompts sent since are predicted to be computed; like
        `reported_ms` on the clock of `now`."""
        self.num_sessions: Ints
        """[classes, rows] sessions that are served before a new one of the class."""
        self.num_excess: Ints
        """[classes, rows] how many of them have to end before a new session of the class can start;
        0 with a slot free. Sessions of lower classes give their slots up."""
        self.kv_room: Ints
        """[classes, rows] KV memory that is left for a new session of the class once those on the
        replica have what they are expected to take, in tokens; below 0 if they will lack some, 0
        where unknown."""
        self._name_views()
        self._rows: dict[str, int] = {}
        self._free: list[int] = []
        self._unreported: list[UnreportedSessions] = []
        self._loads: list[_ReportedLoad] = []
        self._prefill_limits: list[PrefillLimits | None] = []
        self._max_chunk_tokens: list[int] = []
        self._call_costs = CallCosts()
        self._num_by_block_size: Counter[int] = Counter()

    def __len__(self) -> int:
        """Rows, free ones included."""
        return len(self.names)

    def row(self, name: str) -> int:
        """A replica's row; -1 if it has none."""
        return self._rows.get(name, -1)

    def rows(self, names: Iterable[str]) -> list[int]:
        """Rows of the given names, without names that have none."""
        return [self._rows[name] for name in names if name in self._rows]

    def block_sizes(self) -> Sequence[int]:
        """Block sizes of the replicas, in tokens; 0 (unknown) left out."""
        return [size for size, count in sorted(self._num_by_block_size.items()) if size and count]

    def update(self, replica: Replica) -> int:
        """Copy the present state of a replica into its row; returns the row."""
        row = self._rows.get(replica.name, -1)
        if row < 0:
            row = self._add(replica.name)
        unreported = self._unreported[row]
        reported_ms = replica.reported_at * 1000.0
        if reported_ms > self.columns["reported_ms"].item(row):
            unreported.reported(replica.reported_at, replica.rtt.smoothed_ms)
        load = replica.load or UNREPORTED
        self._loads[row] = _ReportedLoad.of(load)
        self.schedulable[row] = replica.takes_sessions
        is_there = replica.health.is_up and not replica.is_unanswering
        self.has_kv[row] = is_there and bool(replica.model_identity)
        served = replica.model
        model = (replica.model_name, served.vocabulary_digest if served else b"")
        block_tokens = served.block_tokens if served else 0
        self.region_names[row] = replica.region
        self.identities[row] = replica.model_identity
        self._count_block_size(row, block_tokens)
        self._prefill_limits[row] = served.prefill_limits if served else None
        self._max_chunk_tokens[row] = replica.max_chunk_tokens
        self._floats[: len(_REPORTED_FLOATS), row] = (
            replica.rtt.smoothed_ms,
            reported_ms,
            replica.max_chunk_tokens,
            load.peer_block_ms,
            load.peer_first_ms,
        )
        self._ints[: len(_REPORTED_INTS), row] = (
            self.models.add(model),
            self.regions.add(replica.region),
            block_tokens,
            self._identity_codes.add(replica.model_identity),
            min(load.kv_blocks_total * block_tokens, NO_LIMIT),
            load.reply_tokens or NO_LIMIT,
            NO_LIMIT if load.max_queue is None else load.max_queue,
        )
        is_guess = replica.load is None or load.is_cost_guessed
        cost = (load.fixed_ms, load.row_ms)
        self._call_costs.report(replica.name, model, cost, is_guess=is_guess)
        self._compute(row)
        return row

    def remove(self, name: str) -> int:
        """A replica is gone; returns the row it had, -1 if it had none."""
        row = self._rows.pop(name, -1)
        if row >= 0:
            self.schedulable[row] = self.has_kv[row] = False
            self.names[row] = ""
            self.identities[row] = b""
            self._count_block_size(row, 0)
            self.counts["block_tokens"][row] = 0
            self._unreported[row] = UnreportedSessions()
            self._call_costs.forget(name)
            self._free.append(row)
        return row

    def put(
        self, row: int, session: int, work_ms: float, kv_tokens: int, priority: int, now: float
    ) -> None:
        """A session of a class was sent to the row's replica, where it causes so much work and
        takes so much memory."""
        self._unreported[row].put(session, work_ms, kv_tokens, priority, now)
        self._compute(row)

    def release(self, row: int, session: int) -> None:
        """A session ended or moved."""
        self._unreported[row].release(session)
        self._compute(row)

    def _count_block_size(self, row: int, block_tokens: int) -> None:
        before = self.counts["block_tokens"].item(row)
        if block_tokens != before:
            self._num_by_block_size[before] -= 1
            self._num_by_block_size[block_tokens] += 1

    def _compute(self, row: int) -> None:
        """Compute the columns that depend on sessions and tokens on the replica."""
        reported = self._loads[row]
        unreported = self._unreported[row]
        load = reported.load
        limit = load.max_sessions or NO_LIMIT
        num_sessions = [
            count + more
            for count, more in zip(reported.num_sessions, unreported.num_sessions, strict=True)
        ]
        block_tokens, kv_tokens = (
            self.counts[name].item(row) for name in ("block_tokens", "kv_tokens")
        )
        fixed_ms, row_ms = self._call_costs.cost(self.names[row], (load.fixed_ms, load.row_ms))
        num_running = min(num_sessions[0], limit)
        call_ms = fixed_ms + row_ms * ROWS_PER_SESSION * num_running
        reply_ms = fixed_ms + row_ms * ROWS_PER_SESSION
        service_ms = load.service_ms or REPLY_TOKENS * call_ms
        max_chunk = self._max_chunk_tokens[row]
        limits = self._prefill_limits[row]
        may_grow = limits is None or not num_running
        self._floats[len(_REPORTED_FLOATS) :, row] = (
            row_ms,
            fixed_ms,
            call_ms,
            # One slot comes free in a `limit`-th of the time that serving a session takes.
            service_ms / limit,
            # So does the memory of one token, of all that there are.
            service_ms / kv_tokens if kv_tokens else 0.0,
            max_chunk
            if may_grow or limits is None
            else limits.chunk_tokens(call_ms, reply_ms, row_ms),
            *(count * row_ms + -(-count // max_chunk) * call_ms for count in reported.num_tokens),
            *(at * 1000.0 for at in unreported.drained_at),
        )
        self._ints[len(_REPORTED_INTS) :, row] = (
            limit,
            _min_priority(load),
            *num_sessions,
            *(max(0, count + 1 - limit) for count in num_sessions),
            *(
                min(max(-NO_LIMIT, count * block_tokens), NO_LIMIT) - placed if kv_tokens else 0
                for count, placed in zip(reported.kv_room, unreported.kv_tokens, strict=True)
            ),
        )

    def _add(self, name: str) -> int:
        if not self._free:
            self._grow()
        row = self._free.pop()
        self.names[row] = name
        self._rows[name] = row
        self.columns["reported_ms"][row] = 0.0
        return row

    def _grow(self) -> None:
        """Double the number of rows, from 16 on."""
        more = max(16, len(self.names))
        self._free.extend(reversed(range(len(self.names), len(self.names) + more)))
        self.schedulable = np.concatenate([self.schedulable, np.zeros(more, dtype=np.bool_)])
        self.has_kv = np.concatenate([self.has_kv, np.zeros(more, dtype=np.bool_)])
        self.zeros = np.zeros(len(self.names) + more)
        self.zeros.flags.writeable = False
        self._floats = np.pad(self._floats, ((0, 0), (0, more)))
        self._ints = np.pad(self._ints, ((0, 0), (0, more)))
        self._name_views()
        self.columns["chunk_tokens"][-more:] = CHUNK_TOKENS
        self.columns["max_chunk_tokens"][-more:] = CHUNK_TOKENS
        self.names += [""] * more
        self.region_names += [""] * more
        self.identities += [b""] * more
        self._unreported += [UnreportedSessions() for _ in range(more)]
        self._prefill_limits += [None] * more
        self._max_chunk_tokens += [CHUNK_TOKENS] * more
        self._loads += [_ReportedLoad.of(UNREPORTED)] * more

    def _name_views(self) -> None:
        floats = _REPORTED_FLOATS + _COMPUTED_FLOATS
        self.columns = dict(zip(floats, self._floats, strict=False))
        self.queue_ms, self.drained_ms = np.split(self._floats[len(floats) :], 2)
        ints = _REPORTED_INTS + _COMPUTED_INTS
        self.counts = dict(zip(ints, self._ints, strict=False))
        self.num_sessions, self.num_excess, self.kv_room = np.split(self._ints[len(ints) :], 3)


def _min_priority(load: ReplicaLoad) -> int:
    if load.refuses_sessions:
        return Priority.HIGH + 1
    return Priority.MEDIUM if load.queues_low else Priority.LOW
