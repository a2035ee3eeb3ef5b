"""A thousand streams at once through a real router process to a real replica process.

The replica's engine is fake and paced: what is watched is whether memory grows with the sessions
that are over. When a reply has ended, the next is asked for at once, so that as many streams are
open all the time. Every stream is asked for whole: nobody cancels, has a deadline or sends drafts
or bad input; those are `live`'s.

Much grows at first and is bounded: the prefix cache keeps a record of each block until its pool is
full, and so do the log of its changes and the router's copy. So the run warms up until sessions
enough are over to have filled all of them, and growth is judged after that.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

from bench.harness import quantile
from bench.harness.region_client import RegionClient
from bench.peers.routing.fleets import Pace, Started, start_replica, start_router
from bench.peers.routing.replica import DIGEST, coder
from bench.peers.routing.workload import FIRST_ID, NUM_IDS
from outrider.errors import OutriderError
from outrider.sampling.params import SamplingParams
from outrider.v1 import common_pb2

WARM_UP_S = 60.0
"""Shortest warm-up, seconds."""
WARM_UP_SESSIONS = 5000
"""Sessions that have to have ended before the warm-up is over. Each leaves some two full blocks
behind: the pool has 6,144, the log of changes keeps 8,192 (streaming.block_feed)."""
MAX_GROWTH_MB = 1.0
"""MB per 1,000 sessions that a process may grow after the warm-up: 1 KB a session. A session that
somebody forgets to let go of takes several, with its prompt, its reply and its spans."""
PACE = Pace(700.0, 0.0)
"""Slow enough that two cores carry a token of each stream in every call."""
_NUM_BLOCKS = 6144
_PATIENT = (
    *("silence_s = 60.0", "probe_timeout_s = 20.0", "suspect_s = 120.0"),
    "[router.hang]",
    *("min_silence_s = 60.0", "stall_s = 600.0"),
    "[router.admission]",
    *(f"slo_ttft_{name}_ms = 60000.0" for name in ("high", "medium", "low")),
)
"""A call of a thousand sessions on two busy cores is slow: that is no fault here, nor too late."""
_SAMPLE_S = 1.0


@dataclass(slots=True)
class StreamTotals:
    """Counts of the whole run; times and memory after the warm-up."""

    seconds: float = 0.0
    ends: Counter[str] = field(default_factory=Counter)
    num_tokens: int = 0
    wrong: int = 0
    """Replies that were not as long as asked for."""
    num_open: list[int] = field(default_factory=list)
    """Streams at the moments of the samples."""
    num_over: list[int] = field(default_factory=list)
    """Sessions that had ended at those moments, since the start."""
    rss_mib: dict[str, list[float]] = field(default_factory=dict)
    """By process; one sample a second after the warm-up."""
    warm_up_s: float = 0.0
    """How long the warm-up took."""
    ttft_ms: list[float] = field(default_factory=list)


def growth_mb(rss_mib: Sequence[float], num_over: Sequence[int]) -> float:
    """MB per 1,000 sessions, from the second third of the samples to the last one: the difference
    of the thirds' medians, of the memory and of the sessions that were over. Medians, since single
    samples jump with the allocator. Raises ValueError where no session ended in between."""
    part = len(rss_mib) // 3
    middle, last = slice(part, 2 * part), slice(2 * part, None)
    num_sessions = quantile(num_over[last], 0.5) - quantile(num_over[middle], 0.5)
    if num_sessions <= 0:
        raise ValueError("too short a run: no session ended between its second third and its last")
    grown_mib = quantile(rss_mib[last], 0.5) - quantile(rss_mib[middle], 0.5)
    return grown_mib * 2**20 / 1e6 / (num_sessions / 1000)


class Streams:
    """`count` workers, each of which opens one stream after the other."""

    def __init__(self, count: int, seed: int, pace: Pace = PACE) -> None:
        self._count = count
        self._pace = pace
        self._random = random.Random(seed)
        ids = range(FIRST_ID, FIRST_ID + NUM_IDS)
        self._shared = [tuple(self._random.choices(ids, k=32)) for _ in range(50)]
        self._ids = ids
        self._num_open = 0
        self._measuring = self._over = False
        self._ended = asyncio.Event()
        """Set when a session ends."""
        self.totals = StreamTotals()

    async def run(
        self,
        seconds: float,
        warm_up_s: float = WARM_UP_S,
        warm_up_sessions: int = WARM_UP_SESSIONS,
    ) -> StreamTotals:
        """`seconds`: of what is measured. Raises RuntimeError if a process ends meanwhile."""
        settings = {
            "scheduler.max_sessions": self._count + 24,
            "scheduler.max_batch_tokens": 16 * (self._count + 64),
            # Nobody waits long for a first token: it is streams that are to be many, not prompts.
            "scheduler.prefill_chunk_tokens": 8 * (self._count + 64),
            "scheduler.max_tick_ms": 10_000,
            "scheduler.prefill_stretch": 100,
            "num_blocks": _NUM_BLOCKS,
        }
        async with AsyncExitStack() as stack:
            replica = await stack.enter_async_context(start_replica(0, self._pace, settings))
            router = await stack.enter_async_context(start_router([replica.address], _PATIENT))
            client = RegionClient(coder(), router.address.grpc, via_router=True)
            await stack.enter_async_context(client)
            gap_s = warm_up_s / 2 / self._count
            workers = [
                asyncio.create_task(self._work(client, number * gap_s))
                for number in range(self._count)
            ]
            begin = time.monotonic()
            await asyncio.sleep(warm_up_s)
            await self._warmed_up(warm_up_sessions, workers)
            self.totals.warm_up_s = time.monotonic() - begin
            await self._watch({"router": router, "replica": replica}, seconds)
            self._over = True
            await asyncio.gather(*workers)
        return self.totals

    async def _warmed_up(self, num_sessions: int, workers: Sequence[asyncio.Task[None]]) -> None:
        """Return once `num_sessions` have ended. Raises the error of a worker that failed."""
        while self.totals.ends.total() < num_sessions:
            self._ended.clear()
            ended = asyncio.create_task(self._ended.wait())
            done, _ = await asyncio.wait((ended, *workers), return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()

    async def _watch(self, started: dict[str, Started], seconds: float) -> None:
        self._measuring, begin = True, time.monotonic()
        while time.monotonic() < begin + seconds:
            self.totals.num_open.append(self._num_open)
            self.totals.num_over.append(self.totals.ends.total())
            for name, one in started.items():
                if one.process.returncode is not None:
                    raise RuntimeError(f"the {name} ended with status {one.process.returncode}")
                self.totals.rss_mib.setdefault(name, []).append(_rss_mib(one.process.pid))
            await asyncio.sleep(_SAMPLE_S)
        self.totals.seconds = time.monotonic() - begin

    async def _work(self, client: RegionClient, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        while not self._over:
            await self._ask(client)

    async def _ask(self, client: RegionClient) -> None:
        chance = self._random
        own = chance.choices(self._ids, k=chance.randint(2, 32))
        length = chance.randint(32, 96)
        self._num_open += 1
        try:
            reply = await client.generate(
                (*chance.choice(self._shared), *own),
                SamplingParams(max_tokens=length, ignore_eos=True),
                digest=DIGEST,
                speculation=common_pb2.SPECULATION_OFF,
            )
        except OutriderError as error:
            self.totals.ends[error.reason] += 1
            await asyncio.sleep(max(0.1, error.retry_delay_ms / 1e3))
            return
        finally:
            self._num_open -= 1
        self.totals.ends["finished"] += 1
        self._ended.set()
        self.totals.wrong += len(reply.ids) != length
        if self._measuring:
            self.totals.num_tokens += length
            self.totals.ttft_ms.append(reply.ttft_ms)


def _rss_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"process {pid} has no memory")
