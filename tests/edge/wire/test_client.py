"""Frames from clients: whatever the bytes are, an input or a typed error comes of them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.client.events import EdgeInfo, ModelInfo
from outrider.client.wire import (
    DESCRIBE,
    NOTHING,
    ChatOptions,
    Progress,
    read_description,
    request_frame,
    typed_frame,
)
from outrider.client.wire import Credential as Claimed
from outrider.codec.frames import FrameDecoder
from outrider.cost import Cost
from outrider.errors import (
    InvalidRequestError,
    InvalidSamplingError,
    MalformedFrameError,
    OutriderError,
    UnauthenticatedError,
)
from outrider.models.chat import MAX_MESSAGES, Message
from outrider.models.suggested_sampling import SuggestedSampling
from outrider.models.tools import ToolCall
from outrider.reply_parsing.formats import REASONING_TAGS, CallSyntax, ReplyFormat
from outrider.sampling.params import SamplingParams
from outrider.session.client import Retracted
from outrider.session.client_wire import write
from outrider.session.runs import UNKNOWN_RUN
from outrider.session.types import (
    ScoredToken,
    Speculation,
    TokenLogprobs,
    Usage,
)
from outrider.v1 import common_pb2, edge_pb2
from services.edge.access.identity import Credential
from services.edge.models.model_limits import ModelLimits
from services.edge.session.events import ChatAsked, ChatRequest, ResumePoint
from services.edge.session.request_fields import MAX_PREDICTION_CHARS
from services.edge.wire import client as wire

LOGPROBS = (TokenLogprobs(ScoredToken(2, -0.5, b"\xc3"), (ScoredToken(9, 0.0, b" a"),)),)
LIMITS = ModelLimits("m", 100, 64)
FORMAT = ReplyFormat(CallSyntax.MISTRAL, REASONING_TAGS[1], True, ("f", "g"), single_call=True)
USAGE = Usage(1, 2, 3, 4, 5, Cost(6, "USD"))


def payload(messages: list[Message], **options: object) -> bytes:
    chat = ChatOptions(**options)  # type: ignore[arg-type]
    (only,) = FrameDecoder().feed(request_frame(messages, chat, ("parent", "state")))
    return only


def test_a_request_arrives_as_it_was_asked() -> None:
    sampling = SamplingParams(temperature=0.7, seed=9, stop=("x",), logit_bias={5: -1.5})
    messages = [Message("system", "be kind"), Message("user", "héllo")]
    item = wire.read(
        payload(
            messages,
            sampling=sampling,
            speculation="region_only",
            priority="low",
            deadline_ms=5,
            thin=True,
            residency=("a", "b"),
            idempotency_key="k",
        ),
    )
    assert isinstance(item, ChatAsked)
    request = item.request
    assert request.messages == tuple(messages)
    assert request.sampling == sampling
    assert request.speculation is Speculation.REGION_ONLY
    assert (request.priority, request.deadline_ms, request.thin) == (1, 5, True)
    assert (request.residency, request.request_id) == (("a", "b"), "k")
    assert (request.model, request.trace) == ("", ("parent", "state"))


def test_requests_without_a_key_get_ids_of_their_own() -> None:
    asked = [wire.read(payload([Message("user", "x")])) for _ in range(2)]
    ids = {item.request.request_id for item in asked if isinstance(item, ChatAsked)}
    assert len(ids) == 2


@given(st.binary(max_size=200))
def test_any_bytes_give_an_input_or_a_typed_error(data: bytes) -> None:
    try:
        item = wire.read(data)
    except OutriderError as error:
        assert error.http_status < 500
    else:
        assert item


@given(st.data())
def test_any_bytes_near_a_request_give_an_input_or_a_typed_error(data: st.DataObject) -> None:
    good = bytearray(payload([Message("user", "hello")], sampling=SamplingParams(stop=("x",))))
    for _ in range(data.draw(st.integers(1, 4))):
        good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    try:
        wire.read(bytes(good))
    except OutriderError as error:
        assert error.http_status < 500


def asked(progress: Progress = NOTHING, run: int = UNKNOWN_RUN, **options: object) -> ChatRequest:
    chat = ChatOptions(**options)  # type: ignore[arg-type]
    messages = [Message("user", "hello")]
    (only,) = FrameDecoder().feed(request_frame(messages, chat, ("", ""), progress, run=run))
    item = wire.read(only)
    assert isinstance(item, ChatAsked)
    return item.request


def test_what_a_client_has_arrives() -> None:
    assert asked().resume == ResumePoint()
    assert asked(Progress("t", [1, 2], 5)).resume == ResumePoint("t", 2, 5, (1, 2))


def test_the_number_of_a_run_arrives_and_is_no_part_of_the_request() -> None:
    first, again = asked(run=7), asked(Progress("t", [1], 2), run=2**32 - 1)
    assert (first.run, again.run, asked().run) == (7, 2**32 - 1, UNKNOWN_RUN)
    assert first.digest == again.digest == asked().digest
    with pytest.raises(InvalidRequestError, match="cannot be sent"):
        asked(run=2**32)
    model = b"\x0a" * 64
    assert asked(Progress("t", [1], 5, model)).resume == ResumePoint("t", 1, 5, (1,), model)
    with pytest.raises(MalformedFrameError, match="at most 64"):
        asked(Progress("t", [1], 5, model + b"x"))
    dated = Progress("t", [1], 5, model, "2026-11-29")
    assert asked(dated).resume.template_date == "2026-11-29"
    assert asked(dated).digest == asked().digest, "the same request"
    with pytest.raises(InvalidRequestError, match=r"the date '29\.11\.2026' is not written"):
        asked(Progress("t", [1], 5, model, "29.11.2026"))


def test_a_credential_is_looked_at_before_anything_else_and_is_no_part_of_the_request() -> None:
    seen = list[Credential]()

    def refuse(credential: Credential) -> None:
        seen.append(credential)
        raise UnauthenticatedError("nobody's")

    claimed = Claimed("key", "ann", b"s" * 16)
    for messages in ([Message("user", "hello")], []):
        chat = ChatOptions(model="no such model", idempotency_key="k")
        (only,) = FrameDecoder().feed(request_frame(messages, chat, ("", ""), credential=claimed))
        with pytest.raises(UnauthenticatedError):
            wire.read(only, refuse)
    assert seen == [Credential("key", "ann", b"s" * 16)] * 2
    (typed,) = FrameDecoder().feed(typed_frame([], "hello", claimed, "m"))
    read = wire.read_typed_text(typed)
    assert (read.credential, read.model) == (seen[0], "m")
    (typed,) = FrameDecoder().feed(typed_frame([], "hello", claimed, "m", ("no JSON",)))
    with pytest.raises(UnauthenticatedError):
        wire.read_typed_text(typed, lambda credential, model: refuse(credential))
    with pytest.raises(InvalidRequestError):
        wire.read_typed_text(typed)
    many = [Message("user", "hello")] * MAX_MESSAGES
    (typed,) = FrameDecoder().feed(typed_frame(many, "hello", claimed))
    with pytest.raises(InvalidRequestError, match=f"{MAX_MESSAGES + 1} messages"):
        wire.read_typed_text(typed)
    digests = set[bytes]()
    for credential in (claimed, Claimed()):
        messages, chat = [Message("user", "hello")], ChatOptions(idempotency_key="k")
        (only,) = FrameDecoder().feed(
            request_frame(messages, chat, ("", ""), credential=credential)
        )
        item = wire.read(only)
        assert isinstance(item, ChatAsked) and "ann" not in repr(item)
        digests.add(item.request.digest)
    assert len(digests) == 1, "keys change, the request does not"


def test_the_same_request_has_the_same_digest_however_often_it_is_sent() -> None:
    first = asked(idempotency_key="k").digest
    assert asked(Progress("t", [1], 5), idempotency_key="k").digest == first
    assert asked(idempotency_key="k", provisional=False, deadline_ms=7).digest == first
    assert asked(idempotency_key="k", model="m").digest == first, "it was told the name"
    others = (
        {"sampling": SamplingParams(seed=1)},
        {"sampling": SamplingParams(num_logprobs=0)},
        {"residency": ("eu",)},
        {"thin": True},
        {"prediction": "text"},
    )
    assert all(asked(idempotency_key="k", **other).digest != first for other in others)


@pytest.mark.parametrize(
    ("point", "says"),
    [
        ({"upto": 2, "ids": [1]}, "all of them or none"),
        ({"upto": 1, "ids": [100]}, "vocabulary"),
        ({"upto": 64, "ids": [1] * 64}, "context"),
        ({"resume_token": "x" * 65}, "token"),
    ],
)
def test_progress_that_cannot_be(point: dict[str, Any], says: str) -> None:
    chat = edge_pb2.ChatRequest(
        messages=[common_pb2.ChatMessage(role="user", content="x")],
        resume=edge_pb2.ResumePoint(**point),
    )
    with pytest.raises(InvalidRequestError, match=says):
        item = wire.read(edge_pb2.ClientFrame(chat=chat).SerializeToString())
        assert isinstance(item, ChatAsked)
        LIMITS.check(item.request)


@pytest.mark.parametrize(
    "sampling", [SamplingParams(stop_ids=(100,)), SamplingParams(logit_bias={100: 1.0})]
)
def test_ids_outside_the_models_vocabulary_are_refused(sampling: SamplingParams) -> None:
    LIMITS.check(asked())
    with pytest.raises(InvalidSamplingError, match=r"id 100 .* vocabulary of 100 ids"):
        LIMITS.check(asked(sampling=sampling))


def test_a_prediction_arrives_and_is_bounded() -> None:
    most = MAX_PREDICTION_CHARS
    assert asked(prediction="é" * most).prediction == "é" * most
    with pytest.raises(InvalidRequestError, match=f"at most {most} characters, not {most + 1}"):
        asked(prediction="é" * (most + 1))


def test_a_thin_chat_takes_no_prediction() -> None:
    with pytest.raises(InvalidRequestError, match="leave out one of them"):
        asked(prediction="text", thin=True)


def test_a_token_stands_for_the_messages() -> None:
    for token, good in (("", False), ("t", True)):
        chat = edge_pb2.ChatRequest(resume=edge_pb2.ResumePoint(resume_token=token))
        frame = edge_pb2.ClientFrame(chat=chat).SerializeToString()
        if good:
            assert isinstance(wire.read(frame), ChatAsked)
        else:
            with pytest.raises(InvalidRequestError):
                wire.read(frame)


def test_an_edge_says_what_it_is() -> None:
    cool = SuggestedSampling(temperature=0.2, top_p=0.9)
    listed = [wire.ListedModel("m", b"digest", 64, cool, True), wire.ListedModel("n", b"", 9)]
    info = read_description(wire.describe("e", "r", listed, 30.0))
    models = ModelInfo("m", b"digest", 64, cool, True), ModelInfo("n", b"", 9)
    assert info == EdgeInfo("e", "r", models, 30.0)
    assert DESCRIBE == wire.DESCRIBE_STREAM
    for payload_ in (b"\xff", write(Retracted(1))):
        with pytest.raises(MalformedFrameError):
            read_description(payload_)


CHAT_WITH_TOOLS = [
    Message("developer", "Be brief."),
    Message("user", "hi", name="ann"),
    Message("assistant", "", (ToolCall("a", "f", '{"x": 1}'), ToolCall("b", "g")), reasoning="Hm"),
    Message("tool", "5", tool_call_id="a", name="f"),
]
TOOLS = ('{"name":"f","description":"é"}', '{"name":"g"}')


def test_tools_and_calls_arrive_as_they_were_sent() -> None:
    item = wire.read(
        payload(CHAT_WITH_TOOLS, tools=TOOLS, tool_choice="g", parallel_tool_calls=False)
    )
    assert isinstance(item, ChatAsked)
    request = item.request
    assert (request.messages, request.tools) == (tuple(CHAT_WITH_TOOLS), TOOLS)
    assert (request.tool_choice, request.parallel_tool_calls) == ("g", False)
    plain = wire.read(payload([Message("user", "x")]))
    assert isinstance(plain, ChatAsked)
    assert (plain.request.tools, plain.request.tool_choice) == ((), "auto")
    assert plain.request.parallel_tool_calls and plain.request.reply_format is None


def test_definitions_arrive_in_their_one_form() -> None:
    loose = '{"type": "function", "function": {"parameters": {}, "name": "f", "strict": true}}'
    item = wire.read(payload([Message("user", "x")], tools=(loose,)))
    assert isinstance(item, ChatAsked)
    assert item.request.tools == ('{"name":"f","parameters":{}}',)


def test_another_tool_call_or_choice_is_another_request() -> None:
    """Under one idempotency key it is refused, not answered with the other one's reply."""
    chats = [
        payload(CHAT_WITH_TOOLS, tools=TOOLS),
        payload(CHAT_WITH_TOOLS, tools=TOOLS[:1]),
        payload(CHAT_WITH_TOOLS, tools=TOOLS, tool_choice="none"),
        payload(CHAT_WITH_TOOLS, tools=TOOLS, parallel_tool_calls=False),
        payload([*CHAT_WITH_TOOLS[:2], Message("assistant", "", (ToolCall("a", "f"),))]),
        payload([*CHAT_WITH_TOOLS[:2], Message("assistant", "", (ToolCall("b", "f"),))]),
    ]
    digests = set()
    for chat in [*chats, *chats]:
        item = wire.read(chat)
        assert isinstance(item, ChatAsked)
        digests.add(item.request.digest)
    assert len(digests) == len(chats)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"tools": ("{",)}, "cannot be read"),
        ({"tools": TOOLS * 65}, "130 tools"),
        ({"tools": TOOLS, "tool_choice": "h"}, "neither auto"),
        ({"tool_choice": "required"}, "no tools"),
        ({"tool_choice": "f"}, "no tools"),
    ],
)
def test_tools_that_cannot_be_are_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidRequestError, match=why):
        wire.read(payload([Message("user", "x")], **options))


def test_typed_text_brings_the_tools_of_its_chat() -> None:
    (frame,) = FrameDecoder().feed(typed_frame(CHAT_WITH_TOOLS, "wh", tools=TOOLS))
    typed = wire.read_typed_text(frame)
    assert (typed.before, typed.tools) == (tuple(CHAT_WITH_TOOLS), TOOLS)
