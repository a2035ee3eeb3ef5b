"""The texts of the tokenizer's benches: as long as they say, and each unlike the others."""

from __future__ import annotations

import itertools

import pytest

from bench.tokenizer.texts import chats, lines, text_of


def shingles(text: str) -> set[str]:
    """Every run of 120 characters that begins at a multiple of ten: longer than most lines."""
    return {text[at : at + 120] for at in range(0, len(text) - 120, 10)}


def test_there_are_lines_enough_and_none_twice() -> None:
    assert len(set(lines())) == len(lines()) > 10_000
    words = {word for line in lines() for word in line.split()}
    assert len(words) > 20_000


@pytest.mark.parametrize("num_bytes", [1, 100, 2048, 65_000])
def test_a_text_is_ascii_of_the_length_asked_for_and_a_matter_of_its_seed(num_bytes: int) -> None:
    text = text_of(num_bytes, 3)
    assert len(text.encode("ascii")) == num_bytes
    assert text == text_of(num_bytes, 3)


def test_texts_of_different_seeds_share_no_passages() -> None:
    texts = [text_of(2048, seed) for seed in range(60)]
    assert len(set(texts)) == 60
    shared = sum(len(shingles(a) & shingles(b)) for a, b in itertools.combinations(texts, 2))
    assert shared < 0.001 * sum(len(shingles(text)) for text in texts) * 59


def test_chats_grow_and_send_their_history_again() -> None:
    asked = list(chats(60))
    assert len(asked) == 60
    assert all(chat[0].role == "system" and chat[-1].role == "user" for chat in asked)
    assert any(one is not other and other[: len(one)] == one for one in asked for other in asked)
