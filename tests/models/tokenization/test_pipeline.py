"""Pre-tokenizers by llama.cpp's names: how they cut, and that others are refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tokenizers import pre_tokenizers

from outrider.errors import ConfigError
from outrider.models.tokenization.definition import VocabularyDefinition
from outrider.models.tokenization.pipeline import build_tokenizer
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
        pre_tokenizer=pre_tokenizer,
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


@pytest.mark.parametrize("name", ["", "default", "deepseek-v3", "gpt-4o"])
def test_other_pre_tokenizers_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="choose a model with one of gpt-2, llama-bpe"):
        build_tokenizer(replace(definition("gpt-2"), pre_tokenizer=name))
