"""Incremental detokenization against decoding everything at once."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from outrider.errors import InvalidRequestError
from outrider.models.detokenizer import Detokenizer, decode, token_bytes
from outrider.models.vocabulary import Vocabulary
from outrider.sampling.params import SamplingParams
from outrider.sampling.reply import ReplyText

# Bytes as tokens: the hardest vocabulary for characters of several bytes.
BYTES = [bytes([value]) for value in range(256)]


@pytest.fixture(scope="module")
def reference(vocabulary: Vocabulary) -> Tokenizer:
    return Tokenizer.from_str(vocabulary.tokenizer_json)


@given(st.text(max_size=40))
def test_bytes_of_text_come_back_as_the_text(text: str) -> None:
    assert decode(BYTES, text.encode()) == text


@given(st.binary(max_size=60))
def test_pieces_joined_equal_decoding_at_once(data: bytes) -> None:
    assert decode(BYTES, data) == data.decode("utf-8", "replace")


@given(st.lists(st.binary(max_size=12), max_size=8))
def test_many_ids_at_once_give_what_each_alone_gives(parts: list[bytes]) -> None:
    one, many = Detokenizer(BYTES), Detokenizer(BYTES)
    for part in parts:
        assert many.push_all(list(part)) == "".join(map(one.push, part))
    assert many.finish() == one.finish()


def test_a_character_is_released_when_it_is_whole() -> None:
    detokenizer = Detokenizer(BYTES)
    assert [detokenizer.push(byte) for byte in "aé🙂".encode()] == ["a", "", "é", "", "", "", "🙂"]
    assert detokenizer.finish() == ""


def test_an_unfinished_character_becomes_one_replacement_and_is_forgotten() -> None:
    detokenizer = Detokenizer(BYTES)
    assert detokenizer.push(0xF0) + detokenizer.push(0x9F) == ""
    assert detokenizer.finish() == "\ufffd"
    assert detokenizer.push(ord("a")) == "a"


PIECES = st.sampled_from([b"a", "é".encode(), "🙂".encode(), b"\xff", b"\xf0\x9f", b"\xa9"])


@given(
    data=st.lists(PIECES, min_size=1, max_size=30).map(b"".join),
    stop=st.text("aé🙂\ufffd", min_size=1, max_size=3),
)
@example(data=b"\xf0\x9f", stop="\ufffd")
def test_a_stop_string_is_found_across_tokens_characters_and_bytes_that_are_none(
    data: bytes, stop: str
) -> None:
    """A byte a token, so that every character of several bytes is broken; the end flushes."""
    reply = ReplyText(SamplingParams(max_tokens=len(data), stop=(stop,)), (), Detokenizer(BYTES))
    shown = ""
    for byte in data:
        shown += reply.push(byte)
        assert stop not in shown
        if reply.finished:
            break
    whole = data.decode("utf-8", "replace")
    assert shown == whole.partition(stop)[0]
    assert reply.finished == ("stop" if stop in whole else "length")


@pytest.mark.parametrize("token_id", [-1, 256])
def test_ids_outside_the_vocabulary_are_refused(token_id: int) -> None:
    with pytest.raises(InvalidRequestError, match="vocabulary of 256 ids"):
        Detokenizer(BYTES).push(token_id)
    with pytest.raises(InvalidRequestError, match=f"id {token_id} .*vocabulary of 256 ids"):
        Detokenizer(BYTES).push_all([1, token_id])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("abc", b"abc"),
        ("Ġthe", b" the"),
        ("Ċ", b"\n"),
        ("Ã©", b"\xc3\xa9"),
        ("ĳ", b"\x91"),
        # Not of the byte alphabet: an added token's own text.
        ("two words", b"two words"),
        ("<｜begin▁of｜>", "<｜begin▁of｜>".encode()),  # noqa: RUF001
    ],
)
def test_token_bytes(text: str, expected: bytes) -> None:
    assert token_bytes(text) == expected


@pytest.mark.model
@settings(max_examples=100)
@given(ids=st.lists(st.integers(0, 49_151), max_size=60), keep_special=st.booleans())
def test_random_ids_equal_the_tokenizers_decode(
    vocabulary: Vocabulary, reference: Tokenizer, ids: list[int], keep_special: bool
) -> None:
    detokenizer = vocabulary.detokenizer(keep_special=keep_special)
    text = "".join([*map(detokenizer.push, ids), detokenizer.finish()])
    assert text == reference.decode(ids, skip_special_tokens=not keep_special)
    assert text == vocabulary.decode(ids, keep_special=keep_special)


@pytest.mark.model
@settings(max_examples=100)
@given(st.data())
def test_ids_of_partial_characters_equal_the_tokenizers_decode(
    vocabulary: Vocabulary, reference: Tokenizer, data: st.DataObject
) -> None:
    """Streams rich in tokens that are no whole characters, which uniform ids rarely are."""
    partial = [i for i in range(0, 600) if vocabulary.token_bytes(i)[-1:] >= b"\x80"]
    ids = data.draw(st.lists(st.sampled_from([0, 2, 41, *partial]), max_size=40))
    assert vocabulary.decode(ids) == reference.decode(ids, skip_special_tokens=True)
