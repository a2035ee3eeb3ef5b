"""What a process holds, by its admin port."""

from __future__ import annotations

import asyncio
import urllib.request
from dataclasses import astuple, dataclass

from prometheus_client.parser import text_string_to_metric_families

from outrider.telemetry import names

_SETTLE_S = 20.0
_POLL_S = 0.5


@dataclass(frozen=True, slots=True)
class Holdings:
    """Counted by the process itself, the one scrape included."""

    tasks: int
    threads: int
    files: int

    def beyond(self, before: Holdings) -> Holdings:
        """What there is more than before."""
        pairs = zip(astuple(self), astuple(before), strict=True)
        return Holdings(*(max(0, now - then) for now, then in pairs))


async def holdings(metrics_url: str) -> Holdings:
    """Scrape it once."""
    text = await asyncio.to_thread(_read, metrics_url)
    values = {
        family.name: int(family.samples[0].value)
        for family in text_string_to_metric_families(text)
        if family.name.startswith("outrider_process")
    }
    return Holdings(
        values[names.PROCESS_TASKS], values[names.PROCESS_THREADS], values[names.PROCESS_FILES]
    )


async def left_over(metrics_url: str, before: Holdings) -> Holdings:
    """What the process goes on holding more than before; what is on its way out gets a while."""
    loop = asyncio.get_running_loop()
    end = loop.time() + _SETTLE_S
    while True:
        left = (await holdings(metrics_url)).beyond(before)
        if not any(astuple(left)) or loop.time() > end:
            return left
        await asyncio.sleep(_POLL_S)


def _read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:
        text: str = answer.read().decode()
    return text
