"""Prompts that end with the beginning of the assistant's message, which the reply continues."""

from __future__ import annotations

from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.errors import InvalidRequestError
from outrider.models.chat import Message
from outrider.models.chat_template import ChatTemplate
from outrider.models.template_variables import check_variables
from outrider.models.tools import ToolCall
from outrider.models.vocabulary import Vocabulary
from tests.models import thinking_templates, tool_templates
from tests.models.sentencepieces import trained, write_gguf
from tests.models.thinking_templates import QWEN3
from tests.models.tool_templates import HERMES, PLAIN, as_transformers_does

CONTINUED: Final = check_variables({"continue_final_message": True})
TEMPLATES: Final = {
    **{name: tool_templates.vocabulary_of(it) for name, it in tool_templates.FAMILIES.items()},
    **{
        name: thinking_templates.vocabulary_of(it)
        for name, it in thinking_templates.FAMILIES.items()
    },
}
USER: Final = Message("user", "two and two?")
CHATS: Final[dict[str, tuple[Message, ...]]] = {
    "first": (USER,),
    "later": (USER, Message("assistant", "4"), Message("user", "sure?")),
    "after thought": (USER, Message("assistant", "4", reasoning="Hm."), Message("user", "sure?")),
}
BEGUN: Final = (
    "The answer is",
    '{"answer":',
    "x",
    "Ja\n\n```python\ndef f(",
    "two and two?",
    "<think",
)
"""Without names of control tokens, which that procedure takes for the template's."""


def shown(vocabulary: Vocabulary, *chat: Message, variables: str = CONTINUED) -> str:
    return "".join(segment.text for segment in vocabulary.segments(chat, (), variables))


def as_transformers_continues(template: str, chat: tuple[Message, ...]) -> str:
    """What `apply_chat_template(continue_final_message=True)` does: the text up to the end of the
    last message, which is looked for from the end."""
    turns: list[dict[str, Any]] = [
        {"role": it.role, "content": it.content}
        | ({"reasoning_content": it.reasoning} if it.reasoning else {})
        for it in chat
    ]
    text = as_transformers_does(template, turns, None, add_generation_prompt=False)
    final = chat[-1].content
    return text[: text.rindex(final.strip()) + len(final.strip())]


@pytest.mark.parametrize("begun", BEGUN)
@pytest.mark.parametrize("chat", CHATS.values(), ids=CHATS)
@pytest.mark.parametrize("name", TEMPLATES)
def test_the_prompt_is_that_of_transformers(
    name: str, chat: tuple[Message, ...], begun: str
) -> None:
    vocabulary = TEMPLATES[name]
    whole = (*chat, Message("assistant", begun))
    prompt = shown(vocabulary, *whole)
    assert prompt == as_transformers_continues(vocabulary.chat_template, whole)
    assert prompt.endswith(begun)


@given(
    st.lists(st.sampled_from(["<|im_end|>", "<|im_start|>", "a", " ", "\n", "<think>", "é", "'"]))
    .map("".join)
    .map(str.rstrip)
    .filter(bool)
)
def test_it_ends_with_the_text_as_it_is(begun: str) -> None:
    """Its control tokens' names are text, and what a finished message would have before its end is
    the prompt."""
    vocabulary = tool_templates.vocabulary_of(PLAIN)
    message = Message("assistant", begun)
    prompt = vocabulary.segments((USER, message), (), CONTINUED)
    finished = vocabulary.segments((USER, message))
    assert not prompt[-1].is_token and prompt[-1].text.endswith(begun)
    assert prompt == finished[: len(prompt)]
    ids = vocabulary.encode_chat((USER, message), (), CONTINUED)
    assert ids == vocabulary.encode_chat((USER, message))[: len(ids)]


def test_templates_that_look_into_the_message_find_the_same() -> None:
    vocabulary = thinking_templates.vocabulary_of(QWEN3)
    thought = Message("assistant", "<think>\nHm.\n</think>\n\n4, since")
    assert shown(vocabulary, USER, thought).endswith("<think>\nHm.\n</think>\n\n4, since")
    apart = Message("assistant", "4, since", reasoning="Hm.")
    assert shown(vocabulary, USER, apart) == shown(vocabulary, USER, thought)
    assert shown(vocabulary, USER, Message("assistant", "<think>")).endswith("<think>")


def test_texts_of_the_template_are_known_as_such() -> None:
    vocabulary = tool_templates.vocabulary_of(PLAIN)
    chat = (USER, Message("assistant", "4"), USER, Message("assistant", "so"))
    prompt = vocabulary.segments(chat, (), CONTINUED)
    whole = vocabulary.segments(chat)
    assert [it.is_template for it in prompt] == [it.is_template for it in whole[: len(prompt)]]
    assert not prompt[-1].is_template


@pytest.mark.parametrize(
    ("last", "why"),
    [
        (USER, r"messages\[1\]: the role is user"),
        (Message("assistant", "so "), "cannot end with trailing whitespace"),
        (Message("assistant", "so\n"), "cannot end with trailing whitespace"),
        (Message("assistant", "", reasoning="Hm."), "it is empty"),
        (Message("assistant", "so", (ToolCall("1", "f", "{}"),)), "send their results"),
    ],
)
def test_what_cannot_be_continued_is_refused_by_name(last: Message, why: str) -> None:
    vocabulary = tool_templates.vocabulary_of(HERMES)
    with pytest.raises(InvalidRequestError, match=why) as caught:
        shown(vocabulary, USER, last)
    assert caught.value.metadata["param"] == "messages[1]"
    assert shown(vocabulary, USER, last, variables="")


def test_a_template_that_leaves_it_out_is_refused() -> None:
    template = ChatTemplate("{{ messages[0].content }}", [], {})
    chat = (USER, Message("assistant", "so"))
    with pytest.raises(InvalidRequestError, match="does not show the last message"):
        template.segments(chat, (), CONTINUED)
    strict = ChatTemplate(
        "{% if messages | length > 1 %}{{ raise_exception('no') }}{% endif %}", [], {}
    )
    with pytest.raises(InvalidRequestError, match="refuses these messages: no"):
        strict.segments(chat, (), CONTINUED)


def test_replies_that_lose_their_first_space_continue_nothing(tmp_path: Any) -> None:
    from dataclasses import replace

    from outrider.models.gguf_vocabulary import read_definition

    path = write_gguf(tmp_path / "m.gguf", trained(prefix=True), prefix=True)
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    words = Vocabulary.from_definition(replace(read_definition(path), chat_template=template))
    chat = (USER, Message("assistant", "so"))
    with pytest.raises(InvalidRequestError, match=r"continue_final_message: replies .* lose"):
        words.segments(chat, (), CONTINUED)
    assert words.segments(chat)


def test_the_variable_is_true_or_false() -> None:
    assert CONTINUED == '{"continue_final_message":true}'
    for value in ("yes", 1, None):
        with pytest.raises(InvalidRequestError, match="continue_final_message"):
            check_variables({"continue_final_message": value})
    vocabulary = tool_templates.vocabulary_of(PLAIN)
    off = check_variables({"continue_final_message": False})
    assert shown(vocabulary, USER, variables=off) == shown(vocabulary, USER, variables="")
