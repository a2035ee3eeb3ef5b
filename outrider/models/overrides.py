"""Applies a model definition's changes to the vocabulary of the model's file. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from outrider.errors import ConfigError
from outrider.models.bpe import VocabularyDefinition

_TOKENS_SHOWN: Final = 12


def with_overrides(
    definition: VocabularyDefinition, chat_template: str, stop_tokens: Iterable[str]
) -> VocabularyDefinition:
    """With another chat template, unless it is "", and with more control tokens that end a reply.
    Raises ConfigError for texts that are no control tokens."""
    control = {definition.tokens[i]: i for i in definition.control_ids}
    stop_ids = set(definition.stop_ids)
    for text in stop_tokens:
        if text not in control:
            known = ", ".join(sorted(control)[:_TOKENS_SHOWN])
            what = "no control token" if text in definition.tokens else "not in the vocabulary"
            raise ConfigError(
                f"the stop token {text!r} is {what}; the first control tokens are {known}"
            )
        stop_ids.add(control[text])
    return replace(
        definition,
        chat_template=chat_template or definition.chat_template,
        stop_ids=sorted(stop_ids),
    )
