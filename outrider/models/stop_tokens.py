"""Which control tokens end a reply. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

_END_TEXTS: Final = frozenset(
    {
        "<|endoftext|>",
        "<|end_of_text|>",
        "<|im_end|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|end|>",
        "<end_of_turn>",
        "<end_of_utterance>",
    }
)
"""Control tokens that always end a turn, whatever the metadata says; llama.cpp has the same
rule."""

_HARMONY_ENDS: Final = frozenset({"<|return|>", "<|call|>"})
"""Of gpt-oss, whose `<|end|>` ends a message and not the turn."""


def stop_ids_of(tokens: Sequence[str], control: Sequence[int], named: Sequence[int]) -> list[int]:
    """Ids that end a reply: those named in the model's files, and control tokens with a text of
    _END_TEXTS."""
    ends = _END_TEXTS
    if {tokens[i] for i in control} >= _HARMONY_ENDS:
        ends = (_END_TEXTS | _HARMONY_ENDS) - {"<|end|>"}
        named = [i for i in named if tokens[i] != "<|end|>"]
    by_text = [i for i in control if tokens[i] in ends]
    return sorted({*by_text, *named})
