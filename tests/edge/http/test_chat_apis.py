"""What all APIs of chats have in common, from a request to a chat and from what it tells to what is
sent. Their own fields and events are in the test of each."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.errors import EngineError, OutriderError
from outrider.session.client import Accepted, Committed, Done, Provisional, Retracted
from services.edge.http import anthropic_messages, openai_chat, openai_completions, responses
from services.edge.http.api import ChatApi
from services.edge.session.template_options import TemplateOptions
from tests.edge.http.asking import USER, asked, chat_of, data_of, events_of, planned, refusal, told


@dataclass(frozen=True, slots=True)
class Shape:
    """One API."""

    api: ChatApi
    body: dict[str, Any]
    """A request."""
    required: tuple[str, ...]
    """The fields without which it is none."""
    delta: Callable[[Any], str]
    """What an event adds to the text."""
    ignored: dict[str, Any]
    """Fields that are accepted and have no effect."""
    limit: str = "max_tokens"
    """The field for the most tokens of a reply."""
    stop: str = "stop"
    """The field for stop strings; empty: there is none."""


CHAT: Final = Shape(
    openai_chat.API,
    {"model": "small", "messages": [USER]},
    ("messages",),
    lambda event: event["choices"][0]["delta"].get("content") or "",
    {
        "metadata": {"a": "b"},
        "store": True,
        "service_tier": "auto",
        "verbosity": "low",
        "parallel_tool_calls": True,
        "logprobs": False,
        "top_logprobs": 0,
        "tools": [],
        "tool_choice": "auto",
        "response_format": {"type": "text"},
        "modalities": ["text"],
        "prediction": None,
        "something_new": [1],
    },
    limit="max_completion_tokens",
)
COMPLETION: Final = Shape(
    openai_completions.API,
    {"model": "small", "prompt": "hello"},
    ("prompt",),
    lambda event: event["choices"][0]["text"],
    {"best_of": 1, "suffix": None, "something_new": [1]},
)
MESSAGE: Final = Shape(
    anthropic_messages.API,
    {"model": "small", "max_tokens": 50, "messages": [USER]},
    ("max_tokens", "messages"),
    lambda event: event.get("delta", {}).get("text", ""),
    {
        "tools": [],
        "tool_choice": {"type": "auto"},
        "service_tier": "auto",
        "output_config": {"effort": "low"},
        "context_management": {"edits": []},
        "cache_control": {"type": "ephemeral"},
    },
    stop="stop_sequences",
)
RESPONSE: Final = Shape(
    responses.API,
    {"model": "small", "input": "hello"},
    ("input",),
    lambda event: event["delta"] if event["type"] == "response.output_text.delta" else "",
    {
        "store": True,
        "reasoning": {"summary": "auto"},
        "truncation": "auto",
        "include": ["reasoning.encrypted_content"],
        "metadata": {"a": "b"},
        "service_tier": "auto",
        "prompt_cache_key": "k",
        "tools": [],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "max_tool_calls": 3,
        "text": {"format": {"type": "text"}, "verbosity": "low"},
        "previous_response_id": None,
        "conversation": None,
        "background": False,
    },
    limit="max_output_tokens",
    stop="",
)
ALL: Final = {"chat": CHAT, "completion": COMPLETION, "message": MESSAGE, "response": RESPONSE}
over_all = pytest.mark.parametrize("it", ALL.values(), ids=ALL)


# Requests.


@pytest.mark.parametrize(
    ("it", "fields", "options"),
    [
        (CHAT, {"chat_template_kwargs": {"a": 1}}, TemplateOptions('{"a":1}')),
        (
            CHAT,
            {"enable_thinking": False},
            TemplateOptions(thinks=False, thinks_field="enable_thinking"),
        ),
        (
            CHAT,
            {"reasoning_effort": "low"},
            TemplateOptions(effort="low", effort_field="reasoning_effort"),
        ),
        (
            RESPONSE,
            {"reasoning": {"effort": "high"}, "chat_template_kwargs": {"a": 1}},
            TemplateOptions('{"a":1}', effort="high", effort_field="reasoning.effort"),
        ),
        (CHAT, {"continue_final_message": True}, TemplateOptions(continues=True)),
        (
            CHAT,
            {"continue_final_message": True, "add_generation_prompt": False},
            TemplateOptions(continues=True),
        ),
        (CHAT, {"add_generation_prompt": True}, TemplateOptions()),
        (CHAT, {"continue_final_message": False}, TemplateOptions()),
        (MESSAGE, {"thinking": {"type": "adaptive"}}, TemplateOptions(thinks=True)),
        (
            MESSAGE,
            {"thinking": {"type": "disabled"}},
            TemplateOptions(thinks=False, thinks_field="thinking"),
        ),
        (
            MESSAGE,
            {"thinking": {"type": "disabled"}, "enable_thinking": True},
            TemplateOptions(thinks=True, thinks_field="enable_thinking"),
        ),
        (MESSAGE, {"output_config": {"effort": "low"}}, TemplateOptions(effort="low")),
    ],
)
def test_what_is_asked_of_a_template_is_passed_on(
    it: Shape, fields: dict[str, Any], options: TemplateOptions
) -> None:
    (chat,) = planned(it.api, it.body | fields).chats
    assert chat.template_options == options


@pytest.mark.parametrize(
    ("it", "fields", "limit"),
    [
        *((it, {"max_thinking_tokens": 0}, 0) for it in (CHAT, MESSAGE, RESPONSE)),
        *((it, {"thinking_token_budget": 9}, 9) for it in (CHAT, MESSAGE, RESPONSE)),
        (MESSAGE, {"thinking": {"type": "enabled", "budget_tokens": 2000}}, 2000),
        (MESSAGE, {"thinking": {"type": "disabled", "budget_tokens": 2000}}, -1),
        (
            MESSAGE,
            {"thinking": {"type": "enabled", "budget_tokens": 5}, "max_thinking_tokens": 4},
            4,
        ),
    ],
)
def test_limits_of_reasoning(it: Shape, fields: dict[str, Any], limit: int) -> None:
    (chat,) = planned(it.api, it.body | fields).chats
    assert chat.sampling.max_thinking_tokens == limit


@pytest.mark.parametrize(
    ("it", "fields", "param"),
    [
        (COMPLETION, {"max_thinking_tokens": 5}, "max_thinking_tokens"),
        (COMPLETION, {"thinking_token_budget": 5}, "thinking_token_budget"),
        (CHAT, {"reasoning_effort": "extreme"}, "reasoning_effort"),
        (RESPONSE, {"reasoning": {"effort": "extreme"}}, "reasoning.effort"),
        (CHAT, {"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
    ],
)
def test_what_no_template_can_be_asked_is_refused(
    it: Shape, fields: dict[str, Any], param: str
) -> None:
    assert refusal(it.api, it.body | fields).metadata["param"] == param


@over_all
def test_what_has_no_effect_is_accepted(it: Shape) -> None:
    (chat,) = planned(it.api, it.body | it.ignored).chats
    assert chat.sampling == planned(it.api, it.body).chats[0].sampling


@pytest.mark.parametrize("role", ["system", "developer", "user", "assistant"])
@pytest.mark.parametrize("message", [{"content": None}, {"content": ""}, {"content": []}, {}])
def test_a_message_without_text_ends_no_conversation(role: str, message: dict[str, Any]) -> None:
    messages = [USER, {"role": role, **message}, USER]
    for it, field in ((CHAT, "messages"), (MESSAGE, "messages"), (RESPONSE, "input")):
        (chat,) = planned(it.api, {**it.body, field: messages}).chats
        text = "".join(said.content for said in chat.messages)
        assert "".join(text.split()) == "hellohello"


@over_all
def test_fields_that_have_to_be_there(it: Shape) -> None:
    for missing in it.required:
        body = {name: value for name, value in it.body.items() if name != missing}
        assert missing.rstrip("s") in refusal(it.api, body).message


@over_all
@given(data=st.binary(max_size=200))
def test_whatever_the_bytes_are_a_plan_or_a_typed_error_comes_of_them(
    it: Shape, data: bytes
) -> None:
    try:
        it.api.plan(asked(data))
    except OutriderError as error:
        assert json.loads(it.api.error_body(error, "id"))["error"]["message"]


@over_all
def test_a_byte_order_mark_is_passed_over(it: Shape) -> None:
    marked = b"\xef\xbb\xbf" + json.dumps(it.body).encode()
    (chat,) = it.api.plan(asked(marked, idempotency_key="k")).chats
    assert chat == planned(it.api, it.body, idempotency_key="k").chats[0]


@over_all
def test_minus_one_is_no_limit(it: Shape) -> None:
    (chat,) = planned(it.api, it.body | {it.limit: -1}).chats
    assert chat.sampling.max_tokens == 2**31 - 1


@over_all
def test_an_error_names_the_field_as_the_api_does(it: Shape) -> None:
    cases: list[tuple[str, Any]] = [(it.limit, 0), (it.limit, -2), ("temperature", 9)]
    cases += [(it.stop, [""]), (it.stop, ["a"] * 17)] if it.stop else []
    for name, value in cases:
        error = refusal(it.api, it.body | {name: value})
        assert error.message.startswith(f"{name} ")
        told = json.loads(it.api.error_body(error, "id"))["error"]
        assert told.get("param", name) == name


@pytest.mark.parametrize("name", ["max_thinking_tokens", "thinking_token_budget"])
@pytest.mark.parametrize("api", [openai_chat.API, responses.API, anthropic_messages.API])
def test_an_error_names_the_limit_of_reasoning_that_was_sent(api: ChatApi, name: str) -> None:
    body = {"model": "m", "max_tokens": 9, "messages": [USER], "input": "a"}
    body.pop("messages" if api is responses.API else "input")
    assert refusal(api, body | {name: -2}).metadata["param"] == name
    if api is anthropic_messages.API:
        budget = {"thinking": {"type": "enabled", "budget_tokens": -2}}
        assert refusal(api, body | budget).metadata["param"] == "thinking.budget_tokens"


SURROGATE: Final = [{"role": "user", "content": "\ud800"}]


@over_all
@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{",
        b'{"model"',
        b"\xff",
        b"[" * 200_000,
        b'{"x":' + b"[" * 200_000,
        b'{"model":"m","max_tokens":1,"messages":[{"role":"user","content":'
        + b'[{"type":"text","content":' * 5000,
        b'{"temperature": NaN, "messages": []}',
        json.dumps({"model": "m", "max_tokens": 1, "messages": []}).encode(),
        json.dumps(
            {"model": "m", "max_tokens": 1, "messages": [USER | {"content": ""}], "prompt": ""}
            | {"input": ""}
        ).encode(),
        json.dumps(
            {"model": "m", "max_tokens": 1, "messages": SURROGATE, "prompt": "\ud800"}
            | {"input": SURROGATE}
        ).encode(),
    ],
    ids=range(12),
)
def test_bodies_that_are_no_requests_are_refused(it: Shape, data: bytes) -> None:
    assert refusal(it.api, data).http_status == 400


@over_all
def test_a_request_with_a_key_is_the_same_request_again(it: Shape) -> None:
    body, keyed = it.body | ({"n": 2} if it in (CHAT, COMPLETION) else {}), {"idempotency_key": "k"}
    streamed = {"stream": True, "stream_options": {"provisional": True}, "deadline_ms": 5}
    first, again, other = (
        planned(it.api, body | changes, **keyed).chats for changes in ({}, streamed, {"top_p": 0.5})
    )
    same = [
        [(one.request_id, one.digest, one.sampling.seed) for one in chats]
        for chats in (first, again)
    ]
    assert same[0] == same[1] and len({one.request_id for one in first}) == len(first)
    assert first[0].digest != other[0].digest
    assert refusal(it.api, it.body, idempotency_key="\n").http_status == 400


@over_all
def test_an_error_does_not_say_what_the_request_holds(it: Shape) -> None:
    secret = {"secret": "sesame"}
    body = it.body | dict.fromkeys(("messages", "prompt", "input"), secret)
    assert b"sesame" not in it.api.error_body(refusal(it.api, body), "id")


# Replies.


@over_all
def test_each_commit_is_sent_when_it_comes(it: Shape) -> None:
    writer = planned(it.api, it.body | {"stream": True}).writer
    assert writer.take(0, Accepted("r1", "small", 5)) == b"", "the head waits for a region"
    for number, text in enumerate(("now", " then")):
        sent = writer.take(0, Committed(text, (number,), number + 1))
        assert "".join(map(it.delta, data_of(sent))) == text
    assert writer.take(0, Committed("", (2,), 3)) == b"", "its text is held back"


@over_all
def test_a_stream_that_fails_says_so(it: Shape) -> None:
    writer = planned(it.api, it.body | {"stream": True}).writer
    for event in chat_of("a")[:-1]:
        writer.take(0, event)
    (failed,) = data_of(writer.failed(EngineError("the engine failed")))
    error = (failed.get("response") or failed)["error"]
    assert error["message"] == "the engine failed"


@over_all
@pytest.mark.parametrize("streams", [False, True], ids=["whole", "stream"])
def test_every_reply_says_whether_it_is_inexact(it: Shape, streams: bool) -> None:
    for inexact in (False, True):
        *events, end = chat_of("a", "b")
        assert isinstance(end, Done)
        events.append(replace(end, inexact=inexact))
        answer = told(planned(it.api, it.body | {"stream": streams}), events)
        assert (b'"inexact":true' in answer) is inexact


@over_all
def test_provisional_text_is_of_an_event_type_of_its_own(it: Shape) -> None:
    reply = planned(it.api, it.body | {"stream": True, "stream_options": {"provisional": True}})
    assert reply.chats[0].provisional and not planned(it.api, it.body).chats[0].provisional
    reply.writer.take(0, Accepted("r1", "small", 5))
    stream = reply.writer.take(0, Provisional(0, 0, "maybe", 0.9))
    stream += reply.writer.take(0, Retracted(2))
    assert [event["event"] for event in events_of(stream)] == ["outrider.provisional"] * 2
    told = {"index": 0, "erase_to": 0, "text": "maybe", "stability": 0.9}
    assert data_of(stream)[0] == told


TEXTS: Final = st.lists(st.text("ab", max_size=4), min_size=1, max_size=6)


@pytest.mark.parametrize("it", [CHAT, MESSAGE, RESPONSE], ids=["chat", "message", "response"])
@given(texts=TEXTS, data=st.data())
def test_a_client_that_comes_back_has_what_one_has_that_stayed(
    it: Shape, texts: list[str], data: st.DataObject
) -> None:
    events, keyed = chat_of(*texts), {"idempotency_key": "k"}
    body = it.body | {"stream": True}
    stream = told(planned(it.api, body, **keyed), events)
    ids = [event["id"] for event in events_of(stream) if "id" in event][:-1]
    last = data.draw(st.sampled_from(ids))
    had = stream[: stream.index(b"\n\n", stream.index(f"id: {last}\n".encode())) + 2]
    back = planned(it.api, body, **keyed, last_event_id=last)
    # What was several commits may be one now.
    point = back.chats[0].resume
    joined = Committed(
        "".join(texts)[point.num_chars :], tuple(range(len(texts) - point.upto)), len(texts)
    )
    again = [it for it in events if isinstance(it, Committed) and it.upto > point.upto]
    commits = data.draw(st.sampled_from([again, [joined]]))
    rest = told(back, [events[0], *commits, events[-1]])
    both = data_of(had) + data_of(rest)
    assert "".join(map(it.delta, both)) == "".join(texts)
    if it is RESPONSE:
        assert [event["sequence_number"] for event in both] == list(range(len(both)))
    if it is not CHAT:
        kinds, stayed = ([event["type"] for event in those] for those in (both, data_of(stream)))
        once = {kind for kind in stayed if "delta" not in kind}
        assert [kinds.count(kind) for kind in once] == [stayed.count(kind) for kind in once]
