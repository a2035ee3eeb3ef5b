"""What the official APIs write in their replies, object by object.

Read in OpenAI's OpenAPI document (2.3.0), that of Open Responses (2026-04-24), Anthropic's as
llm-comply 0.5 carries it, and vLLM's `TokenizeResponse`; and in replies of both APIs that the AI
SDK keeps for its tests. Where a reply leaves out what a document lists as null by default
(Anthropic's `citations`), the reply counts: clients were written against replies.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from services.edge.http import (
    anthropic_errors,
    anthropic_messages,
    anthropic_reply,
    cancelling,
    mesh,
    openai_chat,
    openai_completions,
    openai_embeddings,
    openai_errors,
    openai_logprobs,
    openai_models,
    openai_reply,
    reply_metrics,
    responses,
    responses_input,
    responses_objects,
    tokenizing,
    typed_text,
)


@dataclass(frozen=True, slots=True)
class Upstream:
    """One object of an API: its fields, separated by spaces."""

    always: str = ""
    """In every one, and never null."""
    null: str = ""
    """In every one, and null if there is nothing to say."""
    left_out: str = ""
    """Left out if there is nothing to say, and never null."""
    either: str = ""
    """Left out or null if there is nothing to say; the API does both."""
    ours: str = ""
    """Fields of this project and of servers like it, left out if there is nothing to say."""

    @property
    def required(self) -> frozenset[str]:
        """Fields that clients may rely on."""
        return frozenset(f"{self.always} {self.null}".split())

    @property
    def nullable(self) -> frozenset[str]:
        """Fields in which clients expect null."""
        return frozenset(f"{self.null} {self.either}".split())

    @property
    def known(self) -> frozenset[str]:
        """All fields."""
        return self.required | self.nullable | frozenset(f"{self.left_out} {self.ours}".split())


_EVENT: Final = "type sequence_number"
_RESPONSE_EVENT: Final = Upstream(f"{_EVENT} response")
_ITEM_EVENT: Final = Upstream(f"{_EVENT} output_index item")
_PART_EVENT: Final = Upstream(f"{_EVENT} item_id output_index content_index part")
_DELTA_EVENT: Final = Upstream(f"{_EVENT} item_id output_index content_index delta")
_TEXT_EVENT: Final = Upstream(f"{_EVENT} item_id output_index content_index text")
_SCORED: Final = " logprobs"

SHAPES: Final[Mapping[type, Upstream]] = {
    # OpenAI, chat completions.
    openai_chat.ChatCompletion: Upstream(
        "id object created model choices",
        left_out="usage system_fingerprint",
        either="service_tier metadata moderation",
        ours="metrics",
    ),
    openai_chat.ChatChoice: Upstream("index message finish_reason", "logprobs", ours="outrider"),
    openai_chat.ReplyMessage: Upstream(
        "role",
        "content refusal",
        "tool_calls annotations function_call",
        either="audio",
        ours="reasoning_content",
    ),
    openai_chat.ReplyToolCall: Upstream("id type function"),
    openai_chat.ReplyFunction: Upstream("name arguments"),
    openai_chat.ChatCompletionChunk: Upstream(
        "id object created model choices",
        left_out="system_fingerprint obfuscation",
        either="usage service_tier moderation",
        ours="metrics",
    ),
    openai_chat.ChunkChoice: Upstream(
        "index delta", "finish_reason", either="logprobs", ours="outrider"
    ),
    openai_chat.Delta: Upstream(
        left_out="role tool_calls function_call",
        either="content refusal",
        ours="reasoning_content",
    ),
    openai_chat.ToolCallDelta: Upstream("index", left_out="id type function"),
    openai_chat.FunctionDelta: Upstream(left_out="name arguments"),
    openai_logprobs.ChatLogprobs: Upstream(null="content refusal"),
    openai_logprobs.TokenLogprob: Upstream("token logprob top_logprobs", "bytes"),
    openai_logprobs.TopLogprob: Upstream("token logprob", "bytes"),
    openai_reply.OpenAiUsage: Upstream(
        "prompt_tokens completion_tokens total_tokens",
        left_out="prompt_tokens_details completion_tokens_details",
    ),
    openai_reply.PromptTokensDetails: Upstream(left_out="cached_tokens audio_tokens"),
    openai_reply.CompletionTokensDetails: Upstream(
        left_out="accepted_prediction_tokens rejected_prediction_tokens reasoning_tokens "
        "audio_tokens"
    ),
    openai_reply.ChoiceDetails: Upstream(
        ours="seed region replica ttft_ms total_ms cost currency finish_reason inexact metrics"
    ),
    # OpenAI, completions; whole and streamed they are one object.
    openai_completions.Completion: Upstream(
        "id object created model choices",
        left_out="system_fingerprint",
        either="usage",
        ours="metrics",
    ),
    openai_completions.CompletionChoice: Upstream(
        "index text", "logprobs finish_reason", ours="outrider"
    ),
    openai_logprobs.CompletionLogprobs: Upstream(
        left_out="tokens token_logprobs top_logprobs text_offset"
    ),
    # OpenAI, embeddings, models, errors.
    openai_embeddings.EmbeddingList: Upstream("object data model usage", ours="system_fingerprint"),
    openai_embeddings.EmbeddingObject: Upstream("object index embedding"),
    openai_embeddings.EmbeddingUsage: Upstream("prompt_tokens total_tokens", ours="cost currency"),
    openai_models.ModelList: Upstream(
        # The second line is Anthropic's, but for Codex's `models`.
        "object data has_more",
        "first_id last_id",
        ours="models",
    ),
    openai_models.Model: Upstream(
        # Anthropic's from `type` on.
        "id object created owned_by type display_name created_at",
        "max_input_tokens max_tokens capabilities",
        either="shutdown_date",
        ours="context_window max_model_len default_max_tokens default_sampling_params engines",
    ),
    openai_models.ModelEngine: Upstream(ours="engine guarantees"),
    openai_models.SamplingDefaults: Upstream(
        ours="temperature top_k top_p min_p repetition_penalty"
    ),
    openai_errors.OpenAiErrorBody: Upstream("error"),
    openai_errors.OpenAiError: Upstream("message type", "param code"),
    # OpenAI, responses.
    responses_objects.ResponseObject: Upstream(
        "id object created_at status model output tools tool_choice truncation "
        "parallel_tool_calls text top_p temperature top_logprobs metadata store background "
        "service_tier presence_penalty frequency_penalty",
        "completed_at incomplete_details previous_response_id instructions error reasoning usage "
        "max_output_tokens max_tool_calls safety_identifier prompt_cache_key",
        either="user conversation prompt prompt_cache_retention output_text moderation",
        ours="outrider metrics",
    ),
    responses_objects.OutputMessage: Upstream("id type status role content", either="phase"),
    responses_objects.OutputText: Upstream("type text annotations logprobs"),
    responses_objects.FunctionCall: Upstream(
        "id type status call_id name arguments", left_out="namespace", either="caller"
    ),
    responses_objects.ReasoningItem: Upstream(
        "id type summary", left_out="status content", either="encrypted_content"
    ),
    responses_objects.ReasoningText: Upstream("type text"),
    responses_objects.ResponsesUsage: Upstream(
        "input_tokens input_tokens_details output_tokens output_tokens_details total_tokens"
    ),
    responses_objects.InputTokensDetails: Upstream("cached_tokens cache_write_tokens"),
    responses_objects.OutputTokensDetails: Upstream("reasoning_tokens"),
    responses_objects.ResponseError: Upstream("code message"),
    responses_objects.IncompleteDetails: Upstream("reason"),
    responses_objects.TextConfig: Upstream("format", either="verbosity"),
    responses_objects.ReasoningConfig: Upstream(either="effort summary"),
    responses_objects.ResponseCreated: _RESPONSE_EVENT,
    responses_objects.ResponseInProgress: _RESPONSE_EVENT,
    responses_objects.ResponseCompleted: _RESPONSE_EVENT,
    responses_objects.ResponseIncomplete: _RESPONSE_EVENT,
    responses_objects.ResponseFailed: _RESPONSE_EVENT,
    responses_objects.OutputItemAdded: _ITEM_EVENT,
    responses_objects.OutputItemDone: _ITEM_EVENT,
    responses_objects.ContentPartAdded: _PART_EVENT,
    responses_objects.ContentPartDone: _PART_EVENT,
    responses_objects.OutputTextDelta: Upstream(_DELTA_EVENT.always + _SCORED),
    responses_objects.OutputTextDone: Upstream(_TEXT_EVENT.always + _SCORED),
    responses_objects.ReasoningDelta: _DELTA_EVENT,
    responses_objects.ReasoningDone: _TEXT_EVENT,
    responses_objects.ArgumentsDelta: Upstream(f"{_EVENT} item_id output_index delta"),
    responses_objects.ArgumentsDone: Upstream(f"{_EVENT} item_id output_index name arguments"),
    # OpenAI's document has the fields in the event, Open Responses has them in `error`.
    responses_objects.ErrorEvent: Upstream(f"{_EVENT} message error", "code param"),
    responses_objects.ErrorPayload: Upstream("type message", "code param"),
    responses.InputTokens: Upstream("object input_tokens"),
    # Anthropic.
    anthropic_reply.AnthropicMessage: Upstream(
        "id type role model content usage",
        "stop_reason stop_sequence",
        "stop_details container",
        ours="outrider metrics",
    ),
    anthropic_reply.AnthropicUsage: Upstream(
        "input_tokens output_tokens cache_creation_input_tokens cache_read_input_tokens",
        left_out="service_tier cache_creation inference_geo server_tool_use output_tokens_details",
    ),
    anthropic_reply.TextBlock: Upstream("type text", left_out="citations"),
    anthropic_reply.ThinkingBlock: Upstream("type thinking signature"),
    anthropic_reply.ToolUseBlock: Upstream("type id name input", left_out="caller"),
    anthropic_reply.DirectCaller: Upstream("type"),
    anthropic_reply.MessageStart: Upstream("type message"),
    anthropic_reply.ContentBlockStart: Upstream("type index content_block"),
    anthropic_reply.ContentBlockDelta: Upstream("type index delta"),
    anthropic_reply.TextDelta: Upstream("type text"),
    anthropic_reply.ThinkingDelta: Upstream("type thinking"),
    anthropic_reply.SignatureDelta: Upstream("type signature"),
    anthropic_reply.InputJsonDelta: Upstream("type partial_json"),
    anthropic_reply.ContentBlockStop: Upstream("type index"),
    anthropic_reply.MessageDelta: Upstream("type delta usage", ours="outrider metrics"),
    anthropic_reply.MessageEnd: Upstream(
        null="stop_reason stop_sequence", left_out="stop_details container"
    ),
    anthropic_reply.MessageStop: Upstream("type"),
    anthropic_reply.Ping: Upstream("type"),
    anthropic_errors.AnthropicErrorBody: Upstream("type error", left_out="request_id"),
    anthropic_errors.AnthropicError: Upstream("type message"),
    anthropic_messages.TokenCount: Upstream("input_tokens"),
    # vLLM's pages "Per-Request Metrics" and "Per-Request Acceptance Metrics".
    reply_metrics.ReplyMetrics: Upstream(
        "time_to_first_token_ms generation_time_ms queue_time_ms tokens_per_second",
        left_out="mean_itl_ms speculative_decoding",
        ours="tokens moves first_text rtt_ms ahead_tokens",
    ),
    reply_metrics.SpeculativeDecoding: Upstream(
        "mean_acceptance_length draft_acceptance_rate acceptance_histogram "
        "acceptance_histogram_by_draft_length num_spec_steps num_accepted_draft_tokens "
        "num_draft_tokens num_spec_tokens"
    ),
    reply_metrics.FirstTextTimes: Upstream(ours="provisional_ms staying_ms committed_ms region_ms"),
    reply_metrics.TokensBySource: Upstream(ours="edge region none unknown"),
    # vLLM.
    tokenizing.TokenizeResponse: Upstream("count max_model_len tokens", "token_strs"),
    tokenizing.DetokenizeResponse: Upstream("prompt"),
}

OWN: Final = (cancelling.Cancelled, mesh.Mesh, typed_text.TypingAnswer)
"""Answers of routes that no other API has."""
ECHOED: Final = (responses_input.FunctionTool, responses_input.FunctionChoice)
"""Parts of a request that a response repeats, once they were found to be whole."""
