"""One measurement: chats that decode steadily, and the processor time of everybody meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import math
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from bench.cost.load import Job
from bench.harness import processor_time
from bench.harness.mesh import HOST, mesh, replica_rows
from bench.harness.paced_replica import CONTEXT_TOKENS, Control, program
from bench.harness.processes import child, read_json, write_json
from outrider.children import PipedProcess
from outrider.cli.local import development_key
from outrider.cli.local.mesh import KEYS_FILE
from outrider.models.catalog import DEFAULT_MODEL
from outrider.process import Ports
from outrider.testing import free_tcp_port

STEADY_S: Final = 90.0
"""How long chats may take to be steady."""
SETTLE_S: Final = 1.0
"""From when they are steady to the beginning of what is measured."""
NUM_WINDOWS: Final = 3
_LEAST_TICKS: Final = 10
"""Of a window."""
_OPENING_COMMITS_PER_S: Final = 2000.0
"""Of all chats together while they open, which says how long engine calls are meanwhile: a call
takes the prompts of a dozen chats, and more commits than these may be more than is carried."""
_LEAST_OPENING_MS: Final = 10.0
"""Of an engine call meanwhile."""
_MANY: Final = 4096
SETTINGS: Final[Mapping[str, Mapping[str, object]]] = {
    "inference": {
        "scheduler.max_sessions": 1000,
        "scheduler.max_queue": _MANY,
        "scheduler.max_batch_tokens": 16_384,
        "scheduler.max_tick_ms": 10_000.0,
        "scheduler.low_tick_ms": 10_000.0,
        "warm_up_rows": 0,
        "learnt.keep": False,
    },
    "router": {
        "max_sessions_per_stream": 1024,
        "admission.max_above_low_per_address": _MANY,
        "admission.slo_ttft_medium_ms": 60_000.0,
        "admission.slo_ttft_low_ms": 60_000.0,
    },
    "edge": {
        "drafter.model": "none",
        "max_context_tokens": CONTEXT_TOKENS,
        "learnt.keep": False,
        "quic.max_connections": _MANY,
        "quic.max_connections_per_address": _MANY,
        "quic.max_chats_per_address": _MANY,
        "quic.max_chats_per_client": _MANY,
        "quic.max_streams_per_address": _MANY,
        "quic.loop_share_per_address": 1.0,
    },
}
"""By role, what is not the default. Limits per address are raised: all clients come from here."""


@dataclass(frozen=True, slots=True)
class CostMesh:
    """A mesh that is up."""

    ca: Path
    key: str
    edge: Ports
    replica: Control
    pids: Mapping[str, int]
    """By role."""


@contextlib.asynccontextmanager
async def cost_mesh() -> AsyncIterator[CostMesh]:
    """An edge, a router and a paced replica, with certificates as `outrider up` has them."""
    async with mesh("cost", is_secure=True) as made:
        control, region = free_tcp_port(), "local"
        quiet = {"log_level": "error"}
        replica = made.service(
            "replica",
            "inference",
            {"replica": "replica", **quiet, **SETTINGS["inference"]},
            region=region,
            program=program(control),
        )
        values = {"default_model": DEFAULT_MODEL.name, "replicas": replica_rows([replica])}
        router = made.service(
            "router", "router", {**values, **quiet, **SETTINGS["router"]}, region=region
        )
        key, _ = development_key.ensure(made.folder)
        edge = made.service(
            "edge",
            "edge",
            {
                "routers": (router.address,),
                "state_dir": str(made.folder),
                "http": {"host": HOST, "port": 0, "max_connections": _MANY},
                "access": {"keys_file": str(made.folder / KEYS_FILE)},
                **quiet,
                **SETTINGS["edge"],
            },
            region=region,
        )
        for service in (replica, router, edge):
            await made.start(service)
        pids = {"edge": edge.pid, "router": router.pid, "replica": replica.pid}
        async with Control(control) as asked:
            yield CostMesh(made.ca, key, edge.ports, asked, pids)


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
class Window:
    """What some whole engine calls took."""

    seconds: float
    num_tokens: int
    """Final ones, at the replica."""
    num_events: int
    """Commits that clients had."""
    cpu_ns: Mapping[str, int]
    """By role: client, edge, router, streams (of the replica), scheduler (of the replica)."""


@dataclass(frozen=True, slots=True)
class Cost:
    """All windows of a load."""

    load: Load
    tick_ms: float
    """Of an engine call, as it was told."""
    windows: Sequence[Window]
    gaps_ms: Sequence[float]
    """Between two commits of one chat."""
    num_failed: int = 0
    error: str = ""

    def us_per_token(self, *roles: str) -> list[float]:
        """Of these roles together, window by window."""
        return [
            sum(window.cpu_ns[role] for role in roles) / 1e3 / max(1, window.num_tokens)
            for window in self.windows
        ]

    def total(self, name: str) -> float:
        """The sum of a field of all windows."""
        return float(sum(getattr(window, name) for window in self.windows))

    @property
    def busy_cores(self) -> float:
        spent = sum(sum(window.cpu_ns.values()) for window in self.windows)
        return spent / 1e9 / self.total("seconds")


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


async def counted(client: PipedProcess) -> dict[str, Any]:
    """What came since the last time."""
    write_json(client, {})
    return await read_json(client)


async def without_chats(made: CostMesh) -> None:
    """Return once the engine has nothing to do. Raises RuntimeError if it goes on."""
    try:
        async with asyncio.timeout(STEADY_S):
            calls, before = (await made.replica.ask(fixed_ms=1.0))["calls"], -1
            while calls != before:
                await asyncio.sleep(SETTLE_S)
                calls, before = (await made.replica.ask())["calls"], calls
    except TimeoutError:
        raise RuntimeError("chats of the measurement before go on") from None


async def idle(made: CostMesh, seconds: float) -> dict[str, float]:
    """Cores that each process uses without a chat."""
    before = {role: processor_time.of_threads(pid) for role, pid in made.pids.items()}
    await asyncio.sleep(seconds)
    return {
        role: processor_time.between(before[role], processor_time.of_threads(pid)) / 1e9 / seconds
        for role, pid in made.pids.items()
    }


async def measure(made: CostMesh, load: Load, tick_ms: float, seconds: float) -> Cost:
    """Open these chats, and measure windows of about so long, which begin and end with an engine
    call. Raises RuntimeError if they come to nothing."""
    await without_chats(made)
    # What a draft's row costs is learnt from earlier calls. Calls that take longer from one moment
    # on, when all chats are there, look like the price of the chats that came last.
    are_drafts_right = load.repetition > 0.0
    fastest_ms = max(_LEAST_OPENING_MS, load.chats / _OPENING_COMMITS_PER_S * 1e3)
    opening_ms = tick_ms if are_drafts_right else fastest_ms
    await made.replica.ask(fixed_ms=opening_ms, repetition=load.repetition)
    job = Job(
        load.protocol,
        HOST,
        made.edge.main if load.protocol == "native" else made.edge.http,
        load.chats,
        load.per_connection,
        load.provisional,
        ca=str(made.ca),
        key=made.key,
        nonce=time.time_ns(),
    )
    num_ticks = max(_LEAST_TICKS, math.ceil(seconds * 1e3 / tick_ms))
    windows, gaps_ms, counts = [], [], []
    async with clients(job) as client:
        await made.replica.ask(fixed_ms=tick_ms, calls=2)
        pids = {"client": client.pid, **made.pids}
        before = await _read(made, client, pids, num_ticks=1)
        counts.append(before.client)
        for _ in range(NUM_WINDOWS):
            after = await _read(made, client, pids, num_ticks)
            windows.append(_between(before, after))
            gaps_ms += after.client["gaps_ms"]
            counts.append(after.client)
            before = after
    failures = [count["error"] for count in counts if count["error"]]
    num_failed = sum(count["failed"] for count in counts)
    return Cost(load, tick_ms, windows, gaps_ms, num_failed, "".join(failures[:1]))


@dataclass(frozen=True, slots=True)
class _Reading:
    at: float
    engine: Mapping[str, Any]
    client: Mapping[str, Any]
    threads: Mapping[str, Mapping[int, int]]
    """By role, then by thread: nanoseconds."""


async def _read(
    made: CostMesh, client: PipedProcess, pids: Mapping[str, int], num_ticks: int
) -> _Reading:
    """When so many further calls have ended."""
    engine = await made.replica.ask(calls=num_ticks)
    threads = {role: processor_time.of_threads(pid) for role, pid in pids.items()}
    at = time.monotonic()
    return _Reading(at, engine, await counted(client), threads)


def _between(before: _Reading, after: _Reading) -> Window:
    used = {
        role: processor_time.between(before.threads[role], threads)
        for role, threads in after.threads.items()
    }
    thread = after.engine["thread"]
    model = after.threads["replica"][thread] - before.threads["replica"].get(thread, 0)
    used["streams"] = used.pop("replica") - model
    used["scheduler"] = model - (after.engine["cpu_ns"] - before.engine["cpu_ns"])
    return Window(
        after.at - before.at,
        after.engine["tokens"] - before.engine["tokens"],
        after.client["events"],
        used,
    )
