"""What a reply is held to: its grammar, behind what the model thinks, and how long it thinks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from outrider.errors import InvalidSamplingError
from outrider.reply_parsing.reasoning import ReasoningMeter, begins_in_reasoning
from outrider.sampling.constraint import Constraint
from outrider.sampling.grammar import Grammar
from outrider.sampling.params import SamplingParams
from outrider.sampling.thinking_budget import ThinkingBudget
from services.inference.grammars.compiler import compile_grammar
from services.inference.grammars.token_table import TokenTable


def constraint_of(
    table: TokenTable, sampling: SamplingParams, prompt: Sequence[int]
) -> Constraint | None:
    """The constraint of one reply, at its beginning; None if it has none. Compiles its grammar:
    blocks for milliseconds, or longer. Raises InvalidSamplingError."""
    grammar = behind_reasoning(table, sampling, prompt)
    compiled = None if grammar is None else compile_grammar(table, grammar).constraint()
    return with_budget(table, sampling, prompt, compiled)


def behind_reasoning(
    table: TokenTable, sampling: SamplingParams, prompt: Sequence[int]
) -> Grammar | None:
    """The grammar of a reply to this prompt: that of `sampling`, behind what the model thinks."""
    grammar, tags = sampling.grammar, sampling.reasoning_tags
    if grammar is None or tags is None:
        return grammar
    is_open = begins_in_reasoning(tags, prompt, table.bytes_of)
    return replace(grammar, reasoning=tags, begins_in_reasoning=is_open)


def with_budget(
    table: TokenTable,
    sampling: SamplingParams,
    prompt: Sequence[int],
    grammar: Constraint | None = None,
) -> Constraint | None:
    """A reply's constraint: that of its grammar, and the limit of its reasoning. Raises
    InvalidSamplingError for a vocabulary that cannot write the tag that ends reasoning."""
    tags = sampling.reasoning_tags
    if tags is None or sampling.max_thinking_tokens < 0:
        return grammar
    table.ids_of(tags.end)  # What cannot be written is refused before the reply begins.
    is_open = begins_in_reasoning(tags, prompt, table.bytes_of)
    text_of = table.bytes_of if sampling.special_tokens else table.text_bytes_of
    return ThinkingBudget(
        sampling.max_thinking_tokens,
        partial(_end_ids, table, tags.end),
        ReasoningMeter(tags, text_of, begins_in_reasoning=is_open),
        table.size,
        grammar,
    )


def _end_ids(table: TokenTable, tag: str, num_chars: int) -> tuple[int, ...]:
    """The ids of a tag behind so many of its characters; all of it where it has a token of its own,
    and where the rest alone would be written otherwise."""
    whole = table.ids_of(tag)
    if not num_chars or len(whole) == 1:
        return whole
    rest = tag[num_chars:]
    try:
        ids = table.ids_of(rest)
    except InvalidSamplingError:
        return whole
    return ids if b"".join(map(table.bytes_of, ids)) == rest.encode() else whole
