"""Every reply has the fields that the official APIs write, and null only where they write null:
clients that check replies take "absent" and "null" for different things."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final, get_args

import msgspec
import pytest
from msgspec.inspect import (
    CollectionType,
    DictType,
    Field,
    NoneType,
    StructType,
    Type,
    UnionType,
    multi_type_info,
)

from outrider.errors import EngineError, PromptTooLongError
from outrider.session.client import Accepted, Committed
from services.edge.http import anthropic_messages, openai_chat, openai_completions, responses
from services.edge.http.anthropic_reply import PING, MessageShape
from services.edge.http.api import ChatApi
from services.edge.http.routes import ROUTES
from services.edge.session.events import ClientEvent
from tests.edge.http.asking import USER, chat_of, data_of, done, planned, told
from tests.edge.http.scripted_parser import with_calls, written
from tests.edge.http.test_openai_logprobs import SCORED
from tests.edge.http.upstream_shapes import ECHOED, OWN, SHAPES


def _structs(kind: Type, found: dict[type, StructType]) -> None:
    """All structs in a type."""
    match kind:
        case StructType(cls=cls) if cls not in found:
            found[cls] = kind
            for field in kind.fields:
                _structs(field.type, found)
        case UnionType(types=types):
            for each in types:
                _structs(each, found)
        case DictType(value_type=inner) | CollectionType(item_type=inner):
            _structs(inner, found)


def _replied() -> dict[type, StructType]:
    """All structs that a route writes."""
    types: list[Any] = []
    for route in ROUTES:
        of_events = get_args(route.event) or (route.event,)
        types += [it for it in (route.response, route.error, *of_events) if it not in (None, *OWN)]
    found: dict[type, StructType] = {}
    for kind in multi_type_info(types):
        _structs(kind, found)
    return {cls: kind for cls, kind in found.items() if cls not in ECHOED}


REPLIED: Final = _replied()


def _may_be_null(field: Field) -> bool:
    kinds = field.type.types if isinstance(field.type, UnionType) else (field.type,)
    return any(isinstance(it, NoneType) for it in kinds)


def _faults(struct: StructType) -> Iterator[str]:
    upstream = SHAPES[struct.cls]
    omits_defaults = struct.cls.__struct_config__.omit_defaults
    names = {struct.tag_field} if struct.tag_field else set()
    for field in struct.fields:
        name = field.encode_name
        names.add(name)
        has_default = field.default is not msgspec.NODEFAULT or (
            field.default_factory is not msgspec.NODEFAULT
        )
        may_be_left_out = not field.required and (omits_defaults or not has_default)
        if name not in upstream.known:
            yield f"{name}: the API has no such field"
        is_left_out_for_null = omits_defaults and field.default is None
        if _may_be_null(field) and not is_left_out_for_null and name not in upstream.nullable:
            yield f"{name}: is null here, and never in that API"
        if may_be_left_out and name in upstream.required:
            yield f"{name}: may be missing here, and never in that API"
    yield from (f"{name}: is missing" for name in upstream.required - names)


@pytest.mark.parametrize("cls", REPLIED, ids=lambda cls: cls.__name__)
def test_an_object_has_the_fields_that_its_api_writes(cls: type) -> None:
    assert cls in SHAPES, "write down what the official API has"
    assert list(_faults(REPLIED[cls])) == []


def test_the_table_has_no_more_than_is_written() -> None:
    assert set(SHAPES) == set(REPLIED)


def test_a_fault_is_found() -> None:
    class TextBlock(msgspec.Struct, kw_only=True, tag_field="type", tag="text"):
        citations: None = None
        words: str = ""

    from services.edge.http import anthropic_reply

    (kind,) = multi_type_info([TextBlock])
    assert isinstance(kind, StructType)
    posing = StructType(anthropic_reply.TextBlock, kind.fields, tag_field="type", tag="text")
    assert sorted(_faults(posing)) == [
        "citations: is null here, and never in that API",
        "text: is missing",
        "words: the API has no such field",
    ]


# What is really sent.

CHATS: Final[dict[str, tuple[ChatApi, dict[str, Any]]]] = {
    "chat": (openai_chat.API, {"messages": [USER]}),
    "scored chat": (openai_chat.API, {"messages": [USER], "logprobs": True}),
    "completion": (openai_completions.API, {"prompt": "hello"}),
    "scored completion": (openai_completions.API, {"prompt": "hello", "logprobs": 0}),
    "message": (anthropic_messages.API, {"model": "m", "messages": [USER], "max_tokens": 9}),
    "response": (responses.API, {"model": "m", "input": "hello"}),
}
NULLS: Final = {
    openai_chat.API: {"content", "refusal", "logprobs", "finish_reason", "usage"},
    openai_completions.API: {"logprobs", "finish_reason", "usage"},
    anthropic_messages.API: {"stop_reason", "stop_sequence"},
    responses.API: {
        *("completed_at", "incomplete_details", "previous_response_id", "instructions", "error"),
        *("usage", "max_output_tokens", "max_tool_calls", "safety_identifier"),
        *("prompt_cache_key", "effort", "summary"),
    },
}
"""Fields that are null in replies that the official APIs were seen to send."""


def _nulls(value: object) -> set[str]:
    match value:
        case dict():
            inner = [_nulls(it) for it in value.values()]
            return {name for name, it in value.items() if it is None}.union(*inner)
        case list():
            return set().union(*(_nulls(it) for it in value))
        case _:
            return set()


@pytest.mark.parametrize(("api", "body"), CHATS.values(), ids=CHATS)
@pytest.mark.parametrize("options", [{}, {"include_usage": True}], ids=["plain", "usage"])
def test_null_is_sent_where_the_api_sends_it(
    api: ChatApi, body: dict[str, Any], options: dict[str, Any]
) -> None:
    scored: list[ClientEvent] = [
        Accepted("r1", "small", 5),
        Committed("h", (0,), 1, logprobs=(SCORED[0],)),
        done(1),
    ]
    for events in (chat_of("He", "llo"), scored):
        assert _nulls(json.loads(told(planned(api, body), events))) <= NULLS[api]
        streamed = body | {"stream": True, "stream_options": options}
        assert _nulls(data_of(told(planned(api, streamed), events))) <= NULLS[api]


def test_chunks_of_text_say_that_the_choice_goes_on() -> None:
    body = {"messages": [USER], "stream": True}
    *before, last = data_of(told(planned(openai_chat.API, body), chat_of("He", "llo")))
    assert [it["choices"][0]["finish_reason"] for it in before] == [None] * len(before)
    assert last["choices"][0]["finish_reason"] == "stop"


def test_a_fingerprint_that_is_not_known_is_left_out() -> None:
    events: list[ClientEvent] = [
        Accepted("r1", "small", 5),
        Committed("He", (0,), 1),
        done(1),
    ]
    for api, body in (CHATS["chat"], CHATS["completion"]):
        assert "system_fingerprint" not in json.loads(told(planned(api, body), events))
        chunks = data_of(told(planned(api, body | {"stream": True}), events))
        assert not any("system_fingerprint" in it for it in chunks)


def test_calls_and_thoughts_have_no_nulls() -> None:
    for streamed in (False, True):
        writer = with_calls(MessageShape(7, shows_thinking=True), streamed=streamed)
        sent = written(writer, '(hm)Well[look]{"at": 1}[/]')
        data = data_of(sent) if streamed else json.loads(sent)
        assert _nulls(data) <= NULLS[anthropic_messages.API]


@pytest.mark.parametrize(("api", "body"), CHATS.values(), ids=CHATS)
def test_errors_in_a_stream_have_the_nulls_of_errors_alone(
    api: ChatApi, body: dict[str, Any]
) -> None:
    allowed = {
        anthropic_messages.API: set[str](),
        responses.API: {"param"} | NULLS[responses.API],
    }
    for error in (EngineError("x"), PromptTooLongError.of(9, 5)):
        reply = planned(api, body | {"stream": True})
        assert _nulls(data_of(reply.writer.failed(error))) <= allowed.get(api, {"param"})


def test_a_ping_is_an_event() -> None:
    assert data_of(PING) == [{"type": "ping"}]
