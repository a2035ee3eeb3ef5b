"""One request and its response: the client's data becomes ASGI messages, the application's messages
become frames (pure).

`Phase` is the progress of the response; `NEXT` has all allowed transitions. The request is simpler:
body arrives until it has ended, or the client is gone.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

from services.edge.http3.messages import (
    WITHOUT_BODY,
    Headers,
    Message,
    Refusal,
    Request,
    declared_length,
    response_fields,
    response_headers,
)

_DISCONNECT: Final = "http.disconnect"
_MAX_TRAILERS: Final = 100


class H3Code(Enum):
    """Error codes of RFC 9114, section 8.1, and of WebTransport (draft 16, section 9.5)."""

    NO_ERROR = 0x100
    GENERAL_PROTOCOL_ERROR = 0x101
    INTERNAL_ERROR = 0x102
    EXCESSIVE_LOAD = 0x107
    REQUEST_REJECTED = 0x10B
    REQUEST_CANCELLED = 0x10C
    REQUEST_INCOMPLETE = 0x10D
    MESSAGE_ERROR = 0x10E
    WEBTRANSPORT_SESSION_GONE = 0x170D7B68
    WEBTRANSPORT_STREAM_REJECTED = 0x3994BD84
    """Of a stream whose session is not open: none is kept for a session that may come."""


class Phase(Enum):
    """Progress of the response."""

    AWAITED = "the application has not begun it"
    BEGUN = "status and headers are known, and nothing was sent"
    BODY = "headers were sent"
    TRAILERS = "the body was sent, and trailers follow"
    DONE = "it is complete"
    GONE = "nothing further reaches the client"


class Step(Enum):
    """An action of the application."""

    START = "http.response.start"
    BODY = "http.response.body, and more follows"
    LAST_BODY = "http.response.body, the last"
    TRAILERS = "http.response.trailers, and more follow"
    LAST_TRAILERS = "http.response.trailers, the last"
    RETURN = "it returned, or raised an exception"


NEXT: Final[dict[tuple[Phase, Step], Phase]] = {
    (Phase.AWAITED, Step.START): Phase.BEGUN,
    (Phase.AWAITED, Step.RETURN): Phase.DONE,  # with 500
    (Phase.BEGUN, Step.BODY): Phase.BODY,
    (Phase.BEGUN, Step.LAST_BODY): Phase.DONE,  # TRAILERS where they were promised
    (Phase.BEGUN, Step.RETURN): Phase.DONE,  # with 500
    (Phase.BODY, Step.BODY): Phase.BODY,
    (Phase.BODY, Step.LAST_BODY): Phase.DONE,  # TRAILERS where they were promised
    (Phase.BODY, Step.RETURN): Phase.GONE,
    (Phase.TRAILERS, Step.TRAILERS): Phase.TRAILERS,
    (Phase.TRAILERS, Step.LAST_TRAILERS): Phase.DONE,
    (Phase.TRAILERS, Step.RETURN): Phase.GONE,
    (Phase.DONE, Step.RETURN): Phase.DONE,
    **{(Phase.GONE, step): Phase.GONE for step in Step},
}
"""Other pairs are a defect of the application, which gets a RuntimeError."""


@dataclass(frozen=True, slots=True)
class SendHeaders:
    """The response's header section; `end`: the stream ends with it."""

    headers: Headers
    end: bool


@dataclass(frozen=True, slots=True)
class SendData:
    """A DATA frame; `end`: the stream ends with it."""

    data: bytes
    end: bool


@dataclass(frozen=True, slots=True)
class SendTrailers:
    """A trailer section, which ends the stream."""

    headers: Headers


@dataclass(frozen=True, slots=True)
class Reset:
    """The response ends here, incomplete."""

    code: H3Code


@dataclass(frozen=True, slots=True)
class StopReading:
    """Action: ask the client to stop sending the request."""

    code: H3Code


Action: TypeAlias = SendHeaders | SendData | SendTrailers | Reset | StopReading


class Exchange:
    """Times in seconds on the clock of `now`."""

    def __init__(self, request: Request, *, has_ended: bool) -> None:
        """`has_ended`: the request has no body. The application decides how long a body may be;
        unread data gives the client no further credit."""
        self.request = request
        self.phase = Phase.AWAITED
        self.waited_s = 0.0
        """How long the application has waited for the body."""
        self.num_unread_bytes = 0
        """Bytes of the body received and not yet read by the application."""
        self._body: deque[bytes] = deque()
        self._has_ended = has_ended
        self._is_read = False
        """The application has all of the request."""
        self._waits_since: float | None = None
        self._headers: Headers = []
        self._trailers: Headers = []
        self._has_trailers = False
        self._has_no_body = request.method == "HEAD"
        self._left_bytes: int | None = None
        """Bytes left of the response's declared length."""

    @property
    def is_over(self) -> bool:
        """Whether the response is complete or the client is gone."""
        return self.phase in (Phase.DONE, Phase.GONE)

    # From the client.

    def body_came(self, data: bytes, has_ended: bool, now: float) -> None:
        """Some of the request's body, and whether that is all."""
        if self.is_over:
            return
        self.stop_waiting(now)
        self._has_ended = has_ended
        if data:
            self._body.append(data)
            self.num_unread_bytes += len(data)

    def client_gone(self) -> None:
        """The client gave the request or the response up, or its connection was lost."""
        if self.phase is not Phase.DONE:
            self.phase = Phase.GONE
        self._forget()

    def refuse(self, refusal: Refusal) -> list[Action]:
        """End it without the application: with this response, if none was sent yet."""
        if self.is_over:
            return []
        if self.phase in (Phase.AWAITED, Phase.BEGUN):
            return [*self._answer(refusal), *self._stop_reading()]
        self.phase = Phase.GONE
        self._forget()
        return [Reset(H3Code.REQUEST_CANCELLED), *self._stop_reading()]

    # From the application.

    def receive(self, now: float) -> Message | None:
        """The next message for the application; None: it has to wait."""
        if self.is_over:
            return {"type": _DISCONNECT}
        if not self._is_read and (self._body or self._has_ended):
            body = b"".join(self._body)
            self._body.clear()
            self.num_unread_bytes = 0
            self._is_read = self._has_ended
            return {"type": "http.request", "body": body, "more_body": not self._has_ended}
        if not self._has_ended and self._waits_since is None:
            self._waits_since = now
        return None

    def stop_waiting(self, now: float) -> None:
        """The application does not wait for the body any more."""
        if self._waits_since is not None:
            self.waited_s += now - self._waits_since
            self._waits_since = None

    def waits_for_body_s(self, now: float) -> float:
        """How long the application has waited for the body until now."""
        since = self._waits_since
        return self.waited_s + (0.0 if since is None else now - since)

    def send(self, message: Message) -> list[Action]:
        """The application sends a message. Raises RuntimeError, ValueError, KeyError or TypeError
        if it must not, and then nothing changes."""
        step = step_of(message)
        after = NEXT.get((self.phase, step))
        if after is None:
            raise RuntimeError(
                f"the application sent {step.value}, but of the response {self.phase.value}"
            )
        if after is Phase.GONE:
            return []
        if step is Step.START:
            self._start(message)
            self.phase = after
            return []
        if step in (Step.TRAILERS, Step.LAST_TRAILERS):
            trailers = self._trailers + response_fields(message.get("headers", ()))
            if len(trailers) > _MAX_TRAILERS:
                raise ValueError(f"a response has at most {_MAX_TRAILERS} trailers")
            self._trailers = trailers
            self.phase = after
            return self._end([SendTrailers(trailers)]) if after is Phase.DONE else []
        return self._send_body(bytes(message.get("body", b"")), after)

    def returned(self) -> list[Action]:
        """The application has returned or failed. An incomplete response becomes a 500, or is cut
        off if its headers were sent."""
        before, self.phase = self.phase, NEXT[self.phase, Step.RETURN]
        if self.phase is Phase.DONE and before is not Phase.DONE:
            self.phase = before
            refusal = Refusal(500, "the application failed")
            return [*self._answer(refusal), *self._stop_reading()]
        if self.phase is Phase.GONE and before is not Phase.GONE:
            self._forget()
            return [Reset(H3Code.INTERNAL_ERROR), *self._stop_reading()]
        return []

    def _start(self, message: Message) -> None:
        headers = response_headers(int(message["status"]), message.get("headers", ()))
        self._left_bytes = declared_length(headers)
        self._has_no_body |= int(message["status"]) in WITHOUT_BODY
        self._has_trailers = bool(message.get("trailers", False)) and not self._has_no_body
        self._headers = headers

    def _send_body(self, body: bytes, after: Phase) -> list[Action]:
        if self._has_no_body:
            body = b""
        elif self._left_bytes is not None:
            left = self._left_bytes - len(body)
            if left < 0 or (left and after is Phase.DONE):
                raise ValueError("the body is not as long as the response's content-length")
            self._left_bytes = left
        if after is Phase.DONE and self._has_trailers:
            after = Phase.TRAILERS
        ends = after is Phase.DONE
        actions: list[Action] = []
        if self.phase is Phase.BEGUN:
            actions.append(SendHeaders(self._headers, ends and not body))
            self._headers = []
        if body or (ends and not actions):
            actions.append(SendData(body, ends))
        self.phase = after
        return self._end(actions) if ends else actions

    def _answer(self, refusal: Refusal) -> list[Action]:
        self.phase = Phase.DONE
        self._forget()
        return answer(refusal, has_body=self.request.method != "HEAD")

    def _end(self, actions: list[Action]) -> list[Action]:
        self._forget()
        return [*actions, *self._stop_reading()]

    def _stop_reading(self) -> list[Action]:
        # RFC 9114, section 4.1: with NO_ERROR the client keeps the response.
        return [] if self._has_ended else [StopReading(H3Code.NO_ERROR)]

    def _forget(self) -> None:
        """Drop the unread rest of the request."""
        self._body.clear()
        self.num_unread_bytes = 0
        self._waits_since = None


def answer(refusal: Refusal, *, has_body: bool) -> list[Action]:
    """A whole response; that to a HEAD has no body."""
    if not has_body:
        return [SendHeaders(refusal.headers, True)]
    return [SendHeaders(refusal.headers, False), SendData(refusal.body, True)]


def step_of(message: Message) -> Step:
    """The action behind a message. Raises RuntimeError for an unknown one."""
    match message["type"]:
        case "http.response.start":
            return Step.START
        case "http.response.body":
            return Step.BODY if message.get("more_body", False) else Step.LAST_BODY
        case "http.response.trailers":
            return Step.TRAILERS if message.get("more_trailers", False) else Step.LAST_TRAILERS
        case other:
            raise RuntimeError(f"the application sent {other!r}, which is no message of a response")
