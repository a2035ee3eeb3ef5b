"""Schemas, log probabilities, predictions and tools: from requests to chats, and back."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.errors import InvalidRequestError
from outrider.models.chat import MAX_TOOL_CALLS, Message
from outrider.models.tools import MAX_TOOLS, ToolCall
from outrider.reply_parsing.formats import REASONING_TAGS, CallSyntax, ReplyFormat
from outrider.sampling.grammar import JSON_OBJECT, Grammar, GrammarKind
from outrider.session.client import Accepted, Committed, Provisional
from outrider.session.types import FinishReason, ScoredToken, TokenLogprobs
from services.edge.http import openai_chat, openai_completions
from services.edge.http.api import PlannedReply
from services.edge.session.events import ClientEvent, ResumePoint
from services.edge.session.request_fields import MAX_PREDICTION_CHARS
from tests.edge.http.asking import USER, asked, done, events_of, objects_of, planned, told

CHAT = {"model": "small", "messages": [USER]}
COMPLETION = {"model": "small", "prompt": "hello"}
SCHEMA = {"type": "object", "properties": {"z": {"type": "integer"}, "a": {"type": "string"}}}
TOOL = {"type": "function", "function": {"name": "f", "strict": True, "parameters": SCHEMA}}
HERMES = ReplyFormat(CallSyntax.HERMES, REASONING_TAGS[0], tool_names=("f",))
ONE, TWO = '{"city": "Zürich"}', '{"city": "Bern"}'
CALLING = (
    "<think>\nHm, é.\n</think>\n\nI look.\n"
    f'<tool_call>\n{{"name": "f", "arguments": {ONE}}}\n</tool_call>\n'
    f'<tool_call>\n{{"name": "f", "arguments": {TWO}}}\n</tool_call>'
)


def chat(**fields: Any) -> PlannedReply:
    return planned(openai_chat.API, CHAT | fields)


def committed(text: str, cuts: list[int]) -> list[ClientEvent]:
    """What a chat with tools tells that commits this text, cut at these places."""
    places = [0, *sorted({min(cut, len(text)) for cut in cuts} - {0, len(text)}), len(text)]
    commits = [
        Committed(text[begin:end], (number,), number + 1)
        for number, (begin, end) in enumerate(itertools.pairwise(places))
    ]
    return [Accepted("r1", "small", 5, reply_format=HERMES), *commits, done(len(commits))]


def assembled(objects: list[dict[str, Any]]) -> dict[str, Any]:
    """The message that a client makes of a stream's events."""
    made: dict[str, Any] = {"content": "", "reasoning_content": "", "tool_calls": []}
    for choice in (it["choices"][0] for it in objects if it["choices"]):
        delta = choice["delta"]
        for name in ("content", "reasoning_content"):
            made[name] += delta.get(name, "")
        for call in delta.get("tool_calls", ()):
            if "id" in call:
                assert call["index"] == len(made["tool_calls"]) and call["type"] == "function"
                made["tool_calls"].append([call["id"], call["function"]["name"], ""])
            made["tool_calls"][call["index"]][2] += call["function"].get("arguments", "")
        made["finish_reason"] = choice["finish_reason"]
    return made


# Schemas.


def test_a_schema_becomes_a_grammar_whose_properties_keep_their_order() -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": SCHEMA}}
    (asked_for,) = chat(response_format=wanted).chats
    text = json.dumps(SCHEMA, separators=(",", ":"))
    assert asked_for.sampling.grammar == Grammar(GrammarKind.JSON_SCHEMA, text)
    (by_schema,) = chat(response_format={"type": "json_object", "schema": SCHEMA}).chats
    assert by_schema.sampling.grammar == asked_for.sampling.grammar
    (any_object,) = chat(response_format={"type": "json_object"}).chats
    assert any_object.sampling.grammar == JSON_OBJECT
    (regex,) = chat(response_format={"type": "regex", "grammar": "a+"}).chats
    assert regex.sampling.grammar == Grammar(GrammarKind.REGEX, "a+")
    assert chat(response_format={"type": "text"}).chats[0].sampling.grammar is None


def test_a_schema_that_is_longer_than_any_may_be_is_refused_before_it_is_read() -> None:
    """To read two megabytes of small values would hold the event loop for a quarter of a second."""
    schema = {"x": dict.fromkeys(map(str, range(40_000)), 0)}
    wanted = {"type": "json_schema", "json_schema": {"schema": schema}}
    with pytest.raises(InvalidRequestError, match="send a schema of at most 262144"):
        chat(response_format=wanted)


def test_a_refused_schema_is_not_repeated() -> None:
    deep: Any = {"sesame": 1}
    for _ in range(70):
        deep = {"sesame": deep}
    wanted = {"type": "json_schema", "json_schema": {"schema": deep}}
    with pytest.raises(InvalidRequestError) as caught:
        chat(response_format=wanted)
    assert caught.value.metadata["param"] == "response_format"
    assert b"sesame" not in openai_chat.API.error_body(caught.value, "id")


# Log probabilities.


def scored(text: bytes, *top: bytes) -> TokenLogprobs:
    likely = tuple(ScoredToken(9, -0.25 * rank, it) for rank, it in enumerate(top))
    return TokenLogprobs(ScoredToken(1, -1.5, text), likely)


ENTRIES = (scored(b"h", b"h", b"x"), scored(b"\xe2\x82", b"y"), scored(b"\xac!", b"z"))


def scored_chat() -> list[ClientEvent]:
    return [
        Accepted("r1", "small", 5),
        Committed("h", (1, 2), 2, logprobs=ENTRIES[:2]),
        Committed("", (3,), 3, logprobs=ENTRIES[2:]),
        Committed("€!", (), 3),
        done(3),
    ]


def test_a_chat_tells_each_tokens_log_probability() -> None:
    reply = chat(logprobs=True, top_logprobs=2)
    assert reply.chats[0].sampling.num_logprobs == 2
    assert chat(logprobs=True).chats[0].sampling.num_logprobs == 0
    assert chat().chats[0].sampling.num_logprobs == -1
    whole = json.loads(told(reply, scored_chat()))["choices"][0]
    assert whole["message"]["content"] == "h€!"
    content = whole["logprobs"]["content"]
    assert [it["token"] for it in content] == ["h", "\ufffd", "\ufffd!"]
    assert bytes(byte for it in content for byte in it["bytes"]).decode() == "h€!"
    assert [it["logprob"] for it in content] == [-1.5] * 3
    assert content[0]["top_logprobs"] == [
        {"token": "h", "logprob": 0.0, "bytes": [104]},
        {"token": "x", "logprob": -0.25, "bytes": [120]},
    ]
    assert json.loads(told(chat(), [*scored_chat()[:1], done(0)]))["choices"][0]["logprobs"] is None


def test_a_completion_tells_them_in_lists() -> None:
    reply = planned(openai_completions.API, COMPLETION | {"logprobs": 1})
    assert reply.chats[0].sampling.num_logprobs == 1
    whole = json.loads(told(reply, scored_chat()))["choices"][0]
    assert whole["text"] == "h€!"
    assert whole["logprobs"] == {
        "tokens": ["h", "bytes:\\xe2\\x82", "bytes:\\xac\\x21"],
        "token_logprobs": [-1.5] * 3,
        "top_logprobs": [
            {"h": 0.0, "x": -0.25},
            {"y": 0.0, "bytes:\\xe2\\x82": -1.5},
            {"z": 0.0, "bytes:\\xac\\x21": -1.5},
        ],
        "text_offset": [0, 1, 1],
    }
    bare = planned(openai_completions.API, COMPLETION | {"logprobs": 0, "stream": True})
    pieces = [it["choices"][0]["logprobs"] for it in objects_of(told(bare, scored_chat()))]
    assert [it for piece in pieces if piece for it in piece["text_offset"]] == [0, 1, 1]
    assert not any("top_logprobs" in piece for piece in pieces if piece)


def test_those_that_are_not_known_any_more_are_left_out() -> None:
    reply = chat(logprobs=True)
    commit = Committed("abc", (1, 2, 3), 3, logprobs=ENTRIES[:1])
    whole = json.loads(told(reply, [Accepted("r", "small", 5), commit, done(3)]))
    assert len(whole["choices"][0]["logprobs"]["content"]) == 1


# Predictions.


def test_a_prediction_is_text_or_parts_of_it() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    for content, text in (("x", "x"), (parts, "a\nb")):
        (asked_for,) = chat(prediction={"type": "content", "content": content}).chats
        assert asked_for.prediction == text
    long = {"type": "content", "content": "x" * (MAX_PREDICTION_CHARS + 1)}
    with pytest.raises(InvalidRequestError, match="at most"):
        chat(prediction=long)


# Tools.


def test_tools_and_what_became_of_them_arrive() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": ONE}}
    reply = chat(
        messages=[
            USER,
            {"role": "assistant", "tool_calls": [call], "reasoning_content": "Hm."},
            {"role": "tool", "tool_call_id": "c1", "content": "-3"},
        ],
        tools=[TOOL],
        tool_choice={"type": "function", "function": {"name": "f"}},
        parallel_tool_calls=False,
    )
    (asked_for,) = reply.chats
    assert asked_for.messages[1:] == (
        Message("assistant", "", (ToolCall("c1", "f", ONE),), reasoning="Hm."),
        Message("tool", "-3", tool_call_id="c1"),
    )
    parameters = json.dumps(SCHEMA, separators=(",", ":"))
    assert asked_for.tools == (f'{{"name":"f","parameters":{parameters}}}',)
    assert (asked_for.tool_choice, asked_for.parallel_tool_calls) == ("f", False)
    assert chat(tools=[TOOL]).chats[0].tool_choice == "auto"


def test_what_tools_may_be_is_bounded() -> None:
    with pytest.raises(InvalidRequestError, match="tools"):
        chat(tools=[TOOL] * (MAX_TOOLS + 1))
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    with pytest.raises(InvalidRequestError, match="tool calls"):
        chat(messages=[USER, {"role": "assistant", "tool_calls": [call] * (MAX_TOOL_CALLS + 1)}])
    with pytest.raises(InvalidRequestError, match="nor one of the tools"):
        named = {"type": "function", "function": {"name": "g"}}
        chat(tools=[TOOL], tool_choice=named)
    with pytest.raises(InvalidRequestError, match="has no tools"):
        chat(tool_choice="required")


def test_calls_are_in_a_body() -> None:
    whole = json.loads(told(chat(tools=[TOOL]), committed(CALLING, [])))["choices"][0]
    message = whole["message"]
    assert whole["finish_reason"] == "tool_calls"
    assert (message["content"], message["reasoning_content"]) == ("I look.", "Hm, é.")
    assert [it["function"] for it in message["tool_calls"]] == [
        {"name": "f", "arguments": ONE},
        {"name": "f", "arguments": TWO},
    ]
    assert len({it["id"] for it in message["tool_calls"]}) == 2
    alone = json.loads(told(chat(tools=[TOOL]), committed(CALLING[CALLING.index("<tool") :], [])))
    assert alone["choices"][0]["message"]["content"] is None


def test_a_reply_that_calls_nothing_or_breaks_off_says_so() -> None:
    for text, reason, word in (
        ("Just so.", FinishReason.STOP, "stop"),
        (CALLING[:-20], FinishReason.LENGTH, "length"),
    ):
        events = [*committed(text, [])[:-1], done(1, reason)]
        whole = json.loads(told(chat(tools=[TOOL]), events))["choices"][0]
        assert whole["finish_reason"] == word
        assert ("tool_calls" in whole["message"]) == (word == "length")
        if word == "stop":
            assert whole["message"]["content"] == text


@pytest.mark.parametrize("stream", [False, True])
def test_a_reply_whose_only_call_breaks_off_does_not_say_that_it_calls(stream: bool) -> None:
    begun = CALLING[CALLING.index("<tool") :]
    text = begun[: begun.index(ONE) + 3]
    sent = told(chat(tools=[TOOL], stream=stream), committed(text, []))
    last = objects_of(sent)[-1] if stream else json.loads(sent)
    assert last["choices"][0]["finish_reason"] == "stop"
    if not stream:
        message = last["choices"][0]["message"]
        assert message["content"] == text and "tool_calls" not in message


@given(st.lists(st.integers(1, len(CALLING)), max_size=12))
def test_a_stream_says_the_same_however_the_reply_was_cut(cuts: list[int]) -> None:
    whole = json.loads(told(chat(tools=[TOOL]), committed(CALLING, [])))["choices"][0]["message"]
    made = assembled(objects_of(told(chat(tools=[TOOL], stream=True), committed(CALLING, cuts))))
    assert made["finish_reason"] == "tool_calls"
    assert (made["content"], made["reasoning_content"]) == ("I look.", "Hm, é.")
    calls = [
        [it["id"], it["function"]["name"], it["function"]["arguments"]]
        for it in whole["tool_calls"]
    ]
    assert made["tool_calls"] == calls


def test_the_end_of_a_choice_that_the_client_has_does_not_come_again() -> None:
    """What might have been a call is held back until the end, and does not move the position."""
    body = CHAT | {"tools": [TOOL], "stream": True, "n": 2}
    first = planned(openai_chat.API, body, idempotency_key="k")
    ended = committed("Well, <tool_ca", [])
    sent = b"".join(first.writer.take(0, event) for event in ended)
    assert "".join(it["choices"][0]["delta"].get("content", "") for it in objects_of(sent)) == (
        "Well, <tool_ca"
    )
    had = events_of(sent)[-1]["id"]
    assert had == "1-14e,0-0"
    again = planned(openai_chat.API, body, idempotency_key="k", last_event_id=had)
    rest = told(again, ended, committed("So.", []))
    choices = [it["choices"][0] for it in objects_of(rest)]
    assert {it["index"] for it in choices} == {1}
    assert [it["finish_reason"] for it in choices if it["finish_reason"]] == ["stop"]
    assert events_of(rest)[-2]["id"] == "1-14e,1-3e"


@given(
    st.lists(st.integers(1, len(CALLING)), max_size=12),
    st.lists(st.integers(1, len(CALLING)), max_size=12),
    st.data(),
)
def test_a_stream_of_calls_goes_on_where_it_was_cut_off(
    cuts: list[int], other_cuts: list[int], data: st.DataObject
) -> None:
    """At whichever event, whether the edge still has the reply or has to compute it again."""
    body = CHAT | {"tools": [TOOL], "stream": True, "stream_options": {"provisional": True}}
    first = planned(openai_chat.API, body, idempotency_key="k")
    sent = told(first, committed(CALLING, cuts))
    blocks = [it for it in events_of(sent) if it["data"] != "[DONE]"]
    at = data.draw(st.integers(1, len(blocks)))
    read = [json.loads(it["data"]) for it in blocks[:at]]
    again = planned(openai_chat.API, body, idempotency_key="k", last_event_id=blocks[at - 1]["id"])
    (asked_for,) = again.chats
    assert asked_for.resume == ResumePoint(), "its text is told again, and left out"
    assert asked_for.digest == first.chats[0].digest
    rest = committed(CALLING, cuts)
    # Tokens are what they were; commits have any number of them.
    joined: list[ClientEvent] = []
    for event in rest:
        before = joined[-1] if joined else None
        if (
            isinstance(event, Committed)
            and isinstance(before, Committed)
            and data.draw(st.booleans())
        ):
            text, ids = before.text + event.text, before.ids + event.ids
            joined[-1] = before._replace(text=text, ids=ids, upto=event.upto)
        else:
            joined.append(event)
    stream = told(again, joined)
    whole = assembled(objects_of(sent))
    assert assembled([*read, *objects_of(stream)]) == whole


def test_provisional_text_has_no_place_in_a_reply_with_calls() -> None:
    reply = chat(tools=[TOOL], stream=True, stream_options={"provisional": True})
    assert not reply.chats[0].provisional
    plain = chat(
        tools=[TOOL], tool_choice="none", stream=True, stream_options={"provisional": True}
    )
    assert plain.chats[0].provisional
    assert plain.writer.take(0, Provisional(0, 0, "x", 1.0))


@given(st.binary(max_size=100))
def test_tools_of_any_bytes_are_planned_or_refused(data: bytes) -> None:
    body = b'{"messages":[{"role":"user","content":"x"}],"tool_choice":%s,"tools":%s}' % (
        data,
        data,
    )
    if data.strip() == b"null":
        assert not openai_chat.API.plan(asked(body)).chats[0].tools
        return
    with pytest.raises(InvalidRequestError):
        openai_chat.API.plan(asked(body))
