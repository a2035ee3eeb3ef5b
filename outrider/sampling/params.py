"""Sampling parameters: everything besides model and prompt that determines the committed text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from outrider.errors import InvalidSamplingError
from outrider.reply_parsing.formats import ReasoningTags
from outrider.sampling.grammar import Grammar

MAX_STOPS = 16
MAX_STOP_CHARS = 256
MAX_LOGIT_BIASES = 1024
MAX_LOGPROBS = 20
MIN_REPETITION_PENALTY = 0.01
"""Scores are divided by it, and have to stay finite: one that does not counts as the engine's
fault."""
_MAX_SHOWN = 1e18
"""Values as large as this, which may have thousands of digits, are not repeated in messages."""
_NO_BIAS: Mapping[int, float] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Validated sampling values. Raises InvalidSamplingError at construction.

    Semantics follow the OpenAI API and, for top_k, min_p and repetition_penalty, vLLM's.
    """

    temperature: float = 0.0
    """0 is greedy; at most 2."""
    top_k: int = 0
    """Keep the k likeliest ids; 0 keeps all."""
    top_p: float = 1.0
    """Keep the smallest set of ids whose probability reaches top_p, 0 < top_p <= 1."""
    min_p: float = 0.0
    """Drop ids less likely than min_p times the likeliest, 0..1."""
    repetition_penalty: float = 1.0
    """CTRL (arXiv 1909.05858, section 4.1) over prompt and reply; MIN_REPETITION_PENALTY..10."""
    presence_penalty: float = 0.0
    """Subtracted once from each id the reply has, -2..2."""
    frequency_penalty: float = 0.0
    """Subtracted for each time the reply has the id, -2..2."""
    logit_bias: Mapping[int, float] = field(default_factory=lambda: _NO_BIAS)
    """Added to the logits of these ids, -100..100."""
    seed: int = 0
    """0 .. 2**64 - 1; the noise is a function of only seed, position and id."""
    max_tokens: int = 256
    """Most tokens of the reply, at least 1."""
    stop: tuple[str, ...] = ()
    """The text ends before the first of these; they are not part of it."""
    stop_ids: tuple[int, ...] = ()
    """The reply ends at one of these ids; its text is not part of it."""
    ignore_eos: bool = False
    """Generate on past the model's own end tokens."""
    acceptance_threshold: float = 0.0
    """Lossy: accept a draft at least this likely. 0 is off and exact."""
    num_logprobs: int = -1
    """Return each token's log probability and those of this many of the likeliest, 0..20; -1: none.
    The text does not depend on it."""
    grammar: Grammar | None = None
    """Grammar of the reply, which ends where the grammar is complete."""
    special_tokens: bool = False
    """Control tokens that do not end the reply have their names in its text."""
    max_thinking_tokens: int = -1
    """Most tokens of a model's reasoning before its answer, at which it is ended; -1: no limit."""
    reasoning_tags: ReasoningTags | None = None
    """Tags of the model's reasoning, which the edge sets. Without them there is none: a grammar is
    that of the whole reply, and `max_thinking_tokens` has no effect."""

    def __post_init__(self) -> None:
        _in_range("temperature", self.temperature, 0.0, 2.0)
        _in_range("top_p", self.top_p, 0.0, 1.0, open_low=True)
        _in_range("min_p", self.min_p, 0.0, 1.0)
        _in_range("repetition_penalty", self.repetition_penalty, MIN_REPETITION_PENALTY, 10.0)
        _in_range("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _in_range("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _in_range("acceptance_threshold", self.acceptance_threshold, 0.0, 1.0)
        _in_range("top_k", self.top_k, 0, 2**31 - 1)
        _in_range("seed", self.seed, 0, 2**64 - 1)
        _in_range("max_tokens", self.max_tokens, 1, 2**31 - 1)
        _in_range("num_logprobs", self.num_logprobs, -1, MAX_LOGPROBS)
        _in_range("max_thinking_tokens", self.max_thinking_tokens, -1, 2**31 - 1)
        self._check_lists()
        if self.grammar is not None and self.ignore_eos:
            raise InvalidSamplingError(
                "where a grammar is complete the model's end tokens end the reply; "
                "leave ignore_eos out"
            )

    @property
    def limits_reasoning(self) -> bool:
        """Whether the reply's reasoning is ended at a number of tokens."""
        return self.reasoning_tags is not None and self.max_thinking_tokens >= 0

    @property
    def is_constrained(self) -> bool:
        """Whether ids of the reply are chosen among those that a Constraint allows."""
        return self.grammar is not None or self.limits_reasoning

    def _check_lists(self) -> None:
        check_counts(len(self.stop), len(self.stop_ids), len(self.logit_bias))
        if any(not s or len(s) > MAX_STOP_CHARS for s in self.stop):
            raise InvalidSamplingError(
                f"stop has a string that is empty or longer than {MAX_STOP_CHARS} characters"
            )
        for bias in self.logit_bias.values():
            _in_range("logit_bias", bias, -100.0, 100.0)


def check_counts(num_stops: int, num_stop_ids: int, num_biases: int) -> None:
    """Whether so many may be in the lists, which is known before they are read: a frame of 1 MiB
    holds half a million entries. Raises InvalidSamplingError."""
    if num_stops > MAX_STOPS:
        raise InvalidSamplingError(f"stop has {num_stops} strings; send at most {MAX_STOPS}")
    if num_stop_ids > MAX_STOPS:
        raise InvalidSamplingError(f"stop_ids has {num_stop_ids} ids; send at most {MAX_STOPS}")
    if num_biases > MAX_LOGIT_BIASES:
        raise InvalidSamplingError(f"logit_bias has at most {MAX_LOGIT_BIASES} entries")


def _in_range(name: str, value: float, low: float, high: float, *, open_low: bool = False) -> None:
    if low <= value <= high and not (open_low and value == low):  # NaN is in no range
        return
    bracket = "above" if open_low else "at least"
    shown = f", not {value}" if abs(value) < _MAX_SHOWN else ""
    raise InvalidSamplingError(
        f"{name} must be {bracket} {_plain(low)} and at most {_plain(high)}{shown}"
    )


def _plain(number: float) -> str:
    """All digits of a whole number: 2147483647, and not 2.14748e+09."""
    return str(int(number)) if number == int(number) else str(number)
