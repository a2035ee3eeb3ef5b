"""A region of three is lost while chats run: what is lost of them, and how long they pause.

Three regions, the edges and the clients are hosts of their own: network namespaces, with delay
between them. The region that is nearest to the edges loses its power (every process dies and nobody
is told), its processes, or its network, in one direction or both. Every reply is compared with the
reference's, token by token. The pause of a chat is the longest time between two commits of its
reply from then on. The engine is the fake one, whose calls wait as a GPU's would: what is measured
is how soon the loss is noticed and the chats go on, not how fast prompts are computed again.
Needs root.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass, field

from bench.faults.chats import ChatTotals, ReferenceChat, make_reference_chats
from bench.harness import Run, parser, start
from bench.regions.hosts import enter_own_network
from bench.regions.incidents import INCIDENTS, interrupted
from bench.regions.mesh import ONE_WAY_MS, RegionalMesh, running

NUM_CHATS = 200
NUM_TOKENS = 60
CALL_MS = 200.0


@dataclass(slots=True)
class Seen:
    """What the chats saw of one incident."""

    totals: list[ChatTotals] = field(default_factory=list)
    pauses_ms: list[float] = field(default_factory=list)


async def _measure(
    references: list[ReferenceChat], num_chats: int, num_rounds: int
) -> dict[str, Seen]:
    seen = {name: Seen() for name in INCIDENTS}
    async with running(CALL_MS) as mesh:
        for turn in range(num_rounds):
            for name, incident in INCIDENTS.items():
                totals, pauses_ms = await interrupted(mesh, incident, references, num_chats)
                seen[name].totals.append(totals)
                seen[name].pauses_ms += pauses_ms
                _tell(f"round {turn + 1} of {num_rounds}, {name}", totals, pauses_ms, mesh)
    return seen


def _tell(what: str, totals: ChatTotals, pauses_ms: list[float], mesh: RegionalMesh) -> None:
    for error in totals.errors[:3]:
        print(f"FAILED {what}: {error}", file=sys.stderr)
    if totals.problem:
        mesh.made.files.failed = f"{what}: {totals.problem}"
    longest = max(pauses_ms, default=0.0)
    print(f"{what}: {totals.problem or 'exact'}, longest pause {longest:.0f} ms", file=sys.stderr)


def report(run: Run, seen: dict[str, Seen]) -> None:
    """A row for each incident, and how many replies were not the reference's."""
    table = run.table(
        "Chats under way when something happened to the region nearest to the edges, and the "
        "longest pause of each since, ms",
        "to the region", "times", "chats", "failed", "tokens lost", "tokens doubled",
        "replies that differ", "pause p50", "p95", "p99", "longest",
    )  # fmt: skip
    problems = []
    for name, it in seen.items():
        sums = [sum(getattr(one, key) for one in it.totals) for key in ("lost", "doubled")]
        failed = sum(len(one.errors) for one in it.totals)
        differ = sum(one.inexact for one in it.totals)
        tail = (table.quantile(it.pauses_ms, share) for share in (0.95, 0.99))
        pauses = (table.median(it.pauses_ms), *tail, max(it.pauses_ms, default=0.0))
        table.add(name, len(it.totals), len(it.pauses_ms), failed, *sums, differ, *pauses)
        run.samples(f"pause, {name}", it.pauses_ms, unit="ms")
        problems += [one.problem for one in it.totals if one.problem]
    run.figures["problems"] = problems


def main() -> int:
    arguments = parser("regions", __doc__ or "").parse_args()
    enter_own_network()
    run = start("regions", arguments)
    num_chats, num_rounds = (20, 1) if run.quick else (NUM_CHATS, 3)
    delays = {f"{one} to {other}": ms for (one, other), ms in ONE_WAY_MS.items()}
    run.setting("network", one_way_ms=delays)
    run.setting("chats", at_once=num_chats, tokens=NUM_TOKENS, call_ms=CALL_MS)
    references = make_reference_chats("fake", NUM_TOKENS)
    report(run, asyncio.run(_measure(references, num_chats, num_rounds)))
    run.finish()
    return int(bool(run.figures["problems"]))


if __name__ == "__main__":
    sys.exit(main())
