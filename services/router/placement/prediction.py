"""The predicted time to first token on every replica, term by term. Pure.

An engine call of n rows takes `fixed_ms + row_ms * n`, with the coefficients that the replica
fitted. The wait is the round trip + the prompts ahead + the rest of the wait for a free slot + the
rest of the wait for free KV memory + moving or computing the uncached part of the session's own
prompt.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from services.router.placement import transfer
from services.router.placement.replica_table import Floats, Ints, ReplicaTable
from services.router.placement.transfer import Holder
from services.router.placement.types import PredictedWait
from services.router.session_request import SessionRequest


class PredictedWaits(NamedTuple):
    """[rows] each term of PredictedWait, and the work, for every row of a replica table."""

    rtt_ms: Floats
    slot_ms: Floats
    memory_ms: Floats
    queue_ms: Floats
    transfer_ms: Floats
    prefill_ms: Floats
    total_ms: Floats
    work_ms: Floats
    """Time that the session's own prompt adds to the replica's work, without the rows of running
    sessions in its calls; not part of the wait."""
    kv_tokens: Ints
    """KV memory that the session is expected to take, in tokens."""

    def at(self, row: int) -> PredictedWait:
        """The wait on one replica."""
        return PredictedWait(
            rtt_ms=self.rtt_ms.item(row),
            slot_ms=self.slot_ms.item(row),
            memory_ms=self.memory_ms.item(row),
            queue_ms=self.queue_ms.item(row),
            transfer_ms=self.transfer_ms.item(row),
            prefill_ms=self.prefill_ms.item(row),
            idle_prefill_ms=self.work_ms.item(row),
            kv_tokens=self.kv_tokens.item(row),
        )


def predict(
    table: ReplicaTable,
    request: SessionRequest,
    cached_tokens: Ints,
    report_ms: float,
    now: float,
    holder: Holder | None = None,
) -> PredictedWaits:
    """The wait on every row if the session were placed there now. `cached_tokens`: [rows] prompt
    tokens that the replica has. `report_ms`: least time between two reports of a replica. `holder`
    has more than some of them."""
    columns = table.columns
    # At least one token is computed: the last of the prompt gives the first of the reply.
    left = np.maximum(float(request.prefill_tokens) - cached_tokens, 1.0)
    queue_ms = _queue_ms(table, request.priority, report_ms, now * 1000.0)
    transfer_ms = slot_ms = memory_ms = table.zeros
    prefill_ms = _prefill_ms(table, left)
    # The rows of running sessions would be computed anyway.
    num_calls = np.ceil(left / columns["max_chunk_tokens"])
    work_ms = left * columns["row_ms"] + num_calls * columns["fixed_ms"]
    if holder is not None:
        num_behind = float(request.prefill_tokens - holder.num_tokens)
        behind = np.maximum(np.minimum(left, num_behind), 1.0)
        behind_ms = _prefill_ms(table, behind)
        compute_ms = prefill_ms - behind_ms
        moved_ms = transfer.moved_ms(table, holder, cached_tokens, compute_ms)
        use = transfer.may_receive(table, holder) & (moved_ms < compute_ms)
        share = (moved_ms + behind_ms) / np.where(use, prefill_ms, 1.0)
        work_ms = np.where(use, work_ms * share, work_ms)
        prefill_ms = np.where(use, behind_ms, prefill_ms)
        transfer_ms = np.where(use, moved_ms, 0.0)
    total_ms = columns["rtt_ms"] + queue_ms
    total_ms += prefill_ms
    if transfer_ms is not table.zeros:
        total_ms += transfer_ms
    excess = table.num_excess[request.priority - 1]
    if np.count_nonzero(excess):
        # Slots come free while the prompts ahead are computed.
        slot_ms = np.maximum(excess * columns["slot_ms"] - queue_ms, 0.0)
        total_ms += slot_ms
    kv_tokens = _kv_tokens(table, request, cached_tokens)
    missing = kv_tokens - table.kv_room[request.priority - 1]
    if missing.max(initial=0) > 0:
        # With a slot its memory comes free. While prompts are computed, replies hardly advance.
        memory_ms = np.maximum(missing * columns["kv_token_ms"] - slot_ms, 0.0)
        total_ms += memory_ms
    return PredictedWaits(
        rtt_ms=columns["rtt_ms"],
        slot_ms=slot_ms,
        memory_ms=memory_ms,
        queue_ms=queue_ms,
        transfer_ms=transfer_ms,
        prefill_ms=prefill_ms,
        total_ms=total_ms,
        work_ms=work_ms,
        kv_tokens=kv_tokens,
    )


def _kv_tokens(table: ReplicaTable, request: SessionRequest, cached_tokens: Ints) -> Ints:
    """[rows] KV memory that the session takes, in tokens: its prompt, and a reply as long as the
    replica's replies are, but no longer than it may be; 0 where unknown.

    What is cached of a new prompt takes none: others have it, as they have a system prompt, or it
    is free until the next report. Of a reply that moves the KV is its own: many move in one moment.
    """
    counts = table.counts
    prompt = request.prompt_tokens - (0 if request.num_committed else cached_tokens)
    reply = np.maximum(counts["reply_tokens"], request.num_committed)
    np.minimum(reply, request.max_tokens, out=reply)
    # A part of a block takes a whole one.
    needed = reply + (prompt + counts["block_tokens"])
    found: Ints = np.clip(needed, 0, counts["kv_tokens"])
    return found


def _queue_ms(table: ReplicaTable, priority: int, report_ms: float, now_ms: float) -> Floats:
    """[rows] time of the prompts ahead of a class: reported ones, drained since for at most the
    time between two reports, and those that this router sent since."""
    drained_ms = np.minimum(now_ms - table.columns["reported_ms"], report_ms)
    ahead_ms: Floats = np.maximum(table.queue_ms[priority - 1] - drained_ms, 0.0)
    ahead_ms += np.maximum(table.drained_ms[priority - 1] - now_ms, 0.0)
    return ahead_ms


def _prefill_ms(table: ReplicaTable, num_tokens: Floats) -> Floats:
    """[rows] time of computing so many prompt tokens, one or more, beside running sessions."""
    columns = table.columns
    calls_ms = np.ceil(num_tokens / columns["chunk_tokens"]) * columns["call_ms"]
    prefill_ms: Floats = num_tokens * columns["row_ms"] + calls_ms
    return prefill_ms
