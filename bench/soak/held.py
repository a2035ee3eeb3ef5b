"""What a process holds: tasks, threads and files as it counts them itself, and its memory."""

from __future__ import annotations

import asyncio
import urllib.request
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from bench.harness import quantile
from outrider.telemetry import names

MAX_GROWTH_MB = 5.0
"""MB per 1,000 sessions that the replica may grow: 5 KB a session. One that is never let go of
takes more, with its prompt, its reply and its spans."""
_COUNTED = {
    names.PROCESS_TASKS: "tasks",
    names.PROCESS_THREADS: "threads",
    names.PROCESS_FILES: "files",
}
_SETTLE_S = 20.0
_POLL_S = 0.5


async def held_resources(metrics_url: str) -> Counter[str]:
    """Tasks, threads and files, the one scrape included."""
    text = await asyncio.to_thread(_read, metrics_url)
    families = text_string_to_metric_families(text)
    values = {family.name: int(family.samples[0].value) for family in families if family.samples}
    return Counter({kind: values[name] for name, kind in _COUNTED.items()})


async def left_over(metrics_url: str, before: Counter[str]) -> Counter[str]:
    """What the process goes on holding more than before; what is on its way out gets a while."""
    loop = asyncio.get_running_loop()
    end = loop.time() + _SETTLE_S
    while True:
        left = await held_resources(metrics_url) - before
        if not left or loop.time() > end:
            return left
        await asyncio.sleep(_POLL_S)


def rss_mib(pid: int) -> float:
    """Resident memory. Raises RuntimeError for a process that has ended."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"process {pid} has ended")


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


def _read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:
        text: str = answer.read().decode()
    return text
