"""Names that several services record: metrics, spans, attributes and their values; and histogram
boundaries. Names that only one module records are declared there (services.edge.telemetry.edge).

A new metric is called `outrider_AREA_WHAT`, by the conventions of Prometheus
(outrider.telemetry.families). The `gen_ai_*` names, units and boundaries are those of the
OpenTelemetry GenAI semantic conventions (status: development); they have none for speculative
decoding, so those are ours.
"""

from __future__ import annotations

from typing import Final

from outrider.telemetry.families import Family

BUILD_INFO: Final = Family(
    "outrider_build_info", "1, with the service, the version of Outrider and that of Python."
)

TTFT: Final = Family(
    "outrider_ttft_seconds",
    "From the arrival of a session to its first token: final at a replica, shown at an edge.",
)
TOKEN_LATENCY: Final = Family(
    "outrider_token_latency_seconds",
    "Time between two commits, per token of the later one.",
)
BATCH_UTILIZATION: Final = Family(
    "outrider_batch_utilization_ratio",
    "Sessions in the last engine call over those it may have, 0 to 1.",
)
REJECTION_RATIO: Final = Family(
    "outrider_draft_rejection_ratio",
    "Share of recent draft tokens that the model did not accept, 0 to 1.",
)
PREFIX_HIT_RATIO: Final = Family(
    "outrider_prefix_hit_ratio",
    "Share of recent prompt tokens whose KV was there already, 0 to 1.",
)
TICK_OVERHEAD: Final = Family(
    "outrider_tick_overhead_seconds",
    "CPU time of the model thread outside the engine, around one engine call.",
)
ENGINE_TIME: Final = Family(
    "outrider_engine_time_seconds",
    "Time with sessions to serve: busy while the engine computes, idle while it waits for Python.",
)
EMBEDDING_INPUTS: Final = Family(
    "outrider_embedding_inputs",
    "Texts that a replica was given to embed, by what became of them: vector, error.",
)
EMBEDDING_TOKENS: Final = Family(
    "outrider_embedding_tokens",
    "Tokens that engines made vectors of, by kind: of a text, or padding behind it.",
)
EMBEDDING_WAITING: Final = Family(
    "outrider_embedding_waiting_inputs", "Texts that wait for a vector at a replica."
)
DRAFTED_TOKENS: Final = Family(
    "outrider_draft_proposed_tokens",
    "Draft tokens that the model checked.",
)
ACCEPTED_TOKENS: Final = Family(
    "outrider_draft_accepted_tokens",
    "Draft tokens that the model accepted.",
)
LOSSY_TOKENS: Final = Family(
    "outrider_draft_lossy_tokens",
    "Draft tokens let through by acceptance_threshold alone.",
)
INEXACT_SESSIONS: Final = Family(
    "outrider_kv_inexact_sessions",
    "Sessions whose reply was computed behind KV that came in 8 bits, on this replica.",
)
PROMPT_TOKENS: Final = Family("outrider_prefix_prompt_tokens", "Tokens of prompts.")
REUSED_TOKENS: Final = Family(
    "outrider_prefix_cached_tokens",
    "Tokens of prompts whose KV was there already.",
)

# Gauges of the process, made by Prometheus's own client.
PROCESS_TASKS: Final = Family("outrider_process_tasks", "asyncio tasks.")
PROCESS_THREADS: Final = Family("outrider_process_threads", "Threads of the process.")
PROCESS_FILES: Final = Family(
    "outrider_process_files",
    "Files and sockets that the process has open.",
)
PROCESS_CLOCK: Final = Family(
    "outrider_process_clock_timestamp_seconds",
    "Unix time of the machine's clock when the metrics were read.",
)

# Of a service with several processes, by its parent.
WORKER_UP: Final = Family(
    "outrider_worker_up",
    "1 for each process of the service that is ready, 0 for one that is not.",
)
WORKER_RESTARTS: Final = Family(
    "outrider_worker_restarts",
    "How often a process of the service was started again.",
)

# Of the event loop and of what comes before every chat; made by Prometheus's own client too.
LOOP_LAG: Final = Family("outrider_loop_lag_seconds", "How late the event loop called back.")
LOOP_LAG_MAX: Final = Family(
    "outrider_loop_lag_max_seconds",
    "The latest that the event loop called back within the last seconds.",
)
LOOP_BLOCKED_MAX: Final = Family(
    "outrider_loop_blocked_max_seconds",
    "The same, as far as the loop's own thread computed meanwhile: not waiting for a core.",
)
LOOP_STALLS: Final = Family(
    "outrider_loop_stalls",
    "Delays of the event loop of 5 ms or more, by what went on meanwhile.",
)
TOKENIZATION: Final = Family(
    "outrider_tokenization_seconds",
    "From a chat's submission to its ids, by tier.",
)
TOKENIZATION_TEXTS: Final = Family(
    "outrider_tokenization_cache_texts",
    "Texts looked up in the cache, by class of text.",
)
TOKENIZATION_HITS: Final = Family(
    "outrider_tokenization_cache_hits",
    "Texts found in the cache, by class of text.",
)
TOKENIZATION_CHARS: Final = Family(
    "outrider_tokenization_cache_chars",
    "Characters of texts looked up in the cache, by class of text.",
)
TOKENIZATION_HIT_CHARS: Final = Family(
    "outrider_tokenization_cache_hit_chars",
    "Characters of texts found in the cache, by class of text.",
)
TOKENIZATION_CACHE_BYTES: Final = Family(
    "outrider_tokenization_cache_bytes",
    "Memory of the texts kept.",
)
TOKENIZATION_CACHE_ENTRIES: Final = Family("outrider_tokenization_cache_entries", "Texts kept.")
TOKENIZATION_BACKEND: Final = Family(
    "outrider_tokenization_backend",
    "1 for the backend that each loaded model's texts are tokenized by, why that one, and by how "
    "many other processes while the threads are busy.",
)
SHARED_CACHE_TEXTS: Final = Family(
    "outrider_tokenization_shared_cache_texts",
    "Texts, by outcome of their lookup or write.",
)
SHARED_CACHE_FAILURES: Final = Family(
    "outrider_tokenization_shared_cache_failures",
    "Reads and writes that failed or timed out.",
)
SHARED_CACHE_UP: Final = Family(
    "outrider_tokenization_shared_cache_up",
    "1 while Redis is used, 0 while the circuit breaker is open.",
)
TOKENIZATION_SHORTENED: Final = Family(
    "outrider_tokenization_shortened_chats",
    "Chats made shorter to fit the context.",
)
TOKENIZATION_OMITTED: Final = Family(
    "outrider_tokenization_omitted_tokens",
    "Tokens by which chats were made shorter.",
)
TOKENIZATION_CHECKED: Final = Family(
    "outrider_tokenization_shadow_texts",
    "Texts encoded by the reference too.",
)
TOKENIZATION_MISMATCHES: Final = Family(
    "outrider_tokenization_shadow_mismatches",
    "Texts on which the fast backend failed or differed from the reference.",
)

# GenAI conventions; seconds unless said otherwise.
GEN_AI_TTFT: Final = Family(
    "gen_ai_server_time_to_first_token_seconds",
    "Time to first token, by the OpenTelemetry GenAI conventions.",
)
GEN_AI_TIME_PER_TOKEN: Final = Family(
    "gen_ai_server_time_per_output_token_seconds",
    "Mean time per token after the first, one value a session.",
)
GEN_AI_REQUEST_DURATION: Final = Family(
    "gen_ai_server_request_duration_seconds",
    "Duration of sessions; error_type says why there was no whole reply.",
)
GEN_AI_TOKEN_USAGE: Final = Family(
    "gen_ai_client_token_usage",
    "Tokens of finished sessions, by type: input or output.",
)

LATENCY_BOUNDARIES_S: Final = (
    *(0.001, 0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.06, 0.08, 0.1, 0.12, 0.15, 0.25),
    *(0.4, 0.5, 0.6, 1.0, 2.5, 5.0, 10.0, 30.0),
)
"""The default objectives for first tokens are among them, so that the share of late ones can be
read: 0.12 (router.autoscale), and 0.5, 1 and 5 (the classes of router.admission)."""
OVERHEAD_BOUNDARIES_S: Final = (
    *(0.0001, 0.0002, 0.0003, 0.0004, 0.0005, 0.0006, 0.0007, 0.0008, 0.0009),
    *(0.001, 0.0012, 0.0015, 0.002, 0.003, 0.005, 0.01, 0.05),
)
LOOP_LAG_MAX_WINDOW_S: Final = 2.0
"""How far back LOOP_LAG_MAX and LOOP_BLOCKED_MAX look: so long at least, and less than twice
as long."""
LOOP_LAG_BOUNDARIES_S: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5)
TOKENIZATION_BOUNDARIES_S: Final = (0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1)
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
TTFT_MS: Final = "outrider.ttft_ms"
MOVES: Final = "outrider.moves"
VERIFIED_DRAFTS: Final = "outrider.drafts.verified"
ACCEPTED_DRAFTS: Final = "outrider.drafts.accepted"
ACCEPTED_EDGE_DRAFTS: Final = "outrider.drafts.accepted_of_edge"
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
