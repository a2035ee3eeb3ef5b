"""The predicted time to the first token on every replica, term by term. Pure.

In the engine's own fitted cost, a call of n rows takes `fixed_ms + row_ms * n`. The wait is round
trip + the prompts ahead + what is left then of the wait for a free place + loading or computing the
session's own prompt, as far as it is not cached there.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from services.router.placement.board import CHUNK_TOKENS, Board, Bools, Floats, Ints
from services.router.placement.request import PlacementPolicy, Request, Transfer, Wait


@dataclass(frozen=True, slots=True)
class Waits:
    """[rows] each term in milliseconds, for every row of a board."""

    rtt_ms: Floats
    place_ms: Floats
    queue_ms: Floats
    transfer_ms: Floats
    prefill_ms: Floats
    total_ms: Floats
    work_ms: Floats
    """No part of the wait: what the session's own prompt adds to the work there. Rows of running
    sessions in its calls are theirs."""

    def at(self, row: int) -> Wait:
        """Those of one replica."""
        return Wait(
            rtt_ms=self.rtt_ms.item(row),
            place_ms=self.place_ms.item(row),
            queue_ms=self.queue_ms.item(row),
            transfer_ms=self.transfer_ms.item(row),
            prefill_ms=self.prefill_ms.item(row),
        )


def num_excess(board: Board, priority: int) -> Ints:
    """[rows] sessions that have to end before one more of a class could start, 0 with a place
    free. Lower classes give theirs up."""
    num_sessions = board.num_sessions[priority - 1]
    excess: Ints = np.maximum(num_sessions + 1 - board.counts["max_sessions"], 0)
    return excess


def predict(
    board: Board,
    request: Request,
    cached_tokens: Ints,
    excess: Ints,
    policy: PlacementPolicy,
    now: float,
) -> Waits:
    """The wait on every row, were the session placed there now. [rows] `cached_tokens` are the
    prompt tokens that each replica has, `excess` is what `num_excess` says of its class."""
    columns = board.columns
    left = np.maximum(request.prompt_tokens - cached_tokens, 0)
    queue_ms = _queue_ms(board, request.priority, policy, now)
    transfer_ms = np.zeros(len(board))
    place_ms = transfer_ms
    if np.count_nonzero(excess):
        # The prompts ahead are computed while places come free.
        place_ms = np.maximum(excess * columns["place_ms"] - queue_ms, 0.0)
    prefill_ms = _prefill_ms(board, left)
    # The calls that it shares are made anyway.
    work_ms = left * columns["row_ms"] + _num_calls(left, CHUNK_TOKENS) * columns["fixed_ms"]
    if request.transfer.num_tokens:
        loaded_ms = _loaded_prefill_ms(board, request, cached_tokens)
        use = loaded_ms + request.transfer.load_ms < prefill_ms
        prefill_ms = np.where(use, loaded_ms, prefill_ms)
        transfer_ms = np.where(use, request.transfer.load_ms, 0.0)
        work_ms = np.where(use, loaded_ms + transfer_ms, work_ms)
    rtt_ms = columns["rtt_ms"]
    total_ms = rtt_ms + place_ms + queue_ms + transfer_ms + prefill_ms
    return Waits(rtt_ms, place_ms, queue_ms, transfer_ms, prefill_ms, total_ms, work_ms)


def _queue_ms(board: Board, priority: int, policy: PlacementPolicy, now: float) -> Floats:
    """Prompts ahead of a class: those reported, drained as long as no report can have told, and
    ours."""
    since_ms = np.minimum((now - board.columns["reported_at"]) * 1000.0, policy.report_ms)
    queue_ms, drained_at = board.queue_ms[priority - 1], board.drained_at[priority - 1]
    reported_ms = np.maximum(queue_ms - np.maximum(since_ms, 0.0), 0.0)
    ahead_ms: Floats = reported_ms + np.maximum(drained_at - now, 0.0) * 1000.0
    return ahead_ms


def _num_calls(num_tokens: Ints, chunk_tokens: Floats | float) -> Floats:
    """[rows] calls for so many tokens, at most so many in each; one call at least."""
    num_calls: Floats = np.maximum(np.ceil(num_tokens / chunk_tokens), 1.0)
    return num_calls


def _prefill_ms(board: Board, num_tokens: Ints) -> Floats:
    """[rows] computing so many prompt tokens beside the sessions that are there."""
    columns = board.columns
    calls_ms = _num_calls(num_tokens, columns["chunk_tokens"]) * columns["call_ms"]
    prefill_ms: Floats = num_tokens * columns["row_ms"] + calls_ms
    return prefill_ms


def _loaded_prefill_ms(board: Board, request: Request, cached_tokens: Ints) -> Floats:
    """Computing what is left once the transferable KV is loaded; endless where nothing of it is
    missing."""
    transfer: Transfer = request.transfer
    num_left = max(0, request.prompt_tokens - transfer.num_tokens)
    left_ms = _prefill_ms(board, np.full(len(board), num_left, dtype=np.int64))
    helps: Bools = cached_tokens < transfer.num_tokens
    return np.where(helps, left_ms, np.inf)
