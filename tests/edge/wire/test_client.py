"""Frames from clients: whatever the bytes are, an input or a typed error comes of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.client.wire import ChatOptions, request_frame
from outrider.client.wire import read as read_edge_frame
from outrider.codec.frames import FrameDecoder
from outrider.errors import OutriderError, UnknownModelError
from outrider.models.chat import Message
from outrider.sampling.params import SamplingParams
from services.edge.session import actions
from services.edge.session.inputs import ChatAsked, FinishReason, Speculation, Timings, Usage
from services.edge.wire import client as wire

OFFER = wire.Offer("m", 100)


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
        OFFER,
    )
    assert isinstance(item, ChatAsked)
    request = item.request
    assert request.messages == tuple(messages)
    assert request.sampling == sampling
    assert request.speculation is Speculation.REGION_ONLY
    assert (request.priority, request.deadline_ms, request.thin) == (1, 5, True)
    assert (request.residency, request.request_id) == (("a", "b"), "k")
    assert (request.model, request.trace) == ("m", ("parent", "state"))


def test_requests_without_a_key_get_ids_of_their_own() -> None:
    asked = [wire.read(payload([Message("user", "x")]), OFFER) for _ in range(2)]
    ids = {item.request.request_id for item in asked if isinstance(item, ChatAsked)}
    assert len(ids) == 2


def test_another_model_is_refused() -> None:
    with pytest.raises(UnknownModelError, match="there is m"):
        wire.read(payload([Message("user", "x")], model="n"), OFFER)


@given(st.binary(max_size=200))
def test_any_bytes_give_an_input_or_a_typed_error(data: bytes) -> None:
    try:
        item = wire.read(data, OFFER)
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
        wire.read(bytes(good), OFFER)
    except OutriderError as error:
        assert error.http_status < 500


@pytest.mark.parametrize(
    "event",
    [
        actions.Accepted("r", "m", 3),
        actions.Provisional(1, 2, "é", 0.5),
        actions.Retract(4),
        actions.Commit("text", (1, 2), 2),
        actions.Commit("text", (1, 2), 2, (1,), ((2, 4),)),
        actions.Done(
            FinishReason.LENGTH, 2, Usage(1, 2, 3, 4, 5), Timings(1, 2, 3, 4), Timings(), "r", "p"
        ),
    ],
    ids=lambda event: type(event).__name__,
)
def test_events_arrive_at_the_client(event: actions.ClientEvent) -> None:
    arrived = read_edge_frame(wire.write(event, "edge-1"))
    mine = {name: getattr(event, name) for name in type(event).__match_args__}
    shared = {name: getattr(arrived, name) for name in mine if hasattr(arrived, name)}
    assert len(shared) >= min(len(mine), 1)
    for name, value in shared.items():
        if isinstance(value, str | int | float | tuple):
            assert value == ("length" if name == "finish_reason" else mine[name])
    usage = getattr(arrived, "usage", None)
    assert usage is None or usage.accepted_tokens == 5
