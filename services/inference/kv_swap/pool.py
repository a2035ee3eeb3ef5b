"""Which packed blocks of preempted sessions are in memory (pure).

A block is kept for the sessions that lost it: it goes with the last of them. Where there is no
room, the group with most bytes gives up its block that came first, so that a group is never pushed
below an equal share by others. Names stand for a trust group's salt and all ids up to a block's
end (outrider.codec.block_hashes): a session finds what it lost, and nothing of another group.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class _Group:
    frames: OrderedDict[bytes, bytes] = field(default_factory=OrderedDict)
    """By name of the block, in the order in which they came."""
    num_bytes: int = 0


@dataclass(frozen=True, slots=True)
class _Session:
    group: bytes
    names: tuple[bytes, ...]


class SwapPool:
    """Frames by block, up to `max_bytes` of them."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._sessions: dict[int, _Session] = {}
        self._num_wanting: Counter[bytes] = Counter()
        """Sessions of each name."""
        self._group_of: dict[bytes, bytes] = {}
        """Of each name that is wanted."""
        self._groups: dict[bytes, _Group] = {}
        """Those that have frames."""
        self.num_bytes = 0
        """Of all frames."""

    def __len__(self) -> int:
        return sum(len(group.frames) for group in self._groups.values())

    @property
    def num_sessions(self) -> int:
        """Sessions that may want something."""
        return len(self._sessions)

    def knows(self, session: int) -> bool:
        """Whether it may want something."""
        return session in self._sessions

    def want(self, session: int, group: bytes, names: tuple[bytes, ...]) -> None:
        """The session lost its place, with these blocks from its first one on. It may be one that
        lost them before."""
        before = self._sessions.get(session)
        if before is not None and len(before.names) >= len(names):
            return
        self._sessions[session] = _Session(group, names)
        for name in names if before is None else names[len(before.names) :]:
            self._num_wanting[name] += 1
            self._group_of[name] = group

    def put(self, name: bytes, frame: bytes) -> bool:
        """Keep a block; False if nobody wants it, or there is no room that its group may take."""
        group_name = self._group_of.get(name)
        if group_name is None or len(frame) > self._max_bytes:
            return False
        group = self._groups.setdefault(group_name, _Group())
        self._remove(group, name)
        while self.num_bytes + len(frame) > self._max_bytes:
            largest = max(self._groups.values(), key=lambda it: it.num_bytes)
            # A group that has less than any other takes from that one; else from itself.
            if group.num_bytes + len(frame) > largest.num_bytes:
                largest = group if group.frames else largest
            self._remove(largest, next(iter(largest.frames)))
        group.frames[name] = frame
        group.num_bytes += len(frame)
        self.num_bytes += len(frame)
        self._groups = {key: it for key, it in self._groups.items() if it.frames}
        return True

    def frames(self, session: int) -> Sequence[tuple[int, bytes]]:
        """Indices and frames of its blocks that are here, first block first."""
        known = self._sessions.get(session)
        group = None if known is None else self._groups.get(known.group)
        if known is None or group is None:
            return []
        found = ((index, group.frames.get(name)) for index, name in enumerate(known.names))
        return [(index, frame) for index, frame in found if frame is not None]

    def forget(self, session: int) -> None:
        """It has its KV again, or is over."""
        known = self._sessions.pop(session, None)
        if known is None:
            return
        for name in known.names:
            self._num_wanting[name] -= 1
            if self._num_wanting[name]:
                continue
            del self._num_wanting[name], self._group_of[name]
            if (group := self._groups.get(known.group)) is not None:
                self._remove(group, name)
                if not group.frames:
                    del self._groups[known.group]

    def _remove(self, group: _Group, name: bytes) -> None:
        frame = group.frames.pop(name, None)
        if frame is not None:
            group.num_bytes -= len(frame)
            self.num_bytes -= len(frame)
