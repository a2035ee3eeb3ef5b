"""How long starts take: a replica of the default model, cold (fetched, nothing converted) and warm,
and a whole mesh of two regions as `outrider up` starts it, until its first chat's first token.

Each start is of processes of their own, one after another, on a machine that does nothing else.
Processor time is that of the replica's process until it serves, all threads together.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.harness import Run, parser, start
from bench.harness.local_mesh import LocalMesh, local_mesh
from bench.models.replicas import KV_BYTES, replica_process
from outrider.client import Committed, connect
from outrider.models.catalog import DEFAULT_MODEL
from outrider.models.chat import Message
from outrider.models.store import ModelStore
from outrider.sampling.params import SamplingParams

NUM_COLD, NUM_WARM, NUM_MESHES = 2, 7, 5
AIM_REPLICA_S, AIM_MESH_S = 4.0, 10.0
QUESTION = "Why is the sky blue?"


@dataclass(slots=True)
class Starts:
    """Seconds of several starts of one kind."""

    wall_s: list[float] = field(default_factory=list)
    processor_s: list[float] = field(default_factory=list)


def processor_s(pid: int) -> float:
    """Processor time that a process's threads, ended ones included, have used (proc(5))."""
    fields = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


async def start_replica(starts: Starts, store: Path | None = None) -> None:
    """One replica, until it serves."""
    settings = {} if store is None else {"model_store": str(store)}
    async with replica_process(DEFAULT_MODEL.name, settings) as replica:
        starts.processor_s.append(processor_s(replica.pid))
        starts.wall_s.append(replica.start_s)


async def first_token(mesh: LocalMesh) -> None:
    """Connect, and ask for one token."""
    async with connect(*mesh.edge, ca=mesh.ca) as client:
        asked = client.chat([Message("user", QUESTION)], sampling=SamplingParams(max_tokens=1))
        async with asked as chat:
            async for event in chat:
                if isinstance(event, Committed):
                    return


def start_mesh(ready: Starts, answered: Starts) -> None:
    """One mesh, until it is ready, and until its first token."""
    began = time.monotonic()
    with local_mesh() as mesh:
        ready.wall_s.append(time.monotonic() - began)
        asyncio.run(first_token(mesh))
        answered.wall_s.append(time.monotonic() - began)


def measure(run: Run) -> dict[str, Starts]:
    """All starts, by their names in the table."""
    kinds = ("replica, cold", "replica, warm", "mesh, ready", "mesh, first token")
    cold, warm, ready, answered = found = [Starts() for _ in kinds]
    with tempfile.TemporaryDirectory(prefix="outrider-starts-") as work:
        for number in range(1 if run.quick else NUM_COLD):
            store = Path(work) / str(number)
            ModelStore(store).ensure(DEFAULT_MODEL.source, sha256=DEFAULT_MODEL.sha256)
            asyncio.run(start_replica(cold, store))
    asyncio.run(start_replica(Starts()))  # converts, where that was never done
    for _ in range(1 if run.quick else NUM_WARM):
        asyncio.run(start_replica(warm))
    for _ in range(1 if run.quick else NUM_MESHES):
        start_mesh(ready, answered)
    return dict(zip(kinds, found, strict=True))


def report(run: Run, found: dict[str, Starts]) -> None:
    """The table, and what it is held against."""
    table = run.table(
        "Seconds from the start of the first process: median, least and most",
        *("what", "n", "s", "least, s", "most, s", "processor time, s"),
    )
    for what, starts in found.items():
        wall, used = sorted(starts.wall_s), starts.processor_s
        row = (what, len(wall), _middle(wall), wall[0], wall[-1])
        table.add(*row, _middle(used) if used else "-")
        run.samples(what, wall, unit="s")
    run.figures["replica_over_aim"] = _middle(found["replica, warm"].wall_s) / AIM_REPLICA_S
    run.figures["mesh_over_aim"] = _middle(found["mesh, ready"].wall_s) / AIM_MESH_S


def _middle(values: Sequence[float]) -> float:
    """The upper one of two: a median of measured values alone."""
    return sorted(values)[len(values) // 2]


def main() -> int:
    run = start("starts", parser("starts", __doc__ or "").parse_args())
    run.setting("replica", threads=1, kv_bytes=KV_BYTES, model=DEFAULT_MODEL.name)
    report(run, measure(run))
    run.finish()
    return 0


if __name__ == "__main__":
    sys.exit(main())
