"""One row of numbers per replica, side by side, so that a thousand are weighed at once (pure).

A row is made anew when the registry says that its replica changed, and touched when this router
places something on it. The row's number is also the replica's number in the prefix index.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from services.router.fleet.load import Load
from services.router.fleet.pace import Pace
from services.router.fleet.replica import Replica
from services.router.placement.estimate import CLASSES, LocalEstimate

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

CHUNK_TOKENS = 256
"""Prompt tokens assumed per engine call while a prompt is prefilled."""

LEAST_CHUNK = 12
"""The same at least beside replies, which calls with prompts may hold up for TICK_MS, or STRETCH
times as long as without, if that is less: the defaults of replicas (SchedulerLimits)."""

TICK_MS = 40.0
STRETCH = 1.8
LEAST_STRETCH = 1.25

REPLY_TOKENS = 128
"""Length assumed of the replies that have to end before a full replica has a place, while it does
not say how long sessions stay."""

ROWS_PER_SESSION = 2
"""Rows a running session adds to every call (the two-row rule of bit-exactness)."""

UNREPORTED = Load(fixed_ms=10.0, row_ms=1.0)
"""Assumed of a replica that has not reported yet: a small CPU engine, idle."""

NO_LIMIT = 1 << 40
"""Places of a replica that states no limit."""

_FLOATS = ("rtt_ms", "reported_ms", "row_ms", "fixed_ms", "call_ms", "place_ms", "chunk_tokens")
_INTS = ("max_sessions", "model", "region", "overload", "block_tokens")


class _Said(NamedTuple):
    """A report, and what it means to each class."""

    load: Load
    num_sessions: list[int]
    """That a new one of the class finds before it."""
    num_tokens: list[int]
    """Of their prompts, for one instance: instances share prompts evenly, and each is computed by
    one of them."""

    @classmethod
    def of(cls, load: Load) -> _Said:
        ahead = [load.ahead_of(priority) for priority in CLASSES]
        tokens = [-(-part.queued_prompt_tokens // load.num_instances) for part in ahead]
        return cls(load, [part.sessions for part in ahead], tokens)


class Names:
    """Numbers for what replicas call themselves, so that columns of it compare at once."""

    def __init__(self) -> None:
        self._numbers: dict[object, int] = {}

    def number(self, name: object) -> int:
        """The name's number, a new one for a new name."""
        return self._numbers.setdefault(name, len(self._numbers))

    def find(self, name: object) -> int:
        """The name's number; -1 for one that no replica has."""
        return self._numbers.get(name, -1)


class Board:
    """Columns by name; a row that is nobody's `takes` nothing."""

    def __init__(self) -> None:
        self.models, self.regions = Names(), Names()
        self.names: list[str] = []
        """By row; "" where the row is nobody's."""
        self.region_names: list[str] = []
        self.takes: Bools = np.zeros(0, dtype=np.bool_)
        """May get new sessions."""
        self.columns: dict[str, Floats] = {name: np.zeros(0) for name in _FLOATS}
        self.counts: dict[str, Ints] = {name: np.zeros(0, dtype=np.int64) for name in _INTS}
        self.queue_ms: Floats = np.zeros((len(CLASSES), 0))
        """[classes, rows] of the prompts reported, those that a new session of the class finds
        before it."""
        self.drained_ms: Floats = np.zeros((len(CLASSES), 0))
        """[classes, rows] when those sent since are predicted to be computed; like `reported_ms`
        on the clock of `now`."""
        self.num_sessions: Ints = np.zeros((len(CLASSES), 0), dtype=np.int64)
        """[classes, rows] that keep places from a new session of the class."""
        self.num_excess: Ints = np.zeros((len(CLASSES), 0), dtype=np.int64)
        """[classes, rows] of them that have to end before one more of the class could start, 0 with
        a place free. Lower classes give theirs up."""
        self._rows: dict[str, int] = {}
        self._free: list[int] = []
        self._estimates: list[LocalEstimate] = []
        self._loads: list[_Said] = []
        self._pace = Pace()
        self._sizes: Counter[int] = Counter()
        """Replicas by block size."""

    def __len__(self) -> int:
        """Rows, those that are nobody's included."""
        return len(self.names)

    def row(self, name: str) -> int:
        """A replica's row; -1 if it has none."""
        return self._rows.get(name, -1)

    def rows(self, names: Iterable[str]) -> list[int]:
        """The rows of those of these that have one."""
        return [self._rows[name] for name in names if name in self._rows]

    def sizes(self) -> Sequence[int]:
        """The block sizes there are, 0 (unknown) left out."""
        return [size for size, count in sorted(self._sizes.items()) if size and count]

    def update(self, replica: Replica) -> int:
        """Take over what is known of a replica now; its row."""
        row = self._rows.get(replica.name, -1)
        if row < 0:
            row = self._add(replica.name)
        estimate = self._estimates[row]
        reported_ms = replica.reported_at * 1000.0
        if reported_ms > self.columns["reported_ms"][row]:
            estimate.reported(replica.reported_at, replica.rtt.smoothed_ms)
        load = replica.load or UNREPORTED
        self._loads[row] = _Said.of(load)
        self.takes[row] = replica.takes_sessions
        self.columns["rtt_ms"][row] = replica.rtt.smoothed_ms
        self.columns["reported_ms"][row] = reported_ms
        model = (replica.model_name, replica.model.vocabulary_digest if replica.model else b"")
        self.counts["model"][row] = self.models.number(model)
        self.region_names[row] = replica.region
        self.counts["region"][row] = self.regions.number(replica.region)
        self._set_size(row, replica.model.block_tokens if replica.model else 0)
        if replica.load:
            self._pace.said(replica.name, model, (load.fixed_ms, load.row_ms))
        else:  # it only might be there, and has no say in what calls take
            self._pace.forget(replica.name)
        self._weigh(row)
        return row

    def remove(self, name: str) -> int:
        """A replica is gone; the row it had, -1 if it had none."""
        row = self._rows.pop(name, -1)
        if row >= 0:
            self.takes[row] = False
            self.names[row] = ""
            self._set_size(row, 0)
            self._estimates[row] = LocalEstimate()
            self._pace.forget(name)
            self._free.append(row)
        return row

    def put(self, row: int, session: int, work_ms: float, priority: int, now: float) -> None:
        """A session of a class was sent there with so much work."""
        share_ms = work_ms / self._loads[row].load.num_instances
        self._estimates[row].put(session, share_ms, priority, now)
        self._weigh(row)

    def release(self, row: int, session: int) -> None:
        """A session ended or moved."""
        self._estimates[row].release(session)
        self._weigh(row)

    def _set_size(self, row: int, block_tokens: int) -> None:
        before = int(self.counts["block_tokens"][row])
        if block_tokens != before:
            self._sizes[before] -= 1
            self._sizes[block_tokens] += 1
            self.counts["block_tokens"][row] = block_tokens

    def _weigh(self, row: int) -> None:
        """The terms that depend on how many sessions and tokens are there."""
        said, estimate = self._loads[row], self._estimates[row]
        load = said.load
        limit = load.max_sessions or NO_LIMIT
        self.counts["overload"][row] = load.overload_level
        self.counts["max_sessions"][row] = limit
        num_sessions = [
            count + estimate.num_sessions(priority)
            for priority, count in zip(CLASSES, said.num_sessions, strict=True)
        ]
        self.num_sessions[:, row] = num_sessions
        self.num_excess[:, row] = [max(0, count + 1 - limit) for count in num_sessions]
        self.drained_ms[:, row] = [at * 1000.0 for at in estimate.drained_at]
        row_ms, call_ms = self._weigh_calls(row, load, min(num_sessions[0], limit))
        # Places come free one by one, over the time that a session stays for all of them.
        self.columns["place_ms"][row] = (load.stay_ms or REPLY_TOKENS * call_ms) / limit
        self.queue_ms[:, row] = [
            count * row_ms + -(-count // CHUNK_TOKENS) * call_ms for count in said.num_tokens
        ]

    def _weigh_calls(self, row: int, load: Load, num_sessions: int) -> tuple[float, float]:
        """What a row of a call costs and a call of all sessions, which instances share evenly."""
        fixed_ms, row_ms = self._pace.cost(self.names[row], (load.fixed_ms, load.row_ms))
        num_running = -(-num_sessions // load.num_instances)
        call_ms = fixed_ms + row_ms * ROWS_PER_SESSION * num_running
        columns = self.columns
        columns["row_ms"][row] = row_ms
        columns["fixed_ms"][row] = fixed_ms
        columns["call_ms"][row] = call_ms
        columns["chunk_tokens"][row] = (
            _chunk_tokens(call_ms, row_ms) if num_running else CHUNK_TOKENS
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
        """Twice the rows, 16 at first."""
        more = max(16, len(self.names))
        self._free.extend(reversed(range(len(self.names), len(self.names) + more)))
        self.takes = np.concatenate([self.takes, np.zeros(more, dtype=np.bool_)])
        for name, column in self.columns.items():
            self.columns[name] = np.concatenate([column, np.zeros(more)])
        for name, count in self.counts.items():
            self.counts[name] = np.concatenate([count, np.zeros(more, dtype=np.int64)])
        self.columns["chunk_tokens"][-more:] = CHUNK_TOKENS
        empty = np.zeros((len(CLASSES), more))
        self.queue_ms = np.concatenate([self.queue_ms, empty], axis=1)
        self.drained_ms = np.concatenate([self.drained_ms, empty], axis=1)
        nobody = empty.astype(np.int64)
        self.num_sessions = np.concatenate([self.num_sessions, nobody], axis=1)
        self.num_excess = np.concatenate([self.num_excess, nobody], axis=1)
        self.names += [""] * more
        self.region_names += [""] * more
        self._estimates += [LocalEstimate() for _ in range(more)]
        self._loads += [_Said.of(UNREPORTED)] * more


def _chunk_tokens(call_ms: float, row_ms: float) -> float:
    """Prompt tokens of a call beside replies, whose call takes `call_ms` without any."""
    longest_ms = max(min(TICK_MS, STRETCH * call_ms), LEAST_STRETCH * call_ms)
    tokens = (longest_ms - call_ms) / row_ms if row_ms > 0.0 else CHUNK_TOKENS
    return min(max(LEAST_CHUNK, tokens), CHUNK_TOKENS)
