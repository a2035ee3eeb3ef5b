"""The shipped texts: enough of them, long enough, and encoded as a service would."""

from __future__ import annotations

import pytest

from outrider.fidelity.texts import Text, shipped
from outrider.models.chat import Message
from outrider.models.vocabulary import Vocabulary

CHAT = Text("x", "### system\nBe brief.\n### user\nHi\n\nthere\n### assistant\nHello.\n")


def test_a_chat_is_its_turns() -> None:
    assert CHAT.messages == [
        Message("system", "Be brief."),
        Message("user", "Hi\n\nthere"),
        Message("assistant", "Hello."),
    ]
    assert Text("x", "No ### user here.\n").messages == []


def test_chats_end_with_what_the_model_would_say() -> None:
    chats = [text for text in shipped() if text.messages]
    assert len(chats) >= 4
    for text in chats:
        assert text.messages[-1].role == "assistant"
        assert all(message.content for message in text.messages)


@pytest.mark.model
def test_texts_have_200_to_500_tokens(vocabulary: Vocabulary) -> None:
    assert len(shipped()) >= 8
    assert len({text.name for text in shipped()}) == len(shipped())
    for text in shipped():
        assert 200 <= len(text.encode(vocabulary)) <= 500, text.name


@pytest.mark.model
def test_a_chat_stands_in_the_models_template(vocabulary: Vocabulary) -> None:
    prompt = vocabulary.encode_chat(CHAT.messages[:-1])
    assert CHAT.encode(vocabulary).tolist() == prompt + vocabulary.encode("Hello.")
    plain = Text("x", "### Not a role\nThis <|im_end|> is text.")
    assert plain.encode(vocabulary).tolist() == vocabulary.encode(plain.content)
