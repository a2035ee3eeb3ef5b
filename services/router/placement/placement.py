"""Chooses the replica of a session: constraints first, then the least cost in milliseconds. Pure.

The cost of a replica is the session's own predicted wait there plus, weighted, the work of
computing its prompt: work delays later sessions, and more so the busier the region with the least
wait is. Without the second term a busy fleet computes one prefix in many places for the sake of
shorter queues, and has longer queues for it.

Among near-equals the better of two random ones is taken (Mitzenmacher, "The power of two choices in
randomized load balancing", 2001), so that several routers with the same reports do not all choose
the same replica. docs/guides/placement.md explains the terms.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from random import Random
from typing import Protocol

import numpy as np

from outrider.session.types import Priority
from services.router.fleet.replica import Replica
from services.router.placement import constraints, prediction
from services.router.placement.prediction import PredictedWaits
from services.router.placement.replica_table import Bools, Floats, Ints, ReplicaTable
from services.router.placement.transfer import Holder, longest_holder, may_receive
from services.router.placement.types import (
    Candidate,
    Decision,
    KvSource,
    PlacementPolicy,
    ReplicaStatus,
)
from services.router.prefix_index.index import PrefixIndex, mask_of, tokens_by_owner
from services.router.session_request import SessionRequest

MAX_CONSIDERED = 8
"""Replicas listed in a Decision."""
_SORTED_WHOLE = 256
"""Most replicas for which sorting all of them is faster than finding the best first."""


class ReplicaSource(Protocol):
    """The replicas, as placement reads them (implemented by fleet.registry.Registry)."""

    @property
    def changed(self) -> set[str]:
        """Names of replicas that were changed, added or removed since placement emptied it."""

    def find(self, name: str) -> Replica | None:
        """The replica of that name; None if there is none."""

    def __iter__(self) -> Iterator[Replica]: ...


class Placement:
    """Chooses replicas, and counts its own choices until the replicas' reports include them."""

    def __init__(
        self,
        fleet: ReplicaSource,
        prefixes: PrefixIndex,
        policy: PlacementPolicy,
        rng: Random,
        *,
        report_ms: float = 50.0,
    ) -> None:
        """`report_ms`: least time between two load reports of a replica."""
        self._fleet = fleet
        self._prefixes = prefixes
        self._policy = policy
        self._rng = rng
        self._report_ms = report_ms
        self._table = ReplicaTable()
        self._rows: dict[int, int] = {}
        """By session, the row of its replica."""
        fleet.changed.update(replica.name for replica in fleet)

    def decide(
        self, request: SessionRequest, now: float, exclude: Collection[str] = ()
    ) -> Decision:
        """Choose a replica that is not in `exclude`, the ones already tried for the session. Counts
        nothing: `put` records that the session was sent there.

        Raises UnknownModelError, VocabularyMismatchError, NoReplicaError or OverloadedError; the
        message names the replicas and their states.
        """
        self._refresh()
        if constraints.may_differ(self._table, request):
            request = replace(request, identity=None)
        able = constraints.able(self._table, request, self._policy, exclude)
        num_able = int(np.count_nonzero(able))
        if not num_able:
            raise constraints.refusal(request, self._fleet, self._table, exclude)
        cached = self._cached(request, able)
        holder = longest_holder(self._table, cached) if request.prompt is not None else None
        waits = prediction.predict(self._table, request, cached, self._report_ms, now, holder)
        costs = costs_ms(waits, able, self._table.counts["region"], self._policy)
        has_places = waits.slot_ms is self._table.zeros
        backlog = waits.queue_ms if has_places else waits.slot_ms + waits.queue_ms
        backlog_ms = np.minimum.reduce(backlog, where=able, initial=np.inf)
        found = self._explained(costs, waits, cached, num_able, float(backlog_ms))
        return found._replace(kv_source=self._kv_source(found, holder))

    def put(self, session: int, request: SessionRequest, decision: Decision, now: float) -> None:
        """A session was sent to the chosen replica. `session` is an id of the caller's choice."""
        row = self._table.row(decision.replica)
        if row < 0:
            return  # the replica was removed since
        wait = decision.wait
        work_ms = wait.prefill_ms + wait.transfer_ms
        self._table.put(row, session, work_ms, wait.kv_tokens, request.priority, now)
        self._rows[session] = row
        block_tokens = int(self._table.counts["block_tokens"][row])
        if request.prompt is not None and block_tokens:
            self._prefixes.expect(row, request.prompt, block_tokens, now)

    def release(self, session: int) -> None:
        """A session ended or left the replica it was on. Unknown ones are ignored."""
        row = self._rows.pop(session, -1)
        if row >= 0:
            self._table.release(row, session)

    def statuses(self, now: float) -> dict[str, ReplicaStatus]:
        """The status of every replica by name, schedulable or not."""
        self._refresh()
        empty = SessionRequest("", priority=Priority.LOW)
        cached = np.zeros(len(self._table), dtype=np.int64)
        waits = prediction.predict(self._table, empty, cached, self._report_ms, now)
        counts = self._table.num_sessions[0]
        return {
            name: ReplicaStatus(waits.at(row), int(counts[row]))
            for row, name in enumerate(self._table.names)
            if name
        }

    def owner(self, name: str) -> int:
        """A replica's owner number in the prefix index; -1 for an unknown replica."""
        self._refresh()
        return self._table.row(name)

    def _refresh(self) -> None:
        """Take over changes of the fleet."""
        if not self._fleet.changed:
            return
        # Sorted, so that rows, and with them choices, do not depend on hashing.
        changed = sorted(self._fleet.changed)
        self._fleet.changed.clear()
        gone = [name for name in changed if self._fleet.find(name) is None]
        for name in gone:
            row = self._table.remove(name)
            if row >= 0:
                self._prefixes.retire(row)
                self._rows = {s: r for s, r in self._rows.items() if r != row}
        for name in changed:
            replica = self._fleet.find(name)
            if replica is not None:
                self._table.update(replica)

    def _cached(self, request: SessionRequest, able: Bools) -> Ints:
        """[rows] prompt tokens that replicas have cached which are able, or may be asked for KV."""
        cached = np.zeros(len(self._table), dtype=np.int64)
        if request.prompt is None:
            return cached
        model = self._table.models.find((request.model, request.vocabulary_digest))
        may_have = able | (self._table.has_kv & (self._table.counts["model"] == model))
        for size in self._table.block_sizes():
            among = mask_of(may_have & (self._table.counts["block_tokens"] == size))
            matches = self._prefixes.match(request.prompt, size, among) if among else []
            if matches:
                cached += tokens_by_owner(matches, size, len(self._table))
        return cached

    def _kv_source(self, found: Decision, holder: Holder | None) -> KvSource | None:
        """The holder, if it has at least one block more than the chosen replica and computes the
        same."""
        if holder is None:
            return None
        row = self._table.row(found.replica)
        num_missing = holder.num_tokens - found.cached_tokens
        block_tokens = self._table.counts["block_tokens"].item(row)
        if num_missing < max(1, block_tokens) or not may_receive(self._table, holder)[row]:
            return None
        return KvSource(self._table.names[holder.row], holder.num_tokens)

    def _explained(
        self, costs: Floats, waits: PredictedWaits, cached: Ints, num_able: int, backlog_ms: float
    ) -> Decision:
        best = ranked(costs, min(num_able, MAX_CONSIDERED))
        chosen = choose(costs, best, self._policy, self._rng)
        runner_up = next((row for row in best if row != chosen), None)

        def candidate(row: int) -> Candidate:
            name = self._table.names[row]
            region = self._table.region_names[row]
            identity = self._table.identities[row]
            return Candidate(name, region, waits.at(row), cached.item(row), identity)

        return Decision(
            chosen=candidate(chosen),
            runner_up=None if runner_up is None else candidate(runner_up),
            considered=tuple(
                zip(
                    map(self._table.names.__getitem__, best),
                    waits.total_ms[best].tolist(),
                    strict=True,
                )
            ),
            num_able=num_able,
            least_backlog_ms=backlog_ms,
        )


def costs_ms(waits: PredictedWaits, able: Bools, regions: Ints, policy: PlacementPolicy) -> Floats:
    """[rows] cost of each replica; infinite for one that may not have the session. `regions`:
    [rows] codes of the regions. At least one replica has to be able."""
    costs = np.where(able, waits.total_ms, np.inf)
    nearest = regions == regions[costs.argmin()]
    share = _busy_share(waits, able & nearest)
    weight = policy.work_weight + (policy.busy_work_weight - policy.work_weight) * share
    costs += weight * waits.work_ms
    return costs


def _busy_share(waits: PredictedWaits, among: Bools) -> float:
    """Share of these replicas, at least one, that have prompts waiting."""
    num_busy = np.count_nonzero(among & (waits.queue_ms > 0.0))
    return num_busy / np.count_nonzero(among)


def choose(costs: Floats, best: list[int], policy: PlacementPolicy, rng: Random) -> int:
    """The row of the chosen replica. `best`: as `ranked`, three or all that have a finite cost."""
    first = best[0]
    limit_ms = costs.item(first) + policy.near_ms
    if len(best) < 3 or costs.item(best[2]) > limit_ms:
        return first
    near = (costs <= limit_ms).nonzero()[0]
    one, other = rng.sample(range(len(near)), 2)
    return int(min(near[one], near[other], key=lambda row: (costs[row], row)))


def ranked(costs: Floats, count: int) -> list[int]:
    """The rows of the `count` least costs, best first; of equal ones the first row. No more than
    are finite."""
    if len(costs) <= _SORTED_WHOLE:
        rows = costs.argsort(kind="stable")[:count]
    else:
        some = np.sort(costs.argpartition(count - 1)[:count])
        rows = some[costs[some].argsort(kind="stable")]
    ordered: list[int] = rows.tolist()
    return ordered
