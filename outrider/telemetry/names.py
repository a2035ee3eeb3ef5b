"""Names that several services record: metrics, spans, attributes and their values; and histogram
boundaries. Names that one module alone records are declared there (services.edge.telemetry).

A new metric is called `outrider.AREA.WHAT`; Prometheus shows the dots as underscores.
The `gen_ai.*` names, units and boundaries are those of the OpenTelemetry GenAI semantic
conventions (status: development); they have none for speculative decoding, so those are ours.
"""

from __future__ import annotations

from typing import Final

# Instruments that keep their name in Prometheus: no OpenTelemetry unit, the name has it.
TTFT_MS: Final = "ttft_ms"
TOKEN_LATENCY_MS: Final = "token_latency_ms"
BATCH_UTILIZATION: Final = "batch_utilization"
REJECTION_RATE: Final = "rejection_rate"
PREFIX_HIT_RATE: Final = "prefix_hit_rate"
TICK_OVERHEAD_MS: Final = "tick_overhead_ms"
DRAFTED_TOKENS: Final = "outrider.draft.proposed_tokens"
ACCEPTED_TOKENS: Final = "outrider.draft.accepted_tokens"
LOSSY_TOKENS: Final = "outrider.draft.lossy_tokens"
PROMPT_TOKENS: Final = "outrider.prefix.prompt_tokens"
REUSED_TOKENS: Final = "outrider.prefix.cached_tokens"
INSTANCE_SESSIONS: Final = "outrider.instance.sessions"

# Gauges of the process, made by Prometheus's own client: its names have no dots.
PROCESS_TASKS: Final = "outrider_process_tasks"
PROCESS_THREADS: Final = "outrider_process_threads"
PROCESS_FILES: Final = "outrider_process_files"

# Of the event loop and of what comes before every chat; made by Prometheus's own client too.
LOOP_LAG_MS: Final = "outrider_loop_lag_ms"
LOOP_LAG_MAX_MS: Final = "outrider_loop_lag_ms_max"
LOOP_BLOCKED_MAX_MS: Final = "outrider_loop_blocked_ms_max"
LOOP_STALLS: Final = "outrider_loop_stalls"
TOKENIZATION_MS: Final = "outrider_tokenization_ms"
TOKENIZATION_TEXTS: Final = "outrider_tokenization_cache_texts"
TOKENIZATION_HITS: Final = "outrider_tokenization_cache_hits"
TOKENIZATION_CHARS: Final = "outrider_tokenization_cache_chars"
TOKENIZATION_HIT_CHARS: Final = "outrider_tokenization_cache_hit_chars"
TOKENIZATION_CACHE_BYTES: Final = "outrider_tokenization_cache_bytes"
TOKENIZATION_CACHE_ENTRIES: Final = "outrider_tokenization_cache_entries"
TOKENIZATION_BACKEND: Final = "outrider_tokenization_backend"
SHARED_CACHE_TEXTS: Final = "outrider_tokenization_shared_cache_texts"
SHARED_CACHE_FAILURES: Final = "outrider_tokenization_shared_cache_failures"
SHARED_CACHE_UP: Final = "outrider_tokenization_shared_cache_up"
TOKENIZATION_SHORTENED: Final = "outrider_tokenization_shortened_chats"
TOKENIZATION_OMITTED: Final = "outrider_tokenization_omitted_tokens"
TOKENIZATION_CHECKED: Final = "outrider_tokenization_shadow_texts"
TOKENIZATION_MISMATCHES: Final = "outrider_tokenization_shadow_mismatches"

# GenAI conventions; seconds unless said otherwise.
GEN_AI_TTFT: Final = "gen_ai.server.time_to_first_token"
GEN_AI_TIME_PER_TOKEN: Final = "gen_ai.server.time_per_output_token"
GEN_AI_REQUEST_DURATION: Final = "gen_ai.server.request.duration"
GEN_AI_TOKEN_USAGE: Final = "gen_ai.client.token.usage"

MS_BOUNDARIES: Final = (
    *(1.0, 2.0, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 60.0, 80.0, 100.0, 150.0, 250.0),
    *(400.0, 600.0, 1000.0, 2500.0, 5000.0, 10000.0, 30000.0),
)
OVERHEAD_MS_BOUNDARIES: Final = (
    *(0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.2, 1.5, 2.0, 3.0, 5.0, 10.0, 50.0),
)
LOOP_LAG_MAX_WINDOW_S: Final = 2.0
"""How far back LOOP_LAG_MAX_MS and LOOP_BLOCKED_MAX_MS look: so long at least, and less than twice
as long."""
LOOP_LAG_MS_BOUNDARIES: Final = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 500.0)
TOKENIZATION_MS_BOUNDARIES: Final = (0.1, 0.5, 1.0, 5.0, 10.0, 50.0, 100.0)
TTFT_BOUNDARIES_S: Final = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1),
    *(0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
)
TIME_PER_TOKEN_BOUNDARIES_S: Final = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5),
)
REQUEST_BOUNDARIES_S: Final = tuple(0.01 * 2**n for n in range(14))
TOKEN_BOUNDARIES: Final = tuple(float(4**n) for n in range(14))

# Attributes.
OPERATION: Final = "gen_ai.operation.name"
PROVIDER: Final = "gen_ai.provider.name"
MODEL: Final = "gen_ai.request.model"
TOKEN_TYPE: Final = "gen_ai.token.type"
ERROR_TYPE: Final = "error.type"
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
CACHED_TOKENS: Final = "gen_ai.usage.cache_read.input_tokens"
FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
REQUEST_ID: Final = "outrider.request.id"
INSTANCE: Final = "outrider.instance"
RPC_SYSTEM: Final = "rpc.system.name"
RPC_METHOD: Final = "rpc.method"

# Values.
CHAT: Final = "chat"
OUTRIDER: Final = "outrider"

# Spans, in the order of a chat's life.
SPAN_CLIENT_CHAT: Final = "outrider.client.chat"
SPAN_EDGE_CHAT: Final = "outrider.edge.chat"
SPAN_TOKENIZE: Final = "outrider.tokenize"
SPAN_ROUTE: Final = "outrider.router.session"
SPAN_SESSION: Final = "outrider.inference.session"
SPAN_QUEUE: Final = "outrider.inference.queue"
SPAN_PREFILL: Final = "outrider.inference.prefill"
SPAN_DECODE: Final = "outrider.inference.decode"
