"""Metrics, spans and log lines of an edge and its chats."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

import structlog

from outrider.errors import OutriderError
from outrider.session.client import Done
from outrider.telemetry import names
from outrider.telemetry.families import Family
from outrider.telemetry.metrics import Metrics
from outrider.telemetry.refusals import RefusalLog
from outrider.telemetry.tracing import NO_TRACE, Span, start_span
from services.edge.session.display import Display
from services.edge.session.events import ChatRequest
from services.edge.session.machine import ChatSession
from services.edge.session.reply import ReplyFlow
from services.edge.telemetry.labels import MODEL_LABEL, Labels, ModelLabels

log = structlog.get_logger()

API_KEYS: Final = Family("outrider_edge_api_keys", "API keys in the file that counts now.")
KEYS_REVISION: Final = Family(
    "outrider_edge_keys_revision",
    "Revision of the file of API keys that counts now.",
)
LIST_ENDS: Final = Family(
    "outrider_edge_list_valid_until_timestamp_seconds",
    "Unix time at which the list of edges that clients get ends; absent: they get none.",
)
OPEN_CHATS: Final = Family(
    "outrider_edge_open_chats",
    "Chats under way, those that wait for their model too.",
)
OPEN_CONNECTIONS: Final = Family("outrider_edge_open_connections", "Connections of clients.")
CHATS: Final = Family(
    "outrider_edge_chats",
    "Chats that ended, by outcome: OK, or the reason of an error; CANCELLED and DEADLINE too.",
)
TOKENS: Final = Family("outrider_edge_tokens", "Final tokens of replies.")
RETRACTIONS: Final = Family("outrider_edge_retractions", "How often shown text was taken back.")
SHOWN_CHARS: Final = Family("outrider_edge_shown_chars", "Code points sent as provisional text.")
ERASED_CHARS: Final = Family(
    "outrider_edge_erased_chars",
    "Code points of provisional text that were taken back.",
)
FIRST_WORDS: Final = Family(
    "outrider_edge_first_words",
    "First words shown, one a chat, by fate: stayed or erased.",
)
RESUMED_CHATS: Final = Family(
    "outrider_edge_resumed_chats",
    "Chats that clients or the edge went on with, by how.",
)
DETACHED_CHATS: Final = Family(
    "outrider_edge_detached_chats",
    "Chats that go on without their clients.",
)
PREFILLED_TOKENS: Final = Family(
    "outrider_edge_prefilled_tokens",
    "Tokens of prompts that regions were asked to compute while they were typed.",
)
AHEAD_TOKENS: Final = Family(
    "outrider_edge_ahead_tokens",
    "Tokens of replies that were begun before their prompts were sent, by fate: sent, discarded.",
)
SEALED_TOKENS: Final = Family(
    "outrider_edge_sealed_tokens",
    "Tokens of replies that were begun before their prompts were sent, and wait for them now.",
)
AHEAD_CHATS: Final = Family(
    "outrider_edge_ahead_chats",
    "Chats of users who have their replies begun ahead, by whether there was one: ready or not.",
)
EARLY_BYTES: Final = Family("outrider_edge_early_bytes", "Data that came in 0-RTT.")
HALF_OPEN: Final = Family("outrider_edge_half_open_handshakes", "QUIC handshakes under way.")
RETRIES: Final = Family("outrider_edge_retries", "First packets answered with a Retry.")
REFUSED: Final = Family(
    "outrider_edge_refused",
    "Connections, streams, requests and typed text that were refused, by reason.",
)
HTTP_ANSWERS: Final = Family(
    "outrider_edge_http_answers",
    "Answers over HTTP, by route (or preflight) and status; 499: the client left before.",
)
DRAFTS_DROPPED: Final = Family(
    "outrider_edge_dropped_draft_frames",
    "Frames of drafts dropped because the router did not read.",
)
SHOWN_TOKENS: Final = Family("outrider_edge_shown_tokens", "Tokens shown before they were final.")
ERASED_TOKENS: Final = Family("outrider_edge_erased_tokens", "Tokens shown and taken back.")
DRAFTS: Final = Family(
    "outrider_edge_drafts",
    "Draft tokens, by fate: drafted, sent, checked, right.",
)
SOONER: Final = Family(
    "outrider_edge_sooner_seconds",
    "Sum of the times by which final tokens had been shown before; divide by "
    "outrider_edge_tokens_total.",
)
DISPLAY_CHATS: Final = Family(
    "outrider_edge_display_chats",
    "Chats with provisional text, by whether drafts were made for it alone: on, off, trial.",
)
CLIENT_DRAFTS: Final = Family(
    "outrider_edge_client_drafts",
    "Draft tokens of clients that draft for themselves, by fate: taken, ignored, accepted.",
)
COMMITS: Final = Family(
    "outrider_edge_commits",
    "Commits that came, by whether drafts were uploaded at the time.",
)
MODE_CHATS: Final = Family(
    "outrider_edge_mode_chats",
    "Chats that ended, by their last mode of speculation.",
)
MODE_SWITCHES: Final = Family(
    "outrider_edge_mode_switches",
    "Changes of the mode of speculation within chats.",
)
SERVED_MODELS: Final = Family(
    "outrider_edge_served_models",
    "1 for each model that is served, loaded or not.",
)
LOADED_MODELS: Final = Family("outrider_edge_loaded_models", "Models that are loaded.")
WAITING_CHATS: Final = Family(
    "outrider_edge_waiting_chats",
    "Chats that wait for a model to be loaded.",
)
MODEL_LOADS: Final = Family("outrider_edge_model_loads", "Models that were loaded.")
FAILED_MODEL_LOADS: Final = Family(
    "outrider_edge_failed_model_loads",
    "Models that could not be loaded.",
)
MODEL_EVICTIONS: Final = Family(
    "outrider_edge_model_evictions",
    "Models that were unloaded to make room for others.",
)
# Gauges of the chat that ended last, of each model.
RTT: Final = Family(
    "outrider_edge_region_rtt_seconds",
    "Round trip to the region, of the chat that ended last.",
)
INTERVAL: Final = Family(
    "outrider_edge_commit_interval_seconds",
    "Time between commits, of the chat that ended last.",
)
LEAD: Final = Family(
    "outrider_edge_lead_tokens",
    "Most drafts wanted ahead of the commits, of the chat that ended last.",
)
ACCEPTANCE: Final = Family(
    "outrider_edge_acceptance_ratio",
    "Share of checked drafts that were right, of the chat that ended last, 0 to 1.",
)
PREDICTED_GAIN: Final = Family(
    "outrider_edge_predicted_gain_ratio",
    "Share of the time per token that drafts are predicted to save, chat that ended last.",
)
PROVISIONAL_TTFT: Final = Family(
    "outrider_edge_provisional_ttft_seconds",
    "Sum of the times to the first provisional text; divide by "
    "outrider_edge_provisional_chats_total.",
)
PROVISIONAL_CHATS: Final = Family(
    "outrider_edge_provisional_chats",
    "Chats that had provisional text.",
)
COMMITTED_TTFT: Final = Family(
    "outrider_edge_committed_ttft_seconds",
    "Sum of the times to the first final text; divide by outrider_edge_committed_chats_total.",
)
COMMITTED_CHATS: Final = Family("outrider_edge_committed_chats", "Chats that had final text.")


_PLAIN: Final = (EARLY_BYTES, RETRIES, DRAFTS_DROPPED)
_PLAIN_GAUGES: Final = (OPEN_CHATS, OPEN_CONNECTIONS, HALF_OPEN, SEALED_TOKENS, DETACHED_CHATS)
_OF_MODELS: Final = (
    *(TOKENS, RETRACTIONS, SHOWN_CHARS, ERASED_CHARS, SHOWN_TOKENS, ERASED_TOKENS, SOONER),
    *(PREFILLED_TOKENS, MODE_SWITCHES, FAILED_MODEL_LOADS, MODEL_EVICTIONS),
    *(PROVISIONAL_TTFT, PROVISIONAL_CHATS, COMMITTED_TTFT, COMMITTED_CHATS),
)
"""Counters by model alone."""
_OF_MODELS_BY: Final = {
    CHATS: (
        "outcome",
        ("OK", "OVERLOADED", "UNAVAILABLE", "NO_REPLICA", "REPLICA_LOST", "ENGINE", "INTERNAL"),
    ),
    FIRST_WORDS: ("fate", ("stayed", "erased")),
    AHEAD_TOKENS: ("fate", ("sent", "discarded")),
    AHEAD_CHATS: ("reply", ("ready", "not")),
    DRAFTS: ("fate", ("drafted", "sent", "checked", "right")),
    DISPLAY_CHATS: ("drafting", ("on", "off", "trial")),
    COMMITS: ("uploads", ("on", "off")),
}
"""Counters by model and one more label; of outcomes those that alerts ask for."""


class EdgeTelemetry:
    """Counts open chats and connections, and records each chat when it ends."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self.labels = ModelLabels(metrics)
        for gauge in _PLAIN_GAUGES:
            metrics.gauge(gauge).set(0)
        for family in _PLAIN:
            metrics.from_zero(family)
        metrics.from_zero(CLIENT_DRAFTS, "fate", ("taken", "ignored", "accepted"))
        metrics.from_zero(RESUMED_CHATS, "how", ("attached", "replayed", "rerun", "reopened"))
        metrics.from_zero(REFUSED, "reason", ("OVERLOADED", "RATE_LIMITED", "UNAUTHENTICATED"))
        self.num_sealed = 0
        self.num_chats = 0
        self.num_connections = 0
        self._refused = RefusalLog("clients")
        self.idle = asyncio.Event()
        """Set while no chat is open."""
        self.idle.set()

    def keys(self, num_keys: int, revision: int) -> None:
        """Record the number of API keys and the revision of their file."""
        self._metrics.gauge(API_KEYS).set(num_keys)
        self._metrics.gauge(KEYS_REVISION).set(revision)

    def edge_list(self, valid_until: int) -> None:
        """Record when the list of edges ends."""
        self._metrics.gauge(LIST_ENDS).set(valid_until)

    def chat_opened(self) -> None:
        """A chat begins."""
        self.num_chats += 1
        self.idle.clear()
        self._metrics.gauge(OPEN_CHATS).set(self.num_chats)

    def connections(self, delta: int) -> None:
        """A connection came or went."""
        self.num_connections += delta
        self._metrics.gauge(OPEN_CONNECTIONS).set(self.num_connections)

    def half_open(self, num: int) -> None:
        """`num` handshakes are under way."""
        self._metrics.gauge(HALF_OPEN).set(num)

    def retried(self) -> None:
        """A client was asked to prove its address."""
        self._metrics.counter(RETRIES).add(1)

    def refused(self, reason: str, **details: str) -> None:
        """Count a refusal: of a request that did not become a chat, by its error's reason, or of
        something before a request. One log line covers an interval; `details` are those of its last
        refusal."""
        self._metrics.counter(REFUSED).add(1, {"reason": reason})
        self._refused.note(reason, **details)

    def answered_http(self, route: str, status: int) -> None:
        """A request over HTTP was answered; `route` is the pattern of its path."""
        self._metrics.counter(HTTP_ANSWERS).add(1, {"route": route, "status": status})

    def close(self) -> None:
        """Stop logging."""
        self._refused.close()

    def chat_span(self, request: ChatRequest, *, continues: bool) -> Span:
        """The chat's span: a child of the client's if it `continues` that trace, else the first of
        a trace of its own, linked to the client's."""
        parent, links = (request.trace, ()) if continues else (NO_TRACE, (request.trace,))
        span = start_span(names.SPAN_EDGE_CHAT, parent=parent, links=links)
        span.set(
            **{
                names.OPERATION: names.CHAT,
                names.MODEL: request.model,
                names.REQUEST_ID: request.request_id,
            }
        )
        return span

    def chat_closed(self) -> None:
        """A chat ended, for whatever reason; `record` follows."""
        self.num_chats -= 1
        if not self.num_chats:
            self.idle.set()
        self._metrics.gauge(OPEN_CHATS).set(self.num_chats)

    def resumed(self, how: str) -> None:
        """A client came back: its chat was still here ("attached"), had ended ("replayed"), or is
        run on from what the client has ("rerun")."""
        self._metrics.counter(RESUMED_CHATS).add(1, {"how": how})

    def prefilled(self, num_tokens: int, model: str) -> None:
        """A region was asked to compute a prompt that is still being typed."""
        self._metrics.counter(PREFILLED_TOKENS).add(num_tokens, self.labels.of(model))

    def sealed(self, num_more: int) -> None:
        """So many more tokens, or fewer, wait for their prompts to be sent."""
        self.num_sealed += num_more
        self._metrics.gauge(SEALED_TOKENS).set(self.num_sealed)

    def ahead_discarded(self, num_tokens: int, model: str) -> None:
        """Tokens of a reply that nobody had asked for were thrown away."""
        self.sealed(-num_tokens)
        self._metrics.counter(AHEAD_TOKENS).add(
            num_tokens, {**self.labels.of(model), "fate": "discarded"}
        )

    def ahead_sent(self, num_tokens: int, model: str) -> None:
        """A chat began whose reply may have been begun before: by so many tokens."""
        self.sealed(-num_tokens)
        labels = self.labels.of(model)
        self._metrics.counter(AHEAD_TOKENS).add(num_tokens, {**labels, "fate": "sent"})
        ready = "ready" if num_tokens else "not"
        self._metrics.counter(AHEAD_CHATS).add(1, {**labels, "reply": ready})

    def models(self, num_loaded: int, num_waiting: int) -> None:
        """Record how many models are loaded, and how many chats wait for one."""
        self._metrics.gauge(LOADED_MODELS).set(num_loaded)
        self._metrics.gauge(WAITING_CHATS).set(num_waiting)

    def served(self, models: Iterable[str]) -> None:
        """Record the served models, loaded or not."""
        self._metrics.table(SERVED_MODELS).set((1, self.labels.of(model)) for model in models)

    def model_loaded(self, model: str) -> None:
        """A model was loaded."""
        labels = self.labels.of(model)
        for family in _OF_MODELS:
            self._metrics.from_zero(family, others=labels)
        for family, (label, values) in _OF_MODELS_BY.items():
            self._metrics.from_zero(family, label, values, others=labels)
        self._metrics.show_model(labels[MODEL_LABEL])
        self._metrics.counter(MODEL_LOADS).add(1, labels)

    def model_failed(self, model: str) -> None:
        """A model could not be loaded."""
        self._metrics.counter(FAILED_MODEL_LOADS).add(1, self.labels.of(model))

    def model_evicted(self, model: str) -> None:
        """A model gave way to another one."""
        self._metrics.counter(MODEL_EVICTIONS).add(1, self.labels.of(model))

    def forget_model(self, model: str) -> None:
        """Drop the gauges of a model that is no longer loaded."""
        self.labels.forget(model)

    def detached(self, count: int) -> None:
        """Record the number of chats that continue without their clients."""
        self._metrics.gauge(DETACHED_CHATS).set(count)

    def early_data(self, num_bytes: int) -> None:
        """Data came in 0-RTT, and waits for the handshake."""
        self._metrics.counter(EARLY_BYTES).add(num_bytes)

    def client_drafts(self, *, taken: int, ignored: int, accepted: int) -> None:
        """A call of a client that drafts for itself has ended."""
        counter = self._metrics.counter(CLIENT_DRAFTS)
        for fate, count in (("taken", taken), ("ignored", ignored), ("accepted", accepted)):
            counter.add(count, {"fate": fate})

    def draft_frame(self, sent: bool) -> None:
        """A frame of drafts was sent, or dropped because the router does not read."""
        if not sent:
            self._metrics.counter(DRAFTS_DROPPED).add(1)

    def record(self, session: ChatSession, asked: ChatRequest, span: Span, now: float) -> None:
        """Record a chat that ended at `now`; `asked` is what the session was to be asked, which a
        limit may have prevented."""
        span.set(**{names.OUTPUT_TOKENS: session.num_tokens - session.num_resumed})
        if session.done is not None:
            span.set(**_attributes_of(session.done))
        span.end(session.error)
        metrics, times = self._metrics, session.milestones
        asked_at = now if times.asked is None else times.asked
        _log_end(session, asked, span.trace_id, now - asked_at)
        labels = self._record_chat(asked.model, now - asked_at, session.error_reason)
        num_tokens = session.num_tokens - session.num_resumed
        metrics.counter(TOKENS).add(num_tokens, labels)
        self._record_ttft(
            asked_at, times.provisional, times.committed, labels, span.exported_trace_id
        )
        if session.reply is not None:
            metrics.record_usage(session.num_prompt_tokens, num_tokens, labels[MODEL_LABEL])
            self._record_display(session.reply.display, labels)
            self._record_drafts(session.reply, labels)

    def record_unopened(self, request: ChatRequest, waited_s: float, error: OutriderError) -> None:
        """Record a chat that ended while it waited for its model."""
        self._record_chat(request.model, waited_s, error.reason)
        log.info(
            "chat_ended",
            request_id=request.request_id,
            model=request.model,
            outcome=error.reason,
            total_ms=round(waited_s * 1000, 1),
        )

    def _record_chat(self, model: str, took_s: float, reason: str | None) -> Labels:
        labels = self.labels.of(model)
        self._metrics.record_request(took_s, labels[MODEL_LABEL], reason)
        self._metrics.counter(CHATS).add(1, {**labels, "outcome": reason or "OK"})
        return labels

    def _record_display(self, display: Display, labels: Labels) -> None:
        metrics = self._metrics
        metrics.counter(RETRACTIONS).add(display.num_retractions, labels)
        metrics.counter(SHOWN_CHARS).add(display.shown_chars, labels)
        metrics.counter(ERASED_CHARS).add(display.erased_chars, labels)
        if display.first_word_stayed is not None:
            fate = "stayed" if display.first_word_stayed else "erased"
            metrics.counter(FIRST_WORDS).add(1, {**labels, "fate": fate})

    def _record_drafts(self, reply: ReplyFlow, labels: Labels) -> None:
        metrics, gauge = self._metrics, self.labels.gauge
        stats = reply.stats()
        controller = reply.controller
        metrics.counter(SHOWN_TOKENS).add(stats.shown_tokens, labels)
        metrics.counter(ERASED_TOKENS).add(stats.erased_tokens, labels)
        metrics.counter(SOONER).add(reply.display.sooner_s, labels)
        if reply.may_show:
            drafting = reply.drafting.value
            metrics.counter(DISPLAY_CHATS).add(1, {**labels, "drafting": drafting})
        for fate in ("drafted", "sent", "checked", "right"):
            drafted = getattr(stats, f"{fate}_tokens")
            metrics.counter(DRAFTS).add(drafted, {**labels, "fate": fate})
        commits = metrics.counter(COMMITS)
        commits.add(stats.commits_with_uploads, {**labels, "uploads": "on"})
        commits.add(stats.commits_without_uploads, {**labels, "uploads": "off"})
        metrics.counter(MODE_CHATS).add(1, {**labels, "mode": controller.mode.value})
        metrics.counter(MODE_SWITCHES).add(stats.switches, labels)
        if stats.rtt_ms:
            gauge(RTT, labels, stats.rtt_ms / 1e3)
            gauge(INTERVAL, labels, stats.commit_interval_ms / 1e3)
            gauge(LEAD, labels, controller.lead)
        if stats.checked_tokens:
            gauge(ACCEPTANCE, labels, stats.right_tokens / stats.checked_tokens)
        if controller.predicted_s is not None:
            gauge(PREDICTED_GAIN, labels, controller.predicted_gain)

    def _record_ttft(
        self,
        asked: float,
        provisional: float | None,
        committed: float | None,
        labels: Labels,
        trace_id: str,
    ) -> None:
        shown = [at for at in (provisional, committed) if at is not None]
        if shown:
            ttft_ms = (min(shown) - asked) * 1000
            self._metrics.record_ttft(ttft_ms, labels[MODEL_LABEL], trace_id)
        if provisional is not None:
            self._metrics.counter(PROVISIONAL_TTFT).add(provisional - asked, labels)
            self._metrics.counter(PROVISIONAL_CHATS).add(1, labels)
        if committed is not None:
            self._metrics.counter(COMMITTED_TTFT).add(committed - asked, labels)
            self._metrics.counter(COMMITTED_CHATS).add(1, labels)


def _log_end(session: ChatSession, asked: ChatRequest, trace_id: str, total_s: float) -> None:
    log.info(
        "chat_ended",
        request_id=asked.request_id,
        model=asked.model,
        trace_id=trace_id,
        outcome=session.error_reason or "OK",
        num_prompt_tokens=session.num_prompt_tokens,
        num_tokens=session.num_tokens,
        total_ms=round(total_s * 1000, 1),
        **(_usage_fields(session.done) if session.done else {}),
        **(_speculation_fields(session.reply) if session.reply else {}),
    )


def _attributes_of(done: Done) -> dict[str, int | float]:
    usage = done.usage
    return {
        names.INPUT_TOKENS: usage.prompt_tokens,
        names.CACHED_TOKENS: usage.cached_tokens,
        names.TTFT_MS: done.edge_timings.ttft_ms,
        names.MOVES: done.num_moves,
        names.VERIFIED_DRAFTS: usage.draft_tokens,
        names.ACCEPTED_DRAFTS: usage.accepted_tokens,
        names.ACCEPTED_EDGE_DRAFTS: usage.accepted_edge_tokens,
    }


def _usage_fields(done: Done) -> dict[str, object]:
    usage = done.usage
    return {
        "ttft_ms": round(done.edge_timings.ttft_ms, 1),
        "num_cached_tokens": usage.cached_tokens,
        "num_verified_drafts": usage.draft_tokens,
        "tokens_by_source": usage.sources._asdict(),
        "num_moves": done.num_moves,
    }


def _speculation_fields(reply: ReplyFlow) -> dict[str, object]:
    stats = reply.stats()
    controller = reply.controller
    shares = {
        name: round(controller.acceptance.rate_of(name), 3)
        for name in controller.acceptance.sources
    }
    return {
        "mode": controller.mode.value,
        "switches": stats.switches,
        "rtt_ms": round(stats.rtt_ms, 1),
        "commit_interval_ms": round(stats.commit_interval_ms, 1),
        "draft_ms": round(stats.draft_ms, 2),
        "lead": controller.lead,
        "acceptance": shares,
        "predicted_gain": round(controller.predicted_gain, 3),
        "num_sent": stats.sent_tokens,
        "num_shown": stats.shown_tokens,
        "num_erased": stats.erased_tokens,
    }
