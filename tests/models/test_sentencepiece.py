"""SentencePiece's vocabularies from GGUF files against the `sentencepiece` package itself."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import sentencepiece
from gguf import TokenType
from hypothesis import example, given
from hypothesis import strategies as st
from sentencepiece import sentencepiece_model_pb2

from outrider.errors import ArtifactCorruptError, ConfigError
from outrider.models.chat import Message
from outrider.models.sentencepiece_bpe import (
    SpacePipeline,
    SpacePrefix,
    build_space_tokenizer,
    merges_of_scores,
)
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


def test_prompts_that_are_no_chats_begin_with_the_begin_token(pair: Pair) -> None:
    model, vocabulary = pair
    (begin, text) = vocabulary.raw_segments("a b", is_prompt=True)
    assert vocabulary.token_id(begin.text) == model.bos_id()
    assert text.text == "a b"


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
        ({"scores": [0.0] * 900}, ConfigError, "the same score: .* a tokenizer.json"),
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


def test_every_text_between_user_defined_tokens_is_prefixed(tmp_path: Path) -> None:
    """As in llama.cpp, and in Hugging Face's tokenizers of such models."""
    model = trained(prefix=True, user_defined=("<table>",))
    vocabulary = Vocabulary.from_gguf(write_gguf(tmp_path / "m.gguf", model, prefix=True))
    table = model.piece_to_id("<table>")
    ids = [*model.encode("one"), table, *model.encode("two"), table, table, *model.encode("a b")]
    assert vocabulary.encode("one<table>two<table><table>a b") == ids


def with_pieces(scores: Mapping[str, float]) -> Any:
    """The model with these pieces in place of its own."""
    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString(trained(prefix=False).serialized_model_proto())
    kept = [piece for piece in proto.pieces if piece.type != proto.SentencePiece.NORMAL]
    del proto.pieces[:]
    proto.pieces.extend(kept)
    for text, score in scores.items():
        proto.pieces.add(piece=text, score=score)
    proto.trainer_spec.vocab_size = len(proto.pieces)
    return sentencepiece.SentencePieceProcessor(model_proto=proto.SerializeToString())


def test_runs_of_spaces_that_share_a_score(tmp_path: Path) -> None:
    """As Llama 2 has them: 2, 4, 8 and 16 spaces are frequent pieces, all other runs the last."""
    words = ["\u2581" * 2, "\u2581t", "he", "\u2581" * 4, "\u2581the", "\u2581" * 8, "\u2581" * 16]
    runs = ["\u2581" * n for n in range(3, 16) if n not in (4, 8)]
    scores = {text: -float(n) for n, text in enumerate(words)} | dict.fromkeys(runs, -1e9)
    model = with_pieces(scores | {char: -100.0 - n for n, char in enumerate("\u2581the\n")})
    vocabulary = Vocabulary.from_gguf(write_gguf(tmp_path / "m.gguf", model, prefix=False))
    texts = [
        f"{before}{' ' * num}{after}"
        for num in range(70)
        for before in ("", "the", "\n")
        for after in ("", "the", "he\n", "\u00e9")
    ]
    assert vocabulary.encode_batch(texts) == [model.encode(text) for text in texts]
    assert (
        len({i for text in texts for i in model.encode(text)} & set(map(model.piece_to_id, runs)))
        == 11
    )


PIECES = st.text("ab\u2581", min_size=2, max_size=5)
CHARACTERS = {"a": -50.0, "b": -51.0, "\u2581": -52.0}


@given(
    st.dictionaries(PIECES, st.integers(0, 5).map(lambda n: -float(n)), max_size=12),
    st.lists(st.text("ab ", min_size=4, max_size=24), min_size=8, max_size=8),
)
@example({"aa": -1.0, "bb": -1.0, "aab": -2.0, "\u2581\u2581": -2.0}, ["aabbaab  aabb"])
def test_pieces_of_one_score_are_exact_or_refused(
    scores: dict[str, float], texts: list[str]
) -> None:
    scores = CHARACTERS | scores
    try:
        merges = merges_of_scores(scores)
    except ConfigError as error:
        assert "the same score" in error.message
        assert len(set(scores.values())) < len(scores)
        return
    pipeline = SpacePipeline(SpacePrefix.NONE, strips_space=False, unknown="")
    model = with_pieces(scores)
    vocabulary = {model.id_to_piece(i): i for i in range(model.get_piece_size())}
    pairs = [(left, right) for left, right in (merge.split(" ") for merge in merges)]
    built = build_space_tokenizer(pipeline, vocabulary, pairs)
    assert [built.encode(text).ids for text in texts] == [model.encode(text) for text in texts]


@pytest.mark.parametrize(
    "pieces",
    [
        ["ab", "ba", "aa"],  # ab before ba before aa before ab
        ["ab", "aab"],  # the right part is of the same score
    ],
)
def test_pieces_of_one_score_that_ranks_cannot_order(pieces: list[str]) -> None:
    with pytest.raises(ConfigError, match="the same score"):
        merges_of_scores(CHARACTERS | dict.fromkeys(pieces, -1.0))


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


def test_each_piece_has_the_one_merge_that_is_ever_met() -> None:
    # ab a ba: "aba" is joined on the left. a b b b: "abb" is met as ab b alone, never as a bb.
    pieces = ["a", "b", "ab", "ba", "aba", "bb", "abb"]
    merges = merges_of_scores({piece: -float(i) for i, piece in enumerate(pieces)})
    assert merges == ["a b", "b a", "ab a", "b b", "ab b"]
