"""A few replicas and a placement over them, in virtual time."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random
from typing import Any

from outrider.codec.block_hashes import block_hashes, root_hash
from outrider.peers.health import HealthPolicy, PeerHealth, PeerState
from outrider.peers.round_trip import RoundTrip
from services.router.fleet.replica import PrefillLimits, Replica, ReplicaLoad, ServedModel
from services.router.placement.placement import Placement
from services.router.placement.types import Decision, PlacementPolicy
from services.router.prefix_index.index import PrefixIndex, PrefixIndexLimits
from services.router.session_request import SessionRequest

DIGEST, OTHER = b"\x01" * 32, b"\x02" * 32
BLOCK = 16
MODEL = ServedModel(
    "m", DIGEST, block_tokens=BLOCK, prefill_limits=PrefillLimits(256, 12, 40.0, 8.0, 1.25)
)
LOAD = ReplicaLoad(fixed_ms=10.0, row_ms=1.0)
ASK = SessionRequest("m", DIGEST, prompt_tokens=100)


def replica(
    name: str,
    *,
    region: str = "us-east",
    rtt_ms: float = 1.0,
    model: ServedModel | None = MODEL,
    expected_model: str = "",
    state: PeerState = PeerState.READY,
    load: ReplicaLoad | None = LOAD,
    reported_at: float = 0.0,
) -> Replica:
    return Replica(
        name=name,
        region=region,
        address="h:1",
        expected_model=expected_model,
        health=PeerHealth(HealthPolicy(), 0.0, state),
        rtt=RoundTrip(rtt_ms),
        model=model,
        load=load,
        reported_at=reported_at,
    )


def mover(name: str, load: ReplicaLoad = LOAD, **fields: Any) -> Replica:
    """One that computes the same as the others, so that they may have each other's KV."""
    return replica(name, load=load, **({"model": replace(MODEL, identity=b"i" * 32)} | fields))


class Table:
    """The least that placement wants of a fleet."""

    def __init__(self, replicas: Sequence[Replica]) -> None:
        self.rows = {row.name: row for row in replicas}
        self.changed: set[str] = set()

    def __iter__(self) -> Iterator[Replica]:
        return iter(self.rows.values())

    def find(self, name: str) -> Replica | None:
        return self.rows.get(name)


class Town:
    """Placement over a table, and the time."""

    def __init__(
        self, *replicas: Replica, seed: int = 1, report_ms: float = 50.0, **policy: Any
    ) -> None:
        self.table = Table(replicas)
        self.prefixes = PrefixIndex(PrefixIndexLimits())
        settings = {"near_ms": 0.0, "max_queued": 0, "work_weight": 0.0, **policy}
        settings.setdefault("busy_work_weight", settings["work_weight"])
        self.placement = Placement(
            self.table,
            self.prefixes,
            PlacementPolicy(**settings),
            Random(seed),
            report_ms=report_ms,
        )
        self.now = 100.0
        self._next = 1

    def decide(self, request: SessionRequest = ASK) -> Decision:
        return self.placement.decide(request, self.now)

    def send(self, request: SessionRequest = ASK) -> str:
        """Decide and put; the session's number is the last one given out."""
        decision = self.decide(request)
        self.placement.put(self._next, request, decision, self.now)
        self._next += 1
        return decision.replica

    def num_sessions(self, name: str) -> int:
        """As the placement counts them."""
        return self.placement.statuses(self.now)[name].num_sessions

    @property
    def last(self) -> int:
        """The session sent last."""
        return self._next - 1

    def report(self, name: str, load: ReplicaLoad) -> None:
        """A load report comes in now."""
        self.table.rows[name].load = load
        self.table.rows[name].reported_at = self.now
        self.table.changed.add(name)

    def asking(self, ids: Sequence[int], salt: bytes = b"") -> SessionRequest:
        """A session with this prompt."""
        packed = struct.pack(f"<{len(ids)}I", *ids)
        return SessionRequest("m", DIGEST, len(ids), prompt=self.prefixes.prompt(packed, salt))

    def hold(self, name: str, ids: Sequence[int], salt: bytes = b"") -> None:
        """A replica tells that it holds the prompt's full blocks."""
        blocks = list(block_hashes(ids, BLOCK, salt))
        self.prefixes.store(self.placement.owner(name), root_hash(salt), blocks)
