"""Replies as other edges read them (pure): the final part of a chat as sealed frames.

An edge seals each piece of a ReplayLog for the reply's name and the piece's index, so that pieces
can be neither forged nor put in another order, and appends it where other edges of the site find
it. Another edge makes a log of them, as far as they are whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from outrider.errors import OutriderError
from outrider.sealing import Seal
from outrider.session import client_wire
from outrider.session.client import Accepted, Committed, Done, Failed, Provisional, Retracted
from services.edge.chat.replay import LogReader, ReplayCursor, ReplayLog
from services.edge.chat.resumption_table import ChatKey

PREFIX: Final = b"outrider:replies:1:"
MAX_SAVED_BYTES: Final = 1 << 20
"""Most bytes of a reply that are saved: far more than a usual reply with log probabilities. What is
beyond is computed again by an edge that continues it."""
_NAME_BYTES: Final = 16
_UNSAVED: Final = (Provisional, Retracted, Failed)


class ReplySealer:
    """Names replies, and seals their pieces."""

    def __init__(self, secret: str) -> None:
        """`secret`: the same at all edges of the site. Raises ValueError for an empty one."""
        self._seal = Seal(secret, b"shared replies")

    def name(self, key: ChatKey) -> bytes:
        """The reply's name; it tells neither its owner nor its key."""
        owner = len(key.owner).to_bytes(4, "big") + key.owner
        return PREFIX + self._seal.hashed(owner + key.request_id.encode(), _NAME_BYTES)

    def request(self, name: bytes, digest: bytes) -> bytes:
        """Stands for the request that the reply answers; it tells nothing of it."""
        return self._seal.hashed(name + digest, _NAME_BYTES)

    def seal(self, name: bytes, index: int, frame: bytes) -> bytes:
        """The piece of this index."""
        return self._seal.seal(_bound_to(name, index), frame)

    def log(self, name: bytes, pieces: Sequence[bytes]) -> ReplayLog:
        """The log of these pieces, first one first, up to the first that is not genuine."""
        log = ReplayLog()
        for index, piece in enumerate(pieces):
            frame = self._seal.open(_bound_to(name, index), piece)
            event = None if frame is None else _read(frame)
            if event is None or not _follows(event, log):
                break
            log.append(event)
        return log


class ReplySaver:
    """Reads what was appended to a log since it was last asked, as frames."""

    def __init__(self, log: ReplayLog) -> None:
        self.log = log
        self.num_saved = 0
        """Pieces so far; the index of the next one."""
        self._num_bytes = 0
        self._is_whole = False
        self._reader = LogReader(log, ReplayCursor())

    @property
    def is_whole(self) -> bool:
        """Whether all of a reply that ended well was read."""
        return self._is_whole

    def more(self) -> list[bytes]:
        """The next frames; none beyond MAX_SAVED_BYTES, and not the end of a reply that ended
        before it was whole: that may be asked for again."""
        frames = []
        while self._num_bytes < MAX_SAVED_BYTES and (event := self._reader.next()) is not None:
            if isinstance(event, Done):
                if not event.finish_reason.is_whole:
                    break
                self._is_whole = True
            assert not isinstance(event, _UNSAVED)
            frame = client_wire.write(event)
            frames.append(frame)
            self._num_bytes += len(frame)
        self.num_saved += len(frames)
        return frames


def _read(frame: bytes) -> Accepted | Committed | Done | None:
    try:
        event = client_wire.read(frame)
    except OutriderError:
        return None  # of a newer version
    return event if isinstance(event, Accepted | Committed | Done) else None


def _follows(event: Accepted | Committed | Done, log: ReplayLog) -> bool:
    return not isinstance(event, Committed) or event.upto == log.upto + len(event.ids)


def _bound_to(name: bytes, index: int) -> bytes:
    return name + b":%d" % index
