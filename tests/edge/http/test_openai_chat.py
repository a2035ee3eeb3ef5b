"""Chat completions: from a request to chats, from what they tell to what is sent."""

from __future__ import annotations

import json
from typing import Any

import pytest

from outrider.models.chat import Message
from outrider.models.tools import ToolCall
from outrider.session.client import Accepted, Committed
from outrider.session.types import FinishReason, Priority, Speculation
from services.edge.http import openai_errors
from services.edge.http.openai_chat import API
from tests.edge.http.asking import (
    USER,
    chat_of,
    done,
    events_of,
    objects_of,
    planned,
    refusal,
    told,
)

TOOLS = [{"type": "function", "function": {"name": "f"}}]
CUSTOM_CALL = {"id": "c", "type": "custom", "custom": {"name": "f", "input": "x"}}


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "small", "messages": [USER], **fields}


def test_a_request_becomes_a_chat_with_that_apis_defaults() -> None:
    reply = planned(API, body())
    (chat,) = reply.chats
    assert (chat.model, chat.messages) == ("small", (Message("user", "hello"),))
    sampling = chat.sampling
    assert (sampling.temperature, sampling.top_p, sampling.seed) == (1.0, 1.0, 77)
    assert sampling.max_tokens == 2048
    assert (chat.priority, chat.deadline_ms, chat.speculation) == (None, 0, Speculation.ON)
    assert not reply.is_streamed and not chat.provisional and not chat.thin


@pytest.mark.parametrize(("default", "expected"), [(7, 7), (0, 2**31 - 1)])
def test_a_request_without_a_limit_gets_the_edges(default: int, expected: int) -> None:
    (chat,) = planned(API, body(), default_max_tokens=default).chats
    assert chat.sampling.max_tokens == expected
    (chat,) = planned(API, body(max_tokens=9), default_max_tokens=default).chats
    assert chat.sampling.max_tokens == 9, "it may name a larger one"


def test_every_sampling_value_arrives() -> None:
    reply = planned(
        API,
        body(
            max_tokens=5,
            max_completion_tokens=9,
            temperature=0,
            top_p=0.5,
            top_k=-1,
            min_p=0.1,
            seed=-1,
            stop=["a", "b"],
            stop_token_ids=[3],
            logit_bias={"5": -100, "6": 1.5},
            presence_penalty=1,
            frequency_penalty=-1,
            repetition_penalty=1.2,
            ignore_eos=True,
            priority="low",
            deadline_ms=1500,
            speculation="off",
            residency=["eu"],
            user="u",
        ),
    )
    (chat,) = reply.chats
    sampling = chat.sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.top_p) == (9, 0.0, 0.5)
    assert (sampling.top_k, sampling.min_p, sampling.seed) == (0, 0.1, 2**64 - 1)
    assert (sampling.stop, sampling.stop_ids) == (("a", "b"), (3,))
    assert dict(sampling.logit_bias) == {5: -100.0, 6: 1.5}
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (1.0, -1.0)
    assert (sampling.repetition_penalty, sampling.ignore_eos) == (1.2, True)
    assert (chat.priority, chat.deadline_ms) == (Priority.LOW, 1500)
    assert (chat.speculation, chat.residency, reply.user) == (Speculation.OFF, ("eu",), "u")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
        ({"prediction": {"type": "image", "content": "x"}}, "prediction"),
        ({"prediction": {"type": "content", "content": 5}}, "prediction.content"),
        (
            {"prediction": {"type": "content", "content": [{"type": "image_url"}]}},
            "prediction.content[0]",
        ),
        ({"tools": [{"type": "function"}]}, "tools[0]"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"tool_choice": "f"}, "tool_choice"),
        ({"tool_choice": {"type": "allowed_tools"}}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "auto"}}}, "tool_choice"),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}},
            "response_format",
        ),
        ({"response_format": {"type": "json_object", "schema": 5}}, "response_format"),
        ({"response_format": 5}, "response_format"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"metadata": {str(number): "v" for number in range(17)}}, "metadata"),
        ({"metadata": {"k" * 65: "v"}}, "metadata"),
        ({"n": 0}, "n"),
        ({"n": 9}, "n"),
        ({"n": True}, "n"),
        ({"priority": "urgent"}, "priority"),
        ({"deadline_ms": -1}, "deadline_ms"),
        ({"speculation": "maybe"}, "speculation"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"stop_token_ids": [-1]}, "stop_token_ids"),
        ({"stop_token_ids": [3] * 17}, "stop_token_ids"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 5, "max_completion_tokens": 0}, "max_completion_tokens"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"messages": [{"role": "narrator", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": "x", "name": "n" * 300}]}, "messages[0].name"),
        (
            {"messages": [USER, {"role": "user", "content": "x", "tool_call_id": "c"}]},
            "messages[1].tool_call_id",
        ),
        ({"messages": [USER, {"role": "user", "content": 5}]}, "messages[1].content"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "y"}] * 4097}]},
            "messages[0].content",
        ),
        (
            {"messages": [USER, {"role": "assistant", "tool_calls": [{"id": 5}]}]},
            "messages[1].tool_calls[0].id",
        ),
    ],
)
def test_what_cannot_be_heeded_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    error = refusal(API, body(**fields))
    assert (error.http_status, error.metadata["param"]) == (400, param)


@pytest.mark.parametrize(
    ("fields", "calls"),
    [
        ({"tool_calls": [CUSTOM_CALL]}, [ToolCall("c", "f", '{"input": "x"}')]),
        ({"tool_calls": [{}]}, [ToolCall("", "function")]),
        ({"tool_calls": [{"id": "c", "type": "mcp"}]}, [ToolCall("c", "mcp")]),
        (
            {"tool_calls": [{"id": "c", "function": {"name": "f", "arguments": {"a": 1}}}]},
            [ToolCall("c", "f", '{"a": 1}')],
        ),
        (
            {"tool_calls": [{"id": "c", "function": {"name": "f g", "arguments": '{"a'}}]},
            [ToolCall("c", "f g", '{"a')],
        ),
        ({"tool_calls": [{"id": None, "function": {}}]}, [ToolCall("", "")]),
        (
            {"function_call": {"name": "f", "arguments": '{"a": 1}'}},
            [ToolCall("", "f", '{"a": 1}')],
        ),
    ],
)
def test_calls_that_were_made_before_are_shown_whatever_they_are(
    fields: dict[str, Any], calls: list[ToolCall]
) -> None:
    said = {"role": "assistant", "content": None, **fields}
    result = {"role": "function", "name": "f", "content": "5"}
    (chat,) = planned(API, body(messages=[USER, said, result])).chats
    assert chat.messages[1:] == (
        Message("assistant", "", tool_calls=tuple(calls)),
        Message("tool", "5", name="f"),
    )


def test_parts_that_an_assistant_sent_are_shown_by_their_type() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "thinking", "x": 1}, {"type": "refusal"}]
    (chat,) = planned(API, body(messages=[{"role": "assistant", "content": parts}])).chats
    assert chat.messages == (Message("assistant", "a\n[thinking]\n"),)


def test_tools_that_are_no_functions_are_passed_over_and_the_client_is_told() -> None:
    tools = [{"type": "web_search"}, *TOOLS, {"type": "custom", "custom": {"name": "g"}}]
    reply = planned(API, body(tools=tools))
    assert reply.chats[0].tools == ('{"name":"f"}',)
    assert reply.passed_over.names == ("tools[0]:web_search", "tools[2]:custom")


def test_the_tools_that_are_allowed_are_those_that_the_model_sees() -> None:
    def allowed(mode: str, *names: str) -> dict[str, Any]:
        named = [{"type": "function", "function": {"name": name}} for name in names]
        tools = [*named, {"type": "web_search"}]
        return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}

    tools = [{"type": "function", "function": {"name": name}} for name in "fgh"]
    for mode in ("auto", "required"):
        (chat,) = planned(API, body(tools=tools, tool_choice=allowed(mode, "h", "f"))).chats
        assert (chat.tools, chat.tool_choice) == (('{"name":"f"}', '{"name":"h"}'), mode)
    for choice in (allowed("any", "f"), allowed("auto", "x"), allowed("required")):
        assert refusal(API, body(tools=tools, tool_choice=choice)).http_status == 400
    assert planned(API, body(tools=tools, tool_choice=allowed("auto"))).chats[0].tools == ()


@pytest.mark.parametrize("name", ["temperature", "top_p", "min_p", "presence_penalty"])
def test_the_error_of_a_sampling_value_names_it(name: str) -> None:
    error = refusal(API, body(**{name: 9}))
    assert openai_errors.described(error).error.param == name


def test_content_may_be_parts_and_speakers_have_names() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "input_text", "text": "b"}]
    reply = planned(
        API,
        body(
            messages=[
                {"role": "developer", "content": "be kind"},
                {"role": "user", "content": parts, "name": "x"},
                {"role": "assistant", "content": None},
            ]
        ),
    )
    assert reply.chats[0].messages == (
        Message("developer", "be kind"),
        Message("user", "a\nb", name="x"),
        Message("assistant", ""),
    )


def test_choices_are_chats_with_seeds_of_their_own() -> None:
    chats = planned(API, body(n=3, seed=5)).chats
    seeds = [chat.sampling.seed for chat in chats]
    assert seeds[0] == 5 and len(set(seeds)) == 3
    assert [chat.sampling.seed for chat in planned(API, body(n=3, seed=5)).chats] == seeds
    assert len({chat.request_id for chat in chats}) == 3


def test_a_stream_goes_on_after_what_the_client_has() -> None:
    reply = planned(API, body(stream=True, n=2), idempotency_key="k", last_event_id="1-2,0-0")
    # What is reasoning is read from a reply's beginning, so the chat tells all of it again.
    assert [(it.resume.upto, it.resume.num_chars) for it in reply.chats] == [(0, 0), (0, 0)]
    stream = reply.writer.take(0, Accepted("r", "small", 5))
    stream += reply.writer.take(0, Committed("ab", (8,), 1))
    stream += reply.writer.take(0, Committed("c", (9,), 2))
    assert [it["id"] for it in events_of(stream)] == ["2-3,0-0"]
    assert refusal(API, body(stream=True), last_event_id="1-2").http_status == 400
    whole = planned(API, body(), idempotency_key="k", last_event_id="1-2")
    assert whole.chats[0].resume.upto == 0, "one body has all of it"


def test_a_stream_begins_with_the_role_and_ends_with_the_reason() -> None:
    reply = planned(API, body(stream=True, seed=3))
    stream = told(reply, chat_of("He", "llo"))
    assert stream.endswith(b"data: [DONE]\n\n")
    first, one, two, last = objects_of(stream)
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert first["choices"][0]["outrider"] == {"seed": 3}
    assert [it["choices"][0]["delta"] for it in (one, two)] == [
        {"content": "He"},
        {"content": "llo"},
    ]
    assert last["choices"][0]["delta"] == {}
    assert last["choices"][0]["finish_reason"] == "stop"
    assert {it["id"] for it in (first, one, two, last)} == {"chatcmpl-r1"}
    assert {it["object"] for it in (first, one, two, last)} == {"chat.completion.chunk"}
    assert last["system_fingerprint"] == "fp_" + "0a" * 8
    assert not any("usage" in it for it in (first, one, two, last))


def test_a_reply_without_a_commit_ends_once() -> None:
    reply = planned(API, body(stream=True))
    late = done(0, FinishReason.DEADLINE)
    first, last = objects_of(told(reply, [Accepted("r1", "small", 5), late]))
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert first["choices"][0]["finish_reason"] is None
    assert last["choices"][0]["finish_reason"] == "length"


def test_usage_comes_last_if_it_was_asked_for() -> None:
    reply = planned(API, body(stream=True, n=2, stream_options={"include_usage": True}))
    guessed: dict[str, Any] = {"accepted_prediction_tokens": 1, "rejected_prediction_tokens": 3}
    drafted: dict[str, Any] = {"draft_tokens": 9, "accepted_tokens": 5}
    ends = [done(2, cached_tokens=3, **drafted, **guessed), done(3, cached_tokens=3)]
    chats = [[*chat_of("a")[:-1], end] for end in ends]
    *others, last = objects_of(told(reply, *chats))
    assert last["choices"] == []
    assert last["usage"] == {
        "prompt_tokens": 5,
        "completion_tokens": 5,
        "total_tokens": 10,
        "prompt_tokens_details": {"cached_tokens": 3},
        "completion_tokens_details": {
            "accepted_prediction_tokens": 1,
            "rejected_prediction_tokens": 3,
            "reasoning_tokens": 0,
        },
    }
    assert all(it["usage"] is None for it in others)


def test_a_reply_that_is_not_streamed_is_one_body() -> None:
    reply = planned(API, body(n=2))
    whole = json.loads(told(reply, chat_of("He", "llo"), chat_of("x")))
    assert whole["object"] == "chat.completion"
    assert [it["message"]["content"] for it in whole["choices"]] == ["Hello", "x"]
    assert [it["index"] for it in whole["choices"]] == [0, 1]
    assert whole["choices"][0]["outrider"]["seed"] == 77
    assert whole["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize(
    ("reason", "word"),
    [
        (FinishReason.STOP, "stop"),
        (FinishReason.LENGTH, "length"),
        (FinishReason.DEADLINE, "length"),
    ],
)
def test_every_end_has_a_word_of_that_api(reason: FinishReason, word: str) -> None:
    reply = planned(API, body())
    whole = json.loads(told(reply, [*chat_of("a")[:-1], done(1, reason)]))
    assert whole["choices"][0]["finish_reason"] == word
    is_late = reason is FinishReason.DEADLINE
    assert ("finish_reason" in whole["choices"][0]["outrider"]) == is_late
