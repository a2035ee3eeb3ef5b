"""Every name that the source declares, and what of it scripted chats record."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import outrider
import services
from outrider.rpc import certificate_expiry as expiry
from outrider.telemetry import names
from services.edge.telemetry import edge
from services.edge.upstream import metrics as edge_routers
from services.inference.streaming import sessions as inference
from services.router import metrics as router
from services.router.relay import telemetry as router_sessions
from services.tokenizer import service as tokenizer

_CONSTANT: Final = re.compile(
    r'^([A-Z_]+): Final = (?:Family\(\s*)?"([a-z][a-z0-9_.]*[a-z0-9_])"(?:,|$)', re.MULTILINE
)
_OURS: Final = ("outrider.", "outrider_")


def declared() -> set[str]:
    """All constants of `outrider.telemetry.names`, and those of other modules that read like a
    metric's, a span's or an attribute's name."""
    return {
        name
        for path, _, name in _constants()
        if name.startswith(_OURS) or path == Path(names.__file__)
    }


def _constants() -> Iterator[tuple[Path, str, str]]:
    """Where each is, what it is called, and its value."""
    for package in (outrider, services):
        for path in Path(package.__path__[0]).rglob("*.py"):
            for constant, name in _CONSTANT.findall(path.read_text()):
                yield path, constant, name


def untold(wanted: set[str]) -> set[str]:
    """Of these names, those that no test's file says, nor their constant and its module."""
    root = Path(__file__).parents[2]
    texts = [path.read_text() for path in (root / "tests").rglob("test_*.py")]
    by_constant = {
        name: (constant, ".".join(path.relative_to(root).with_suffix("").parts))
        for path, constant, name in _constants()
    }

    def is_told(name: str) -> bool:
        return any(name in text or all(it in text for it in by_constant[name]) for text in texts)

    return {name for name in wanted if not is_told(name)}


COUNTED: Final = frozenset({
    *(names.TTFT, names.TOKEN_LATENCY, names.TICK_OVERHEAD, names.ENGINE_TIME),
    names.LOOP_LAG,
    *(names.DRAFTED_TOKENS, names.ACCEPTED_TOKENS),
    *(names.PROMPT_TOKENS, names.REUSED_TOKENS),
    *(names.GEN_AI_TTFT, names.GEN_AI_TIME_PER_TOKEN, names.GEN_AI_REQUEST_DURATION),
    *(names.GEN_AI_TOKEN_USAGE, names.TOKENIZATION, names.TOKENIZATION_TEXTS),
    *(names.TOKENIZATION_HITS, names.TOKENIZATION_CHARS, names.TOKENIZATION_HIT_CHARS),
    *(edge.CHATS, edge.TOKENS, edge.PREFILLED_TOKENS, edge.DRAFTS, edge.COMMITS, edge.MODE_CHATS),
    *(edge.COMMITTED_TTFT, edge.COMMITTED_CHATS),
    *(inference.KV_TOKENS,),
    *(router_sessions.PLACEMENTS, router_sessions.DECISION_TIME, router_sessions.FRAMES),
    *(router.TRANSITIONS,),
    *(router.WAIT, router.TENANT_SESSIONS, router.TENANT_TOKENS),
    *(router.TENANT_COST, tokenizer.REQUESTS, tokenizer.TOKENS),
})  # fmt: skip
"""Counters and histograms that the scripted chats move."""

SHOWN: Final = frozenset({
    *(names.BATCH_UTILIZATION, names.REJECTION_RATIO, names.PREFIX_HIT_RATIO),
    *(names.BUILD_INFO,),
    *(names.PROCESS_TASKS, names.PROCESS_THREADS, names.PROCESS_FILES, names.PROCESS_CLOCK),
    *(names.TOKENIZATION_CACHE_ENTRIES, names.TOKENIZATION_CACHE_BYTES),
    *(names.TOKENIZATION_BACKEND,),
    *(edge.API_KEYS, edge.KEYS_REVISION, edge.SERVED_MODELS, edge.LOADED_MODELS),
    *(edge.MODEL_LOADS, edge.WAITING_CHATS, edge.OPEN_CHATS, edge.OPEN_CONNECTIONS),
    *(edge.HALF_OPEN, edge.RTT, edge.INTERVAL, edge.LEAD, edge.ACCEPTANCE, edge.PREDICTED_GAIN),
    *(edge.FIRST_WORDS, edge.SHOWN_CHARS, edge.RETRACTIONS, edge.ERASED_CHARS),
    *(edge.SHOWN_TOKENS, edge.ERASED_TOKENS, edge.MODE_SWITCHES),
    *(edge.SOONER, edge.DISPLAY_CHATS),
    *(edge_routers.ROUTERS, edge_routers.ROUTER_STATE, edge_routers.ROUTER_RTT),
    *(edge_routers.ROUTER_QUARANTINES,),
    *(router_sessions.SESSIONS, router_sessions.REPLICAS),
    *(router.REPLICA_STATE, router.REPLICA_RTT, router.REPLICA_QUARANTINES),
    *(router.REPLICA_INCONSISTENT,),
    *(router.WAITING, router.DESIRED, router.SERVING, router.LATE_SHARE),
    *(router.WINDOW_REQUESTS, router.UTILIZATION),
    *(inference.RUNNING, inference.QUEUED, inference.OVERLOAD_LEVEL),
    *(inference.FREE_BLOCKS, inference.BLOCKS, expiry.NOT_AFTER),
})  # fmt: skip
"""Gauges that are there during the scripted chats, and counters that chance may leave at 0."""

SPANS: Final = frozenset({
    *(names.SPAN_CLIENT_CHAT, names.SPAN_EDGE_CHAT, names.SPAN_TOKENIZE, names.SPAN_ROUTE),
    *(names.SPAN_SESSION, names.SPAN_QUEUE, names.SPAN_PREFILL, names.SPAN_DECODE),
})  # fmt: skip

EVENTS: Final = frozenset({router_sessions.PLACED})

ATTRIBUTES: Final = frozenset({
    *(names.OPERATION, names.MODEL, names.ERROR_TYPE, names.REQUEST_ID, names.INPUT_TOKENS),
    *(names.OUTPUT_TOKENS, names.CACHED_TOKENS, names.FINISH_REASONS),
    *(names.TTFT_MS, names.MOVES),
    *(names.VERIFIED_DRAFTS, names.ACCEPTED_DRAFTS, names.ACCEPTED_EDGE_DRAFTS),
})  # fmt: skip
"""Of spans."""

LABELS: Final = frozenset({
    *(names.OPERATION, names.PROVIDER, names.MODEL, names.TOKEN_TYPE, names.ERROR_TYPE),
})  # fmt: skip
"""Of metrics."""

VALUES: Final = frozenset({names.CHAT, names.OUTRIDER})
