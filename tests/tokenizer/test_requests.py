"""What one request is answered with: what is rewritten, and what is not."""

from __future__ import annotations

import pytest

from outrider.errors import (
    EmptyPromptError,
    FrameTooLargeError,
    InvalidRequestError,
    PromptTooLongError,
)
from outrider.models.chat import MAX_MESSAGES, Message
from outrider.models.tools import MAX_TOOLS, ToolCall, check_tools
from outrider.models.vocabulary import Vocabulary
from outrider.tokenization.encoder import completed
from outrider.tokenization.rewriting import Rewriter, RewritingPolicy
from outrider.tokenization.segment_cache import ContentClass
from outrider.v1 import common_pb2, tokenizer_pb2
from outrider.wire import message_to_proto, token_block_from_proto
from services.tokenizer.requests import RequestHandler
from services.tokenizer.vocabularies import ServedVocabulary
from tests.edge.integration.region import small_vocabulary
from tests.models import tool_templates

RULES = "House rules."
LONG = "x" * 500


class Bench:
    """What answers by one policy, and what it says of chats made shorter."""

    def __init__(self, vocabulary: Vocabulary | None = None, **policy: object) -> None:
        self.vocabulary: Vocabulary = vocabulary or small_vocabulary()
        self.shortened: list[tuple[int, int]] = []
        self._answering = RequestHandler(
            *(1 << 20, 1000),
            rewriter=Rewriter(RewritingPolicy(**policy)),  # type: ignore[arg-type]
            shortened=lambda before, after: self.shortened.append((before, after)),
        )
        self._served = ServedVocabulary.of("small", self.vocabulary)

    def ids(self, request: tokenizer_pb2.EncodeRequest) -> list[int]:
        """What the request is answered with."""
        block = token_block_from_proto(completed(self._answering.encode(self._served, request)).ids)
        return list(self._served.coder.decode(block, max_count=1000))


def asking(
    *contents: str, prefixed: bool = False, max_prompt_tokens: int = 0
) -> tokenizer_pb2.EncodeRequest:
    turns = [common_pb2.ChatMessage(role="user", content=content) for content in contents]
    conversation = tokenizer_pb2.Conversation(messages=turns, prefixed=prefixed)
    return tokenizer_pb2.EncodeRequest(
        conversation=conversation, max_prompt_tokens=max_prompt_tokens
    )


def test_a_conversation_gets_the_prefix_unless_it_has_one() -> None:
    bench = Bench(system_prefix=RULES)
    plain = [Message("user", "hi")]
    assert bench.ids(asking("hi", prefixed=True)) == bench.vocabulary.encode_chat(plain)
    with_rules = [Message("system", RULES), *plain]
    assert bench.ids(asking("hi")) == bench.vocabulary.encode_chat(with_rules)
    with pytest.raises(EmptyPromptError):
        bench.ids(asking(""))
    with pytest.raises(EmptyPromptError):
        bench.ids(asking())


def test_a_request_of_more_bytes_than_are_tokenized_at_once_is_refused() -> None:
    served = ServedVocabulary.of("small", small_vocabulary())
    handler = RequestHandler(max_text_bytes=100, max_decode_ids=1000)
    most = tokenizer_pb2.EncodeRequest(text="x" * 98)
    assert most.ByteSize() == 100
    assert completed(handler.encode(served, most)).ids.count
    with pytest.raises(FrameTooLargeError, match="has 101 bytes, at most 100"):
        completed(handler.encode(served, tokenizer_pb2.EncodeRequest(text="x" * 99)))


def test_pieces_of_text_are_found_by_the_trust_group_that_sent_them() -> None:
    served = ServedVocabulary.of("small", small_vocabulary())
    handler = RequestHandler(1 << 20, 1000)
    lookups = served.encoder.lookups[ContentClass.DOCUMENT]
    for salt, num_hits in ((b"ours", 0), (b"them", 0), (b"", 0), (b"", 0), (b"ours", 1)):
        completed(
            handler.encode(served, tokenizer_pb2.EncodeRequest(text="some text", cache_salt=salt))
        )
        assert lookups.num_hits == num_hits, "who names no group shares nothing"


def test_a_conversation_that_does_not_fit_is_made_shorter_by_the_callers_limit() -> None:
    bench = Bench(system_prefix=RULES, too_long="cut_middle", min_reply_tokens=20)
    whole = bench.ids(asking("hi", LONG, "why?"))
    assert bench.ids(asking("hi", LONG, "why?", max_prompt_tokens=len(whole))) == whole
    assert not bench.shortened
    found = []
    for prefixed in (False, True):
        ids = bench.ids(asking("hi", LONG, "why?", prefixed=prefixed, max_prompt_tokens=200))
        found.append(ids)
        assert 120 < len(ids) <= 181, "a reply has its room"
        text = bench.vocabulary.decode(ids)
        assert "xxx\n[...]\nxxx" in text and "why?" in text and (RULES in text) is not prefixed
    assert [after for _, after in bench.shortened] == [len(ids) for ids in found]
    assert bench.shortened[0][0] == len(whole)


def test_a_conversation_that_cannot_be_made_shorter_is_refused_with_both_numbers() -> None:
    bench = Bench()
    num_tokens = len(bench.ids(asking(LONG)))
    with pytest.raises(PromptTooLongError, match=f"in {num_tokens} tokens, and at most 99 fit"):
        bench.ids(asking(LONG, max_prompt_tokens=99))
    assert not bench.shortened


def test_texts_stay_as_they_are() -> None:
    bench = Bench(system_prefix=RULES, too_long="cut_tail", min_reply_tokens=1)
    request = tokenizer_pb2.EncodeRequest(text=LONG, max_prompt_tokens=10)
    assert bench.ids(request) == bench.vocabulary.encode(LONG)


def test_tools_and_calls_are_part_of_a_conversation() -> None:
    bench = Bench(tool_templates.vocabulary_of(tool_templates.HERMES))
    chat = [
        Message("user", "hi"),
        Message("assistant", "", (ToolCall("call00001", "f", '{"a": 1}'),)),
        Message("tool", "5", tool_call_id="call00001"),
    ]
    tools = check_tools(['{"name": "f"}'])
    conversation = tokenizer_pb2.Conversation(messages=map(message_to_proto, chat), tools=tools)
    asked = tokenizer_pb2.EncodeRequest(conversation=conversation)
    assert bench.ids(asked) == bench.vocabulary.encode_chat(chat, tools)


@pytest.mark.parametrize(
    ("conversation", "why"),
    [
        ({"tools": ['{"name": "f"}'] * (MAX_TOOLS + 1)}, "129 tools"),
        ({"tools": ["{"]}, "cannot be read"),
        ({"tools": ['{"name": "f"}']}, "shows no tools"),
        ({"messages": [common_pb2.ChatMessage(role="user")] * (MAX_MESSAGES + 1)}, "messages"),
        (
            {"messages": [common_pb2.ChatMessage(tool_calls=[common_pb2.ToolCall()] * 129)]},
            "129 tool calls",
        ),
    ],
)
def test_what_a_conversation_may_not_hold_is_refused(
    conversation: dict[str, object], why: str
) -> None:
    whole = {"messages": [common_pb2.ChatMessage(role="user", content="hi")], **conversation}
    asked = tokenizer_pb2.EncodeRequest(conversation=tokenizer_pb2.Conversation(**whole))  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match=why):
        Bench().ids(asked)
