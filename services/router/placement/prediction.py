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
            rtt_ms=float(self.rtt_ms[row]),
            place_ms=float(self.place_ms[row]),
            queue_ms=float(self.queue_ms[row]),
            transfer_ms=float(self.transfer_ms[row]),
            prefill_ms=float(self.prefill_ms[row]),
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
    policy: PlacementPolicy,
    now: float,
) -> Waits:
    """The wait on every row, were the session placed there now. [rows] `cached_tokens` are the
    prompt tokens that each replica has."""
    columns = board.columns
    left_tokens = request.prompt_tokens - cached_tokens
    queue_ms = _queue_ms(board, request.priority, policy, now)
    # The prompts ahead are computed while places come free.
    free_ms = num_excess(board, request.priority) * columns["place_ms"]
    place_ms = np.maximum(free_ms - queue_ms, 0.0)
    prefill_ms = _prefill_ms(board, left_tokens, columns["call_ms"], columns["chunk_tokens"])
    # The calls that it shares are made anyway.
    work_ms = _prefill_ms(board, left_tokens, columns["fixed_ms"], CHUNK_TOKENS)
    transfer_ms = np.zeros(len(board))
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


def _prefill_ms(
    board: Board, num_tokens: Ints, call_ms: Floats, chunk_tokens: Floats | float
) -> Floats:
    """Computing so many tokens in calls of so many, which take `call_ms` without them, and in one
    call at least."""
    left = np.maximum(num_tokens, 0)
    num_calls = np.maximum(np.ceil(left / chunk_tokens), 1.0)
    prefill_ms: Floats = left * board.columns["row_ms"] + num_calls * call_ms
    return prefill_ms


def _loaded_prefill_ms(board: Board, request: Request, cached_tokens: Ints) -> Floats:
    """Computing what is left once the transferable KV is loaded; endless where nothing of it is
    missing."""
    transfer: Transfer = request.transfer
    left = np.full(len(board), request.prompt_tokens - transfer.num_tokens, dtype=np.int64)
    columns = board.columns
    left_ms = _prefill_ms(board, left, columns["call_ms"], columns["chunk_tokens"])
    helps: Bools = cached_tokens < transfer.num_tokens
    return np.where(helps, left_ms, np.inf)
