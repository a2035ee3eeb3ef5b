"""The predicted time to the first token on every replica, term by term. Pure.

In the engine's own fitted cost, a call of n rows takes `fixed_ms + row_ms * n`. The wait is round
trip + the prompts ahead + what is left then of the wait for a free place + loading or computing the
session's own prompt, as far as it is not cached there.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from services.router.placement.board import CHUNK_TOKENS, Board, Bools, Floats, Ints
from services.router.placement.request import PlacementPolicy, Request, Transfer, Wait


class Waits(NamedTuple):
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


def predict(
    board: Board, request: Request, cached_tokens: Ints, policy: PlacementPolicy, now: float
) -> Waits:
    """The wait on every row, were the session placed there now. [rows] `cached_tokens` are the
    prompt tokens that each replica has."""
    columns = board.columns
    # One token is computed at least: the first of the reply comes of it.
    left = np.maximum(float(request.prompt_tokens) - cached_tokens, 1.0)
    queue_ms = _queue_ms(board, request.priority, policy, now * 1000.0)
    transfer_ms = place_ms = np.zeros(len(board))
    prefill_ms = _prefill_ms(board, left)
    # The calls that it shares are made anyway.
    work_ms = left * columns["row_ms"] + np.ceil(left / CHUNK_TOKENS) * columns["fixed_ms"]
    if request.transfer.num_tokens:
        loaded_ms = _loaded_prefill_ms(board, request, cached_tokens)
        use = loaded_ms + request.transfer.load_ms < prefill_ms
        prefill_ms = np.where(use, loaded_ms, prefill_ms)
        transfer_ms = np.where(use, request.transfer.load_ms, 0.0)
        work_ms = np.where(use, loaded_ms + transfer_ms, work_ms)
    total_ms = columns["rtt_ms"] + queue_ms + prefill_ms + transfer_ms
    excess = board.num_excess[request.priority - 1]
    if np.count_nonzero(excess):
        # The prompts ahead are computed while places come free.
        place_ms = np.maximum(excess * columns["place_ms"] - queue_ms, 0.0)
        total_ms += place_ms
    return Waits(columns["rtt_ms"], place_ms, queue_ms, transfer_ms, prefill_ms, total_ms, work_ms)


def _queue_ms(board: Board, priority: int, policy: PlacementPolicy, now_ms: float) -> Floats:
    """Prompts ahead of a class: those reported, drained as long as no report can have told, and
    ours."""
    drained_ms = np.minimum(now_ms - board.columns["reported_ms"], policy.report_ms)
    ahead_ms: Floats = np.maximum(board.queue_ms[priority - 1] - drained_ms, 0.0)
    ahead_ms += np.maximum(board.drained_ms[priority - 1] - now_ms, 0.0)
    return ahead_ms


def _prefill_ms(board: Board, num_tokens: Floats) -> Floats:
    """[rows] computing so many prompt tokens, one or more, beside the sessions that are there."""
    columns = board.columns
    calls_ms = np.ceil(num_tokens / columns["chunk_tokens"]) * columns["call_ms"]
    prefill_ms: Floats = num_tokens * columns["row_ms"] + calls_ms
    return prefill_ms


def _loaded_prefill_ms(board: Board, request: Request, cached_tokens: Ints) -> Floats:
    """Computing what is left once the transferable KV is loaded; endless where nothing of it is
    missing."""
    transfer: Transfer = request.transfer
    num_left = max(1.0, float(request.prompt_tokens - transfer.num_tokens))
    left_ms = _prefill_ms(board, np.full(len(board), num_left))
    helps: Bools = cached_tokens < transfer.num_tokens
    return np.where(helps, left_ms, np.inf)
