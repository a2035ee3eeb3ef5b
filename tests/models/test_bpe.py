"""Byte-level BPE by llama.cpp's names: how texts are cut, and that the digest changes with every
part of the contract and with nothing else."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from tokenizers import pre_tokenizers

from outrider.errors import ArtifactCorruptError
from outrider.models.bpe import (
    VocabularyDefinition,
    build_tokenizer,
    canonical_form,
    vocabulary_digest,
)
from outrider.models.pre_tokenizers import DIGITS, Pipeline, pre_tokenizer_of
from outrider.models.vocabulary import Vocabulary

BYTE_ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())


def definition(
    pre_tokenizer: str, *more: str, merges: tuple[str, ...] = ()
) -> VocabularyDefinition:
    """One token per byte, `more`, and two special tokens at the end."""
    tokens = (*BYTE_ALPHABET, *more, "<s>", "<tool>")
    return VocabularyDefinition(
        tokens=tokens,
        merges=merges,
        pipeline=pre_tokenizer_of(pre_tokenizer).pipeline,
        control_ids=(len(tokens) - 2,),
        user_defined_ids=(len(tokens) - 1,),
        stop_ids=(),
        bos_token="<s>",
        eos_token="",
        chat_template="",
    )


def cut(pre_tokenizer: str, text: str) -> list[str]:
    """The pieces of `text` that BPE would see."""
    built = build_tokenizer(definition(pre_tokenizer))
    if built.normalizer is not None:
        text = built.normalizer.normalize_str(text)
    assert built.pre_tokenizer is not None
    pieces = built.pre_tokenizer.pre_tokenize_str(text)
    assert "".join(text[start:end] for _, (start, end) in pieces) == text
    return [text[start:end] for _, (start, end) in pieces]


@pytest.mark.parametrize(
    ("pre_tokenizer", "text", "pieces"),
    [
        ("gpt-2", "it's  12345!\n\n x", ["it", "'s", " ", " 12345", "!", "\n\n", " x"]),
        ("gpt-2", "IT'S\r\nx", ["IT", "'", "S", "\r", "\n", "x"]),
        ("smollm", "it's  123!", ["it", "'s", "  ", "1", "2", "3", "!"]),
        ("llama-bpe", "it's  12345!\n\n x", ["it", "'s", " ", " ", "123", "45", "!\n\n", " x"]),
        ("llama3", "IT'S\r\nx", ["IT", "'S", "\r\n", "x"]),
        ("qwen2", "(x)  12!\n", ["(x", ")", " ", " ", "1", "2", "!\n"]),
        ("qwen2", "e\u0301", ["é"]),
        ("llama3", "e\u0301", ["e", "\u0301"]),
        ("tekken", "aBC  12!/\n", ["a", "BC", " ", " ", "1", "2", "!/\n"]),
        ("tekken", "HTTPServer", ["HTTPServer"]),
        ("gpt-4o", "camelCase it's", ["camel", "Case", " it's"]),
        ("default", "a=b 12345!", ["a", "=", "b", " ", "123", "45", "!"]),
        ("deepseek-v3", "x\u4e2d12345.py", ["x", "\u4e2d", "123", "45", ".py"]),
        ("superbpe", "a b 12345", ["a b ", "12", "345"]),
    ],
)
def test_how_texts_are_cut(pre_tokenizer: str, text: str, pieces: list[str]) -> None:
    assert cut(pre_tokenizer, text) == pieces


def test_llama3_takes_whole_tokens_without_merges() -> None:
    ids = {
        name: Vocabulary.from_definition(definition(name, "abc")).encode("abc")
        for name in ("llama3", "gpt-2")
    }
    assert ids == {"llama3": [256], "gpt-2": [BYTE_ALPHABET.index(c) for c in "abc"]}


def test_merges_apply_in_rank_order() -> None:
    built = Vocabulary.from_definition(definition("gpt-2", "bc", "ab", merges=("b c", "a b")))
    assert built.encode("abc") == [BYTE_ALPHABET.index("a"), 256]


def test_user_defined_tokens_are_text_and_control_tokens_are_not() -> None:
    built = Vocabulary.from_definition(definition("gpt-2"))
    assert built.encode("<tool>") == [257]
    assert built.decode([257]) == "<tool>"
    assert 256 not in built.encode("<s>")
    assert built.decode([256]) == ""
    assert built.is_special(256)
    assert not built.is_special(257)


DEFINITION = VocabularyDefinition(
    tokens=("<s>", "a", "b", "ab", "<x>"),
    merges=("a b",),
    pipeline=pre_tokenizer_of("gpt-2").pipeline,
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
        {"pipeline": pre_tokenizer_of("smollm").pipeline},
        {"pipeline": pre_tokenizer_of("qwen2").pipeline},
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


def test_no_two_orders_of_splits_have_one_digest() -> None:
    orders = [(), ("a",), ("b",), ("a", "b"), ("b", "a"), (DIGITS, "a", "b"), (DIGITS, "b")]
    orders += [("a", DIGITS, "b"), ("a", "b", DIGITS), (DIGITS,), (DIGITS, DIGITS)]
    digests = {vocabulary_digest(replace(DEFINITION, pipeline=Pipeline(it))) for it in orders}
    assert len(digests) == len(orders)


def test_names_and_containers_do_not_count() -> None:
    llama = replace(DEFINITION, pipeline=pre_tokenizer_of("llama-bpe").pipeline)
    assert vocabulary_digest(llama) == vocabulary_digest(
        replace(llama, pipeline=pre_tokenizer_of("llama3").pipeline)
    )
    listed = replace(DEFINITION, tokens=list(DEFINITION.tokens), stop_ids=[0])
    assert vocabulary_digest(listed) == vocabulary_digest(DEFINITION)


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
