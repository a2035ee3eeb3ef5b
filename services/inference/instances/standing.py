"""What an instance has to do, as far as it is known outside its thread (pure)."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto

from outrider.session_types import Priority
from services.inference.scheduling.events import Load, OpenRequest
from services.inference.scheduling.policy.forecast import Ahead


class Stage(Enum):
    """How far a session has come, by the last news of it."""

    PLACED = auto()
    """Handed to its instance; no tick has told of it."""
    TAKEN = auto()
    """Its instance took it in; its prompt is being computed, or waits."""
    REPLYING = auto()


@dataclass(slots=True, eq=False)
class Placed:
    """A session and where it is."""

    request: OpenRequest
    instance: int
    num_missing: int
    """Tokens to compute before its next one, as far as known."""
    stage: Stage = Stage.PLACED
    tried: set[int] = field(default_factory=set)
    """Instances that had no room for it."""
    cancelled: bool = False


class Standing:
    """One instance's sessions, counted by class: any question is answered without a walk."""

    def __init__(self, load: Load) -> None:
        self.load = load
        """Of the last tick."""
        self.num_sessions = 0
        self.used_at = 0
        """Number of the placement that came here last."""
        classes = range(max(Priority) + 1)
        self._num_waiting = [0 for _ in classes]
        self._num_replying = [0 for _ in classes]
        self._missing = [0 for _ in classes]
        self._unseen = 0

    def add(self, session: Placed) -> None:
        """A session came."""
        self.num_sessions += 1
        self._count(session, 1)

    def remove(self, session: Placed) -> None:
        """It is gone."""
        self.num_sessions -= 1
        self._count(session, -1)

    def advance(self, session: Placed, stage: Stage, num_missing: int) -> None:
        """There is news of it."""
        self._count(session, -1)
        session.stage, session.num_missing = stage, num_missing
        self._count(session, 1)

    def ahead(self, priority: Priority, max_sessions: int) -> Ahead:
        """What stands before a session of this class that comes now. Who came earlier in the
        same class comes first; nobody is told apart by age."""
        replying = sum(self._num_replying[priority:])
        missing = sum(self._missing[priority:])
        return Ahead(
            num_sessions=sum(self._num_waiting[priority:]),
            num_vacant=max(0, max_sessions - replying),
            # Prompts shrink chunk by chunk, of which the load alone tells.
            prompt_tokens=min(missing, self.load.queued_prompt_tokens + self._unseen),
            num_replying=min(max_sessions, sum(self._num_replying)),
        )

    def _count(self, session: Placed, sign: int) -> None:
        priority = session.request.priority
        if session.stage is Stage.REPLYING:
            self._num_replying[priority] += sign
            return
        self._num_waiting[priority] += sign
        self._missing[priority] += sign * session.num_missing
        if session.stage is Stage.PLACED:
            self._unseen += sign * session.num_missing
