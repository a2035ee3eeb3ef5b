"""What placement knows of every replica, as arrays with a row per replica (pure).

A thousand replicas are compared in a few array operations. A row is computed again when the
registry says that its replica changed or when this router places a session there. The number of a
replica's row is also its owner number in the prefix index.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from outrider.session_types import Priority
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
"""Places of a replica that reports no limit."""

_FLOATS = (
    "rtt_ms",
    "reported_ms",
    "row_ms",
    "fixed_ms",
    "call_ms",
    "slot_ms",
    "chunk_tokens",
    "max_chunk_tokens",
)
_INTS = ("max_sessions", "model", "region", "min_priority", "block_tokens")
"""`min_priority`: the lowest class whose new sessions the replica starts; above HIGH: none."""


class _ReportedLoad(NamedTuple):
    """A load report, and what a new session of each class finds ahead of it."""

    load: ReplicaLoad
    num_sessions: list[int]
    """By class."""
    num_tokens: list[int]
    """By class, prompt tokens per instance: instances share prompts evenly, and each prompt is
    computed by one of them."""

    @classmethod
    def of(cls, load: ReplicaLoad) -> _ReportedLoad:
        ahead = [load.ahead_of(priority) for priority in Priority]
        tokens = [-(-part.queued_prompt_tokens // load.num_instances) for part in ahead]
        return cls(load, [part.sessions for part in ahead], tokens)


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
    priority: int


class UnreportedSessions:
    """Sessions that this router placed on one replica and its last report cannot include.

    Counting at dispatch keeps a burst from landing on one replica between two reports (SGLang's
    least-load policy and Dynamo's router do likewise). Their prompts drain with time at the
    predicted rate, so the estimate decays if no report comes. Replicas serve higher classes first,
    so there is an estimate per class: what a new session of that class finds ahead of it. Times
    `now` are seconds.
    """

    __slots__ = ("_placed", "drained_at")

    def __init__(self) -> None:
        self._placed: dict[int, _Placed] = {}
        self.drained_at = [0.0 for _ in Priority]
        """When their prompts are predicted to be computed: those of all sessions, of MEDIUM and
        HIGH ones, of HIGH ones."""

    def num_sessions(self, priority: int) -> int:
        """Those that are served before a new session of a class."""
        return sum(placed.priority >= priority for placed in self._placed.values())

    def put(self, session: int, work_ms: float, priority: int, now: float) -> None:
        """A session with so much work was sent."""
        self._placed[session] = _Placed(now, work_ms, priority)
        for entry in range(priority):
            self.drained_at[entry] = max(self.drained_at[entry], now) + work_ms / 1000.0

    def release(self, session: int) -> None:
        """A session ended or moved. Those that were reported are ignored."""
        placed = self._placed.pop(session, None)
        if placed is not None:
            for entry in range(placed.priority):
                self.drained_at[entry] -= placed.work_ms / 1000.0

    def reported(self, reported_at: float, rtt_ms: float) -> None:
        """A report came in: it includes what was sent a round trip or longer ago."""
        counted_until = reported_at - rtt_ms / 1000.0
        for session, placed in list(self._placed.items()):
            if placed.at > counted_until:
                break
            del self._placed[session]
        for entry, priority in enumerate(Priority):
            left_ms = _work_ms(self._placed.values(), priority)
            latest = reported_at + left_ms / 1000.0
            self.drained_at[entry] = min(self.drained_at[entry], latest)


def _work_ms(placed: Iterable[_Placed], priority: int) -> float:
    """Work that is done before that of a new session of a class."""
    return sum(one.work_ms for one in placed if one.priority >= priority)


class ReplicaTable:
    """Columns by name. A free row is never schedulable."""

    def __init__(self) -> None:
        self.models = CategoryCodes()
        self.regions = CategoryCodes()
        self.names: list[str] = []
        """By row; empty in free rows."""
        self.region_names: list[str] = []
        self.identities: list[bytes] = []
        """By row, the model identity; empty: unknown."""
        self.schedulable: Bools = np.zeros(0, dtype=np.bool_)
        """[rows] whether the replica's health lets it have new sessions."""
        self.columns: dict[str, Floats] = {name: np.zeros(0) for name in _FLOATS}
        self.counts: dict[str, Ints] = {name: np.zeros(0, dtype=np.int64) for name in _INTS}
        self.queue_ms: Floats = np.zeros((len(Priority), 0))
        """[classes, rows] time of the reported prompts that are ahead of a new session of the
        class."""
        self.drained_ms: Floats = np.zeros((len(Priority), 0))
        """[classes, rows] when the prompts sent since are predicted to be computed; like
        `reported_ms` on the clock of `now`."""
        self.num_sessions: Ints = np.zeros((len(Priority), 0), dtype=np.int64)
        """[classes, rows] sessions that are served before a new one of the class."""
        self.num_excess: Ints = np.zeros((len(Priority), 0), dtype=np.int64)
        """[classes, rows] how many of them have to end before a new session of the class can start;
        0 with a slot free. Sessions of lower classes give their slots up."""
        self._rows: dict[str, int] = {}
        self._free: list[int] = []
        self._unreported: list[UnreportedSessions] = []
        self._loads: list[_ReportedLoad] = []
        self._prefill_limits: list[PrefillLimits | None] = []
        self._call_costs = CallCosts()
        self._num_by_block_size: Counter[int] = Counter()

    def __len__(self) -> int:
        """Rows, free ones included."""
        return len(self.names)

    def row(self, name: str) -> int:
        """A replica's row; -1 if it has none."""
        return self._rows.get(name, -1)

    def rows(self, names: Iterable[str]) -> list[int]:
        """The rows of those of the names that have one."""
        return [self._rows[name] for name in names if name in self._rows]

    def block_sizes(self) -> Sequence[int]:
        """Block sizes of the replicas, in tokens; 0 (unknown) left out."""
        return [size for size, count in sorted(self._num_by_block_size.items()) if size and count]

    def update(self, replica: Replica) -> int:
        """Take over what is known of a replica now; returns its row."""
        row = self._rows.get(replica.name, -1)
        if row < 0:
            row = self._add(replica.name)
        unreported = self._unreported[row]
        reported_ms = replica.reported_at * 1000.0
        if reported_ms > self.columns["reported_ms"][row]:
            unreported.reported(replica.reported_at, replica.rtt.smoothed_ms)
        load = replica.load or UNREPORTED
        self._loads[row] = _ReportedLoad.of(load)
        self.schedulable[row] = replica.takes_sessions
        self.columns["rtt_ms"][row] = replica.rtt.smoothed_ms
        self.columns["reported_ms"][row] = reported_ms
        model = (replica.model_name, replica.model.vocabulary_digest if replica.model else b"")
        self.counts["model"][row] = self.models.add(model)
        self.region_names[row] = replica.region
        self.identities[row] = replica.model_identity
        self.counts["region"][row] = self.regions.add(replica.region)
        self._set_block_size(row, replica.model.block_tokens if replica.model else 0)
        prefill_limits = replica.model.prefill_limits if replica.model else None
        self._prefill_limits[row] = prefill_limits
        self.columns["max_chunk_tokens"][row] = replica.max_chunk_tokens
        if replica.load:
            self._call_costs.report(replica.name, model, (load.fixed_ms, load.row_ms))
        else:
            self._call_costs.forget(replica.name)
        self._compute(row)
        return row

    def remove(self, name: str) -> int:
        """A replica is gone; returns the row it had, -1 if it had none."""
        row = self._rows.pop(name, -1)
        if row >= 0:
            self.schedulable[row] = False
            self.names[row] = ""
            self.identities[row] = b""
            self._set_block_size(row, 0)
            self._unreported[row] = UnreportedSessions()
            self._call_costs.forget(name)
            self._free.append(row)
        return row

    def put(self, row: int, session: int, work_ms: float, priority: int, now: float) -> None:
        """A session of a class was sent to the row's replica with so much work."""
        share_ms = work_ms / self._loads[row].load.num_instances
        self._unreported[row].put(session, share_ms, priority, now)
        self._compute(row)

    def release(self, row: int, session: int) -> None:
        """A session ended or moved."""
        self._unreported[row].release(session)
        self._compute(row)

    def _set_block_size(self, row: int, block_tokens: int) -> None:
        before = int(self.counts["block_tokens"][row])
        if block_tokens != before:
            self._num_by_block_size[before] -= 1
            self._num_by_block_size[block_tokens] += 1
            self.counts["block_tokens"][row] = block_tokens

    def _compute(self, row: int) -> None:
        """Compute the columns that depend on sessions and tokens on the replica."""
        reported = self._loads[row]
        unreported = self._unreported[row]
        load = reported.load
        limit = load.max_sessions or NO_LIMIT
        self.counts["min_priority"][row] = _min_priority(load)
        self.counts["max_sessions"][row] = limit
        num_sessions = [
            count + unreported.num_sessions(priority)
            for priority, count in zip(Priority, reported.num_sessions, strict=True)
        ]
        self.num_sessions[:, row] = num_sessions
        self.num_excess[:, row] = [max(0, count + 1 - limit) for count in num_sessions]
        self.drained_ms[:, row] = [at * 1000.0 for at in unreported.drained_at]
        row_ms, call_ms = self._compute_call_cost(row, load, min(num_sessions[0], limit))
        # One slot comes free in a `limit`-th of the time that serving a session takes.
        self.columns["slot_ms"][row] = (load.service_ms or REPLY_TOKENS * call_ms) / limit
        max_chunk = int(self.columns["max_chunk_tokens"][row])
        self.queue_ms[:, row] = [
            count * row_ms + -(-count // max_chunk) * call_ms for count in reported.num_tokens
        ]

    def _compute_call_cost(
        self, row: int, load: ReplicaLoad, num_sessions: int
    ) -> tuple[float, float]:
        """Cost of one row of a call, and of a call with all running sessions of an instance."""
        fixed_ms, row_ms = self._call_costs.cost(self.names[row], (load.fixed_ms, load.row_ms))
        num_running = -(-num_sessions // load.num_instances)
        call_ms = fixed_ms + row_ms * ROWS_PER_SESSION * num_running
        columns = self.columns
        columns["row_ms"][row] = row_ms
        columns["fixed_ms"][row] = fixed_ms
        columns["call_ms"][row] = call_ms
        limits = self._prefill_limits[row]
        columns["chunk_tokens"][row] = (
            limits.chunk_tokens(call_ms, row_ms)
            if limits is not None and num_running
            else columns["max_chunk_tokens"][row]
        )
        return row_ms, call_ms

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
        for name, column in self.columns.items():
            self.columns[name] = np.concatenate([column, np.zeros(more)])
        for name, count in self.counts.items():
            self.counts[name] = np.concatenate([count, np.zeros(more, dtype=np.int64)])
        self.columns["chunk_tokens"][-more:] = CHUNK_TOKENS
        self.columns["max_chunk_tokens"][-more:] = CHUNK_TOKENS
        empty = np.zeros((len(Priority), more))
        self.queue_ms = np.concatenate([self.queue_ms, empty], axis=1)
        self.drained_ms = np.concatenate([self.drained_ms, empty], axis=1)
        zeros = empty.astype(np.int64)
        self.num_sessions = np.concatenate([self.num_sessions, zeros], axis=1)
        self.num_excess = np.concatenate([self.num_excess, zeros], axis=1)
        self.names += [""] * more
        self.region_names += [""] * more
        self.identities += [b""] * more
        self._unreported += [UnreportedSessions() for _ in range(more)]
        self._prefill_limits += [None] * more
        self._loads += [_ReportedLoad.of(UNREPORTED)] * more


def _min_priority(load: ReplicaLoad) -> int:
    if load.refuses_sessions:
        return Priority.HIGH + 1
    return Priority.MEDIUM if load.queues_low else Priority.LOW
