"""Time saved by KV that another replica has: it is moved while the rest is computed. Pure.

A replica computes a prompt from its first token on, while blocks from another one arrive from the
far end, until the two meet (as in Cake, arXiv 2410.03065). So n tokens that would take n c to
compute, and n l + f to move, are ready after c (n l + f) / (c + l), and never later than computed.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from services.router.placement.replica_table import Bools, Floats, Ints, ReplicaTable


class Holder(NamedTuple):
    """The replica that has most of a session's beginning."""

    row: int
    num_tokens: int


def longest_holder(table: ReplicaTable, cached_tokens: Ints) -> Holder | None:
    """The nearest of the replicas that have the longest cached beginning, whose stream is up and
    whose model identity is known; it may be draining or full. None if nobody has any of it.
    `cached_tokens`: [rows]."""
    held = np.where(table.has_kv, cached_tokens, 0)
    most = int(held.max(initial=0))
    if not most:
        return None
    nearest = np.where(held == most, table.columns["rtt_ms"], np.inf)
    return Holder(int(nearest.argmin()), most)


def may_receive(table: ReplicaTable, holder: Holder) -> Bools:
    """[rows] whether a replica computes what the holder does, so that it may use its KV."""
    identities = table.counts["identity"]
    found: Bools = identities == identities[holder.row]
    found[holder.row] = False
    return found


def moved_ms(
    table: ReplicaTable, holder: Holder, cached_tokens: Ints, compute_ms: Floats
) -> Floats:
    """[rows] milliseconds until a row has all that the holder has, if computing the missing part
    takes `compute_ms`; equal to `compute_ms` if the speed of moving is unknown."""
    columns = table.columns
    num_tokens = np.maximum(holder.num_tokens - cached_tokens, 0)
    block_tokens = np.maximum(table.counts["block_tokens"], 1)
    load_ms = num_tokens * columns["peer_block_ms"] / block_tokens
    regions = table.counts["region"]
    # Between regions no more is known than the way by this router.
    way_ms = columns["rtt_ms"] + columns["rtt_ms"][holder.row]
    first_ms = columns["peer_first_ms"] + np.where(regions == regions[holder.row], 0.0, way_ms)
    is_known = (load_ms > 0.0) & (compute_ms > 0.0)
    sum_ms = np.where(is_known, compute_ms + load_ms, 1.0)
    both_ms = compute_ms * (load_ms + first_ms) / sum_ms
    return np.where(is_known, np.minimum(both_ms, compute_ms), compute_ms)
