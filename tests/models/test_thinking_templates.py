"""Templates of models that think: what they make of earlier reasoning, and how prompts end."""

from __future__ import annotations

from typing import Any

import pytest

from outrider.models.chat import Message
from outrider.reply_parsing.formats import REASONING_TAGS, ReasoningTags, ReplyFormat
from outrider.reply_parsing.reasoning import begins_in_reasoning
from tests.models import tool_templates
from tests.models.thinking_templates import FAMILIES, QWEN3, R1, SMOLLM3, vocabulary_of

USER = Message("user", "two and two?")
CHATS: dict[str, tuple[Message, ...]] = {
    "first turn": (USER,),
    "earlier reasoning": (USER, Message("assistant", "4", reasoning="Hm."), USER),
    "none": (USER, Message("assistant", "4"), USER),
    "in the text": (USER, Message("assistant", "<think>\nHm.\n</think>\n\n4"), USER),
    "an end alone": (USER, Message("assistant", "Hm.\n</think>\n\n4"), USER),
    "with a system": (
        Message("system", "Be brief. /no_think"),
        USER,
        Message("assistant", "4", reasoning="Hm."),
        USER,
    ),
    "typed by the user": (Message("user", "what is <think> for? </think>"),),
}


def rendered(template: str, chat: tuple[Message, ...]) -> str:
    segments = vocabulary_of(template).segments(chat)
    return "".join(segment.text for segment in segments)


def as_dicts(chat: tuple[Message, ...]) -> list[dict[str, Any]]:
    return [
        {"role": it.role, "content": it.content}
        | ({"reasoning_content": it.reasoning} if it.reasoning else {})
        for it in chat
    ]


@pytest.mark.parametrize("chat", CHATS.values(), ids=CHATS)
@pytest.mark.parametrize("family", FAMILIES)
def test_prompts_are_those_of_transformers(family: str, chat: tuple[Message, ...]) -> None:
    template = FAMILIES[family]
    expected = tool_templates.as_transformers_does(template, as_dicts(chat), None)
    assert rendered(template, chat) == expected


def test_reasoning_goes_where_a_template_reads_it() -> None:
    said = (USER, Message("assistant", "4", reasoning="Hm."))
    assert "<think>\nHm.\n</think>" in rendered(QWEN3, said), "since the user's last message"
    assert "Hm." not in rendered(QWEN3, (*said, USER))
    assert "Hm." not in rendered(R1, said) and "Hm." not in rendered(SMOLLM3, said)


@pytest.mark.parametrize(
    ("family", "tags", "begins"),
    [
        ("qwen3", REASONING_TAGS[0], False),
        ("r1", REASONING_TAGS[0], True),
        ("smollm3", REASONING_TAGS[0], False),
        ("magistral", REASONING_TAGS[1], False),
    ],
)
def test_a_model_says_how_it_marks_reasoning(
    family: str, tags: ReasoningTags, begins: bool
) -> None:
    vocabulary = vocabulary_of(FAMILIES[family])
    found = vocabulary.reply_format()
    assert (found.reasoning, found.begins_in_reasoning) == (tags, begins)
    assert (
        begins_in_reasoning(tags, vocabulary.encode_chat([USER]), vocabulary.token_bytes) is begins
    )


def test_a_model_that_does_not_think_has_no_tags() -> None:
    assert tool_templates.vocabulary_of(tool_templates.PLAIN).reply_format() == ReplyFormat()
