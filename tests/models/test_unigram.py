"""Unigram tokenizers: ids and texts of the file's own tokenizer in the library that wrote it."""

from __future__ import annotations

import base64
import io
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st
from sentencepiece import sentencepiece_model_pb2
from tokenizers import Tokenizer

from outrider.errors import ArtifactCorruptError, ConfigError, OutriderError
from outrider.models.tokenizer_json import ChatParts, read_tokenizer_json
from outrider.models.vocabulary import Vocabulary
from outrider.tokenization.cut_proofs import UnprovenError, prove
from tests.models import corpus
from tests.models.sentencepieces import write_gguf
from tests.models.unigrams import (
    CONTROL,
    METASPACE,
    T5_NORMALIZER,
    changed,
    trained,
    with_added,
    with_bytes,
)


def unigram_model() -> sentencepiece.SentencePieceProcessor:
    """Of the sentencepiece package, with its table of NFKC."""
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["a b c d e f g h"] * 9),
        model_writer=out,
        model_type="unigram",
        vocab_size=14,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    return sentencepiece.SentencePieceProcessor(model_proto=out.getvalue())


def precompiled() -> dict[str, Any]:
    """The table as tokenizer.json has it."""
    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString(unigram_model().serialized_model_proto())
    table = base64.b64encode(proto.normalizer_spec.precompiled_charsmap).decode()
    return {"type": "Precompiled", "precompiled_charsmap": table}


WHITESPACE = {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, METASPACE]}
FILES = {
    "words": trained(),
    "bytes": with_bytes(),
    "t5": changed(trained(), normalizer=T5_NORMALIZER),
    "precompiled": changed(trained(), normalizer=precompiled(), pre_tokenizer=WHITESPACE),
    "whole": changed(trained(), pre_tokenizer=METASPACE | {"split": False}),
    "no prefix": changed(
        trained(),
        pre_tokenizer=METASPACE | {"prepend_scheme": "never"},
        decoder=METASPACE | {"prepend_scheme": "never"},
    ),
}
NFKC_TEXTS = ["\ufb01n \uff21\uff22 \u2460  x ", "e\u0301 \u00e9 \u212b", " \u3000a\tb\n"]


@pytest.mark.parametrize("name", FILES)
def test_ids_and_texts_are_those_of_the_files_own_tokenizer(name: str) -> None:
    own = Tokenizer.from_str(FILES[name])
    vocabulary = Vocabulary.from_tokenizer_json(FILES[name])
    assert vocabulary.size == own.get_vocab_size()
    for text in [*corpus.ORDINARY, *corpus.mixtures(300), *NFKC_TEXTS]:
        if any(control in text for control in CONTROL):
            continue
        ids = own.encode(text, add_special_tokens=False).ids
        assert vocabulary.encode(text) == ids
        if vocabulary.encode("<unk>")[0] not in ids:
            assert vocabulary.decode(ids) == own.decode(ids)


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=200))
def test_any_text_has_them(text: str) -> None:
    for name in ("bytes", "t5"):
        own = Tokenizer.from_str(FILES[name])
        if not any(control in text for control in CONTROL):
            ids = own.encode(text, add_special_tokens=False).ids
            assert VOCABULARIES[name].encode(text) == ids


VOCABULARIES = {name: Vocabulary.from_tokenizer_json(FILES[name]) for name in ("bytes", "t5")}


@pytest.mark.parametrize("name", FILES)
def test_text_never_becomes_a_control_token(name: str) -> None:
    """But unknown characters become the unknown one, which hides nothing."""
    vocabulary = Vocabulary.from_tokenizer_json(FILES[name], size=800)
    unknown = vocabulary.encode("\U0001f9ec")
    names = [*CONTROL, "[PAD799]", "[PAD760]"]
    for text in [*names, *(f"a{n} b" for n in names), "".join(names), "<s<s>>", "</s></s>"]:
        found = set(vocabulary.encode(text)) - set(unknown)
        assert not any(vocabulary.is_special(i) for i in found), text
    assert vocabulary.token_bytes(799) == b"[PAD799]"


def test_what_is_typed_is_found_behind_the_pieces() -> None:
    vocabulary = VOCABULARIES["bytes"]
    assert vocabulary.encode("<table>") == [vocabulary.size - 1]
    assert vocabulary.decode(vocabulary.encode("a <table>\t\U0001f9ec")) == "a <table>\t\U0001f9ec"


def test_it_is_kept_and_sent_as_it_is(tmp_path: Path) -> None:
    vocabulary = Vocabulary.from_tokenizer_json(
        FILES["t5"], ChatParts("{{ eos_token }}", "", "</s>")
    )
    assert vocabulary.stop_ids == {2}
    vocabulary.save(tmp_path)
    for other in (Vocabulary.load(tmp_path), pickle.loads(pickle.dumps(vocabulary))):
        assert other.digest == vocabulary.digest
        assert other.encode("two words  x") == vocabulary.encode("two words  x")


def test_the_digest_is_over_what_a_file_means() -> None:
    spec = json.loads(FILES["t5"])
    digest = Vocabulary.from_tokenizer_json(FILES["t5"]).digest
    reordered = json.dumps(dict(reversed(spec.items())) | {"post_processor": None}, indent=1)
    assert Vocabulary.from_tokenizer_json(reordered).digest == digest
    spec["model"]["vocab"][9][1] -= 1e-9
    assert Vocabulary.from_tokenizer_json(json.dumps(spec)).digest != digest
    assert Vocabulary.from_tokenizer_json(FILES["words"]).digest != digest


def test_texts_are_never_cut() -> None:
    with pytest.raises(UnprovenError, match="no BPE"):
        prove(VOCABULARIES["t5"].tokenizer_json)


def _model(**parts: Any) -> str:
    spec = json.loads(trained())
    return json.dumps(spec | {"model": spec["model"] | parts})


def _pieces(*more: Any) -> str:
    return _model(vocab=[*json.loads(trained())["model"]["vocab"], *more])


@pytest.mark.parametrize(
    ("text", "error", "complaint"),
    [
        (_model(unk_id=None), ConfigError, "no unknown token"),
        (_model(unk_id=9999), ConfigError, "no unknown token"),
        (_model(byte_fallback=True), ConfigError, "lacks the tokens of some bytes"),
        (_pieces(["zz", "x"]), ArtifactCorruptError, "score is no number"),
        (_pieces(["zz", float("nan")]), ArtifactCorruptError, "score is no number"),
        (_pieces(["zz", -(10**400)]), ArtifactCorruptError, "no whole tokenizer"),
        (_pieces(["a", 1.0]), OutriderError, "same text|two tokens"),
        (_pieces([3, 1.0]), ArtifactCorruptError, "no text with a number"),
        (_pieces(["zz"]), ArtifactCorruptError, "no whole tokenizer"),
        (changed(trained(), normalizer={"type": "Lowercase"}), ConfigError, "'Lowercase'"),
        (
            changed(trained(), normalizer={"type": "Precompiled", "precompiled_charsmap": "!"}),
            ArtifactCorruptError,
            "no whole tokenizer",
        ),
        (
            changed(trained(), normalizer={"type": "Precompiled", "precompiled_charsmap": "AAAA"}),
            ArtifactCorruptError,
            "no whole tokenizer",
        ),
        (
            changed(
                trained(),
                normalizer={"type": "Replace", "pattern": {"Regex": "(a+)+$"}, "content": ""},
            ),
            ConfigError,
            "another pattern",
        ),
        (
            changed(trained(), pre_tokenizer=METASPACE | {"prepend_scheme": "first"}),
            ConfigError,
            "prepend_scheme 'first'",
        ),
        (changed(trained(), pre_tokenizer={"type": "BertPreTokenizer"}), ConfigError, "BertPre"),
        (changed(trained(), decoder={"type": "WordPiece"}), ConfigError, "its decoder"),
        (
            json.dumps(json.loads(trained()) | {"model": {"type": "WordPiece", "vocab": {}}}),
            ConfigError,
            "'WordPiece', neither BPE nor Unigram; tokenizers that can be served",
        ),
    ],
)
def test_what_cannot_be_exact_is_refused(
    text: str, error: type[OutriderError], complaint: str
) -> None:
    with pytest.raises(error, match=complaint):
        Vocabulary.from_tokenizer_json(text)


def test_a_gap_behind_the_pieces_is_refused() -> None:
    spec = with_added(json.loads(trained()), "<x>", special=True)
    spec["added_tokens"][-1]["id"] += 1
    with pytest.raises(ConfigError, match="has no token"):
        read_tokenizer_json(json.dumps(spec))


def test_a_gguf_file_of_scores_is_refused_with_what_can_be_served(tmp_path: Path) -> None:
    model = unigram_model()
    path = write_gguf(tmp_path / "m.gguf", model, prefix=True, model="t5")
    with pytest.raises(ConfigError, match=r"Unigram .* tokenizer\.json"):
        Vocabulary.from_gguf(path)
