"""Every pre-tokenizer that has a name in GGUF files: how texts of many scripts are cut, against the
same patterns in another engine, and through a tokenizer.json in Hugging Face's library itself."""

from __future__ import annotations

import unicodedata
from itertools import pairwise
from typing import Any

import pytest
from tokenizers import Tokenizer

from outrider.errors import ConfigError
from outrider.models.bpe import build_tokenizer
from outrider.models.pre_tokenizers import DIGITS, PRE_TOKENIZERS, Pipeline, pre_tokenizer_of
from outrider.models.tokenizer_json import read_tokenizer_json
from outrider.models.vocabulary import Vocabulary
from outrider.tokenization.backends import corpus as backend_corpus
from tests.models import corpus
from tests.models.test_bpe import cut, definition

regex: Any = pytest.importorskip("regex")
ONE_OF_EACH = sorted({it.pipeline: name for name, it in PRE_TOKENIZERS.items()}.values())
TEXTS = [
    *corpus.ORDINARY,
    *corpus.mixtures(150),
    *backend_corpus.LANGUAGES,
    *("1" * n + "x" + "\u0663" * n for n in range(9)),
    "IMGIMGABZ<sentinel:12>  \t    !",
    "camelCaseHTTPServer it's IT'S I'LL don't/ //\n/",
    "a\u0301\u0301b \u0e01\u0e49\u0e33 \u1112\u1161\u11ab \u5f35\u4e09\u3001\u674e\u56db\u3002",
    " " * 700 + "x" + "\n" * 5 + " \r\n \n x",
]
BLANK_IN_ONE_ENGINE = "\x1c\x1d\x1e\x1f"


def pieces(pipeline: Pipeline, text: str) -> list[str]:
    """`text` as the patterns cut it, in the `regex` package."""
    found = [unicodedata.normalize("NFC", text) if pipeline.nfc else text]
    for split in pipeline.splits:
        found = [piece for each in found for piece in isolated(split, each)]
    return found


def isolated(split: str, text: str) -> list[str]:
    if split == DIGITS:
        digits = [i for i, char in enumerate(text) if unicodedata.category(char).startswith("N")]
        places = {at for i in digits for at in (i, i + 1)}
    else:
        places = {at for m in regex.finditer(split, text, regex.V1) for at in m.span()}
    every = sorted(places | {0, len(text)})
    return [text[begin:end] for begin, end in pairwise(every)]


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_texts_are_cut_as_another_engine_cuts_them(name: str) -> None:
    for text in TEXTS:
        if text and not set(text) & set(BLANK_IN_ONE_ENGINE):
            assert cut(name, text) == pieces(pre_tokenizer_of(name).pipeline, text)


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_a_tokenizer_json_of_the_same_steps_has_the_same_ids(name: str) -> None:
    merges = ("t h", "th e", "\u0120 the", "\u0120 \u0120", "l l", "1 1", "11 1", "\u00d0 \u00b2")
    built = definition(name, *(merge.replace(" ", "") for merge in merges), merges=merges)
    text = build_tokenizer(built).to_str()
    own = Tokenizer.from_str(text)
    own.encode_special_tokens = True
    expected = [encoding.ids for encoding in own.encode_batch(TEXTS, add_special_tokens=False)]
    assert Vocabulary.from_definition(built).encode_batch(TEXTS) == expected
    assert Vocabulary.from_tokenizer_json(text).encode_batch(TEXTS) == expected
    assert read_tokenizer_json(text).pipeline == built.pipeline


def test_names_that_differ_in_whole_tokens_or_their_begin_token_are_told_apart() -> None:
    assert pre_tokenizer_of("llama-bpe") == pre_tokenizer_of("falcon3")
    assert pre_tokenizer_of("llama-bpe") != pre_tokenizer_of("smaug-bpe")
    assert pre_tokenizer_of("llama-bpe").pipeline == pre_tokenizer_of("glm4").pipeline
    assert pre_tokenizer_of("llama-bpe").adds_bos
    assert not pre_tokenizer_of("glm4").adds_bos


@pytest.mark.parametrize("name", ["", "whitespace", "nothing known"])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"choose a model with one of a\.x-4\.0, afmoe"):
        pre_tokenizer_of(name)
