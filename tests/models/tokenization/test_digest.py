"""The digest changes with every part of the contract and with nothing else."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from outrider.errors import ArtifactCorruptError, ConfigError
from outrider.models.tokenization.definition import VocabularyDefinition
from outrider.models.tokenization.digest import canonical_form, vocabulary_digest

DEFINITION = VocabularyDefinition(
    tokens=("<s>", "a", "b", "ab", "<x>"),
    merges=("a b",),
    pre_tokenizer="gpt-2",
    control_ids=(0,),
    user_defined_ids=(4,),
    stop_ids=(0,),
    bos_token="<s>",
    eos_token="<s>",
    chat_template="{{ messages }}",
)


def test_the_form_is_pinned() -> None:
    """A peer of another version computes the same bytes; change them only with `form`."""
    form = canonical_form(DEFINITION)
    assert form.isascii()
    assert list(json.loads(form)) == sorted(json.loads(form))
    pinned = "f77e6f675bca2bf08ad746d481a9e0011dcc296373f624196e71d487b5275646"
    assert vocabulary_digest(DEFINITION).hex() == pinned


@pytest.mark.parametrize(
    "change",
    [
        {"tokens": ("<s>", "b", "a", "ab", "<x>")},
        {"merges": ()},
        {"pre_tokenizer": "smollm"},
        {"pre_tokenizer": "qwen2"},
        {"control_ids": (0, 4), "user_defined_ids": ()},
        {"user_defined_ids": ()},
        {"stop_ids": (0, 4)},
        {"bos_token": ""},
        {"eos_token": ""},
        {"chat_template": "{{ messages }} "},
    ],
    ids=str,
)
def test_every_part_counts(change: dict[str, object]) -> None:
    changed = replace(DEFINITION, **change)  # type: ignore[arg-type]
    assert vocabulary_digest(changed) != vocabulary_digest(DEFINITION)


def test_names_and_containers_do_not_count() -> None:
    llama = replace(DEFINITION, pre_tokenizer="llama-bpe")
    assert vocabulary_digest(llama) == vocabulary_digest(replace(llama, pre_tokenizer="llama3"))
    listed = replace(DEFINITION, tokens=list(DEFINITION.tokens), stop_ids=[0])
    assert vocabulary_digest(listed) == vocabulary_digest(DEFINITION)


def test_an_unknown_pre_tokenizer_has_no_digest() -> None:
    with pytest.raises(ConfigError, match="'mystery' cannot be built exactly"):
        vocabulary_digest(replace(DEFINITION, pre_tokenizer="mystery"))


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"tokens": ("a", "a", "b", "ab", "<x>")}, "same text"),
        ({"stop_ids": (5,)}, "outside the vocabulary"),
        ({"control_ids": (-1,)}, "outside the vocabulary"),
        ({"merges": ("ab",)}, "not a pair"),
        ({"merges": ("a b c",)}, "not a pair"),
    ],
)
def test_contradictions_are_refused(change: dict[str, object], complaint: str) -> None:
    with pytest.raises(ArtifactCorruptError, match=complaint):
        replace(DEFINITION, **change)  # type: ignore[arg-type]
