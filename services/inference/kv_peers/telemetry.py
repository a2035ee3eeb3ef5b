"""Metrics of KV between replicas."""

from __future__ import annotations

from typing import Final

from outrider.telemetry.families import Family

PEER_BLOCKS: Final = Family(
    "outrider_kv_peer_blocks",
    "Blocks of KV between replicas, by what became of them: loaded, missing, refused (damaged, or "
    "not what was asked for), late (the engine was sooner, or too much waited for it), served.",
)
PEER_FAILURES: Final = Family(
    "outrider_kv_peer_failures",
    "Requests to other replicas for KV that failed: slow, full, gone, refused, answered wrongly.",
)
KEPT_BLOCKS: Final = Family(
    "outrider_kv_ahead_blocks",
    "Blocks of KV of sessions that other replicas serve, copied ahead of need: kept, missing (not "
    "sent), refused (damaged, or not what was asked for), dropped (no room, or too many wait).",
)
