"""Fields of requests that are no part of a reply's own API here, or have no effect: one table, from
which requests are read and the guide's matrix is written (pure data).

A field that is in no table and in no request's struct is passed over, and the client is told.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final


class Door(StrEnum):
    """A route that asks for text; routes that count its prompt's tokens read the same fields."""

    CHAT = "/v1/chat/completions"
    COMPLETIONS = "/v1/completions"
    RESPONSES = "/v1/responses"
    MESSAGES = "/v1/messages"


class Outcome(StrEnum):
    """What becomes of a field."""

    NO_EFFECT = "no effect"
    """Accepted: it changes nothing of the text."""
    MAPPED = "mapped"
    """Accepted as the field of the same meaning."""
    REFUSED = "refused"
    """400: it would change the text or the reply's contents, and nothing here does."""
    PASSED_OVER = "passed over"
    """Accepted without effect, and named in the answer's header: the reply is as good as it can be
    without."""


ALL: Final = frozenset(Door)


@dataclass(frozen=True, slots=True)
class Field:
    """A field at the top of a request."""

    name: str
    outcome: Outcome
    of: str
    """API or server that has it."""
    doors: frozenset[Door] = ALL
    neutral: tuple[Any, ...] = ()
    """Values that ask for nothing, besides null: accepted where others are refused."""
    to: str = ""
    """MAPPED: name of the field that it becomes, as chat completions have it."""
    instead: str = "leave it out"
    """REFUSED: what to do."""


def _all(outcome: Outcome, of: str, *names: str) -> Iterator[Field]:
    return (Field(name, outcome, of) for name in names)


def _renamed(of: str, **names: str) -> Iterator[Field]:
    return (Field(name, Outcome.MAPPED, of, to=to) for name, to in names.items())


def _refused(of: str, **neutral: Any) -> Iterator[Field]:
    """Refused for all values but one."""
    return (Field(name, Outcome.REFUSED, of, neutral=(it,)) for name, it in neutral.items())


def _refused_on(
    doors: set[Door], of: str, instead: str, *names: str, neutral: tuple[Any, ...] = ()
) -> Iterator[Field]:
    found = frozenset(doors)
    return (Field(it, Outcome.REFUSED, of, found, neutral, instead=instead) for it in names)


FORMAT: Final = "response_format"
"""What fields that ask for a structure become, with a conversion of their own (structures.py)."""
_VLLM, _LLAMA, _SGLANG, _OLLAMA = "vLLM", "llama.cpp", "SGLang", "Ollama"
_OPENAI, _RESPONSES, _ANTHROPIC = "OpenAI", "OpenAI Responses", "Anthropic"
_CHATS: Final = {Door.CHAT, Door.RESPONSES, Door.MESSAGES}
_OTHERS: Final = frozenset({Door.COMPLETIONS, Door.RESPONSES, Door.MESSAGES})
_SENT_WHOLE: Final = "nothing is stored here; send the whole conversation as `input`"

FIELDS: Final = (
    # Structures of the reply.
    *_renamed(
        _VLLM,
        guided_json=FORMAT,
        guided_json_object=FORMAT,
        guided_regex=FORMAT,
        guided_choice=FORMAT,
        guided_grammar=FORMAT,
        structured_outputs=FORMAT,
    ),
    *_renamed(_LLAMA, grammar=FORMAT, json_schema=FORMAT),
    *_renamed(_SGLANG, regex=FORMAT, ebnf=FORMAT),
    *_renamed(_OLLAMA, format=FORMAT),
    Field(
        FORMAT,
        Outcome.MAPPED,
        _OPENAI,
        frozenset({Door.RESPONSES, Door.MESSAGES}),
        to=FORMAT,
    ),
    *_refused_on(
        set(ALL),
        _VLLM,
        "put `x-guidance` with a `whitespace_pattern` into the schema",
        "guided_whitespace_pattern",
    ),
    *_refused_on(set(ALL), f"{_VLLM}, {_SGLANG}", "send a schema or a grammar", "structural_tag"),
    *_refused_on(
        set(ALL),
        _LLAMA,
        "send tools, or a grammar for all of the reply",
        "grammar_lazy",
        "grammar_triggers",
        neutral=(False, []),
    ),
    *_all(Outcome.NO_EFFECT, _VLLM, "guided_decoding_backend"),
    # Sampling by other names.
    *_renamed(_LLAMA, n_predict="max_tokens", repeat_penalty="repetition_penalty"),
    *_renamed(_OLLAMA, num_predict="max_tokens"),
    *_renamed(_SGLANG, max_new_tokens="max_tokens"),
    Field("think", Outcome.MAPPED, _OLLAMA, frozenset(_CHATS), to="enable_thinking"),
    Field(
        "reasoning_effort",
        Outcome.MAPPED,
        _OPENAI,
        frozenset({Door.RESPONSES, Door.MESSAGES}),
        to="reasoning_effort",
    ),
    Field("max_tokens", Outcome.MAPPED, _OPENAI, frozenset({Door.RESPONSES}), to="max_tokens"),
    Field(
        "max_output_tokens",
        Outcome.MAPPED,
        _RESPONSES,
        frozenset({Door.CHAT, Door.COMPLETIONS, Door.MESSAGES}),
        to="max_tokens",
    ),
    Field("stop", Outcome.MAPPED, _OPENAI, frozenset({Door.MESSAGES}), to="stop"),
    Field(
        "stop_sequences",
        Outcome.MAPPED,
        _ANTHROPIC,
        frozenset({Door.CHAT, Door.COMPLETIONS, Door.RESPONSES}),
        to="stop",
    ),
    Field("max_completion_tokens", Outcome.MAPPED, _OPENAI, _OTHERS, to="max_tokens"),
    Field("user", Outcome.MAPPED, _OPENAI, frozenset({Door.MESSAGES}), to="user"),
    Field("options", Outcome.MAPPED, _OLLAMA, to="its members"),
    # Sampling that is not here.
    *_refused(
        _VLLM,
        min_tokens=0,
        use_beam_search=False,
        length_penalty=1,
        early_stopping=False,
        bad_words=[],
        allowed_token_ids=[],
        logits_processors=[],
        include_stop_str_in_output=False,
        skip_special_tokens=True,
        truncate_prompt_tokens=None,
        prompt_logprobs=None,
        return_token_ids=False,
        return_tokens_as_token_ids=False,
        documents=[],
    ),
    *_refused_on(
        _CHATS,
        _VLLM,
        "conversations are rendered by the model's own template",
        "chat_template",
        neutral=("",),
    ),
    *_refused_on(
        {Door.RESPONSES, Door.MESSAGES},
        _VLLM,
        "chat completions have it, and a conversation in Messages that ends with the assistant is "
        "continued by itself",
        "continue_final_message",
        neutral=(False,),
    ),
    *_refused_on(
        {Door.RESPONSES, Door.MESSAGES},
        _VLLM,
        "it follows from how the conversation ends",
        "add_generation_prompt",
        neutral=(True,),
    ),
    *_refused(
        _SGLANG,
        min_new_tokens=0,
        stop_regex=[],
        no_stop_trim=False,
        custom_logit_processor="",
        lora_path="",
        return_hidden_states=False,
    ),
    *_refused(
        _LLAMA,
        mirostat=0,
        dynatemp_range=0,
        typical_p=1,
        tfs_z=1,
        top_n_sigma=-1,
        xtc_probability=0,
        dry_multiplier=0,
        repeat_last_n=-1,
        penalize_nl=False,
        samplers=[],
        min_keep=0,
        n_probs=0,
        post_sampling_probs=False,
        n_indent=0,
        t_max_predict_ms=0,
        lora=[],
        return_tokens=False,
        response_fields=[],
        input_prefix="",
        input_suffix="",
    ),
    *_refused("text-generation-webui", top_a=0),
    *_refused(_OLLAMA, raw=False, template="", context=[]),
    *_refused_on(
        {Door.CHAT, Door.COMPLETIONS, Door.RESPONSES},
        _OLLAMA,
        "send it as a message",
        "system",
        neutral=("",),
    ),
    *_refused("TGI", watermark=False, return_full_text=False, details=False),
    # Parts of OpenAI's APIs that are not here, or not on every route.
    *_refused_on(
        {Door.RESPONSES, Door.MESSAGES}, _OPENAI, "send several requests", "n", neutral=(1,)
    ),
    *_refused_on(_CHATS, _OPENAI, "ask for n choices", "best_of", neutral=(1,)),
    *_refused_on(_CHATS, _OPENAI, "the prompt is not returned here", "echo", neutral=(False,)),
    *_refused_on(
        set(ALL), _OPENAI, "models here only continue a text at its end", "suffix", neutral=("",)
    ),
    *_refused_on(
        {Door.RESPONSES},
        _OPENAI,
        "put message.output_text.logprobs into `include`",
        "logprobs",
        neutral=(False,),
    ),
    *_refused_on(
        {Door.MESSAGES},
        _OPENAI,
        "chat completions and responses return log probabilities",
        "logprobs",
        neutral=(False,),
    ),
    *_refused_on(
        {Door.MESSAGES},
        _OPENAI,
        "chat completions and responses return log probabilities",
        "top_logprobs",
        neutral=(0,),
    ),
    *_refused_on(
        {Door.COMPLETIONS},
        _OPENAI,
        "a prompt has no tools; send a conversation",
        "tools",
        "tool_choice",
        neutral=([], "none", "auto"),
    ),
    *_refused_on(
        _CHATS,
        _OPENAI,
        "send them as `tools` and `tool_choice`",
        "functions",
        "function_call",
        neutral=([], "none", "auto"),
    ),
    *_refused_on(
        set(ALL), _OPENAI, "models here write only text", "modalities", "audio", neutral=(["text"],)
    ),
    *_refused_on(
        {Door.RESPONSES}, _RESPONSES, _SENT_WHOLE, "previous_response_id", "conversation", "prompt"
    ),
    *_refused_on(
        {Door.CHAT, Door.COMPLETIONS, Door.MESSAGES},
        _RESPONSES,
        "send them as a message of the system",
        "instructions",
        neutral=("",),
    ),
    *_refused_on(
        set(ALL),
        _RESPONSES,
        "no response is stored here, to be fetched later; wait for it",
        "background",
        neutral=(False,),
    ),
    *_refused_on(
        set(ALL),
        _ANTHROPIC,
        "send `residency` with names of regions",
        "inference_geo",
        neutral=("global",),
    ),
    # Tools that the API itself would run, and hints.
    *_all(Outcome.PASSED_OVER, _OPENAI, "web_search_options", "verbosity"),
    *_all(Outcome.PASSED_OVER, _ANTHROPIC, "mcp_servers", "container", "context_management"),
    *_all(Outcome.PASSED_OVER, "OpenRouter", "plugins", "transforms", "models", "route"),
    # Known to change nothing of the text.
    Field(
        "metadata",
        Outcome.NO_EFFECT,
        _OPENAI,
        frozenset({Door.CHAT, Door.COMPLETIONS, Door.RESPONSES}),
    ),
    *_all(
        Outcome.NO_EFFECT,
        _OPENAI,
        "prompt_cache_key",
        "prompt_cache_retention",
        "service_tier",
        "store",
    ),
    Field(
        "prediction",
        Outcome.NO_EFFECT,
        _OPENAI,
        _OTHERS,
    ),
    *_all(Outcome.NO_EFFECT, _RESPONSES, "max_tool_calls", "truncation"),
    *_all(
        Outcome.NO_EFFECT,
        _ANTHROPIC,
        *("anthropic_beta", "anthropic_version", "betas", "cache_control", "speed"),
    ),
    *_all(
        Outcome.NO_EFFECT,
        _VLLM,
        *("cache_salt", "kv_transfer_params", "mm_processor_kwargs", "request_id"),
        "spaces_between_special_tokens",
    ),
    *_all(
        Outcome.NO_EFFECT,
        _LLAMA,
        *("cache_prompt", "id_slot", "slot_id", "n_keep", "n_discard", "n_cache_reuse"),
        *("timings_per_token", "return_progress", "parse_tool_calls"),
        *("mirostat_tau", "mirostat_eta", "dynatemp_exponent", "xtc_threshold"),
        *("dry_base", "dry_allowed_length", "dry_penalty_last_n", "dry_sequence_breakers"),
    ),
    *_all(
        Outcome.NO_EFFECT,
        _OLLAMA,
        *("keep_alive", "num_ctx", "num_keep", "num_batch", "num_gpu", "main_gpu", "num_thread"),
        *("use_mmap", "use_mlock", "low_vram", "numa", "shift", "truncate"),
    ),
    *_all(Outcome.NO_EFFECT, _SGLANG, "rid", "bootstrap_host", "bootstrap_port", "bootstrap_room"),
    *_all(Outcome.NO_EFFECT, "LM Studio", "ttl", "draft_model"),
    *_all(Outcome.NO_EFFECT, "OpenRouter", "provider", "usage"),
)


def listed(door: Door) -> dict[str, Field]:
    """The table's fields for one route, by name."""
    return {it.name: it for it in FIELDS if door in it.doors}
