"""One measurement: chats that decode steadily, and the processor time of everybody meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from bench.cost import processor_time
from bench.cost.load import Job
from bench.cost.mesh import CostMesh
from bench.harness.processes import child, read_json, write_json
from outrider.children import PipedProcess

STEADY_S: Final = 90.0
"""How long chats may take to be steady."""
SETTLE_S: Final = 1.0
"""From when they are steady to the beginning of what is measured."""
_OPENING_COMMITS_PER_S: Final = 2000.0
"""Of all chats together while they open, which says how long engine calls are meanwhile: a call
takes the prompts of a dozen chats, and more commits than these may be more than is carried."""
_LEAST_OPENING_MS: Final = 10.0
"""Of an engine call meanwhile."""


@dataclass(frozen=True, slots=True)
class Load:
    """What is measured at once."""

    chats: int
    protocol: str = "native"
    provisional: bool = False
    per_connection: int = 64
    """Chats of one client connection, native protocol alone."""
    repetition: float = 0.0
    """Share of tokens that follow from the one before: of those most drafts are right."""

    @property
    def label(self) -> str:
        if self.protocol != "native":
            return "HTTP"
        shown = "provisional text" if self.provisional else "no provisional text"
        alone = ", a connection each" if self.per_connection == 1 else ""
        repeats = ", text that repeats itself" if self.repetition else ""
        return f"native, {shown}{alone}{repeats}"


@dataclass(frozen=True, slots=True)
class Cost:
    """What a window took."""

    load: Load
    tick_ms: float
    """Of an engine call, as it was told."""
    seconds: float
    num_tokens: int
    """Final ones, at the replica."""
    num_calls: int
    """Of the engine."""
    num_events: int
    """Commits that clients had."""
    gaps_ms: tuple[float, ...]
    """Between two of them in one chat."""
    cpu_ns: Mapping[str, int]
    """By role: client, edge, router, streams (of the replica), scheduler (of the replica)."""
    num_failed: int
    error: str

    def us_per_token(self, role: str) -> float:
        return self.cpu_ns[role] / 1e3 / max(1, self.num_tokens)

    def tokens_per_core_s(self, role: str) -> float:
        """What one core of the role would carry."""
        return 1e6 / max(1e-9, self.us_per_token(role))

    @property
    def busy_cores(self) -> float:
        return sum(self.cpu_ns.values()) / 1e9 / self.seconds


@contextlib.asynccontextmanager
async def clients(job: Job) -> AsyncIterator[PipedProcess]:
    """In a process of their own, once all their chats are steady. Raises RuntimeError."""
    async with child(sys.executable, "-m", "bench.cost.load") as process:
        write_json(process, asdict(job))
        try:
            async with asyncio.timeout(STEADY_S):
                await read_json(process)
        except TimeoutError:
            write_json(process, {})
            counts = await read_json(process)
            while "failed" not in counts:  # steady by now, and too late
                counts = await read_json(process)
            raise RuntimeError(
                f"not steady: {counts['failed']} failed, {counts['error']}"
            ) from None
        await asyncio.sleep(SETTLE_S)
        yield process
        process.stdin.close()
        await process.wait()


async def without_chats(mesh: CostMesh) -> None:
    """Return once the engine has nothing to do. Raises RuntimeError if it goes on."""
    try:
        async with asyncio.timeout(STEADY_S):
            calls, before = (await mesh.ask(tick_ms=1.0))["calls"], -1
            while calls != before:
                await asyncio.sleep(SETTLE_S)
                calls, before = (await mesh.ask())["calls"], calls
    except TimeoutError:
        raise RuntimeError("chats of the measurement before go on") from None


async def idle(mesh: CostMesh, seconds: float) -> dict[str, float]:
    """Cores that each process uses without a chat."""
    before = {role: processor_time.of_threads(pid) for role, pid in mesh.pids.items()}
    await asyncio.sleep(seconds)
    return {
        role: processor_time.between(before[role], processor_time.of_threads(pid)) / 1e9 / seconds
        for role, pid in mesh.pids.items()
    }


async def measure(mesh: CostMesh, load: Load, tick_ms: float, seconds: float) -> Cost:
    """Open these chats, and measure for so long. Raises RuntimeError if they come to nothing."""
    await without_chats(mesh)
    # What a draft's row costs is learnt from earlier calls. Calls that take longer from one moment
    # on, when all chats are there, look like the price of the chats that came last.
    are_drafts_right = load.repetition > 0.0
    fastest_ms = max(_LEAST_OPENING_MS, load.chats / _OPENING_COMMITS_PER_S * 1e3)
    opening_ms = tick_ms if are_drafts_right else fastest_ms
    await mesh.ask(tick_ms=opening_ms, repetition=load.repetition)
    is_native = load.protocol == "native"
    job = Job(
        load.protocol,
        "127.0.0.1",
        mesh.edge.main if is_native else mesh.edge.http,
        load.chats,
        load.per_connection,
        load.provisional,
        ca=str(mesh.ca),
        key=mesh.key,
        nonce=time.time_ns(),
    )
    async with clients(job) as client:
        await mesh.ask(tick_ms=tick_ms)
        await asyncio.sleep(2 * tick_ms / 1e3)
        pids = {"client": client.pid, **mesh.pids}
        before, counted = await _read(mesh, client, pids)
        began = asyncio.get_running_loop().time()
        await asyncio.sleep(seconds)
        took = asyncio.get_running_loop().time() - began
        after, counts = await _read(mesh, client, pids)
    engine_before, engine_after = before.engine, after.engine
    used = {
        role: processor_time.between(before.threads[role], after.threads[role]) for role in pids
    }
    thread = engine_after["thread"]
    model = after.threads["replica"][thread] - before.threads["replica"].get(thread, 0)
    engine_ns = engine_after["cpu_ns"] - engine_before["cpu_ns"]
    used["streams"] = used.pop("replica") - model
    used["scheduler"] = model - engine_ns
    return Cost(
        load,
        tick_ms,
        took,
        engine_after["tokens"] - engine_before["tokens"],
        engine_after["calls"] - engine_before["calls"],
        counts["events"],
        tuple(counts["gaps_ms"]),
        used,
        counts["failed"] + counted["failed"],
        counts["error"] or counted["error"],
    )


@dataclass(frozen=True, slots=True)
class _Reading:
    engine: Mapping[str, Any]
    threads: Mapping[str, Mapping[int, int]]
    """By role, then by thread: nanoseconds."""


async def _read(
    mesh: CostMesh, client: PipedProcess, pids: Mapping[str, int]
) -> tuple[_Reading, dict[str, Any]]:
    write_json(client, {})
    counts = await read_json(client)
    engine = await mesh.ask()
    threads = {role: processor_time.of_threads(pid) for role, pid in pids.items()}
    return _Reading(engine, threads), counts
