"""What routers are told of a replica's load."""

from __future__ import annotations

from collections.abc import Iterable

from outrider.session_types import Priority
from services.inference.kv.pool import KvPool
from services.inference.scheduling.budget import CostModel
from services.inference.scheduling.events import ClassLoad, Load
from services.inference.scheduling.limits import SchedulerLimits
from services.inference.scheduling.policy.admission import Admission
from services.inference.scheduling.roster import Roster
from services.inference.scheduling.session import Session


def load(
    roster: Roster, pool: KvPool, cost: CostModel, limits: SchedulerLimits, admission: Admission
) -> Load:
    """A snapshot."""
    return Load(
        running_sessions=len(roster.running),
        queued_sessions=len(roster.waiting),
        queued_prompt_tokens=_prompt_tokens(roster.sessions.values()),
        kv_blocks_total=pool.num_blocks,
        kv_blocks_free=pool.num_free,
        fixed_ms=cost.fixed_ms,
        row_ms=cost.row_ms,
        max_sessions=limits.max_sessions,
        paused_sessions=len(roster.paused),
        overload_level=admission.level,
        low=_of(roster, Priority.LOW),
        medium=_of(roster, Priority.MEDIUM),
        stay_ms=admission.forecast.stay_ms,
    )


def _of(roster: Roster, priority: Priority) -> ClassLoad:
    found = [s for s in (*roster.running, *roster.waiting) if s.priority is priority]
    return ClassLoad(len(found), _prompt_tokens(found))


def _prompt_tokens(sessions: Iterable[Session]) -> int:
    """Those still to be computed; the next token of a reply is none."""
    return sum(s.num_uncached for s in sessions if s.num_missing > 1)
