"""The shipped texts: enough of them, long enough, and encoded as a service would."""

from __future__ import annotations

import pytest

from outrider.fidelity.texts import Text
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


@pytest.mark.model
def test_a_chat_stands_in_the_models_template(vocabulary: Vocabulary) -> None:
    prompt = vocabulary.encode_chat(CHAT.messages[:-1])
    assert CHAT.encode(vocabulary).tolist() == prompt + vocabulary.encode("Hello.")
    plain = Text("x", "### Not a role\nThis <|im_end|> is text.")
    assert plain.encode(vocabulary).tolist() == vocabulary.encode(plain.content)
