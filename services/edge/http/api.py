"""The interface of an HTTP API: how to read its requests and write its replies (pure).

Each API is one module with a ChatApi. `plan` turns a request's body into the chats that answer it,
one for each choice, and a ReplyWriter; the writer turns the chats' events into what is sent to the
client: pieces of an event stream, or one body at the end. Everything in between, such as
credentials, limits, sessions, resumption, cancellation and back-pressure, is the same for all APIs
(replying.py, stream.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from outrider.errors import OutriderError
from services.edge.http import sse
from services.edge.http.passed_over import PassedOver
from services.edge.session.events import ChatRequest, ClientEvent


def _nobody_typed(typing_id: str) -> None:
    """Nothing was begun."""


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """A request for a reply."""

    body: bytes
    """JSON, as it came."""
    now_s: int
    """Unix time."""
    random_seed: int
    """Random seed of 53 bits, for a request without seed: JavaScript reads larger numbers
    inexactly."""
    max_choices: int
    """Most chats that one request may begin."""
    default_max_tokens: int
    """Most tokens of a reply for which the request names no limit. 0: the model's context ends
    it."""
    return_metrics: bool = False
    """Whether a reply has `metrics` if the request does not say."""
    idempotency_key: str = ""
    last_event_id: str = ""
    """Last-Event-ID: the part of the reply that the client already has (sse.py)."""
    typed_seed: Callable[[str], int | None] = _nobody_typed
    """The seed of the reply that may have been begun to a message of this typing_id."""
    trace: tuple[str, str] = ("", "")
    """W3C traceparent and tracestate."""


class ReplyWriter(Protocol):
    """Writes one reply; `index` is the number of the chat among those planned. Events of different
    chats may come in any order."""

    def take(self, index: int, event: ClientEvent) -> bytes:
        """Bytes to send at once for this event, perhaps none. The event is never a Failed."""
        ...

    def whole(self) -> bytes:
        """The last bytes to send after all chats have ended well; without a stream, the whole
        body."""
        ...

    def failed(self, error: OutriderError) -> bytes:
        """The last bytes of an event stream that has begun and failed."""
        ...


@dataclass(frozen=True, slots=True)
class PlannedReply:
    """How a request is answered."""

    chats: tuple[ChatRequest, ...]
    writer: ReplyWriter
    is_streamed: bool
    """Whether the client gets an event stream; otherwise one body of JSON."""
    user: str = ""
    """Id of the end user, given by the key's owner."""
    keepalive: bytes = sse.COMMENT
    """Sent on a stream that was silent for a while."""
    passed_over: PassedOver = field(default_factory=PassedOver)
    """Parts of the request that have no effect on the answer."""
    streamed_errors: tuple[type[OutriderError], ...] = ()
    """Errors that are events of the stream even if it has not begun, since clients of the API look
    for them there; others are answers with a status of their own."""
    typing_id: str = ""
    """Names the message that was typed; the only one of `chats` may have been begun to it."""


@dataclass(frozen=True, slots=True)
class ChatApi:
    """One API's way to ask for a reply."""

    plan: Callable[[ApiRequest], PlannedReply]
    """Raises InvalidRequestError."""
    error_body: Callable[[OutriderError, str], bytes]
    """JSON of an error; the text is the id of the request."""
