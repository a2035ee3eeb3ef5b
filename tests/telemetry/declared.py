"""Every name that the source declares, and which test sees it recorded."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import outrider
import services
from outrider.telemetry import names
from services.edge.drafter import metrics as drafter
from services.edge.telemetry import (
    ACCEPTANCE,
    API_KEYS,
    CHATS,
    COMMITS,
    COMMITTED_CHATS,
    COMMITTED_TTFT,
    DETACHED_CHATS,
    DRAFTS,
    EARLY_BYTES,
    ERASED_CHARS,
    ERASED_TOKENS,
    FAILED_MODEL_LOADS,
    FIRST_WORDS,
    HALF_OPEN,
    HTTP_ANSWERS,
    INTERVAL,
    KEYS_REVISION,
    LEAD,
    LOADED_MODELS,
    MODE_CHATS,
    MODE_SWITCHES,
    MODEL_EVICTIONS,
    MODEL_LOADS,
    OPEN_CHATS,
    OPEN_CONNECTIONS,
    PREDICTED_GAIN,
    PREFILLED_TOKENS,
    PROVISIONAL_CHATS,
    PROVISIONAL_TTFT,
    REFUSED,
    RESUMED_CHATS,
    RETRACTIONS,
    RETRIES,
    RTT,
    SERVED_MODELS,
    SHOWN_CHARS,
    SHOWN_TOKENS,
    TOKENS,
    WAITING_CHATS,
)
from services.edge.telemetry import DRAFTS_DROPPED as EDGE_DRAFTS_DROPPED
from services.edge.upstream import metrics as edge_routers
from services.inference.kv_peers import telemetry as kv_peers
from services.inference.prefix_store import exchange as prefix_store
from services.inference.streaming import sessions as inference
from services.router import metrics as router
from services.router.relay import telemetry as router_sessions
from services.tokenizer import service as tokenizer
from services.tokenizer.long_texts import processes, worker_pool

_CONSTANT: Final = re.compile(
    r'^[A-Z_]+: Final = (?:Family\(\s*)?"([a-z][a-z0-9_.]*[a-z0-9_])"(?:,|$)', re.MULTILINE
)
_OURS: Final = ("outrider.", "outrider_")


def declared() -> set[str]:
    """All constants of `outrider.telemetry.names`, and those of other modules that read like a
    metric's, a span's or an attribute's name."""
    own = set(_CONSTANT.findall(Path(names.__file__).read_text()))
    return own | {name for name in _constants() if name.startswith(_OURS)}


def _constants() -> Iterator[str]:
    for package in (outrider, services):
        for path in Path(package.__path__[0]).rglob("*.py"):
            yield from _CONSTANT.findall(path.read_text())


COUNTED: Final = frozenset({
    *(names.TTFT, names.TOKEN_LATENCY, names.TICK_OVERHEAD, names.ENGINE_TIME),
    names.LOOP_LAG,
    *(names.DRAFTED_TOKENS, names.ACCEPTED_TOKENS),
    *(names.PROMPT_TOKENS, names.REUSED_TOKENS),
    *(names.GEN_AI_TTFT, names.GEN_AI_TIME_PER_TOKEN, names.GEN_AI_REQUEST_DURATION),
    *(names.GEN_AI_TOKEN_USAGE, names.TOKENIZATION, names.TOKENIZATION_TEXTS),
    *(names.TOKENIZATION_HITS, names.TOKENIZATION_CHARS, names.TOKENIZATION_HIT_CHARS),
    *(CHATS, TOKENS, PREFILLED_TOKENS, DRAFTS, COMMITS, MODE_CHATS),
    *(COMMITTED_TTFT, COMMITTED_CHATS),
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
    *(names.PROCESS_TASKS, names.PROCESS_THREADS, names.PROCESS_FILES),
    *(names.TOKENIZATION_CACHE_ENTRIES, names.TOKENIZATION_CACHE_BYTES),
    *(names.TOKENIZATION_BACKEND,),
    *(API_KEYS, KEYS_REVISION, SERVED_MODELS, LOADED_MODELS, MODEL_LOADS, WAITING_CHATS),
    *(OPEN_CHATS, OPEN_CONNECTIONS, HALF_OPEN, RTT, INTERVAL, LEAD, ACCEPTANCE, PREDICTED_GAIN),
    *(FIRST_WORDS, SHOWN_CHARS, RETRACTIONS, ERASED_CHARS),
    *(SHOWN_TOKENS, ERASED_TOKENS, MODE_SWITCHES),
    *(edge_routers.ROUTERS, edge_routers.ROUTER_STATE, edge_routers.ROUTER_RTT),
    *(edge_routers.ROUTER_QUARANTINES,),
    *(router_sessions.SESSIONS, router_sessions.REPLICAS),
    *(router.REPLICA_STATE, router.REPLICA_RTT, router.REPLICA_QUARANTINES),
    *(router.REPLICA_INCONSISTENT,),
    *(router.WAITING, router.DESIRED, router.SERVING, router.LATE_SHARE),
    *(router.WINDOW_REQUESTS, router.UTILIZATION),
    *(inference.RUNNING, inference.QUEUED, inference.OVERLOAD_LEVEL, inference.FREE_BLOCKS),
})  # fmt: skip
"""Gauges that are there during the scripted chats, and counters that chance may leave at 0."""

_DRAFTER: Final = "tests/edge/drafter/test_metrics.py"
_WORKER_POOL: Final = "tests/tokenizer/long_texts/test_worker_pool.py"
_TOKENIZATION: Final = "tests/tokenization/pool/test_metrics.py"
_SHARED_CACHE: Final = "tests/tokenizer/test_shared_cache.py"
_FAILOVER: Final = "tests/router/relay/test_failover.py"
_OVERLOAD: Final = "tests/router/integration/test_overload.py"

_ROUTER: Final = "tests/router/test_metrics.py"
_EMBEDDING: Final = "tests/inference/embedding/test_service.py"
ELSEWHERE: Final[dict[str, str]] = {
    names.LOSSY_TOKENS: "tests/inference/test_service.py",
    names.EMBEDDING_INPUTS: _EMBEDDING,
    names.EMBEDDING_TOKENS: _EMBEDDING,
    names.EMBEDDING_WAITING: _EMBEDDING,
    names.WORKER_UP: "tests/e2e/test_processes.py",
    names.WORKER_RESTARTS: "tests/e2e/test_processes.py",
    names.LOOP_STALLS: "tests/telemetry/test_process.py",
    names.LOOP_LAG_MAX: "tests/telemetry/test_process.py",
    names.LOOP_BLOCKED_MAX: "tests/telemetry/test_process.py",
    names.SHARED_CACHE_TEXTS: _SHARED_CACHE,
    names.SHARED_CACHE_FAILURES: _SHARED_CACHE,
    names.SHARED_CACHE_UP: _SHARED_CACHE,
    names.TOKENIZATION_SHORTENED: _TOKENIZATION,
    names.TOKENIZATION_OMITTED: _TOKENIZATION,
    names.TOKENIZATION_CHECKED: _TOKENIZATION,
    names.TOKENIZATION_MISMATCHES: _TOKENIZATION,
    PROVISIONAL_TTFT: "tests/edge/integration/test_telemetry.py",
    PROVISIONAL_CHATS: "tests/edge/integration/test_telemetry.py",
    RESUMED_CHATS: "tests/edge/integration/test_resumption.py",
    DETACHED_CHATS: "tests/edge/integration/test_left_alone.py",
    REFUSED: "tests/edge/integration/test_neighbours.py",
    FAILED_MODEL_LOADS: "tests/edge/integration/test_models.py",
    MODEL_EVICTIONS: "tests/edge/integration/test_models.py",
    RETRIES: "tests/edge/integration/test_hostile.py",
    EARLY_BYTES: "tests/edge/integration/test_early_data.py",
    HTTP_ANSWERS: "tests/edge/integration/test_http_access.py",
    EDGE_DRAFTS_DROPPED: "tests/edge/integration/test_chats.py",
    drafter.STATE: _DRAFTER,
    drafter.SESSIONS: _DRAFTER,
    drafter.MODELLED: _DRAFTER,
    drafter.RESTARTS: _DRAFTER,
    drafter.DROPPED: _DRAFTER,
    drafter.CALLS: _DRAFTER,
    drafter.ROWS: _DRAFTER,
    drafter.CALL_TIME: _DRAFTER,
    drafter.REFUSED: _DRAFTER,
    drafter.EVICTED: _DRAFTER,
    drafter.REUSED: _DRAFTER,
    drafter.BRANCHES: _DRAFTER,
    drafter.PROMOTED: _DRAFTER,
    drafter.PAUSES: _DRAFTER,
    drafter.PAUSED: _DRAFTER,
    drafter.DRAFTED: _DRAFTER,
    drafter.ACCEPTED: _DRAFTER,
    router_sessions.MOVES: _FAILOVER,
    router_sessions.MOVE_TIME: _FAILOVER,
    router_sessions.INEXACT_MOVES: "tests/router/relay/test_model_identity.py",
    router_sessions.DRAFTS_DROPPED: "tests/router/relay/test_bad_edges.py",
    router_sessions.PROMPTS_LEFT_OUT: "tests/edge/integration/test_prompt_deltas.py",
    router_sessions.TOKENS_LEFT_OUT: "tests/edge/integration/test_prompt_deltas.py",
    router.EMBEDDING_REQUESTS: _ROUTER,
    router.EMBEDDING_INPUTS: _ROUTER,
    router.EMBEDDING_TOKENS: _ROUTER,
    router.EMBEDDING_MOVES: _ROUTER,
    router.EMBEDDING_SHORTAGES: _ROUTER,
    router.EMBEDDING_PENDING: _ROUTER,
    router.REFUSED: _OVERLOAD,
    router.SPILLED: _OVERLOAD,
    inference.PAUSED: "tests/inference/streaming/test_priorities.py",
    inference.DRAFTS_DROPPED: "tests/inference/streaming/test_sessions.py",
    kv_peers.PEER_BLOCKS: "tests/inference/integration/test_kv_peers.py",
    kv_peers.PEER_FAILURES: "tests/inference/integration/test_kv_peers.py",
    prefix_store.STORE_BLOCKS: "tests/inference/integration/test_prefix_store.py",
    prefix_store.STORE_FAILURES: "tests/inference/integration/test_prefix_store.py",
    prefix_store.TRANSFERRED: "tests/inference/integration/test_prefix_store.py",
    prefix_store.TRANSFER_SECONDS: "tests/inference/integration/test_prefix_store.py",
    worker_pool.QUEUED: _WORKER_POOL,
    worker_pool.SLOTS: _WORKER_POOL,
    worker_pool.SLOTS_IN_USE: _WORKER_POOL,
    worker_pool.WORKERS: _WORKER_POOL,
    worker_pool.REASSIGNED: _WORKER_POOL,
    processes.RESTARTS: "tests/tokenizer/long_texts/test_processes.py",
}
"""What a simple chat does not move, by the file of the test that asserts its value."""

SPANS: Final = frozenset({
    *(names.SPAN_CLIENT_CHAT, names.SPAN_EDGE_CHAT, names.SPAN_TOKENIZE, names.SPAN_ROUTE),
    *(names.SPAN_SESSION, names.SPAN_QUEUE, names.SPAN_PREFILL, names.SPAN_DECODE),
})  # fmt: skip

EVENTS: Final = frozenset({router_sessions.PLACED})

ATTRIBUTES: Final = frozenset({
    *(names.OPERATION, names.MODEL, names.ERROR_TYPE, names.REQUEST_ID, names.INPUT_TOKENS),
    *(names.OUTPUT_TOKENS, names.CACHED_TOKENS, names.FINISH_REASONS),
    *(names.RPC_SYSTEM, names.RPC_METHOD),
})  # fmt: skip
"""Of spans."""

LABELS: Final = frozenset({
    *(names.OPERATION, names.PROVIDER, names.MODEL, names.TOKEN_TYPE, names.ERROR_TYPE),
})  # fmt: skip
"""Of metrics."""

VALUES: Final = frozenset({names.CHAT, names.OUTRIDER})
