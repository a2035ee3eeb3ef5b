"""Where a session goes: constraints first, then the least cost in milliseconds. Pure.

docs/guides/placement.md explains the terms; every Decision says how it came about.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Protocol

import numpy as np

from services.router.fleet.replica import Replica
from services.router.placement import choice, constraints, prediction
from services.router.placement.board import Board, Bools, Floats, Ints
from services.router.placement.prediction import Waits
from services.router.placement.request import (
    LOW,
    Candidate,
    Decision,
    PlacementPolicy,
    Request,
    Standing,
)
from services.router.prefixes.index import PrefixIndex, mask_of, tokens_by_owner

MAX_CONSIDERED = 8
"""Replicas that a Decision lists."""


class Fleet(Protocol):
    """What is known of the replicas (services/router/fleet/registry.py)."""

    @property
    def changed(self) -> set[str]:
        """Names whose row changed, appeared or went since this was emptied."""

    def find(self, name: str) -> Replica | None:
        """The replica of that name, if there is one."""

    def __iter__(self) -> Iterator[Replica]: ...


class Placement:
    """Decides, and remembers what it decided until the replicas tell of it themselves."""

    def __init__(
        self, fleet: Fleet, prefixes: PrefixIndex, policy: PlacementPolicy, rng: Random
    ) -> None:
        self._fleet = fleet
        self._prefixes = prefixes
        self._policy = policy
        self._rng = rng
        self._board = Board()
        self._rows: dict[int, int] = {}
        fleet.changed.update(replica.name for replica in fleet)

    def decide(self, request: Request, now: float) -> Decision:
        """Choose a replica. Changes nothing: `put` tells that the session was sent there.

        Raises UnknownModelError, VocabularyMismatchError, NoReplicaError or OverloadedError; the
        message says which replicas stood where.
        """
        self._refresh()
        able = constraints.able(self._board, request, self._policy)
        num_able = int(np.count_nonzero(able))
        if not num_able:
            raise constraints.refusal(request, self._fleet, self._board)
        cached = self._cached(request, able)
        waits = prediction.predict(self._board, request, cached, self._policy, now)
        costs = choice.costs_ms(waits, able, self._board.counts["region"], self._policy)
        backlog_ms = np.minimum.reduce((waits.place_ms + waits.queue_ms)[able])
        return self._explained(costs, waits, cached, num_able, float(backlog_ms))

    def put(self, session: int, request: Request, decision: Decision, now: float) -> None:
        """A session was sent where it was decided. `session` is any number of the caller's, not
        in use."""
        row = self._board.row(decision.replica)
        if row < 0:
            return  # it left the fleet since
        wait = decision.wait
        work_ms = wait.prefill_ms + wait.transfer_ms
        self._board.put(row, session, work_ms, request.priority, now)
        self._rows[session] = row
        block_tokens = int(self._board.counts["block_tokens"][row])
        if request.prompt is not None and block_tokens:
            self._prefixes.expect(row, request.prompt, block_tokens, now)

    def release(self, session: int) -> None:
        """A session ended or left the replica it was on. Unknown ones are ignored."""
        row = self._rows.pop(session, -1)
        if row >= 0:
            self._board.release(row, session)

    def standings(self, now: float) -> dict[str, Standing]:
        """How every replica of the fleet stands, whether it may have sessions or not."""
        self._refresh()
        nothing = Request("", b"", 0, priority=LOW)
        cached = np.zeros(len(self._board), dtype=np.int64)
        waits = prediction.predict(self._board, nothing, cached, self._policy, now)
        counts = self._board.num_sessions[0]
        return {
            name: Standing(waits.at(row), int(counts[row]))
            for row, name in enumerate(self._board.names)
            if name
        }

    def owner(self, name: str) -> int:
        """A replica's number in the prefix index; -1 for one that is not in the fleet."""
        self._refresh()
        return self._board.row(name)

    def _refresh(self) -> None:
        """Take over what changed in the fleet."""
        if not self._fleet.changed:
            return
        changed = sorted(self._fleet.changed)  # rows, and so choices, do not depend on hashing
        self._fleet.changed.clear()
        gone = [name for name in changed if self._fleet.find(name) is None]
        for name in gone:
            row = self._board.remove(name)
            if row >= 0:
                self._prefixes.retire(row)
                self._rows = {s: r for s, r in self._rows.items() if r != row}
        for name in changed:
            replica = self._fleet.find(name)
            if replica is not None:
                self._board.update(replica)

    def _cached(self, request: Request, able: Bools) -> Ints:
        """[rows] prompt tokens that each able replica has."""
        cached = np.zeros(len(self._board), dtype=np.int64)
        if request.prompt is None:
            return cached
        for size in self._board.sizes():
            among = mask_of(able & (self._board.counts["block_tokens"] == size))
            steps = self._prefixes.match(request.prompt, size, among) if among else []
            if steps:
                cached += tokens_by_owner(steps, size, len(self._board))
        return cached

    def _explained(
        self, costs: Floats, waits: Waits, cached: Ints, num_able: int, backlog_ms: float
    ) -> Decision:
        chosen = choice.choose(costs, self._policy, self._rng)
        best = choice.ranked(costs, MAX_CONSIDERED)
        runner_up = next((row for row in best if row != chosen), None)

        def candidate(row: int) -> Candidate:
            name = self._board.names[row]
            region = self._board.region_names[row]
            return Candidate(name, region, waits.at(row), cached.item(row))

        return Decision(
            chosen=candidate(chosen),
            runner_up=None if runner_up is None else candidate(runner_up),
            considered=tuple((self._board.names[row], waits.total_ms.item(row)) for row in best),
            num_able=num_able,
            least_backlog_ms=backlog_ms,
        )
