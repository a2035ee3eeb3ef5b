"""Anthropic Messages: from a request to a chat, from what it tells to what is sent."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec import Raw

from outrider.errors import (
    DeadlineError,
    EngineError,
    FrameTooLargeError,
    InvalidRequestError,
    NoReplicaError,
    OutriderError,
    OverloadedError,
    PermissionDeniedError,
    RateLimitedError,
    UnauthenticatedError,
    UnknownModelError,
    UnknownRouteError,
)
from outrider.models.chat import Message
from outrider.models.tools import ToolCall
from outrider.sampling.grammar import Grammar, GrammarKind
from outrider.session.client import Accepted, Provisional
from outrider.session.types import FinishReason, Priority, Speculation
from services.edge.http import anthropic_messages
from services.edge.http.anthropic_messages import (
    API,
    InputMessage,
    Tool,
    ToolChoice,
    messages_of,
    tool_choice_of,
    tool_definitions,
)
from services.edge.http.anthropic_reply import PING, MessageShape
from services.edge.http.passed_over import PassedOver
from services.edge.http.routes import error_answer
from services.edge.http.translation import PartWriter
from tests.edge.http.asking import (
    USER,
    asked,
    chat_of,
    data_of,
    done,
    ending,
    events_of,
    planned,
    refusal,
    told,
)
from tests.edge.http.scripted_parser import with_calls, written
from tests.edge.http.specifications import anthropic_faults


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "small", "max_tokens": 50, "messages": [USER], **fields}


def converted(*messages: dict[str, Any], system: Any = None) -> tuple[Message, ...]:
    import msgspec

    given_messages = msgspec.json.decode(msgspec.json.encode(messages), type=list[InputMessage])
    return messages_of(system, given_messages)


# Requests.


def test_a_request_becomes_a_chat() -> None:
    reply = planned(API, body())
    (chat,) = reply.chats
    assert (chat.model, chat.messages) == ("small", (Message("user", "hello"),))
    sampling = chat.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (1.0, 1.0, 0)
    assert (sampling.max_tokens, sampling.seed, sampling.stop) == (50, 77, ())
    assert (chat.priority, chat.speculation, reply.user) == (None, Speculation.ON, "")
    assert not reply.is_streamed and not chat.provisional
    assert reply.keepalive == PING


def test_every_value_arrives() -> None:
    reply = planned(
        API,
        body(
            system=[{"type": "text", "text": "be kind", "cache_control": {"type": "ephemeral"}}],
            stop_sequences=["a", "b"],
            temperature=0,
            top_p=0.5,
            top_k=7,
            metadata={"user_id": "u"},
            seed=9,
            min_p=0.1,
            priority="low",
            deadline_ms=1500,
            speculation="off",
            residency=["eu"],
        ),
    )
    (chat,) = reply.chats
    sampling = chat.sampling
    assert chat.messages == (Message("system", "be kind"), Message("user", "hello"))
    assert (sampling.stop, sampling.temperature, sampling.top_p) == (("a", "b"), 0.0, 0.5)
    assert (sampling.top_k, sampling.seed, sampling.min_p) == (7, 9, 0.1)
    assert (chat.priority, chat.deadline_ms, chat.residency) == (Priority.LOW, 1500, ("eu",))
    assert (chat.speculation, reply.user) == (Speculation.OFF, "u")


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA"}}
TOOL_USE = {"type": "tool_use", "id": "t1", "name": "look", "input": {"at": 1}}
BEGUN = {"role": "assistant", "content": "so"}
"""The beginning of a reply."""
THINKS = {"type": "enabled", "budget_tokens": 1024}
JSON = {"type": "json_object"}
LARGE = {str(number): 0 for number in range(40_000)}
"""To read some four times as much would hold the event loop for a quarter of a second."""
NOBODYS_RESULT = {"type": "tool_result", "content": "x"}
TOOL_RESULT = {"type": "tool_result", "tool_use_id": "t1", "content": "seen"}


def test_a_conversation_that_ends_with_the_assistant_is_continued() -> None:
    blocks = [{"type": "text", "text": "s"}, {"type": "text", "text": "o"}]
    for begun in (BEGUN, BEGUN | {"content": blocks}):
        (chat,) = planned(API, body(messages=[USER, begun])).chats
        assert chat.messages == (Message("user", "hello"), Message("assistant", "so"))
        assert chat.template_options.continues
    (chat,) = planned(API, body(messages=[USER, BEGUN, USER])).chats
    assert not chat.template_options.continues
    for nothing in ("", [], [{"type": "text", "text": ""}]):
        (chat,) = planned(API, body(messages=[USER, BEGUN | {"content": nothing}])).chats
        assert chat.messages == (Message("user", "hello"),), "nothing has begun yet"
        assert not chat.template_options.continues
    off = body(messages=[USER, BEGUN], thinking={"type": "disabled"})
    assert planned(API, off).chats[0].template_options.continues


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"tools": [{"name": "f f"}]}, "a tool's name"),
        ({"tools": [{"name": "f"}, {"name": "f"}]}, "defined twice"),
        ({"tools": [{"name": "f", "input_schema": {"type": "string"}}]}, "parameters"),
        ({"tools": [{"name": f"f{it}"} for it in range(129)]}, "129 tools"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tools": [{"name": "f"}], "tool_choice": {"type": "tool", "name": "g"}}, "tool_choice"),
        ({"messages": [{"role": "user", "content": [TOOL_USE]}]}, "content.0: a block of type 't"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0.role"),
        ({"messages": [USER, BEGUN | {"content": "so\n"}]}, "cannot end with trailing whitespace"),
        ({"messages": [USER, BEGUN | {"content": [TOOL_USE]}]}, "ends with calls"),
        ({"messages": [USER, BEGUN], "thinking": THINKS}, "cannot think"),
        ({"messages": [USER, BEGUN], "output_config": {"format": JSON}}, "follows no format"),
        ({"messages": [USER, BEGUN], "continue_final_message": True}, "continue_final_message"),
        ({"messages": []}, "no text"),
        ({"messages": [{"role": "user", "content": 5}]}, "].content: Expected"),
        ({"messages": [{"role": "user", "content": [NOBODYS_RESULT]}]}, "tool_use_id"),
        (
            {"messages": [{"role": "user", "content": [NOBODYS_RESULT | {"content": 5}]}]},
            "tool_use_id",
        ),
        (
            {"messages": [{"role": "user", "content": [TOOL_RESULT | {"content": [5]}]}]},
            "messages.0.content.0.content[0]",
        ),
        ({"output_config": {"format": {"type": "yaml"}}}, "output_config"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config"),
        ({"thinking": {"type": "perhaps"}}, "thinking"),
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"temperature": 3}, "temperature"),
        ({"stop_sequences": "a"}, "stop_sequences"),
        ({"stop_sequences": [""]}, "stop"),
        ({"stream_options": {}}, "stream_options"),
        ({"priority": "urgent"}, "priority"),
    ],
)
def test_what_cannot_be_heeded_is_refused_by_name(fields: dict[str, Any], names: str) -> None:
    error = refusal(API, body(**fields))
    assert error.http_status == 400
    assert names in error.message


def test_results_of_tools_are_messages_of_their_own_before_what_the_user_says() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert converted(
        USER,
        {"role": "assistant", "content": [{"type": "text", "text": "Let me see."}, TOOL_USE]},
        {"role": "user", "content": [{"type": "text", "text": "and now?"}, TOOL_RESULT]},
        {"role": "system", "content": "hurry"},
        {"role": "user", "content": [TOOL_RESULT | {"content": parts, "is_error": True}]},
        system="be kind",
    ) == (
        Message("system", "be kind"),
        Message("user", "hello"),
        Message("assistant", "Let me see.", tool_calls=(ToolCall("t1", "look", '{"at":1}'),)),
        Message("tool", "seen", tool_call_id="t1"),
        Message("user", "and now?"),
        Message("system", "hurry"),
        Message("tool", "Error: a\nb", tool_call_id="t1"),
    )


@pytest.mark.parametrize(
    ("content", "told"),
    [("no such file", "Error: no such file"), ("ERROR 2", "ERROR 2"), ("", "Error: ")],
)
def test_the_model_is_told_of_a_tool_that_failed(content: str, told: str) -> None:
    result = TOOL_RESULT | {"content": content, "is_error": True}
    assert converted({"role": "user", "content": [result]})[-1].content == told


def test_messages_of_one_role_that_follow_each_other_are_one() -> None:
    thought = {"type": "thinking", "thinking": "hm", "signature": "s"}
    hidden = {"type": "redacted_thinking", "data": "x"}
    assert converted(
        USER,
        {"role": "user", "content": "there"},
        {"role": "assistant", "content": [thought, hidden, {"type": "text", "text": "Hi"}]},
        {"role": "assistant", "content": "!"},
    ) == (
        Message("user", "hello\nthere"),
        Message("assistant", "Hi!", reasoning="hm"),
    )


def test_blocks_and_messages_of_one_role_are_joined_once(monkeypatch: pytest.MonkeyPatch) -> None:
    joined, lengths = anthropic_messages._joined, list[int]()

    def counted(run: Sequence[Message]) -> Message:
        lengths.append(len(run))
        return joined(run)

    monkeypatch.setattr(anthropic_messages, "_joined", counted)
    text = {"type": "text", "text": "a"}
    said = converted(USER, *[{"role": "assistant", "content": [text] * 40}] * 3, USER)
    assert [it.content for it in said] == ["hello", "a" * 120, "hello"]
    assert lengths == [1, 123, 1], "an empty message for each, and its blocks"


@pytest.mark.parametrize(("opens", "closes"), [("[", "]"), ('{"a":', "}")])
def test_a_result_of_another_tool_is_shown_however_deep_it_is(opens: str, closes: str) -> None:
    deep = opens * 800 + "1" + closes * 800
    block = {"type": "web_search_tool_result", "tool_use_id": "s1", "content": "DEEP"}
    data = json.dumps(body(messages=[USER, {"role": "assistant", "content": [block]}, USER]))
    (chat,) = API.plan(asked(data.replace('"DEEP"', deep).encode())).chats
    assert Message("tool", deep, tool_call_id="s1") in chat.messages


SEARCH = {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "q"}}
FOUND = {
    "type": "web_search_tool_result",
    "tool_use_id": "s1",
    "content": [{"type": "web_search_result", "url": "u", "title": "t", "encrypted_content": "x"}],
}
RAN = {
    "type": "bash_code_execution_tool_result",
    "tool_use_id": "s1",
    "content": {"type": "bash_code_execution_result", "stdout": "5", "return_code": 0},
}


@pytest.mark.parametrize(
    ("block", "said"),
    [
        (
            {"type": "tool_use", "name": "look", "input": {}},
            Message("assistant", "", tool_calls=(ToolCall("", "look", "{}"),)),
        ),
        (
            {"type": "tool_use", "id": "t 1", "input": '{"a'},
            Message("assistant", "", tool_calls=(ToolCall("t 1", "", '{"a'),)),
        ),
        (
            SEARCH,
            Message("assistant", "", tool_calls=(ToolCall("s1", "web_search", '{"query":"q"}'),)),
        ),
        (
            RAN,
            Message(
                "tool",
                '{"type": "bash_code_execution_result", "stdout": "5", "return_code": 0}',
                tool_call_id="s1",
            ),
        ),
        (IMAGE, Message("assistant", "[image]")),
        ({"type": "container_upload", "file_id": "f"}, Message("assistant", "[container_upload]")),
    ],
)
def test_whatever_an_assistant_said_before_is_shown(block: dict[str, Any], said: Message) -> None:
    *_, last = converted(USER, {"role": "assistant", "content": [block]})
    assert last == said


def test_tools_that_the_api_ran_have_their_results_among_what_the_assistant_said() -> None:
    text = {"type": "text", "text": "I look."}
    found = '[{"type": "web_search_result", "url": "u", "title": "t"}]'
    blocks = [text, SEARCH, FOUND, {"type": "text", "text": "So."}]
    assert converted(USER, {"role": "assistant", "content": blocks}) == (
        Message("user", "hello"),
        Message(
            "assistant",
            "I look.",
            tool_calls=(ToolCall("s1", "web_search", '{"query":"q"}'),),
        ),
        Message("tool", found, tool_call_id="s1"),
        Message("assistant", "So."),
    )


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [{"name": "f", "input_schema": {"type": "object", "x": LARGE}}]},
        {"tools": [{"name": "f"}] * 40_000},
        {"output_config": {"format": {"type": "json_schema", "schema": {"x": LARGE}}}},
        {"system": [{"type": "text", "text": "x"}] * 4097},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}] * 4097}]},
        {"messages": [USER, {"role": "assistant", "content": [TOOL_USE] * 4097}, USER]},
        {"messages": [{"role": "user", "content": [TOOL_RESULT] * 4097}]},
    ],
)
def test_what_is_very_large_is_refused(fields: dict[str, Any]) -> None:
    error = refusal(API, json.dumps(body(**fields)).encode())
    assert error.http_status == 400 and "at most" in error.message


def test_tools_and_choices_are_said_as_the_core_says_them() -> None:
    schema = Raw(b'{"type":"object","properties":{}}')
    passed_over = PassedOver()
    others = [Tool(name="web_search", type="web_search_20250305"), Tool(type="mcp_toolset")]
    tools = [Tool(name="f", description="d", input_schema=schema), *others]
    assert tool_definitions(tools, passed_over) == [
        '{"name":"f","description":"d","parameters":{"type":"object","properties":{}}}'
    ]
    assert passed_over.names == ("tools.1:web_search_20250305", "tools.2:mcp_toolset")
    assert tool_choice_of(None) == ("auto", True)
    assert tool_choice_of(ToolChoice(type="any")) == ("required", True)
    assert tool_choice_of(ToolChoice(type="none")) == ("none", True)
    named = ToolChoice(type="tool", name="f", disable_parallel_tool_use=True)
    assert tool_choice_of(named) == ("f", False)
    for wrong in (ToolChoice(type="tool"), ToolChoice(type="some")):
        with pytest.raises(InvalidRequestError, match="tool_choice"):
            tool_choice_of(wrong)


def test_tools_their_calls_and_results_and_a_schema_arrive() -> None:
    schema = {"type": "object", "properties": {"b": {}, "a": {}}}
    (chat,) = planned(
        API,
        body(
            messages=[
                USER,
                {"role": "assistant", "content": [TOOL_USE]},
                {"role": "user", "content": [TOOL_RESULT]},
            ],
            tools=[{"name": "look", "description": "d", "input_schema": schema}],
            tool_choice={"type": "any", "disable_parallel_tool_use": True},
            output_config={"format": {"type": "json_schema", "schema": schema}},
            stream=True,
            stream_options={"provisional": True},
        ),
    ).chats
    assert [it.role for it in chat.messages] == ["user", "assistant", "tool"]
    assert chat.messages[1].tool_calls == (ToolCall("t1", "look", '{"at": 1}'),)
    text = '{"type":"object","properties":{"b":{},"a":{}}}'
    assert chat.tools == ('{"name":"look","description":"d","parameters":' + text + "}",)
    assert (chat.tool_choice, chat.parallel_tool_calls) == ("required", False)
    assert chat.sampling.grammar == Grammar(GrammarKind.JSON_SCHEMA, text)
    assert not chat.provisional, "nobody can tell calls from text in it"


# Replies.

START = (
    b'event: message_start\ndata: {"type":"message_start","message":{"id":"msg_r1",'
    b'"type":"message","role":"assistant","model":"small","content":[],"stop_reason":null,'
    b'"stop_sequence":null,"usage":{"input_tokens":5,"cache_creation_input_tokens":0,'
    b'"cache_read_input_tokens":0,"output_tokens":0,"service_tier":"standard"}}}\n\n'
)
BLOCK = (
    b'event: content_block_start\ndata: {"type":"content_block_start","index":0,'
    b'"content_block":{"type":"text","text":""}}\n\n'
)
DELTA = (
    b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,'
    b'"delta":{"type":"text_delta","text":"%s"}}\n\n'
)
STOP = (
    b'event: content_block_stop\ndata: {"type":"content_block_stop","index":0}\n\n'
    b'event: message_delta\ndata: {"type":"message_delta","delta":{"stop_reason":"end_turn",'
    b'"stop_sequence":null},"usage":{"input_tokens":2,"cache_creation_input_tokens":0,'
    b'"cache_read_input_tokens":3,"output_tokens":2},"outrider":{"seed":77,"region":"r",'
    b'"replica":"replica","ttft_ms":2,"total_ms":0.0}}\n\n'
    b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
)


def with_shape(*, streamed: bool, shows_thinking: bool = True) -> PartWriter:
    return with_calls(MessageShape(7, shows_thinking=shows_thinking), streamed=streamed)


def test_a_stream_byte_for_byte() -> None:
    reply = planned(API, body(stream=True))
    stream = told(reply, ending("He", "llo", cached_tokens=3))
    assert stream == START + BLOCK + DELTA % b"He" + DELTA % b"llo" + STOP


def test_a_message_that_is_not_streamed_is_as_the_api_has_it() -> None:
    whole = json.loads(told(planned(API, body()), ending("He", "llo", cached_tokens=3)))
    assert anthropic_faults(whole, "Message") == []
    assert whole["content"] == [{"type": "text", "text": "Hello"}]
    assert (whole["stop_reason"], whole["stop_sequence"]) == ("end_turn", None)
    usage = whole["usage"]
    assert (usage["input_tokens"], usage["cache_read_input_tokens"]) == (2, 3)
    assert usage["output_tokens"] == 2
    assert whole["outrider"]["seed"] == 77


def test_an_empty_reply_has_no_blocks() -> None:
    assert json.loads(told(planned(API, body()), ending("")))["content"] == []
    stream = told(planned(API, body(stream=True)), ending(""))
    assert [it["event"] for it in events_of(stream)] == [
        "message_start",
        "message_delta",
        "message_stop",
    ]


@pytest.mark.parametrize(
    ("reason", "stop_string", "word"),
    [
        (FinishReason.STOP, "", "end_turn"),
        (FinishReason.STOP, "END", "stop_sequence"),
        (FinishReason.LENGTH, "", "max_tokens"),
        (FinishReason.DEADLINE, "", "max_tokens"),
    ],
)
def test_every_end_has_a_word_of_that_api(
    reason: FinishReason, stop_string: str, word: str
) -> None:
    from dataclasses import replace

    end = replace(done(1, reason), stop_string=stop_string)
    whole = json.loads(told(planned(API, body()), [*chat_of("a")[:-1], end]))
    assert (whole["stop_reason"], whole["stop_sequence"]) == (word, stop_string or None)
    assert anthropic_faults(whole, "Message") == []
    late = whole["outrider"].get("finish_reason")
    assert late == ("deadline" if reason is FinishReason.DEADLINE else None)


def test_calls_are_blocks_whose_arguments_stream() -> None:
    stream = written(with_shape(streamed=True), "(hm)Well", '[look]{"at": 1}[/]')
    events = [it for it in data_of(stream) if "index" in it]
    assert [it["index"] for it in events] == [0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 2]
    begun = [it["content_block"] for it in events if it["type"] == "content_block_start"]
    assert begun == [
        {"type": "thinking", "thinking": "", "signature": ""},
        {"type": "text", "text": ""},
        {
            "type": "tool_use",
            "id": "call_0",
            "name": "look",
            "input": {},
            "caller": {"type": "direct"},
        },
    ]
    grown = [it["delta"] for it in events if it["type"] == "content_block_delta"]
    assert grown == [
        {"type": "thinking_delta", "thinking": "hm"},
        {"type": "signature_delta", "signature": "msg_r1"},
        {"type": "text_delta", "text": "Well"},
        {"type": "input_json_delta", "partial_json": '{"a'},
        {"type": "input_json_delta", "partial_json": 't": 1}'},
    ]
    (end,) = [it for it in data_of(stream) if it["type"] == "message_delta"]
    assert end["delta"]["stop_reason"] == "tool_use"


def test_a_message_with_calls_is_as_the_api_has_it() -> None:
    whole = json.loads(written(with_shape(streamed=False), '(hm)Well[look]{"at": 1}[/][stop][/]'))
    assert anthropic_faults(whole, "Message") == []
    thought, text, look, stop = whole["content"]
    assert (thought["thinking"], text["text"]) == ("hm", "Well")
    # Clients replay no thought without a signature; the stream has the same one.
    assert thought["signature"] == whole["id"] == "msg_r1"
    assert (look["id"], look["input"]) == ("call_0", {"at": 1})
    assert (stop["name"], stop["input"]) == ("stop", {})
    assert whole["stop_reason"] == "tool_use"


def test_thoughts_are_left_out_for_who_wants_none() -> None:
    writer = with_shape(streamed=False, shows_thinking=False)
    whole = json.loads(written(writer, "(hm)[look]{}[/]"))
    assert [it["type"] for it in whole["content"]] == ["tool_use"]
    stream = written(with_shape(streamed=True, shows_thinking=False), "(hm)[look]{}[/]")
    assert {it["index"] for it in data_of(stream) if "index" in it} == {0}


def test_a_call_that_was_cut_off_is_text() -> None:
    whole = json.loads(written(with_shape(streamed=False), 'Well[look]{"at"'))
    assert [it["type"] for it in whole["content"]] == ["text", "text"]
    assert whole["content"][1]["text"] == '[look]{"at"'
    assert whole["stop_reason"] == "end_turn"


def test_provisional_text_is_never_of_calls() -> None:
    writer = with_shape(streamed=True)
    writer.take(0, Accepted("r1", "small", 5))
    assert writer.take(0, Provisional(0, 0, "[look", 0.9)) == b""


# Errors.


def test_paths_of_that_api_which_are_not_served_say_so_in_its_shape() -> None:
    for path, kind in (("/v1/messages/batches", "error"), ("/v1/messages_", None)):
        status, body = error_answer(path, UnknownRouteError("x"), "id")
        assert (status, json.loads(body).get("type")) == (404, kind)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (InvalidRequestError("x"), "invalid_request_error"),
        (UnauthenticatedError("x"), "authentication_error"),
        (PermissionDeniedError("x"), "permission_error"),
        (UnknownModelError("x"), "not_found_error"),
        (FrameTooLargeError("x"), "request_too_large"),
        (RateLimitedError("x"), "rate_limit_error"),
        (OverloadedError("x"), "overloaded_error"),
        (NoReplicaError("x"), "overloaded_error"),
        (DeadlineError("x"), "timeout_error"),
        (EngineError("x"), "api_error"),
    ],
)
def test_errors_are_in_that_apis_shape(error: OutriderError, kind: str) -> None:
    made = json.loads(API.error_body(error, "id"))
    assert made == {
        "type": "error",
        "error": {"type": kind, "message": "x"},
        "request_id": "id",
    }
    if kind != "request_too_large":  # which is documented, and missing from the schema
        assert anthropic_faults(made, "ErrorResponse") == []
