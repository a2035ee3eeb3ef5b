"""Reads clients' frames, and writes an edge's self-description; invalid frames raise typed errors.
`outrider.session.client_wire` writes the events of a chat."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Final

from google.protobuf.message import DecodeError

from outrider.codec.frames import encode_frame
from outrider.errors import (
    InvalidRequestError,
    MalformedFrameError,
)
from outrider.model_identity import check_model_identity
from outrider.models.chat import Message, check_messages, check_num_messages
from outrider.models.suggested_sampling import SuggestedSampling
from outrider.models.template_variables import check_variables, read_date
from outrider.models.tools import check_choice, check_tools
from outrider.v1 import edge_pb2
from outrider.wire import (
    message_from_proto,
    priority_from_proto,
    sampling_from_proto,
    speculation_from_proto,
)
from services.edge.access.identity import Credential
from services.edge.session.events import CancelAsked, ChatAsked, ChatRequest, ResumePoint
from services.edge.session.request_fields import check_prediction, request_id, residency, trace
from services.edge.session.template_options import TemplateOptions

MAX_TOKEN_CHARS = 64
DESCRIBE = edge_pb2.ClientFrame(describe=edge_pb2.DescribeEdge()).SerializeToString()
"""The one frame that is answered before the handshake is complete."""
DESCRIBE_STREAM = encode_frame(DESCRIBE)
_TYPED_TAG = bytes([edge_pb2.ClientFrame.TYPED_FIELD_NUMBER << 3 | 2])
"""Protocol Buffers, encoding: field number and wire type LEN."""
_TOKENIZE_TAG = bytes([edge_pb2.ClientFrame.TOKENIZE_FIELD_NUMBER << 3 | 2])


@dataclass(frozen=True, slots=True)
class TokenArrived:
    """The client acknowledged its resume token; the chat's session does not need to know."""


def read(
    payload: bytes, admit: Callable[[Credential], None] = lambda credential: None
) -> ChatAsked | CancelAsked | TokenArrived:
    """Read one ClientFrame. `admit` is called with a chat's credential before anything else of the
    chat is read, and raises if it is refused. A chat's `model` is the client's name for it, "" for
    none; `ModelLimits.check` is for when the model is known. Raises MalformedFrameError for bytes
    that are no frame (text that is not UTF-8 included), InvalidRequestError for a chat that cannot
    be served."""
    try:
        frame = edge_pb2.ClientFrame.FromString(payload)
    except DecodeError as error:
        raise MalformedFrameError(
            "a frame is no ClientFrame; check the protocol version, and that text is UTF-8"
        ) from error
    kind = frame.WhichOneof("kind")
    if kind == "chat":
        admit(_credential(frame.chat.credential))
        return ChatAsked(_request(frame.chat))
    if kind == "cancel":
        return CancelAsked()
    if kind == "acknowledge":
        return TokenArrived()
    raise MalformedFrameError("a frame holds neither a chat, a cancel nor an acknowledgement")


@dataclass(frozen=True, slots=True)
class TypedText:
    """A user's unfinished input."""

    before: tuple[Message, ...]
    """The conversation before it; empty if it came earlier."""
    text: str
    credential: Credential
    """Credential of the first frame."""
    model: str = ""
    """Model of the first frame; empty: the default of chats without a model."""
    tools: tuple[str, ...] = ()
    """Tools of the first frame."""
    request: ChatRequest | None = None
    """The chat as it will be sent, without its messages, if its user agreed that the reply is begun
    before; None: not, or it is no first frame."""


def is_typed_text(payload: bytes) -> bool:
    """Whether a ClientFrame holds typed text, by the tag that such a frame begins with."""
    return payload[:1] == _TYPED_TAG


def read_typed_text(
    payload: bytes, admit: Callable[[Credential, str], None] = lambda credential, model: None
) -> TypedText:
    """`admit` is called with the credential and the model before anything else is read, and raises
    for a client that is refused. Raises MalformedFrameError and InvalidRequestError."""
    try:
        typed = edge_pb2.ClientFrame.FromString(payload).typed
    except DecodeError as error:
        raise MalformedFrameError("a frame is no ClientFrame; check that text is UTF-8") from error
    credential = _credential(typed.credential)
    admit(credential, typed.model)
    check_num_messages(len(typed.before) + 1)
    before = tuple(map(message_from_proto, typed.before))
    tools = check_tools(typed.tools)
    request = None
    if typed.HasField("request"):
        chat = typed.request
        del chat.messages[:]
        chat.model = typed.model
        chat.ClearField("resume")
        request = _asked(chat, (), tools, ResumePoint())
    return TypedText(before, typed.text, credential, typed.model, tools, request)


def asks_for_ids(payload: bytes) -> bool:
    """Whether a ClientFrame asks for the ids of a text, by the tag that it begins with."""
    return payload[:1] == _TOKENIZE_TAG


def read_text(payload: bytes, admit: Callable[[Credential], None]) -> tuple[str, str]:
    """The text whose ids a ClientFrame asks for, and the model, "" for none. `admit` as in `read`.
    Raises MalformedFrameError."""
    try:
        asked = edge_pb2.ClientFrame.FromString(payload).tokenize
    except DecodeError as error:
        raise MalformedFrameError("a frame is no ClientFrame; check that text is UTF-8") from error
    admit(_credential(asked.credential))
    return asked.text, asked.model


def tokenized(ids: Iterable[int], vocabulary_digest: bytes, model: str) -> bytes:
    """The EdgeFrame with the ids of a text."""
    answer = edge_pb2.TokenizedText(ids=ids, vocabulary_digest=vocabulary_digest, model=model)
    return edge_pb2.EdgeFrame(tokenized=answer).SerializeToString()


@dataclass(frozen=True, slots=True)
class ListedModel:
    """A model's properties for clients."""

    name: str
    vocabulary_digest: bytes
    """Empty until the edge has loaded it once."""
    max_context_tokens: int
    suggested: SuggestedSampling | None = None
    """Sampling with which conversations begin."""
    is_suggested_by_definition: bool = False
    """And not by the model's own files."""


def describe(
    edge: str,
    region: str,
    models: Iterable[ListedModel],
    resume_window_s: float,
    edge_list: bytes = b"",
) -> bytes:
    """The EdgeFrame that answers DESCRIBE."""
    description = edge_pb2.EdgeDescription(
        edge=edge,
        region=region,
        models=[
            edge_pb2.ModelDescription(
                name=model.name,
                vocabulary_digest=model.vocabulary_digest,
                max_context_tokens=model.max_context_tokens,
                suggested_sampling=_suggested(model),
            )
            for model in models
        ],
        resume_window_s=resume_window_s,
        edge_list=edge_list,
    )
    return edge_pb2.EdgeFrame(description=description).SerializeToString()


def _suggested(model: ListedModel) -> edge_pb2.SuggestedSampling | None:
    if model.suggested is None:
        return None
    by_definition = model.is_suggested_by_definition
    return edge_pb2.SuggestedSampling(**model.suggested.values(), by_definition=by_definition)


def _credential(wire: edge_pb2.Credential) -> Credential:
    return Credential(wire.key, wire.user, wire.client_secret)


def _request(chat: edge_pb2.ChatRequest) -> ChatRequest:
    check_num_messages(len(chat.messages))
    messages = tuple(map(message_from_proto, chat.messages))
    tools = check_tools(chat.tools)
    resume = _resume(chat)
    if messages or not resume.token:
        check_messages(messages)
    return _asked(chat, messages, tools, resume)


def _asked(
    chat: edge_pb2.ChatRequest,
    messages: tuple[Message, ...],
    tools: tuple[str, ...],
    resume: ResumePoint,
) -> ChatRequest:
    return ChatRequest(
        request_id=request_id(chat.idempotency_key),
        model=chat.model,
        messages=messages,
        sampling=replace(sampling_from_proto(chat.sampling), reasoning_tags=None),
        priority=priority_from_proto(chat.priority),
        deadline_ms=chat.deadline_ms,
        provisional=chat.provisional,
        speculation=speculation_from_proto(chat.speculation),
        added_rtt_ms=chat.added_rtt_ms,
        thin=chat.thin,
        residency=residency(chat.residency),
        trace=trace(chat.trace.traceparent, chat.trace.tracestate),
        resume=resume,
        run=chat.resume.run,
        digest=_digest(chat),
        prediction=_prediction(chat),
        tools=tools,
        tool_choice=check_choice(chat.tool_choice, tools),
        parallel_tool_calls=not chat.single_tool_call,
        template_options=TemplateOptions(check_variables(chat.template_variables)),
    )


def _prediction(chat: edge_pb2.ChatRequest) -> str:
    check_prediction(chat.prediction)
    if chat.prediction and chat.thin:
        raise InvalidRequestError(
            "a thin chat takes no prediction, for its edge does not tokenize; leave out one of them"
        )
    return chat.prediction


def _resume(chat: edge_pb2.ChatRequest) -> ResumePoint:
    point = chat.resume
    if len(point.resume_token) > MAX_TOKEN_CHARS:
        raise InvalidRequestError(f"a resume token has at most {MAX_TOKEN_CHARS} characters")
    if len(point.ids) not in (0, point.upto):
        raise InvalidRequestError(
            f"resume has {len(point.ids)} ids, but upto is {point.upto}; send all of them or none"
        )
    return ResumePoint(
        point.resume_token,
        point.upto,
        point.num_chars,
        tuple(point.ids),
        check_model_identity(point.model_identity),
        point.template_date and read_date(point.template_date).isoformat(),
    )


_UNDIGESTED: Final = (
    *("model", "resume", "trace", "deadline_ms", "provisional", "credential", "added_rtt_ms"),
)
"""Fields that may differ when the same request is sent again."""


def _digest(chat: edge_pb2.ChatRequest) -> bytes:
    """BLAKE2b-128 (RFC 7693) of the request, without what may differ when it is sent again. A
    client that knows by then which model it got asks for that one, so that is looked at apart."""
    bare = edge_pb2.ChatRequest()
    bare.CopyFrom(chat)
    for field in _UNDIGESTED:
        bare.ClearField(field)
    return blake2b(bare.SerializeToString(deterministic=True), digest_size=16).digest()
