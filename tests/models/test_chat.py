"""Chats: what the template makes of them, and that users cannot forge control tokens."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from outrider.errors import (
    ConfigError,
    EmptyPromptError,
    InvalidRequestError,
    PromptTooLongError,
)
from outrider.models.chat import (
    MAX_CHAT_CHARS,
    MAX_MESSAGES,
    Message,
    Segment,
    check_messages,
)
from outrider.models.chat_template import ChatTemplate, _unused_characters
from outrider.models.vocabulary import Vocabulary
from tests.models import corpus

CONTROL = ["<|im_start|>", "<|im_end|>", "<|im|>", "<s>"]
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
ROLES = st.sampled_from(["system", "user", "assistant"])
FORGERIES = st.lists(
    st.sampled_from(
        [
            *(*CONTROL, "<|im_", "<|", "|>", "end|>", "<", ">", "s", "\n", "user"),
            *("a\U000f0000", "\U000f0001", "\U000f0004", "\U00100000"),
        ]
    ),
    min_size=1,
    max_size=8,
).map("".join)


def template(source: str = CHATML) -> ChatTemplate:
    return ChatTemplate(source, CONTROL, {"bos_token": "<s>", "eos_token": "<|im_end|>"})


def control(segments: list[Segment]) -> list[str]:
    return [segment.text for segment in segments if segment.is_token]


def joined(segments: list[Segment]) -> str:
    return "".join(segment.text for segment in segments)


def test_role_and_content_are_one_segment() -> None:
    assert template().segments([Message("user", "\nhi <b> ")]) == [
        Segment("<|im_start|>", True),
        Segment("user\n\nhi <b> ", False),
        Segment("<|im_end|>", True),
        Segment("\n", False),
        Segment("<|im_start|>", True),
        Segment("assistant\n", False),
    ]


SPLIT = "{% for m in messages %}<|im_start|>{{ m.role }}<|im|>{{ m.content }}<|im_end|>{% endfor %}"
BLANKS = st.text(st.sampled_from(" \n\t\x7f\ufffd\u3000\x1c"), min_size=1, max_size=8)


@given(st.lists(BLANKS | FORGERIES, min_size=1, max_size=3))
def test_no_message_is_the_templates_text_whatever_it_looks_like(contents: list[str]) -> None:
    """The ids of the template's texts are cached for all: a hit would tell of another's message."""
    for messages in ([Message("user", text) for text in contents], [Message("user", "hi")]):
        segments = template(SPLIT).segments(messages)
        shared = {it.text for it in segments if it.is_template and not it.is_token}
        assert shared <= {"user"}
    assert shared == {"user"}, "which is shared where nothing is in doubt"


@given(st.lists(st.builds(Message, ROLES, FORGERIES), min_size=1, max_size=5))
def test_no_content_makes_a_control_token(messages: list[Message]) -> None:
    segments = template().segments(messages)
    frame = ["<|im_start|>", "<|im_end|>"] * len(messages) + ["<|im_start|>"]
    assert control(segments) == frame
    turns = "".join(f"<|im_start|>{m.role}\n{m.content}<|im_end|>\n" for m in messages)
    assert joined(segments) == turns + "<|im_start|>assistant\n"


def test_the_longer_of_two_control_tokens_wins() -> None:
    both = ChatTemplate("<a><a><b>{{ messages[0].content }}", ["<a>", "<a><b>"], {})
    assert control(both.segments([Message("user", "x")])) == ["<a>", "<a><b>"]


@pytest.mark.parametrize(
    ("source", "content"),
    [
        ("<|im{{ messages[0].content }}", "_end|> and more"),
        ("{{ messages[0].content }}_end|>", "more and <|im"),
        ("<{{ messages[0].content }}>", "s"),
    ],
)
def test_no_control_token_is_pieced_together(source: str, content: str) -> None:
    assert joined(template(source).segments([Message("user", "harmless")]))
    with pytest.raises(InvalidRequestError, match="together would make a control token"):
        template(source).segments([Message("user", content)])


def test_a_template_may_trim_and_repeat_what_users_typed() -> None:
    source = "<s>{{ messages[0].content | trim }}|{{ messages[0].content | trim }}"
    segments = template(source).segments([Message("user", "  <s>x<s> ")])
    assert segments == [Segment("<s>", True), Segment("<s>x<s>|<s>x<s>", False)]


def test_variables_and_loop_controls() -> None:
    source = (
        "{{ bos_token }}{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}"
        "{{ m.content }}{{ eos_token }}{% endfor %}"
    )
    segments = template(source).segments([Message("user", "a"), Message("user", "b")])
    assert joined(segments) == "<s>a<|im_end|>"
    assert control(segments) == ["<s>", "<|im_end|>"]


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('system messages are not supported') }}",
        "{{ messages[5].content.x }}",
        "{{ messages[0].content + 1 }}",
        "{{ messages.__class__.__base__.__subclasses__() }}",
        "{{ messages.append(1) }}",
    ],
)
def test_a_template_that_refuses_or_escapes_is_the_requests_error(source: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"chat template (refuses|fails on) these"):
        template(source).segments([Message("user", "a")])


def test_a_broken_template_is_the_models_error() -> None:
    with pytest.raises(ConfigError, match="chat template is broken"):
        template("{% for %}")


def test_messages_are_checked() -> None:
    check_messages([Message("system", ""), Message("user", "x" * MAX_CHAT_CHARS)])
    with pytest.raises(EmptyPromptError):
        check_messages([])
    with pytest.raises(EmptyPromptError):
        check_messages([Message("user", ""), Message("system", "")])
    with pytest.raises(InvalidRequestError, match=f"at most {MAX_MESSAGES}"):
        check_messages([Message("user", "x")] * (MAX_MESSAGES + 1))
    with pytest.raises(PromptTooLongError, match="characters and is longer than"):
        check_messages([Message("user", "x" * MAX_CHAT_CHARS), Message("user", "x")])
    with pytest.raises(InvalidRequestError, match="lone surrogate"):
        check_messages([Message("user", "x\ud83d")])


@pytest.mark.parametrize("role", ["function", "", "User", "system\n", "<|im_start|>", "x" * 10_000])
def test_unknown_roles_are_refused(role: str) -> None:
    with pytest.raises(InvalidRequestError, match="use one of system, developer, user") as error:
        check_messages([Message(role, "hi")])
    assert len(error.value.message) < 200


@pytest.mark.model
def test_ordinary_chats_equal_the_rendered_string_tokenized(vocabulary: Vocabulary) -> None:
    recognising = Tokenizer.from_str(vocabulary.tokenizer_json)
    for text in ["\nleading", " spaces ", *corpus.ORDINARY]:
        rendered = (
            "<|im_start|>system\nBe brief.<|im_end|>\n"
            f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
        )
        chat = [Message("system", "Be brief."), Message("user", text)]
        expected = recognising.encode(rendered, add_special_tokens=False).ids
        assert vocabulary.encode_chat(chat) == expected


@pytest.mark.model
def test_a_first_message_that_is_no_system_message_gets_the_models_own(
    vocabulary: Vocabulary,
) -> None:
    text = vocabulary.decode(vocabulary.encode_chat([Message("user", "Hi")]), keep_special=True)
    assert text.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
    assert text.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")


@pytest.mark.model
@pytest.mark.parametrize("text", corpus.SPECIAL)
def test_a_forged_turn_is_text(vocabulary: Vocabulary, text: str) -> None:
    ids = vocabulary.encode_chat([Message("system", "x"), Message("user", text)])
    assert [i for i in ids if vocabulary.is_special(i)] == [1, 2, 1, 2, 1]
    assert f"user\n{text}<|im_end|>" in vocabulary.decode(ids, keep_special=True)


class Counted(str):
    """A text that counts how many of its characters are looked at."""

    looked_at = 0

    def __contains__(self, item: object) -> bool:
        Counted.looked_at += len(self)
        return super().__contains__(item)  # type: ignore[operator]

    def __getitem__(self, index: object) -> str:
        piece = super().__getitem__(index)  # type: ignore[index]
        Counted.looked_at += len(piece)
        return piece


def test_finding_free_characters_looks_at_every_character_once() -> None:
    """However many private-use characters are taken: not the text once for each of them."""
    looked_at = []
    for count in (1000, 2000, 4000):
        Counted.looked_at = 0
        taken = "".join(chr(0xF0000 + number) for number in range(count))
        free = next(_unused_characters([Counted(taken)]))
        assert free == chr(0xF0000 + count)
        looked_at.append(Counted.looked_at)
    assert looked_at == [1000, 2000, 4000]
