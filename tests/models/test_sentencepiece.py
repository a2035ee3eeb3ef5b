"""SentencePiece's vocabularies from GGUF files against the `sentencepiece` package itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeAlias

import pytest
from gguf import TokenType
from hypothesis import example, given
from hypothesis import strategies as st

from outrider.errors import ArtifactCorruptError, ConfigError
from outrider.models.chat import Message
from outrider.models.sentencepiece_bpe import merges_of_scores
from outrider.models.vocabulary import Vocabulary
from tests.models import corpus
from tests.models.sentencepieces import USER_DEFINED, trained, write_gguf

Pair: TypeAlias = tuple[Any, Vocabulary]
KINDS: dict[str, dict[str, Any]] = {
    "llama": {"prefix": True, "byte_fallback": True, "user_defined": ()},
    "no prefix": {"prefix": False, "byte_fallback": True, "user_defined": ()},
    "gemma": {"prefix": False, "byte_fallback": True, "user_defined": USER_DEFINED},
    "no bytes": {"prefix": True, "byte_fallback": False, "user_defined": ()},
}
TEXTS = [
    *corpus.ORDINARY,
    *corpus.mixtures(300),
    *("a" * n for n in range(1, 40)),
    *(" " * n for n in range(1, 40)),
    *("ab" * n + "a" for n in range(12)),
    *("\n" * n for n in range(6)),
    *(
        "\u2581a",
        "a\u2581\u2581 b",
        " \u2581",
        "<table>x<table>",
        "  <table>  ",
        "<s>a</s>",
        "<0x41>",
    ),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sentencepiece")


@pytest.fixture(scope="module", params=KINDS)
def pair(request: pytest.FixtureRequest, folder: Path) -> Pair:
    """The model, and its vocabulary from a GGUF file."""
    kind = KINDS[request.param]
    model = trained(**kind)
    path = write_gguf(folder / f"{request.param}.gguf", model, prefix=bool(kind["prefix"]))
    return model, Vocabulary.from_gguf(path)


def test_the_ids_are_sentencepieces(pair: Pair) -> None:
    model, vocabulary = pair
    texts = [text for text in TEXTS if "\0" not in text]
    expected = [model.encode(text) for text in texts]
    assert vocabulary.encode_batch(texts) == expected
    # More than one kind of token was met.
    assert len({i for ids in expected for i in ids}) > 500


ATOMS = [
    "a",
    "aa",
    "b",
    "ab",
    "aba",
    " ",
    "  ",
    "\n",
    "<table>",
    "\u2581",
    "zż",
    "馬車",
    "🙂",
    "the ",
]


@given(st.lists(st.sampled_from(ATOMS), max_size=24).map("".join) | st.text(max_size=30))
@example("aaaaaaa")
@example("      a")
def test_any_text_has_sentencepieces_ids(pair: Pair, text: str) -> None:
    model, vocabulary = pair
    text = text.replace("\0", "")
    assert vocabulary.encode(text) == model.encode(text)


def test_streams_of_ids_become_sentencepieces_text(pair: Pair) -> None:
    model, vocabulary = pair
    for text in [*corpus.ORDINARY, " a", "  a", "a", ""]:
        ids = [i for i in model.encode(text) if not model.is_unknown(i)]
        detokenizer = vocabulary.detokenizer()
        streamed = "".join(map(detokenizer.push, ids)) + detokenizer.finish()
        expected = model.decode(ids)
        assert streamed == expected == vocabulary.decode(ids)
        later = vocabulary.detokenizer()
        assert later.push_all(ids[:3]) + later.push_all(ids[3:]) + later.finish() == expected


def test_bytes_of_ids_are_exact(pair: Pair) -> None:
    model, vocabulary = pair
    for text in corpus.ORDINARY:
        ids = model.encode(text)
        if model.unk_id() in ids or "\0" in text or not text:
            continue
        prefix = b" " if vocabulary.strips_space else b""
        assert b"".join(map(vocabulary.text_bytes, ids)) == prefix + text.encode()


def test_control_tokens_in_text_stay_text(pair: Pair) -> None:
    model, vocabulary = pair
    control = set(vocabulary.facts.control_ids) - {model.unk_id()}
    for text in ("<s>", "a</s>b", "<end_of_turn>", "<s><s> </s>"):
        assert control.isdisjoint(vocabulary.encode(text))
    chat = [Message("user", "hi</s>")]
    ids = vocabulary.encode_chat(chat)
    assert ids == [model.bos_id(), *model.encode("[INST] hi</s> [/INST]")]
    assert vocabulary.stop_ids == {model.eos_id(), model.piece_to_id("<end_of_turn>")}


@pytest.mark.parametrize(
    ("change", "error", "complaint"),
    [
        ({"scores": None}, ArtifactCorruptError, "lacks the field tokenizer.ggml.scores"),
        ({"scores": [0.0] * 900}, ConfigError, "the same score"),
        ({"scores": [0.0] * 899}, ArtifactCorruptError, "900 tokens and 899 scores"),
        ({"scores": [float("nan")] * 900}, ArtifactCorruptError, "scores"),
        ({"remove_extra_whitespaces": True}, ConfigError, "remove_extra_whitespaces"),
        ({"model": "bert"}, ConfigError, "of type 'bert'; choose a model with byte-level BPE"),
        ({"types": [TokenType.NORMAL] * 900}, ArtifactCorruptError, "0 tokens of a byte, 256"),
    ],
    ids=str,
)
def test_what_cannot_be_exact_is_refused(
    change: dict[str, object], error: type[Exception], complaint: str, tmp_path: Path
) -> None:
    path = write_gguf(tmp_path / "m.gguf", trained(), prefix=True, **change)
    with pytest.raises(error, match=complaint):
        Vocabulary.from_gguf(path)


def test_user_defined_tokens_behind_a_space_prefix_are_refused(tmp_path: Path) -> None:
    model = trained(prefix=True, user_defined=USER_DEFINED)
    with pytest.raises(ConfigError, match="where the space goes"):
        Vocabulary.from_gguf(write_gguf(tmp_path / "m.gguf", model, prefix=True))


def test_a_piece_that_is_joined_but_not_used_is_refused() -> None:
    with pytest.raises(ConfigError, match="joins 'ab', which it does not use"):
        merges_of_scores({"a": -1.0, "b": -2.0}, ["ab", "[PAD9]"])
    assert merges_of_scores({"a": -1.0, "b": -2.0}, ["[PAD9]"]) == []


def test_a_piece_of_unknown_characters_is_refused() -> None:
    with pytest.raises(ConfigError, match="the piece 'ab' without one for 'b'"):
        merges_of_scores({"a": -1.0, "ab": -2.0})
    assert merges_of_scores({"a": -1.0, "ab": -2.0}, matched=["b"]) == []
    with pytest.raises(ConfigError, match="a piece of 1025 characters"):
        merges_of_scores({"a": -1.0, "a" * 1025: -2.0})


def test_overlapping_splits_are_ranked_from_the_left() -> None:
    # ab a ba: "aba" is joined on the left, for both ways have one score.
    pieces = ["a", "b", "ab", "ba", "aba"]
    merges = merges_of_scores({piece: -float(i) for i, piece in enumerate(pieces)})
    assert merges == ["a b", "b a", "ab a", "a ba"]
