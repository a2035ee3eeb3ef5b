"""Texts of SentencePiece vocabularies: cut where that is proven, and whole everywhere else. Cut as
texts of byte-level vocabularies are, they would get other ids."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.models.vocabulary import Vocabulary
from outrider.tokenization.cut_proofs import _SPLIT_PLACE, UnprovenError, prove
from outrider.tokenization.cuts import CutRule, Cutter
from tests.models import corpus
from tests.models.sentencepieces import USER_DEFINED, trained, write_gguf

BY_BYTES = CutRule.of(_SPLIT_PLACE, ())
"""The places at which texts of GPT-2's kind are cut."""
TEXTS = ["a b c d e f", "the end\nof 12 lines", *corpus.LANGUAGES, "  ".join(corpus.LANGUAGES)]


def vocabulary(folder: Path, *, prefix: bool, **kind: object) -> Vocabulary:
    model = trained(prefix=prefix, **kind)
    return Vocabulary.from_gguf(write_gguf(folder / "m.gguf", model, prefix=prefix))


def in_parts(vocabulary: Vocabulary, rule: CutRule | None, text: str) -> list[int]:
    cutter = Cutter(rule, target_chars=1, max_chars=len(text) + 2)
    parts = [*cutter.feed(text), *cutter.finish()]
    return [i for part in parts for i in vocabulary.encode(part)]


@pytest.mark.parametrize(
    ("prefix", "kind"),
    [
        (True, {"crosses_words": False}),
        (True, {}),
        (False, {"user_defined": USER_DEFINED}),
        (False, {"byte_fallback": False, "user_defined": USER_DEFINED}),
    ],
)
def test_what_is_not_proven_is_not_cut(
    prefix: bool, kind: dict[str, object], tmp_path: Path
) -> None:
    made = vocabulary(tmp_path, prefix=prefix, **kind)
    with pytest.raises(UnprovenError):
        prove(made.tokenizer_json)
    broken = [text for text in TEXTS if in_parts(made, BY_BYTES, text) != made.encode(text)]
    assert broken, "no text shows why"
    for text in TEXTS:
        assert in_parts(made, None, text) == made.encode(text)


def test_a_piece_of_several_words_forbids_the_places_it_crosses(tmp_path: Path) -> None:
    made = vocabulary(tmp_path, prefix=False)
    broken = [text for text in TEXTS if in_parts(made, BY_BYTES, text) != made.encode(text)]
    assert broken, "no text shows why"
    try:
        rule = prove(made.tokenizer_json)
    except UnprovenError:
        return
    for text in TEXTS:
        assert in_parts(made, rule, text) == made.encode(text)


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Vocabulary:
    """As Gemma's: no space in front, no piece of several words."""
    return vocabulary(tmp_path_factory.mktemp("words"), prefix=False, crosses_words=False)


@given(
    st.lists(st.sampled_from([*"ab1.\n", " ", "  ", "the", "\u2581", "馬", "。", "zż"])).map(
        "".join
    )
    | st.text(max_size=40)
)
def test_proven_places_keep_the_ids(words: Vocabulary, text: str) -> None:
    rule = prove(words.tokenizer_json)
    assert in_parts(words, rule, text) == words.encode(text)


def test_proven_places_are_found(words: Vocabulary) -> None:
    rule = prove(words.tokenizer_json)
    assert rule.first_cut("one two three", 1) == 3
    for text in TEXTS:
        assert in_parts(words, rule, text) == words.encode(text)
