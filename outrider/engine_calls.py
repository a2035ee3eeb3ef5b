"""Reports of replicas on their engine calls: which requests were in the one that crashed.

A replica that dies cannot report which request killed it. So it records the requests of the running
engine call in memory that outlives the process, and whether a fault signal ended it. Its next
process reports the crash, and routers find the request that crashes replica after replica.
"""

from __future__ import annotations

import hashlib
from typing import Final, NamedTuple

from outrider.errors import OutriderError

MAX_CALL_REQUESTS: Final = 256
"""Requests of one call that are recorded; no engine call takes that many new ones."""
MAX_CRASHES: Final = 16
"""Crashes that a replica reports."""
CRASH_KEPT_S: Final = 600.0
"""How long a crash is reported and counts against the requests in it."""
MAX_PROCESS_BYTES: Final = 16
"""Longest name of a process."""
SESSIONS_IN_CALL: Final = "sessions_in_call"
"""Metadata key of an EngineError: how many sessions were in the call that failed, this one
included. Without it, the session is not to blame."""


class EngineCall(NamedTuple):
    """An engine call, and the requests in it that might be what a failure is due to."""

    requests: frozenset[int] = frozenset()
    """Keys (`request_key`) of those without a token from this process."""
    num_sessions: int = 0
    """All sessions in it."""
    duration_ms: float = 0.0
    """Duration, or time so far if the call still runs; stalls of the process are left out."""

    @property
    def is_single(self) -> bool:
        """Whether the call had exactly one session."""
        return self.num_sessions == 1


class Crash(NamedTuple):
    """The end of a replica's process by a fault signal of its own (SIGSEGV, SIGABRT, SIGBUS,
    SIGFPE, SIGILL). A process that was stopped, or killed from outside, did not crash."""

    process: bytes
    """The process's name: random bytes."""
    call: EngineCall
    """The one that it was in."""


def request_key(tenant: str, request_id: str) -> int:
    """64 bits that name a request wherever it is opened: BLAKE2b over tenant and request id."""
    name = f"{len(tenant)}:{tenant}{request_id}".encode()
    return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "little")


def sessions_in_call(error: OutriderError) -> int:
    """How many sessions were in the engine call that failed; 0 if the error has no such
    metadata."""
    told = error.metadata.get(SESSIONS_IN_CALL, "")
    return int(told) if told.isascii() and told.isdigit() and len(told) < 6 else 0
