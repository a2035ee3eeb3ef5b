"""One request and its response: every step of an application in every phase."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.edge.http3.exchange import (
    NEXT,
    Action,
    Exchange,
    H3Code,
    Phase,
    Reset,
    SendData,
    SendHeaders,
    SendTrailers,
    Step,
    StopReading,
    step_of,
)
from services.edge.http3.messages import Message, Refusal, Request, read_request


def request(method: str = "POST") -> Request:
    read = read_request(
        [
            (b":method", method.encode()),
            (b":scheme", b"https"),
            (b":authority", b"edge"),
            (b":path", b"/"),
        ]
    )
    assert isinstance(read, Request)
    return read


def exchange(*, has_ended: bool = False, method: str = "POST") -> Exchange:
    return Exchange(request(method), has_ended=has_ended)


def start(status: int = 200, headers: Any = (), **options: Any) -> Message:
    return {"type": "http.response.start", "status": status, "headers": headers, **options}


def body(data: bytes = b"", *, more: bool = False) -> Message:
    return {"type": "http.response.body", "body": data, "more_body": more}


def trailers(*, more: bool = False) -> Message:
    return {"type": "http.response.trailers", "headers": [(b"x", b"1")], "more_trailers": more}


MESSAGES = {
    Step.START: start(),
    Step.BODY: body(b"ab", more=True),
    Step.LAST_BODY: body(b"cd"),
    Step.TRAILERS: trailers(more=True),
    Step.LAST_TRAILERS: trailers(),
}
HEADERS = SendHeaders([(b":status", b"200")], False)
STOP = StopReading(H3Code.NO_ERROR)


def in_phase(phase: Phase) -> Exchange:
    it = exchange()
    if phase is Phase.AWAITED:
        return it
    if phase is Phase.GONE:
        it.client_gone()
        return it
    it.send(start(trailers=phase is Phase.TRAILERS))
    if phase is Phase.BODY:
        it.send(body(b"ab", more=True))
    if phase in (Phase.TRAILERS, Phase.DONE):
        it.send(body(b"ab"))
    assert it.phase is phase
    return it


SENT: dict[tuple[Phase, Step], list[Action]] = {
    (Phase.AWAITED, Step.START): [],
    (Phase.BEGUN, Step.BODY): [HEADERS, SendData(b"ab", False)],
    (Phase.BEGUN, Step.LAST_BODY): [HEADERS, SendData(b"cd", True), STOP],
    (Phase.BODY, Step.BODY): [SendData(b"ab", False)],
    (Phase.BODY, Step.LAST_BODY): [SendData(b"cd", True), STOP],
    (Phase.BODY, Step.RETURN): [Reset(H3Code.INTERNAL_ERROR), STOP],
    (Phase.TRAILERS, Step.TRAILERS): [],
    (Phase.TRAILERS, Step.LAST_TRAILERS): [SendTrailers([(b"x", b"1")]), STOP],
    (Phase.TRAILERS, Step.RETURN): [Reset(H3Code.INTERNAL_ERROR), STOP],
    (Phase.DONE, Step.RETURN): [],
    **{(Phase.GONE, step): [] for step in Step},
}


@pytest.mark.parametrize(("phase", "step"), list(itertools.product(Phase, Step)), ids=str)
def test_every_step_in_every_phase(phase: Phase, step: Step) -> None:
    it = in_phase(phase)
    after = NEXT.get((phase, step))
    if step is Step.RETURN:
        actions = it.returned()
    elif after is None:
        with pytest.raises(RuntimeError, match=r"of the response"):
            it.send(MESSAGES[step])
        assert it.phase is phase, "nothing has changed"
        return
    else:
        actions = it.send(MESSAGES[step])
    assert it.phase is after
    if step is Step.RETURN and phase in (Phase.AWAITED, Phase.BEGUN):
        head, data, stop = actions
        assert isinstance(head, SendHeaders) and (b":status", b"500") in head.headers
        assert isinstance(data, SendData) and data.end and stop == STOP
    else:
        assert actions == SENT[phase, step]
    if it.is_over:
        assert it.receive(0.0) == {"type": "http.disconnect"}
        assert it.num_unread_bytes == 0


@pytest.mark.parametrize("phase", Phase)
def test_a_client_that_is_gone_hears_nothing_more(phase: Phase) -> None:
    it = in_phase(phase)
    it.client_gone()
    assert it.phase is (Phase.DONE if phase is Phase.DONE else Phase.GONE)
    assert it.receive(0.0) == {"type": "http.disconnect"}
    it.body_came(b"x", False, 0.0)
    assert it.num_unread_bytes == 0
    assert it.refuse(Refusal(408, "late")) == []
    assert it.returned() == []


@pytest.mark.parametrize("phase", Phase)
def test_a_refusal_is_a_response_only_where_none_has_begun(phase: Phase) -> None:
    it = in_phase(phase)
    actions = it.refuse(Refusal(408, "late"))
    if phase in (Phase.AWAITED, Phase.BEGUN):
        assert isinstance(actions[0], SendHeaders) and it.phase is Phase.DONE
    elif phase in (Phase.BODY, Phase.TRAILERS):
        assert actions == [Reset(H3Code.REQUEST_CANCELLED), STOP] and it.phase is Phase.GONE
    else:
        assert actions == []
    assert it.is_over


def test_the_body_is_read_as_it_comes() -> None:
    it = exchange()
    assert it.receive(1.0) is None
    it.body_came(b"ab", False, 3.0)
    it.body_came(b"c", False, 4.0)
    assert it.num_unread_bytes == 3
    assert it.receive(5.0) == {"type": "http.request", "body": b"abc", "more_body": True}
    assert it.num_unread_bytes == 0
    assert it.receive(6.0) is None
    assert it.waits_for_body_s(7.5) == 2.0 + 1.5
    it.body_came(b"", True, 8.0)
    assert it.receive(8.0) == {"type": "http.request", "body": b"", "more_body": False}
    assert it.receive(9.0) is None, "then it waits for the client to leave"
    assert it.waits_for_body_s(100.0) == 4.0, "which may take as long as it likes"


def test_a_request_without_a_body_is_read_once() -> None:
    it = exchange(has_ended=True)
    assert it.receive(0.0) == {"type": "http.request", "body": b"", "more_body": False}
    assert it.receive(0.0) is None


@pytest.mark.parametrize(("method", "status"), [("HEAD", 200), ("GET", 204), ("GET", 304)])
def test_some_responses_have_no_body(method: str, status: int) -> None:
    it = exchange(has_ended=True, method=method)
    it.send(start(status, [(b"content-length", b"5")]))
    (head,) = it.send(body(b"12345", more=True))
    assert isinstance(head, SendHeaders) and not head.end
    assert it.send(body(b"more")) == [SendData(b"", True)]
    it = exchange(has_ended=True, method=method)
    it.send(start(status))
    assert it.send(body(b"12345")) == [SendHeaders([(b":status", b"%d" % status)], True)]


def test_the_failure_of_a_head_has_no_body_either() -> None:
    (head,) = exchange(has_ended=True, method="HEAD").returned()
    assert isinstance(head, SendHeaders) and head.end


@pytest.mark.parametrize("data", [[b"1234"], [b"12", b"3456"], [b"123456"]])
def test_a_body_is_as_long_as_its_response_says(data: list[bytes]) -> None:
    it = exchange(has_ended=True)
    it.send(start(headers=[(b"content-length", b"5")]))
    with pytest.raises(ValueError, match="content-length"):
        for number, piece in enumerate(data):
            it.send(body(piece, more=number + 1 < len(data)))
    assert it.returned(), "the response ends in a way the client notices"


def test_trailers_are_bounded() -> None:
    it = in_phase(Phase.TRAILERS)
    many = [(b"x", b"1")] * 101
    with pytest.raises(ValueError, match="trailers"):
        it.send({"type": "http.response.trailers", "headers": many})


@pytest.mark.parametrize(
    "message", [{"type": "websocket.accept"}, {"type": "http.response.push"}, {"type": ""}]
)
def test_messages_that_are_none_of_a_response(message: Message) -> None:
    with pytest.raises(RuntimeError, match="no message"):
        step_of(message)


INPUTS = st.one_of(
    st.sampled_from([*MESSAGES.values(), start(trailers=True), start(204), body(b"", more=True)]),
    st.sampled_from(["return", "gone", "refuse", "receive"]),
    st.tuples(st.binary(max_size=4), st.booleans()),
)


@given(st.lists(INPUTS, max_size=20), st.booleans(), st.sampled_from(["GET", "HEAD"]))
def test_whatever_happens_the_frames_are_a_response(
    inputs: list[Any], has_ended: bool, method: str
) -> None:
    it, frames, ended = exchange(has_ended=has_ended, method=method), [], has_ended
    num_sent_bytes = 0
    for now, item in enumerate(inputs):
        actions: list[Action] = []
        try:
            if isinstance(item, dict):
                actions = it.send(item)
            elif item == "return":
                actions = it.returned()
            elif item == "refuse":
                actions = it.refuse(Refusal(503, "full"))
            elif item == "gone":
                it.client_gone()
            elif item == "receive":
                it.receive(float(now))
            elif not ended:
                data, ended = item
                it.body_came(data, ended, float(now))
                num_sent_bytes += len(data)
        except (RuntimeError, ValueError):
            pass
        frames += actions
    kinds = "".join(
        {SendHeaders: "h", SendData: "d", SendTrailers: "t", Reset: "r", StopReading: "s"}[type(it)]
        for it in frames
    )
    sent = kinds.replace("s", "")
    assert kinds.count("s") <= 1
    assert sent.lstrip("h").lstrip("d") in ("", "t", "r") and sent.count("h") <= 1
    assert not sent or sent[0] == "h"
    ends = [getattr(it, "end", isinstance(it, SendTrailers)) for it in frames]
    assert sum(ends) == (it.phase is Phase.DONE), "a response that is done has ended once"
    assert it.num_unread_bytes <= num_sent_bytes
    assert not (it.is_over and it.num_unread_bytes)
