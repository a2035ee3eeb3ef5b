"""OpenAI Responses: from a request to a chat, from what it tells to what is sent."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from outrider.errors import EngineError, InvalidRequestError, OutriderError, OverloadedError
from outrider.models.chat import MAX_TOOL_CALLS, Message
from outrider.models.tools import ToolCall
from outrider.sampling.grammar import Grammar, GrammarKind
from outrider.sampling.params import SamplingParams
from outrider.session.client import Accepted, Committed
from outrider.session.types import FinishReason, ScoredToken, TokenLogprobs
from services.edge.http.passed_over import PassedOver
from services.edge.http.response_format import flat_format
from services.edge.http.responses import API, ResponsesRequest, _frame
from services.edge.http.responses_input import (
    FunctionChoice,
    FunctionTool,
    InputItem,
    functions_of,
    messages_of,
    tool_choice_of,
)
from services.edge.http.responses_reply import MAX_ECHO_BYTES, ResponseShape
from services.edge.session.events import ClientEvent
from tests.edge.http.asking import (
    USER,
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
from tests.edge.http.specifications import event_faults, responses_faults

RESPONSE = "ResponseResource"


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "small", "input": "hello", **fields}


def converted(*items: dict[str, Any], instructions: str | None = None) -> tuple[Message, ...]:
    given = msgspec.json.decode(msgspec.json.encode(items), type=list[InputItem])
    return messages_of(instructions, given, PassedOver())


# Requests.


def test_a_request_becomes_a_chat() -> None:
    reply = planned(API, body(instructions="be kind"))
    (chat,) = reply.chats
    assert chat.messages == (Message("system", "be kind"), Message("user", "hello"))
    sampling = chat.sampling
    assert (sampling.temperature, sampling.top_p, sampling.seed) == (1.0, 1.0, 77)
    assert (sampling.max_tokens, reply.is_streamed) == (2048, False)


def test_every_value_arrives() -> None:
    reply = planned(
        API,
        body(
            input=[USER],
            max_output_tokens=9,
            temperature=0.5,
            top_p=0.25,
            top_k=3,
            presence_penalty=1,
            frequency_penalty=-1,
            user="u",
            seed=4,
            deadline_ms=5,
        ),
    )
    (chat,) = reply.chats
    sampling = chat.sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.top_p) == (9, 0.5, 0.25)
    assert (sampling.top_k, sampling.seed, chat.deadline_ms) == (3, 4, 5)
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (1.0, -1.0)
    assert reply.user == "u"


LOGPROBS = "message.output_text.logprobs"
FUNCTION = {"type": "function", "name": "f"}
CALL = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": '{"at": 1}'}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "seen"}


LARGE = {str(number): 0 for number in range(40_000)}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"metadata": {str(number): "v" for number in range(17)}}, "metadata"),
        ({"metadata": {"k": "v" * 513}}, "metadata"),
        ({"include": ["x"] * 65}, "include"),
        ({"text": {"format": {"type": "json_schema", "schema": LARGE}}}, "text.format"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"background": True}, "background"),
        ({"tool_choice": {"type": "mcp"}}, "tool_choice"),
        ({"text": {"format": {"type": "yaml"}}}, "text.format"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"include": [LOGPROBS], "top_logprobs": 21}, "top_logprobs"),
        ({"include": [LOGPROBS], "tools": [FUNCTION]}, "include"),
        ({"input": [{"type": "item_reference", "id": "i"}]}, "input[0]"),
        ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role"),
        ({"input": 5}, "input"),
        ({"max_output_tokens": "5"}, "max_output_tokens"),
    ],
)
def test_what_cannot_be_heeded_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    error = refusal(API, body(**fields))
    assert (error.http_status, error.metadata["param"]) == (400, param)


def test_what_an_assistant_thought_said_and_called_is_one_message() -> None:
    thought = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]}
    said = {"type": "output_text", "text": "Let me see.", "annotations": []}
    assert converted(
        {"role": "developer", "content": "be brief"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]},
        thought,
        {"type": "message", "role": "assistant", "content": [said], "phase": "commentary"},
        CALL,
        CALL | {"call_id": "c2"},
        OUTPUT,
        OUTPUT | {"call_id": "c2", "output": [{"type": "input_text", "text": "too"}]},
        instructions="be kind",
    ) == (
        Message("system", "be kind"),
        Message("system", "be brief"),
        Message("user", "a"),
        Message(
            "assistant",
            "Let me see.",
            tool_calls=(ToolCall("c1", "look", '{"at": 1}'), ToolCall("c2", "look", '{"at": 1}')),
            reasoning="hm",
        ),
        Message("tool", "seen", tool_call_id="c1"),
        Message("tool", "too", tool_call_id="c2"),
    )


def test_outputs_say_whose_they_are() -> None:
    with pytest.raises(InvalidRequestError, match=r"input\[0\]"):
        converted(OUTPUT | {"call_id": None})


def call(call_id: str, name: str, arguments: str) -> Message:
    return Message("assistant", "", tool_calls=(ToolCall(call_id, name, arguments),))


def result(call_id: str, text: str) -> Message:
    return Message("tool", text, tool_call_id=call_id)


EXEC = {"type": "exec", "command": ["ls"]}


@pytest.mark.parametrize(
    ("item", "said"),
    [
        (CALL | {"call_id": None}, [call("", "look", '{"at": 1}')]),
        (CALL | {"name": None, "arguments": '{"a'}, [call("c1", "function", '{"a')]),
        (
            {"type": "custom_tool_call", "call_id": "c", "name": "apply_patch", "input": "*** a"},
            [call("c", "apply_patch", '{"input": "*** a"}')],
        ),
        (
            {"type": "custom_tool_call_output", "call_id": "c", "output": "Done"},
            [result("c", "Done")],
        ),
        (
            {"type": "local_shell_call", "call_id": "c", "action": EXEC},
            [call("c", "local_shell", '{"type":"exec","command":["ls"]}')],
        ),
        (
            {"type": "local_shell_call_output", "id": "c", "output": '{"output": "a"}'},
            [result("c", '{"output": "a"}')],
        ),
        (
            {"type": "shell_call_output", "call_id": "c", "output": [{"stdout": "a", "b": 1}]},
            [result("c", '[{"stdout": "a", "b": 1}]')],
        ),
        (
            {"type": "web_search_call", "id": "w", "action": {"type": "search", "query": "q"}},
            [call("w", "web_search", '{"type":"search","query":"q"}')],
        ),
        (
            {
                "type": "mcp_call",
                "id": "m",
                "name": "ask",
                "arguments": '{"q": 1}',
                "output": "42",
                "error": None,
            },
            [call("m", "ask", '{"q": 1}'), result("m", "42")],
        ),
        (
            {"type": "code_interpreter_call", "id": "x", "code": "1+1", "outputs": None},
            [call("x", "code_interpreter", '{"code": "1+1"}')],
        ),
        (
            {
                "type": "file_search_call",
                "id": "f",
                "queries": ["q"],
                "results": [{"text": "a"}, {"text": "b"}],
            },
            [call("f", "file_search", '{"queries": ["q"]}'), result("f", "a\nb")],
        ),
        (
            {
                "type": "computer_call_output",
                "call_id": "c",
                "output": {"type": "computer_screenshot", "image_url": "data:,"},
            },
            [result("c", '{"type": "computer_screenshot"}')],
        ),
        (
            {"role": "assistant", "content": [{"type": "audio", "id": "a"}]},
            [Message("assistant", "[audio]")],
        ),
    ],
)
def test_what_was_said_with_other_tools_is_shown_like_calls_of_functions(
    item: dict[str, Any], said: list[Message]
) -> None:
    assert converted(item) == tuple(said)


@pytest.mark.parametrize(
    "item",
    [
        {"type": "reasoning", "summary": [], "encrypted_content": "x"},
        {"type": "compaction", "encrypted_content": "x"},
        {"type": "mcp_list_tools", "tools": []},
        {"type": "ghost_snapshot", "ghost_commit": {}},
    ],
)
def test_what_no_model_could_read_is_passed_over(item: dict[str, Any]) -> None:
    reply = planned(API, body(input=[USER, item]))
    assert reply.chats[0].messages == (Message("user", "hello"),)
    assert reply.passed_over.names == (f"input[1]:{item['type']}",)


def test_many_calls_in_a_row_are_several_messages() -> None:
    messages = converted(*[CALL] * (MAX_TOOL_CALLS + 1))
    assert [len(it.tool_calls) for it in messages] == [MAX_TOOL_CALLS, 1]


def test_tools_of_the_apis_own_are_passed_over_and_the_client_is_told() -> None:
    others = [{"type": "web_search"}, {"type": "custom", "name": "apply_patch", "format": {}}]
    reply = planned(API, body(tools=[others[0], FUNCTION, others[1]]))
    assert reply.chats[0].tools == ('{"name":"f"}',)
    assert reply.passed_over.headers == {
        "x-outrider-passed-over": "tools[0]:web_search, tools[2]:custom"
    }
    whole = json.loads(told(reply, chat_of("a")))
    assert [it["type"] for it in whole["tools"]] == ["function"]
    assert refusal(API, body(tools=others, tool_choice="required")).http_status == 400


def test_the_tools_that_are_allowed_are_those_that_the_model_sees() -> None:
    def allowed(mode: str, *names: str) -> dict[str, Any]:
        named = [{"type": "function", "name": name} for name in names]
        return {"type": "allowed_tools", "mode": mode, "tools": [*named, {"type": "web_search"}]}

    tools = [FUNCTION | {"name": name} for name in "fgh"]
    for mode in ("auto", "required"):
        reply = planned(API, body(tools=tools, tool_choice=allowed(mode, "h", "f")))
        assert reply.chats[0].tools == ('{"name":"f"}', '{"name":"h"}')
        assert reply.chats[0].tool_choice == mode
        assert json.loads(told(reply, chat_of("a")))["tool_choice"] == allowed(mode, "h", "f")
    for choice in (allowed("any", "f"), allowed("auto", "x"), allowed("required")):
        assert refusal(API, body(tools=tools, tool_choice=choice)).metadata == {
            "param": "tool_choice"
        }
    none_left = planned(API, body(tools=tools, tool_choice=allowed("auto")))
    assert none_left.chats[0].tools == ()


def test_tools_choices_and_formats_are_said_as_the_core_says_them() -> None:
    tool = FunctionTool(type="function", name="f")
    assert functions_of([tool, FunctionTool(type="mcp")], PassedOver()) == [tool]
    modes = [tool_choice_of(it) for it in (None, "none", "required")]
    assert modes == [("auto", None), ("none", None), ("required", None)]
    assert tool_choice_of(FunctionChoice(type="function", name="f")) == ("f", None)
    for wrong in ("any", FunctionChoice(type="function"), FunctionChoice(type="mcp", name="f")):
        with pytest.raises(InvalidRequestError, match="tool_choice"):
            tool_choice_of(wrong)
    schema = {"type": "json_schema", "name": "n", "strict": True, "schema": {"type": "object"}}
    assert flat_format(Raw(json.dumps(schema).encode()), "text.format") == {
        "type": "json_schema",
        "json_schema": {"name": "n", "strict": True, "schema": {"type": "object"}},
    }
    assert flat_format(Raw(b'{"type": "json_object"}'), "text.format") == {"type": "json_object"}
    assert flat_format(Raw(b"null"), "text.format") == {"type": "text"}
    with pytest.raises(InvalidRequestError, match=r"text\.format"):
        flat_format(Raw(b'"json"'), "text.format")


def test_tools_a_schema_and_log_probabilities_arrive() -> None:
    schema = {"type": "object", "properties": {"b": {}, "a": {}}}
    (chat,) = planned(
        API,
        body(
            input=[USER, CALL, OUTPUT],
            tools=[FUNCTION | {"parameters": schema, "strict": True}],
            tool_choice={"type": "function", "name": "f"},
            parallel_tool_calls=False,
            text={"format": {"type": "json_schema", "name": "n", "schema": schema}},
        ),
    ).chats
    assert [it.role for it in chat.messages] == ["user", "assistant", "tool"]
    text = '{"type":"object","properties":{"b":{},"a":{}}}'
    assert chat.tools == ('{"name":"f","parameters":' + text + "}",)
    assert (chat.tool_choice, chat.parallel_tool_calls) == ("f", False)
    assert chat.sampling.grammar == Grammar(GrammarKind.JSON_SCHEMA, text)
    assert chat.sampling.num_logprobs == -1
    asked_for = body(include=[LOGPROBS], top_logprobs=3, tools=[FUNCTION], tool_choice="none")
    assert planned(API, asked_for).chats[0].sampling.num_logprobs == 3
    assert planned(API, body(include=[LOGPROBS])).chats[0].sampling.num_logprobs == 0
    for fields in ({"tool_choice": "required"}, {"tools": [FUNCTION, FUNCTION]}):
        assert refusal(API, body(**fields)).http_status == 400


# Replies.


def scored(text: bytes) -> TokenLogprobs:
    token = ScoredToken(1, -1.5, text)
    return TokenLogprobs(token, (token,))


SCORED: tuple[ClientEvent, ...] = (
    Accepted("r1", "small", 5),
    Committed("h", (1, 2), 2, logprobs=(scored(b"h"), scored(b"\xe2\x82"))),
    Committed("", (3,), 3, logprobs=(scored(b"\xac!"),)),
    Committed("\N{EURO SIGN}!", (), 3),
    Committed("", (4,), 4, logprobs=(scored(b""),)),
    done(4),
)
TOKENS = [[104], [0xE2, 0x82], [0xAC, 33], []]


def test_log_probabilities_come_with_their_text_and_all_of_them_at_its_end() -> None:
    asked_for = body(include=[LOGPROBS])
    events = data_of(told(planned(API, asked_for | {"stream": True}), [*SCORED]))
    assert [fault for it in events for fault in event_faults(it)] == []
    deltas = [it for it in events if it["type"] == "response.output_text.delta"]
    assert [(it["delta"], [one["bytes"] for one in it["logprobs"]]) for it in deltas] == [
        ("h", TOKENS[:2]),
        ("\N{EURO SIGN}!", TOKENS[2:3]),
    ]
    (text,) = [it for it in events if it["type"] == "response.output_text.done"]
    assert [one["bytes"] for one in text["logprobs"]] == TOKENS
    whole = json.loads(told(planned(API, asked_for), [*SCORED]))
    assert responses_faults(whole, RESPONSE) == []
    assert whole["output"] == events[-1]["response"]["output"]
    assert whole["output"][0]["content"][0]["logprobs"] == text["logprobs"]


def test_a_client_that_comes_back_is_told_what_it_lacks_of_them() -> None:
    asked_for = body(include=[LOGPROBS], stream=True)
    stream = told(planned(API, asked_for, idempotency_key="k"), [*SCORED])
    first = next(it for it in events_of(stream) if it["event"] == "response.output_text.delta")
    joined = Committed(
        "h\N{EURO SIGN}!", (1, 2, 3), 3, logprobs=tuple(map(scored, map(bytes, TOKENS[:3])))
    )
    for again in ([*SCORED], [SCORED[0], joined, *SCORED[-2:]]):
        back = planned(API, asked_for, idempotency_key="k", last_event_id=first["id"])
        events = data_of(told(back, again))
        (delta,) = [it for it in events if it["type"] == "response.output_text.delta"]
        told_again = [one["bytes"] for one in delta["logprobs"]]
        assert delta["delta"] == "\N{EURO SIGN}!" and told_again[-1] == TOKENS[2]
        (text,) = [it for it in events if it["type"] == "response.output_text.done"]
        assert [one["bytes"] for one in text["logprobs"]] == TOKENS


def test_a_response_that_is_not_streamed_is_as_the_api_has_it() -> None:
    asked_for = body(metadata={"a": "b"}, temperature=0, instructions="be kind", store=True)
    whole = json.loads(told(planned(API, asked_for), ending("He", "llo", cached_tokens=3)))
    assert responses_faults(whole, RESPONSE) == []
    assert whole["output"] == [
        {
            "type": "message",
            "id": "msg_r1_0",
            "status": "completed",
            "role": "assistant",
            "content": [
                {"type": "output_text", "text": "Hello", "annotations": [], "logprobs": []}
            ],
        }
    ]
    assert (whole["id"], whole["status"], whole["model"]) == ("resp_r1", "completed", "small")
    assert (whole["metadata"], whole["temperature"]) == ({"a": "b"}, 0)
    assert (whole["store"], whole["instructions"]) == (False, "be kind")
    assert whole["usage"] == {
        "input_tokens": 5,
        "input_tokens_details": {"cached_tokens": 3, "cache_write_tokens": 0},
        "output_tokens": 2,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 7,
    }
    assert whole["completed_at"] >= whole["created_at"] == 1_700_000_000


def test_a_response_says_how_its_model_samples() -> None:
    _, *reply = ending("He", "llo")
    accepted = Accepted("r1", "small", 5, sampling=SamplingParams(temperature=0.2, top_p=0.9))
    whole = json.loads(told(planned(API, body()), [accepted, *reply]))
    assert (whole["temperature"], whole["top_p"]) == (0.2, 0.9)


@pytest.mark.parametrize("reason", [FinishReason.LENGTH, FinishReason.DEADLINE])
def test_a_response_that_is_cut_off_is_incomplete(reason: FinishReason) -> None:
    events = [*chat_of("a")[:-1], done(1, reason)]
    whole = json.loads(told(planned(API, body()), events))
    assert responses_faults(whole, RESPONSE) == []
    assert (whole["status"], whole["completed_at"]) == ("incomplete", None)
    assert whole["incomplete_details"] == {"reason": "max_output_tokens"}
    assert whole["output"][0]["status"] == "incomplete"
    *_, item, last = data_of(told(planned(API, body(stream=True)), events))
    assert last["type"] == "response.incomplete"
    assert item["type"] == "response.output_item.done"
    assert [item["item"]] == last["response"]["output"]


def test_a_stream_has_every_event_in_its_order() -> None:
    stream = told(planned(API, body(stream=True)), ending("He", "llo"))
    events = data_of(stream)
    assert [it["type"] for it in events] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [it["event"] for it in events_of(stream)] == [it["type"] for it in events]
    assert [it["sequence_number"] for it in events] == list(range(10))
    assert [fault for it in events for fault in event_faults(it)] == []
    whole = json.loads(told(planned(API, body()), ending("He", "llo")))
    assert events[-1]["response"] == whole
    assert events[0]["response"]["status"] == "in_progress"
    assert events[0]["response"]["output"] == []


def test_long_instructions_come_with_the_last_event_alone() -> None:
    long = "x" * MAX_ECHO_BYTES
    events = data_of(told(planned(API, body(stream=True, instructions=long)), ending("a")))
    assert [it["response"]["instructions"] for it in events if "response" in it] == [
        None,
        None,
        long,
    ]


def response_shape() -> ResponseShape:
    return ResponseShape(7, _frame(msgspec.convert(body(), ResponsesRequest), 1_700_000_000))


def test_calls_are_items_whose_arguments_stream() -> None:
    events = data_of(
        written(with_calls(response_shape(), streamed=True), '(hm)Well[look]{"at": 1}[/]')
    )
    items = [it["item"] for it in events if it["type"] == "response.output_item.done"]
    assert [it["type"] for it in items] == ["reasoning", "message", "function_call"]
    assert items[2] == {
        "type": "function_call",
        "id": "fc_r1_2",
        "status": "completed",
        "call_id": "call_0",
        "name": "look",
        "arguments": '{"at": 1}',
    }
    of_call = [it for it in events if it.get("output_index") == 2]
    assert [it["type"].removeprefix("response.") for it in of_call] == [
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
    ]
    assert "".join(it["delta"] for it in of_call if "delta" in it) == '{"at": 1}'
    faults = [fault for it in events if "reasoning" not in it["type"] for fault in event_faults(it)]
    assert faults == []
    assert events[-1]["response"]["output"] == items


def test_a_response_with_calls_is_as_the_api_has_it() -> None:
    whole = json.loads(
        written(
            with_calls(response_shape(), streamed=False), '(hm)Well[look]{"at": 1}[/][look]{"at'
        )
    )
    assert responses_faults(whole, RESPONSE) == []
    assert [it["status"] for it in whole["output"]] == ["completed"] * 3 + ["incomplete"]
    assert whole["output"][3]["arguments"] == '{"at'


# Errors.


@pytest.mark.parametrize(
    ("error", "code"),
    [(EngineError("x"), "server_error"), (OverloadedError("x"), "rate_limit_exceeded")],
)
def test_a_response_that_fails_says_so(error: OutriderError, code: str) -> None:
    writer = planned(API, body(stream=True)).writer
    for event in chat_of("a")[:-1]:
        writer.take(0, event)
    (failed,) = data_of(writer.failed(error))
    assert event_faults(failed) == []
    assert (failed["type"], failed["response"]["status"]) == ("response.failed", "failed")
    assert failed["response"]["error"] == {"code": code, "message": "x"}
    assert failed["sequence_number"] == 5


def test_a_stream_that_fails_before_its_response_has_begun_says_so() -> None:
    reply = planned(API, body(stream=True), idempotency_key="k")
    events = data_of(reply.writer.failed(EngineError("x")))
    assert [fault for it in events for fault in event_faults(it)] == []
    *opening, error, failed = events
    assert [it["type"] for it in opening] == ["response.created", "response.in_progress"]
    assert (error["type"], error["message"]) == ("error", "x")
    assert error["error"]["code"] == error["code"] == "engine"
    assert (failed["type"], failed["response"]["id"]) == ("response.failed", "resp_k")
    assert failed["response"]["error"] == {"code": "server_error", "message": "x"}
    assert [it["sequence_number"] for it in events] == [0, 1, 2, 3]
