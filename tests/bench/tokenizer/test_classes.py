"""The tokenizers that the bench trains are of the classes that it says, and have their own ids."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from tokenizers import Tokenizer

from bench.tokenizer import classes
from outrider.models.vocabulary import Vocabulary
from tests.models import corpus

_TEXTS = [*corpus.LANGUAGES, *corpus.CODE] * 3


def _t5(sample: Sequence[str]) -> str:
    return classes._as_t5(classes._unigram(sample))


@pytest.mark.parametrize(
    ("train", "kind", "is_cut"),
    [
        (classes._byte_level, "byte-level BPE", True),
        (classes._spaces, "SentencePiece BPE", True),
        (classes._unigram, "Unigram", False),
        (_t5, "Unigram", False),
    ],
)
def test_a_trained_tokenizer_is_of_its_class(
    train: Callable[[Sequence[str]], str], kind: str, is_cut: bool
) -> None:
    text = train(_TEXTS)
    vocabulary, own = Vocabulary.from_tokenizer_json(text), Tokenizer.from_str(text)
    assert classes._kind_of(text) == kind
    assert classes._is_cut(vocabulary).startswith("yes") == is_cut
    for sample in corpus.ORDINARY:
        assert vocabulary.encode(sample) == own.encode(sample, add_special_tokens=False).ids
