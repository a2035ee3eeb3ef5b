"""Saved statistics of trust groups: what their replies taught, in a form that outlives a process
(pure).

Statistics live in the stores of the process that drafts, and die with it. For a group whose name is
the same after a restart a copy is kept: which token often follows which, and how often drafts were
right. `KeptGroups` holds the copies, bounded in bytes; `learnt_files` puts them on disk.

A copy is bound to its model by a digest and ignored for any other. A group without a copy starts
from the shipped tables.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from math import inf, isfinite
from typing import Final, Protocol, TypeAlias

import numpy as np

from outrider.bounds import NonNegativeInt, PositiveFloat
from outrider.errors import ArtifactCorruptError
from outrider.lru_map import LruMap
from outrider.speculation.ngrams import Table, unpack

BINDING_BYTES: Final = 32
NUM_ORDERS: Final = 3
"""Contexts of 1 to 3 tokens are kept: their keys fit 64 bits."""
MAX_ENTRIES_PER_ORDER: Final = 8192
"""Most entries of one group, the most confident ones: 12 bytes each, so a copy has 300 KB at
most."""
LEAST_CONFIDENCE: Final = 2
"""A successor that was seen once is not kept: it is right too seldom."""
MAX_ADMITTED: Final = 1024
"""Most groups that are remembered as having lasting names."""
MAX_NUMBERS_BYTES: Final = 1 << 16

_MAGIC: Final = b"ORLG"
_VERSION: Final = 1
_HEADER: Final = struct.Struct(f"<4sH{BINDING_BYTES}s{NUM_ORDERS}III")
"""Magic, version, binding, entries per order, bytes of the numbers, CRC-32 of what follows."""
_ENTRY_BYTES: Final = 12
_NAME_BYTES: Final = 16

Numbers: TypeAlias = Mapping[str, Sequence[float]]


@dataclass(frozen=True, slots=True)
class LearntConfig:
    """How statistics of trust groups are kept: table `learnt`."""

    keep: bool = True
    """Whether a trust group's statistics are kept for the next start. Only for groups with lasting
    names: those of edges with a cache_salt_key, except groups of a single connection."""
    max_bytes: NonNegativeInt = 32 << 20
    """Size of all files together, and of the copies in memory of each loaded model; the groups that
    were saved longest ago are dropped first."""
    save_interval_s: PositiveFloat = 60.0
    """Time between two savings; what was learnt since is lost if the process is killed."""


@dataclass(frozen=True, slots=True)
class Learnt:
    """Statistics of one group."""

    tables: Sequence[Table] = ()
    """Successors by context, one table per order."""
    numbers: Numbers = field(default_factory=dict)
    """Rates and calibrations, by name."""

    @property
    def is_empty(self) -> bool:
        return not any(self.tables) and not self.numbers


NOTHING: Final = Learnt()
Restore: TypeAlias = Callable[[bytes], Learnt]
"""Returns the kept statistics of a group; NOTHING without any."""


def nothing(group: bytes) -> Learnt:
    """For stores without copies."""
    return NOTHING


class GroupStatistics(Protocol):
    """The statistics that a process has by group."""

    def version_of(self, group: bytes) -> int:
        """Changes with what the group has learnt; 0: nothing since the process began."""

    def learnt_of(self, group: bytes) -> Learnt:
        """A copy that does not change any more."""


def binding_of(*parts: bytes) -> bytes:
    """The digest that binds copies to a model; `parts` identify it, such as its vocabulary and
    identity."""
    digest = blake2b(digest_size=BINDING_BYTES, person=b"learnt")
    for part in parts:
        digest.update(len(part).to_bytes(4, "little") + part)
    return digest.digest()


def name_of(group: bytes, binding: bytes) -> str:
    """Name under which a group's copy is kept; it does not reveal the group's own name."""
    return blake2b(group, key=binding, digest_size=_NAME_BYTES, person=b"group").hexdigest()


def to_bytes(learnt: Learnt, binding: bytes) -> bytes:
    """The file form: header, keys (u64), values (u32), numbers as JSON."""
    numbers = json.dumps(
        {name: [float(f"{value:.6g}") for value in row] for name, row in learnt.numbers.items()},
        separators=(",", ":"),
    ).encode()
    if len(numbers) > MAX_NUMBERS_BYTES:
        numbers = b"{}"
    kept = [_most_confident(table) for table in learnt.tables[:NUM_ORDERS]]
    kept += [_most_confident({})] * (NUM_ORDERS - len(kept))
    body = b"".join(keys.tobytes() for keys, _ in kept)
    body += b"".join(values.tobytes() for _, values in kept) + numbers
    counts = [len(keys) for keys, _ in kept]
    return _HEADER.pack(_MAGIC, _VERSION, binding, *counts, len(numbers), zlib.crc32(body)) + body


def check(data: bytes, binding: bytes) -> None:
    """Raises ArtifactCorruptError unless these bytes are whole and of this model."""
    try:
        magic, version, bound, *counts, num_numbers, crc = _HEADER.unpack_from(data)
    except struct.error as error:
        raise ArtifactCorruptError(f"a copy of what was learnt is cut off: {error}") from error
    body = memoryview(data)[_HEADER.size :]
    if magic != _MAGIC or version != _VERSION or bound != binding:
        raise ArtifactCorruptError("a copy of what was learnt is of another release or model")
    if max(counts) > MAX_ENTRIES_PER_ORDER or num_numbers > MAX_NUMBERS_BYTES:
        raise ArtifactCorruptError("a copy of what was learnt is larger than any that is written")
    if len(body) != _ENTRY_BYTES * sum(counts) + num_numbers or crc != zlib.crc32(body):
        raise ArtifactCorruptError("a copy of what was learnt fails its checksum")


def from_bytes(data: bytes, binding: bytes, vocabulary_size: int) -> Learnt:
    """Reads the file form. Raises ArtifactCorruptError."""
    check(data, binding)
    *counts, num_numbers, _ = _HEADER.unpack_from(data)[3:]
    total = sum(counts)
    keys = np.frombuffer(data, "<u8", total, offset=_HEADER.size)
    values = np.frombuffer(data, "<u4", total, offset=_HEADER.size + 8 * total)
    if total and unpack(int(values.max()))[0] >= vocabulary_size:
        raise ArtifactCorruptError("a copy of what was learnt has ids outside the vocabulary")
    ends = np.cumsum(counts).tolist()
    tables = tuple(
        dict(zip(keys[end - n : end].tolist(), values[end - n : end].tolist(), strict=True))
        for end, n in zip(ends, counts, strict=True)
    )
    try:
        read = json.loads(data[len(data) - num_numbers :])
        numbers = {str(name): tuple(map(float, row)) for name, row in read.items()}
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ArtifactCorruptError(f"numbers that were learnt are damaged: {error}") from error
    if not all(isfinite(value) for row in numbers.values() for value in row):
        raise ArtifactCorruptError("numbers that were learnt are not finite")
    return Learnt(tables, numbers)


def row_of(numbers: Numbers, name: str, length: int, low: float, high: float) -> list[float] | None:
    """The row of this name if it has this length and all its values lie in [low, high]."""
    row = numbers.get(name, ())
    if len(row) != length or not all(low <= value <= high for value in row):
        return None
    return list(row)


def _most_confident(table: Table) -> tuple[np.ndarray, np.ndarray]:
    """Keys and values of a table's entries to keep, in its order."""
    keys = np.fromiter(table.keys(), "<u8", len(table))
    values = np.fromiter(table.values(), "<u4", len(table))
    confidence = values & 15
    chosen = np.flatnonzero(confidence >= LEAST_CONFIDENCE)
    if len(chosen) > MAX_ENTRIES_PER_ORDER:
        # Of equals the ones learnt last, which stand last.
        order = np.argsort(confidence[chosen], kind="stable")
        chosen = np.sort(chosen[order[-MAX_ENTRIES_PER_ORDER:]])
    return keys[chosen], values[chosen]


class KeptGroups:
    """Copies of one model's groups, the most recently saved ones, and which groups may have one.

    `restore`, `admit` and `changed` belong to the thread that owns the statistics; `keep` may be
    called by another one.
    """

    def __init__(self, binding: bytes, vocabulary_size: int, max_bytes: int) -> None:
        """`max_bytes`: of all copies together; 0: nothing is kept."""
        self.binding = binding
        self._vocabulary_size = vocabulary_size
        self._max_bytes = max_bytes
        self._copies: LruMap[str, bytes] = LruMap(
            inf, max_weight=max_bytes, weigh=lambda name, data: len(data)
        )
        """By name, in the order in which they were saved."""
        self._admitted: LruMap[bytes, int] = LruMap(MAX_ADMITTED)
        """Group to the version of its statistics at their last copy."""
        self._last: tuple[bytes, bytes, Learnt] = (b"", b"", NOTHING)

    @property
    def num_bytes(self) -> int:
        """Bytes of all copies."""
        return self._copies.weight

    def __len__(self) -> int:
        return len(self._copies)

    def restore(self, group: bytes) -> Learnt:
        """The kept statistics of a group."""
        data = self._copies.peek(name_of(group, self.binding)) if group else None
        if data is None:
            return NOTHING
        if self._last[0] != group or self._last[1] is not data:
            try:
                learnt = from_bytes(data, self.binding, self._vocabulary_size)
            except ArtifactCorruptError:
                learnt = NOTHING  # its checksum is right, so another release wrote it
            self._last = (group, data, learnt)
        return self._last[2]

    def admit(self, group: bytes) -> None:
        """Mark the group's name as the same after a restart: its statistics may be kept."""
        if group and self._max_bytes:
            self._admitted.put(group, self._admitted.peek(group) or 0)

    def changed(self, statistics: GroupStatistics) -> Iterator[tuple[bytes, Learnt]]:
        """A copy of each admitted group that has learnt something since its last one. Take one at a
        time where the thread has other work."""
        for group, before in list(self._admitted.items()):
            if group not in self._admitted:
                continue  # others were admitted since the last one was taken
            version = statistics.version_of(group)
            if version not in (0, before):
                self._admitted.put(group, version)  # the others first next time
                learnt = statistics.learnt_of(group)
                if not learnt.is_empty:
                    yield group, learnt

    def packed(self, group: bytes, learnt: Learnt) -> tuple[str, bytes]:
        """Name and bytes of a copy; takes milliseconds."""
        return name_of(group, self.binding), to_bytes(learnt, self.binding)

    def keep(self, name: str, data: bytes) -> None:
        """Put this copy in the place of the one before; the oldest ones are dropped beyond
        `max_bytes`."""
        self._copies.put(name, data)
