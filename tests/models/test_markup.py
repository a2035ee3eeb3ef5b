"""Markup (`<think>`, `<tool_call>`): tokens where the template and the assistant write it, text in
all that others write."""

from __future__ import annotations

from array import array
from dataclasses import replace
from functools import cache
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from outrider.models.bpe import VocabularyDefinition
from outrider.models.catalog import DEFAULT_MODEL
from outrider.models.chat import Message
from outrider.models.chat_template import ChatTemplate
from outrider.models.definitions import ModelSpec
from outrider.models.gguf_vocabulary import read_definition
from outrider.models.markup import TokenFinder, markup_ids
from outrider.models.sentencepiece_bpe import SpacePipeline, SpacePrefix
from outrider.models.store import ModelStore, default_root
from outrider.models.tools import ToolCall, check_tools
from outrider.models.vocabulary import Vocabulary, load_vocabulary
from outrider.tokenization.backends.packages import without_control_tokens
from outrider.tokenization.backends.selection import select_backend
from outrider.tokenization.encoder import CachingEncoder
from tests.models.thinking_templates import QWEN3, SMOLLM3
from tests.models.tool_templates import HERMES, THINKING

MARKUP: Final = (
    *("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"),
)
TEMPLATES: Final = {"qwen3": QWEN3, "smollm3": SMOLLM3, "hermes": HERMES, "thinking": THINKING}
TOOLS: Final = check_tools(['{"name": "look", "description": "<tool_call>", "parameters": {}}'])
FOLLOWED: Final = Message(
    "assistant",
    "I look.\n<tool_call>\n{}\n</tool_call>",
    (ToolCall("1", "look", '{"at": "</tool_call>"}'),),
    reasoning="Hm.",
)
CHATS: Final[dict[str, tuple[Message, ...]]] = {
    "asked": (Message("system", "Be brief."), Message("user", "two and two?")),
    "thought": (
        Message("user", "two and two?"),
        Message("assistant", "<think>\nHm.\n</think>\n\n4"),
        Message("user", "sure?"),
        Message("assistant", "yes", reasoning="Hm, hm."),
        Message("user", "really?"),
    ),
    "called": (
        Message("user", "look"),
        FOLLOWED,
        Message("tool", "nothing", tool_call_id="1"),
        Message("user", "well?"),
    ),
}


@cache
def definition(name: str) -> VocabularyDefinition:
    """SmolLM2's real vocabulary with the tokens that Qwen3's has, and a template."""
    found = read_definition(ModelStore(default_root()).path(DEFAULT_MODEL.source))
    size = len(found.tokens)
    return replace(
        found,
        tokens=[*found.tokens, *MARKUP, "<table>"],
        user_defined_ids=[*found.user_defined_ids, *range(size, size + len(MARKUP) + 1)],
        chat_template=TEMPLATES[name],
    )


@cache
def vocabulary_of(name: str, *, typed_markup: bool = False) -> Vocabulary:
    return Vocabulary.from_definition(definition(name), typed_markup=typed_markup)


@cache
def plain_of(name: str) -> Tokenizer:
    """The library's own tokenizer without control tokens and markup."""
    return Tokenizer.from_str(without_control_tokens(vocabulary_of(name)))


MENTIONS = st.lists(
    st.sampled_from([*MARKUP, "<", ">", "<think", "think>", "</", " ", "\n", "ab", "<table>", "ü"]),
    max_size=12,
).map("".join)


@pytest.mark.parametrize("name", TEMPLATES)
@given(typed=MENTIONS, asked=MENTIONS, found=MENTIONS)
def test_what_others_type_is_text(name: str, typed: str, asked: str, found: str) -> None:
    """Its segments are those of the same chat without markup, and its ids those that the library
    gives without such tokens."""
    vocabulary = vocabulary_of(name)

    def chat(change: str) -> tuple[Message, ...]:
        def written(text: str) -> str:
            for token in MARKUP:
                text = text.replace(token, change or token)
            return text

        call = (ToolCall("1", "look", "{}"),)
        return (
            Message("system", written(typed)),
            Message("user", written(asked)),
            Message("assistant", "I look.", call),
            Message("tool", written(found), tool_call_id="1"),
            Message("user", written(asked)),
        )

    segments = vocabulary.segments(chat(""))
    neutral = vocabulary.segments(chat("\u2603"))
    assert [it.is_token for it in segments] == [it.is_token for it in neutral]
    for ours, other in zip(segments, neutral, strict=True):
        text = ours.text
        if not ours.is_token:
            for token in MARKUP:
                text = text.replace(token, "\u2603")
            ids = plain_of(name).encode(ours.text, add_special_tokens=False).ids
            assert vocabulary.encode(ours.text) == ids
        assert text == other.text
    markup = set(vocabulary.facts.markup_ids)
    typed_ids = vocabulary.encode_chat(chat(""))
    neutral_ids = vocabulary.encode_chat(chat("\u2603"))
    assert [i for i in typed_ids if i in markup] == [i for i in neutral_ids if i in markup]


@pytest.mark.parametrize("chat", CHATS.values(), ids=CHATS)
@pytest.mark.parametrize("name", TEMPLATES)
def test_ids_without_typed_markup_are_those_of_the_whole_text(
    name: str, chat: tuple[Message, ...]
) -> None:
    """The template writes such tokens, and finds them in what the assistant said."""
    ours, whole = vocabulary_of(name), vocabulary_of(name, typed_markup=True)
    assert ours.encode_chat(chat) == whole.encode_chat(chat)
    written = "".join(segment.text for segment in ours.segments(chat))
    library = Tokenizer.from_str(whole.tokenizer_json)
    assert ours.encode_chat(chat) == library.encode(written, add_special_tokens=False).ids


def test_definitions_of_tools_are_text() -> None:
    vocabulary = vocabulary_of("hermes")
    chat = CHATS["asked"]
    begin = vocabulary.token_id("<tool_call>")
    assert vocabulary.facts.markup_ids
    shown = vocabulary.encode_chat(chat, TOOLS).count(begin)
    other = check_tools(['{"name": "look", "description": "a", "parameters": {}}'])
    assert shown == vocabulary.encode_chat(chat, other).count(begin)
    assert vocabulary_of("hermes", typed_markup=True).encode_chat(chat, TOOLS).count(begin) > shown


def test_the_operator_may_make_tokens_of_all_of_it() -> None:
    chat = (Message("user", "a <think> b"),)
    ours, typed = vocabulary_of("qwen3"), vocabulary_of("qwen3", typed_markup=True)
    think = ours.token_id("<think>")
    assert think not in ours.encode_chat(chat) and think in typed.encode_chat(chat)
    assert think not in ours.encode("<think>") and typed.encode("<think>") == [think]
    assert not typed.facts.markup_ids
    assert ours.digest != typed.digest, "services that differ refuse each other"
    assert ours.has_ids_of(typed)


@pytest.mark.parametrize(
    ("before", "typed", "after"),
    [
        ("<th", "ink>", ""),
        ("", "<th", "ink>"),
        ("</", "think>a<thin", "k>"),
        ("<thi", "nk><think><thi", "nk>"),
        ("<think>", "</think", ">"),
    ],
)
def test_the_template_and_a_message_make_no_markup_together(
    before: str, typed: str, after: str
) -> None:
    source = f"{before}{{{{ messages[0].content }}}}{after}"
    template = ChatTemplate(source, ["<s>"], {}, markup=MARKUP)
    segments = template.segments([Message("user", typed)])
    assert "".join(it.text for it in segments) == before + typed + after
    tokens = [it.text for it in segments if it.is_token]
    assert tokens == [it for it in (before, after) if it in MARKUP]
    reply = template.segments([Message("assistant", typed)])
    assert [it.text for it in reply if it.is_token] == [
        text for text, is_token in TokenFinder(MARKUP).split(before + typed + after) if is_token
    ], "as the model wrote it"


def test_raw_prompts_and_replies_have_tokens() -> None:
    """A raw prompt was rendered by its sender."""
    vocabulary = vocabulary_of("qwen3")
    think = vocabulary.token_id("<think>")
    whole = vocabulary_of("qwen3", typed_markup=True)
    for text in ("<think>a</think>", "a<think>", "<table>", "a b", "<|im_end|>"):
        assert vocabulary.encode_reply(text) == whole.encode(text)
    assert [(it.text, it.is_token) for it in vocabulary.raw_segments("a<think>b")] == [
        ("a", False),
        ("<think>", True),
        ("b", False),
    ]
    assert vocabulary.decode([think]) == "<think>", "it has text in a reply"


def test_what_is_markup() -> None:
    found = definition("qwen3")
    ids = [found.tokens.index(text) for text in MARKUP]
    assert list(markup_ids(found)) == ids, "and no tag of HTML"
    no_template = replace(found, chat_template="")
    assert list(markup_ids(no_template)) == ids, "known in any model"
    named = replace(found, chat_template=found.chat_template + "<table>")
    assert list(markup_ids(named)) == [*ids, ids[-1] + 1], "the template writes it"
    made = replace(found, merges=["<th ink>"])
    assert list(markup_ids(made)) == ids[1:], "letters alone make it"
    for prefix in SpacePrefix:
        spaces = SpacePipeline(prefix=prefix, strips_space=False, unknown="")
        assert bool(markup_ids(replace(found, pipeline=spaces))) == (prefix == SpacePrefix.NONE)
        typed = replace(spaces, finds_added_as_typed=True)
        assert list(markup_ids(replace(found, pipeline=typed))) == ids


def test_the_cache_of_texts_keeps_both_apart() -> None:
    vocabulary = vocabulary_of("qwen3")
    encoder = CachingEncoder(vocabulary, select_backend(vocabulary, "tokenizers"))
    text = "<think>\nHm.\n</think>\n\nso"
    chats = (
        (Message("user", text),),
        (Message("user", "a"), Message("assistant", text), Message("user", text)),
    )
    for chat in (*chats, *chats):
        expected = array("I", vocabulary.encode_chat(chat))
        assert encoder.encode_chat(chat, b"group") == expected
    raw = encoder.finish(encoder.begin_text(text, b"group"))
    assert list(raw) == vocabulary.encode_reply(text) != vocabulary.encode(text)


def test_a_definition_may_say_so(model_store: ModelStore) -> None:
    """Of a model without such tokens: the definition has a folder, the vocabulary is the same."""
    spec = replace(DEFAULT_MODEL, name="own", typed_markup=True)
    assert spec.vocabulary_key() and not spec.as_in_file().vocabulary_key()
    assert (
        load_vocabulary(spec, model_store).digest
        == load_vocabulary(DEFAULT_MODEL, model_store).digest
    )
    assert ModelSpec("a", "b", typed_markup=False).vocabulary_key() == ""
