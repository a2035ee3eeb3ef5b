"""What is proven, and that all else is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from outrider.models.bpe import VocabularyDefinition, build_tokenizer
from outrider.models.pre_tokenizers import pre_tokenizer_of
from outrider.tokenization.cut_proofs import UnprovenError, prove

GPT2: dict[str, Any] = {
    "truncation": None,
    "padding": None,
    "added_tokens": [
        {"content": "<|end|>", "rstrip": False, "single_word": False, "normalized": False}
    ],
    "normalizer": None,
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True},
    "model": {"type": "BPE", "dropout": None, "vocab": {"a": 0}, "merges": []},
}
GEMMA: dict[str, Any] = GPT2 | {
    "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
    "pre_tokenizer": None,
    "model": {
        "type": "BPE",
        "vocab": {text: i for i, text in enumerate(["\u2581", "\n", "a", "b", "\u3002"])},
        "merges": ["a b", ["\u2581", "a"], "a \n"],
    },
}


def places(spec: dict[str, Any], text: str) -> list[int]:
    rule = prove(json.dumps(spec))
    every = (rule.first_cut(text, at) for at in range(1, len(text)))
    return sorted({place for place in every if place is not None})


@pytest.mark.parametrize("name", ["gpt-2", "smollm", "llama-bpe", "llama3", "qwen2"])
def test_every_pipeline_that_can_be_built_is_proven(name: str) -> None:
    definition = VocabularyDefinition(
        ["a", "b", "ab"], ["a b"], pre_tokenizer_of(name).pipeline, [], [], [], "", "", ""
    )
    rule = prove(build_tokenizer(definition).to_str())
    assert rule.first_cut("ab ab", 1) == 2
    assert rule.first_cut("ab's ab1", 5) == 7


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("one two", [3]),
        ("one. two", [4]),
        ("one  two", [3]),
        ("a\tb", [1]),
        ("a\nb", [1]),
        ("a\r\nb", []),
        ("a.\nb", []),
        ("a \nb", [1]),
        ("a1", [1]),
        ("1a12", [2]),
        ("a's", []),
        ("\u597d\u3002\u4f60", [1]),
        ("\u597d.\u4f60", []),
        ("\u00a0 x", []),
        ("\x1c x", []),
        ("e\u0301 x", [2]),
    ],
)
def test_the_places_of_split_texts(text: str, expected: list[int]) -> None:
    assert places(GPT2, text) == expected


def test_places_that_a_merge_crosses_are_left_out() -> None:
    assert places(GEMMA, "a a\na") == [1]
    crossed = GEMMA | {"model": GEMMA["model"] | {"merges": ["a \u2581"]}}
    assert places(crossed, "a a\na") == [3]
    # The bytes of a character without a token may end with anything.
    by_bytes = GEMMA | {"model": GEMMA["model"] | {"merges": ["<0xE2> \u2581", "a \n"]}}
    with pytest.raises(UnprovenError, match="merges cross"):
        prove(
            json.dumps(by_bytes | {"model": by_bytes["model"] | {"vocab": {"\u2581": 0, "\n": 1}}})
        )


def step(**changes: Any) -> dict[str, Any]:
    return {"pre_tokenizer": GPT2["pre_tokenizer"] | changes}


def token(**changes: Any) -> dict[str, Any]:
    return {"added_tokens": [GPT2["added_tokens"][0] | changes]}


def model(**changes: Any) -> dict[str, Any]:
    return {"model": GPT2["model"] | changes}


REFUSED = {
    "Unigram": model(type="Unigram"),
    "dropout": model(dropout=0.1),
    "suffixes": model(end_of_word_suffix="</w>"),
    "prefixes": model(continuing_subword_prefix="##"),
    "truncation": {"truncation": {"max_length": 512}},
    "padding": {"padding": {"strategy": "BatchLongest"}},
    "a token that strips": token(rstrip=True),
    "a token that is a word": token(single_word=True),
    "a token in normalized text": token(normalized=True) | {"normalizer": {"type": "NFC"}},
    "compatibility forms": {"normalizer": {"type": "NFKC"}},
    "stripping": {"normalizer": {"type": "Strip"}},
    "a space in front": step(add_prefix_space=True),
    "words": {"pre_tokenizer": {"type": "Whitespace"}},
    "an unknown step before": {
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "Punctuation"}, GPT2["pre_tokenizer"]],
        }
    },
    "digits in groups": {
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Digits", "individual_digits": False},
                GPT2["pre_tokenizer"],
            ],
        }
    },
    "an unknown pattern": {
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {
                    "type": "Split",
                    "pattern": {"Regex": r"\w+\s?"},
                    "behavior": "Isolated",
                    "invert": False,
                },
                GPT2["pre_tokenizer"] | {"use_regex": False},
            ],
        }
    },
    "bytes without a pattern": step(use_regex=False),
    "no splitting of what is not Gemma's": {"pre_tokenizer": None},
    "whole words taken as they are": GEMMA | {"model": GEMMA["model"] | {"ignore_merges": True}},
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_proven_is_refused(name: str) -> None:
    with pytest.raises(UnprovenError, match="cannot be cut"):
        prove(json.dumps(GPT2 | REFUSED[name]))
