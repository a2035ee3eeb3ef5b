"""The load of a replica with several instances (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from services.inference.scheduler.types import ClassLoad, Load


def total_load(loads: Sequence[Load]) -> Load:
    """One or more instances' loads as the replica's.

    Sessions, places, prompt tokens and KV are sums. The cost is that of one call of one instance,
    the mean: calls of different instances run at the same time. The level of overload is the
    lowest: a new session goes past an instance that is worse off.
    """
    count = len(loads)
    return Load(
        running_sessions=sum(load.running_sessions for load in loads),
        queued_sessions=sum(load.queued_sessions for load in loads),
        queued_prompt_tokens=sum(load.queued_prompt_tokens for load in loads),
        kv_blocks_total=sum(load.kv_blocks_total for load in loads),
        kv_blocks_free=sum(load.kv_blocks_free for load in loads),
        fixed_ms=sum(load.fixed_ms for load in loads) / count,
        row_ms=sum(load.row_ms for load in loads) / count,
        max_sessions=sum(load.max_sessions for load in loads),
        paused_sessions=sum(load.paused_sessions for load in loads),
        overload_level=min(load.overload_level for load in loads),
        num_instances=sum(load.num_instances for load in loads),
        low=_total(load.low for load in loads),
        medium=_total(load.medium for load in loads),
        stay_ms=sum(load.stay_ms for load in loads) / count,
    )


def _total(parts: Iterable[ClassLoad]) -> ClassLoad:
    total = ClassLoad()
    for part in parts:
        total = ClassLoad(
            total.sessions + part.sessions,
            total.queued_prompt_tokens + part.queued_prompt_tokens,
        )
    return total
