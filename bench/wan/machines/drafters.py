"""What an edge drafts with, as it says itself."""

from __future__ import annotations

import asyncio
import urllib.request

from prometheus_client.parser import text_string_to_metric_families

from services.edge.drafter.metrics import STATE, DrafterState

_POLL_S = 0.2
_LOAD_LIMIT_S = 300.0


async def settled(host: str, admin_port: int) -> DrafterState:
    """Of the edge's drafter, once it is no longer loading its model. Raises TimeoutError."""
    async with asyncio.timeout(_LOAD_LIMIT_S):
        while True:
            state = await asyncio.to_thread(_state, f"http://{host}:{admin_port}/metrics")
            if state not in (DrafterState.STARTING, DrafterState.RESTARTING):
                return state
            await asyncio.sleep(_POLL_S)


def _state(url: str) -> DrafterState:
    with urllib.request.urlopen(url, timeout=10) as answer:
        text = answer.read().decode()
    values = [
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == STATE.replace(".", "_")
    ]
    return DrafterState(int(values[0])) if values else DrafterState.OFF
