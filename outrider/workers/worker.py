"""Configuration that one of several processes of a service gets from its parent."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from typing import Final

from outrider.workers import steering

VARIABLE: Final = "OUTRIDER_WORKER"
"""Environment variable of such a process, set only by its parent."""


@dataclass(frozen=True, slots=True)
class Worker:
    """One of `count` processes. Descriptors are of files that the parent opened; -1: none."""

    index: int
    count: int
    secret: str = field(default="", repr=False)
    """Known only to the processes of this service; made anew with every parent."""
    port: int = 0
    """The port that it binds itself, shared with its parent's reservation; 0: none."""
    datagrams: int = -1
    """Descriptor of its UDP socket."""
    connections: int = -1
    """Descriptor of its listening TCP socket."""
    usage: int = -1
    """Descriptor of the memory in which the processes count together."""

    def key(self, purpose: str) -> bytes:
        """A secret of all processes for this purpose, 32 bytes."""
        # Imported here: a router does without.
        from hashlib import blake2b

        return blake2b(purpose.encode(), key=bytes.fromhex(self.secret), digest_size=32).digest()

    def named(self, num_bytes: int) -> bytes:
        """Random bytes that name this process (outrider.workers.steering)."""
        return steering.naming(self.index, self.count, os.urandom(num_bytes))

    def to_environment(self) -> dict[str, str]:
        """For the process's start."""
        return {VARIABLE: json.dumps(asdict(self))}


_told: list[Worker] = []


def this_worker() -> Worker | None:
    """This process's configuration; None if it is the only one of its service. Processes that it
    starts itself do not inherit it."""
    text = os.environ.pop(VARIABLE, None)
    if text is not None:
        _told[:] = [Worker(**json.loads(text))]
    return _told[0] if _told else None
