"""Formats in which models write tool calls and reasoning, and how to find a template's own.

hermes        <tool_call>{"name": "f", "arguments": {...}}</tool_call>   Qwen 2.5 and 3, Hermes
llama3_json   {"name": "f", "parameters": {...}}, perhaps behind <|python_tag|>   Llama 3.1 to 3.3
mistral       [TOOL_CALLS] [{"name": "f", "arguments": {...}}, ...]   Mistral up to 2024
mistral_args  [TOOL_CALLS]f[ARGS]{...}   Mistral since
harmony       <|channel|>commentary to=functions.f<|message|>{...}<|call|>   gpt-oss: all of a reply
              is in such messages, its reasoning and its answer too (harmony.py)

Reasoning stands at the beginning of a reply, between two tags (REASONING_TAGS).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, NamedTuple


class CallSyntax(StrEnum):
    """How a model writes tool calls."""

    HERMES = "hermes"
    LLAMA3_JSON = "llama3_json"
    MISTRAL = "mistral"
    MISTRAL_ARGS = "mistral_args"
    HARMONY = "harmony"


class ReasoningTags(NamedTuple):
    """Texts that enclose a model's reasoning."""

    begin: str
    end: str


REASONING_TAGS: Final = (
    ReasoningTags("<think>", "</think>"),  # DeepSeek R1, Qwen3, SmolLM3 and most others
    ReasoningTags("[THINK]", "[/THINK]"),  # Magistral
    ReasoningTags("<|START_THINKING|>", "<|END_THINKING|>"),  # Command A Reasoning
    ReasoningTags("<seed:think>", "</seed:think>"),  # Seed-OSS
    ReasoningTags("◁think▷", "◁/think▷"),  # Kimi-VL-Thinking
    ReasoningTags("<thought>", "</thought>"),  # EXAONE Deep
)
START: Final = "<|start|>"
CHANNEL: Final = "<|channel|>"
CONSTRAIN: Final = "<|constrain|>"
MESSAGE: Final = "<|message|>"
HARMONY_ENDS: Final = ("<|end|>", "<|call|>", "<|return|>")
"""Each ends a message; the last two also end the reply."""
HARMONY_TAGS: Final = ReasoningTags(f"{CHANNEL}analysis{MESSAGE}", HARMONY_ENDS[0])
"""Between these gpt-oss thinks at the beginning; others have the second for other purposes."""
MAX_TAG_CHARS: Final = 64
"""Longest tag that a peer may name."""
TOOL_CALL: Final = "<tool_call>"
END_OF_TOOL_CALL: Final = "</tool_call>"
PYTHON_TAG: Final = "<|python_tag|>"
TOOL_CALLS: Final = "[TOOL_CALLS]"
ARGS: Final = "[ARGS]"
CALL_ID: Final = "[CALL_ID]"

_RESULTS: Final = ("<tool_response>", "</tool_response>")
_MARKERS: Final[dict[CallSyntax | None, tuple[str, ...]]] = {
    CallSyntax.HERMES: (TOOL_CALL, END_OF_TOOL_CALL),
    CallSyntax.LLAMA3_JSON: (PYTHON_TAG,),
    CallSyntax.MISTRAL: (TOOL_CALLS,),
    CallSyntax.MISTRAL_ARGS: (TOOL_CALLS, ARGS, CALL_ID),
    CallSyntax.HARMONY: (START, CHANNEL, CONSTRAIN, MESSAGE, *HARMONY_ENDS),
}
MARKUP: Final = frozenset(
    text for texts in (*_MARKERS.values(), *REASONING_TAGS, _RESULTS) for text in texts
)
"""Texts that enclose reasoning, calls and their results in the chats of any model."""


@dataclass(frozen=True, slots=True)
class ReplyFormat:
    """How to parse a model's replies."""

    call_syntax: CallSyntax | None = None
    """None: the reply has no tool calls. HARMONY also without tools: it is the form of replies."""
    reasoning: ReasoningTags | None = None
    """Tags of the reasoning at the beginning; None: there is none."""
    begins_in_reasoning: bool = False
    """The prompt ends in the tag that begins reasoning: so does the reply begin."""
    tool_names: tuple[str, ...] = ()
    """Names of the known tools, for formats in which any object might be a call."""
    single_call: bool = False
    """Whether calls behind the first one are parsed but not reported."""

    @property
    def markers(self) -> tuple[str, ...]:
        """Texts that have to be in a reply's text to read it. Where they are control tokens, the
        text has to have the names of those."""
        return (*_MARKERS.get(self.call_syntax, ()), *(self.reasoning or ()))

    @property
    def without_calls(self) -> ReplyFormat:
        """Of the replies to chats without tools."""
        is_form = self.call_syntax is CallSyntax.HARMONY
        return replace(self, call_syntax=self.call_syntax if is_form else None, tool_names=())


def call_syntax_of(template: str) -> CallSyntax | None:
    """How the model of a chat template (Jinja source) writes tool calls; None if in a way that is
    not known."""
    if _is_harmony(template):
        return CallSyntax.HARMONY
    if TOOL_CALLS in template:
        return CallSyntax.MISTRAL_ARGS if ARGS in template else CallSyntax.MISTRAL
    if TOOL_CALL in template:
        # Qwen3-Coder and others write XML of their own within these tags.
        return None if "<function=" in template or "<arg_key>" in template else CallSyntax.HERMES
    if PYTHON_TAG in template or '{"name": function name, "parameters"' in template:
        return CallSyntax.LLAMA3_JSON
    return None


def reasoning_tags_of(template: str, prompt: str = "") -> ReasoningTags | None:
    """The tags between which the model of a chat template (Jinja source) thinks: those that the
    template handles, or that a `prompt` of it ends in. None: it does not think."""
    if _is_harmony(template):
        return HARMONY_TAGS
    for tags in REASONING_TAGS:
        if tags.end in template or ends_in(tags, prompt):
            return tags
    return None


def _is_harmony(template: str) -> bool:
    return START in template and CHANNEL in template and MESSAGE in template


def ends_in(tags: ReasoningTags, prompt: str) -> bool:
    """Whether a reply to this prompt, or to a prompt with this end, begins with reasoning."""
    return prompt.rstrip().endswith(tags.begin)
