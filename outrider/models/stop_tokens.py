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


def stop_ids_of(tokens: Sequence[str], control: Sequence[int], named: Sequence[int]) -> list[int]:
    """Ids that end a reply: those named in the model's files, and control tokens with a text of
    _END_TEXTS."""
    by_text = [i for i in control if tokens[i] in _END_TEXTS]
    return sorted({*by_text, *named})
