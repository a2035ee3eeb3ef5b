"""Frames that a client sends to an edge, and the edge's description of itself. Chat events are read
by `outrider.session.client_wire`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from outrider.client.events import EdgeInfo, ModelInfo, TextIds
from outrider.codec.frames import DEFAULT_MAX_FRAME_BYTES, encode_frame
from outrider.errors import (
    InvalidRequestError,
    InvalidSamplingError,
    MalformedFrameError,
    PromptTooLongError,
)
from outrider.models.chat import Message
from outrider.models.suggested_sampling import SuggestedSampling
from outrider.sampling.params import SamplingParams
from outrider.session.client_wire import read_frame
from outrider.session.runs import UNKNOWN_RUN
from outrider.session.types import Priority, Speculation
from outrider.v1 import common_pb2, edge_pb2
from outrider.wire import (
    message_to_proto,
    priority_to_proto,
    sampling_to_proto,
    speculation_to_proto,
)

SpeculationName: TypeAlias = Literal["on", "off", "region_only"]
PriorityName: TypeAlias = Literal["", "low", "medium", "high"]

_PRIORITIES: Final[Mapping[str, Priority | None]] = {
    "": None,
    **{priority.name.lower(): priority for priority in Priority},
}
CANCEL: Final = encode_frame(edge_pb2.ClientFrame(cancel=edge_pb2.CancelChat()).SerializeToString())
TYPED_TEXT_CHARS: Final = 1 << 18
"""Longer texts are not worth computing ahead: each change sends all of it."""
ACKNOWLEDGE: Final = encode_frame(
    edge_pb2.ClientFrame(acknowledge=edge_pb2.AcknowledgeToken()).SerializeToString()
)
DESCRIBE: Final = encode_frame(
    edge_pb2.ClientFrame(describe=edge_pb2.DescribeEdge()).SerializeToString()
)


@dataclass(frozen=True, slots=True)
class Credential:
    """A client's authentication, sent with every chat."""

    key: str = field(default="", repr=False)
    """A tenant's secret; empty: none."""
    user: str = field(default="", repr=False)
    """Which user of the tenant."""
    client_secret: bytes = field(default=b"", repr=False)
    """16 to 64 random bytes: the same client again, on whichever connection."""


_BYTES_PER_TOKEN: Final = 4
"""Bytes per token of English text, roughly."""
NOBODYS: Final = Credential()


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """Everything about a chat besides its messages."""

    sampling: SamplingParams = field(default_factory=SamplingParams)
    model: str = ""
    """Empty: the first one of the edge that the client may use."""
    provisional: bool = True
    """Receive provisional text; without it only final text comes."""
    speculation: SpeculationName = "on"
    priority: PriorityName = ""
    """Priority class; empty: medium, or low if the credential allows no more. A class above the
    credential's is refused."""
    deadline_ms: int = 0
    """0: none."""
    thin: bool = False
    """Let the region tokenize."""
    idempotency_key: str = ""
    """Requests with the same key run once, if they come from the same client or from one that
    shares its trust group; empty: a random key."""
    residency: tuple[str, ...] = ()
    """Regions that may hold the prompt; empty: any."""
    prediction: str = ""
    """The expected reply, for example the text that the prompt asks to edit. Correct parts arrive
    sooner; the reply's text is the same. Not with `thin`."""
    tools: tuple[str, ...] = ()
    """Tools that the model may call, as canonical texts (outrider.models.tools)."""
    tool_choice: str = ""
    """auto (or empty), none, required, or the name of the tool to call."""
    parallel_tool_calls: bool = True
    """Whether a reply may have more than one call."""
    template_variables: str = ""
    """Variables for the model's chat template (outrider.models.template_variables)."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The part of a chat that the client already has."""

    token: str = ""
    """Of the edge that had the chat; empty: none is known."""
    ids: Sequence[int] = ()
    num_chars: int = 0
    model_identity: bytes = b""
    """Identity of the model that computed `ids`; empty: unknown."""
    template_date: str = ""
    """The date in the prompt, as the edge said; empty: the model's template shows none."""


NOTHING: Final = Progress()
"""Of a chat that was not sent before."""


def request_frame(
    messages: Iterable[Message],
    options: ChatOptions,
    trace: tuple[str, str],
    progress: Progress = NOTHING,
    credential: Credential = NOBODYS,
    run: int = UNKNOWN_RUN,
) -> bytes:
    """The first frame of a chat stream. The chat continues after `progress`; a request that does
    not fit in one frame with all ids names the chat by the token alone. `run` is the number of this
    run (outrider.session.runs). Raises InvalidRequestError for values that no frame can hold,
    PromptTooLongError for a request longer than one frame."""
    _check_words(options)
    try:
        chat = edge_pb2.ChatRequest(
            model=options.model,
            messages=map(message_to_proto, messages),
            sampling=sampling_to_proto(options.sampling),
            priority=priority_to_proto(_PRIORITIES[options.priority]),
            deadline_ms=options.deadline_ms,
            provisional=options.provisional,
            speculation=speculation_to_proto(Speculation(options.speculation)),
            thin=options.thin,
            idempotency_key=options.idempotency_key,
            residency=options.residency,
            trace=common_pb2.TraceContext(traceparent=trace[0], tracestate=trace[1]),
            resume=_resume_point(progress, run),
            credential=_credential(credential),
            prediction=options.prediction,
            tools=options.tools,
            tool_choice=options.tool_choice,
            single_tool_call=not options.parallel_tool_calls,
            template_variables=options.template_variables,
        )
        frame = edge_pb2.ClientFrame(chat=chat).SerializeToString()
        if len(frame) > DEFAULT_MAX_FRAME_BYTES and progress.token:
            # The edge that gave the token has all of it; no other one can go on with the chat.
            for name in ("messages", "tools", "tool_choice", "prediction", "template_variables"):
                chat.ClearField(name)
            chat.resume.ClearField("ids")
            frame = edge_pb2.ClientFrame(chat=chat).SerializeToString()
    except (ValueError, TypeError) as error:
        raise InvalidRequestError(f"the chat cannot be sent: {error}") from error
    if len(frame) > DEFAULT_MAX_FRAME_BYTES:
        raise PromptTooLongError(
            f"the chat is {len(frame):,} bytes; an edge takes {DEFAULT_MAX_FRAME_BYTES:,}, some "
            f"{DEFAULT_MAX_FRAME_BYTES // _BYTES_PER_TOKEN:,} tokens of English, of which a model "
            "takes as many as its context has: shorten it"
        )
    return encode_frame(frame)


def typed_frame(
    before: Iterable[Message],
    text: str,
    credential: Credential = NOBODYS,
    model: str = "",
    tools: Sequence[str] = (),
    ahead: ChatOptions | None = None,
) -> bytes:
    """A frame with the text typed so far, for a chat with this model and these tools. `ahead`: the
    chat's other options, if its user agreed that the reply is begun before the text is sent. Raises
    InvalidRequestError for text that no frame can hold."""
    try:
        typed = edge_pb2.TypedText(
            before=map(message_to_proto, before),
            text=text,
            credential=_credential(credential),
            model=model,
            tools=tools,
            request=None if ahead is None else _bare_request(ahead),
        )
        return encode_frame(edge_pb2.ClientFrame(typed=typed).SerializeToString())
    except (ValueError, TypeError) as error:
        raise InvalidRequestError(f"the text cannot be sent: {error}") from error


def _bare_request(options: ChatOptions) -> edge_pb2.ChatRequest:
    """A chat without what stands beside it in a TypedText, and without what its reply does not
    depend on."""
    return edge_pb2.ChatRequest(
        sampling=sampling_to_proto(options.sampling),
        residency=options.residency,
        tool_choice=options.tool_choice,
        single_tool_call=not options.parallel_tool_calls,
        template_variables=options.template_variables,
    )


def tokenize_frame(text: str, model: str, credential: Credential) -> bytes:
    """A request for the ids of a text. Raises InvalidRequestError for text that no frame can hold,
    PromptTooLongError for text longer than one frame."""
    try:
        asked = edge_pb2.TokenizeText(text=text, model=model, credential=_credential(credential))
        frame = edge_pb2.ClientFrame(tokenize=asked).SerializeToString()
    except (ValueError, TypeError) as error:
        raise InvalidRequestError(f"the text cannot be sent: {error}") from error
    if len(frame) > DEFAULT_MAX_FRAME_BYTES:
        raise PromptTooLongError(
            f"the text is {len(frame):,} bytes, of which an edge takes "
            f"{DEFAULT_MAX_FRAME_BYTES:,}; send parts, or use `outrider tokenize`"
        )
    return encode_frame(frame)


def read_text_ids(payload: bytes) -> TextIds:
    """The answer to `tokenize_frame`. Raises as `read_frame`, and MalformedFrameError for another
    frame."""
    frame = read_frame(payload)
    if not frame.HasField("tokenized"):
        raise MalformedFrameError("the edge was asked for ids and sent something else")
    answer = frame.tokenized
    return TextIds(tuple(answer.ids), answer.model, answer.vocabulary_digest)


def _credential(credential: Credential) -> edge_pb2.Credential | None:
    if credential == NOBODYS:
        return None
    return edge_pb2.Credential(
        key=credential.key, user=credential.user, client_secret=credential.client_secret
    )


def _resume_point(progress: Progress, run: int) -> edge_pb2.ResumePoint:
    return edge_pb2.ResumePoint(
        resume_token=progress.token,
        upto=len(progress.ids),
        num_chars=progress.num_chars,
        ids=progress.ids,
        model_identity=progress.model_identity,
        template_date=progress.template_date,
        run=run,
    )


def _check_words(options: ChatOptions) -> None:
    speculations = tuple(Speculation)
    if options.speculation not in speculations or options.priority not in _PRIORITIES:
        raise InvalidRequestError(
            f"speculation is one of {', '.join(speculations)} and priority one of "
            f"{', '.join(filter(None, _PRIORITIES))}, not {options.speculation!r} and "
            f"{options.priority!r}"
        )


def read_description(payload: bytes) -> EdgeInfo:
    """The answer to DESCRIBE. Raises as `read_frame`, and MalformedFrameError for another frame."""
    frame = read_frame(payload)
    if not frame.HasField("description"):
        raise MalformedFrameError("the edge was asked what it is and sent something else")
    d = frame.description
    return EdgeInfo(
        name=d.edge,
        region=d.region,
        models=tuple(
            ModelInfo(
                model.name,
                model.vocabulary_digest,
                model.max_context_tokens,
                _suggested(model),
                model.suggested_sampling.by_definition,
            )
            for model in d.models
        ),
        resume_window_s=d.resume_window_s,
        edge_list=d.edge_list,
    )


def _suggested(model: edge_pb2.ModelDescription) -> SuggestedSampling | None:
    if not model.HasField("suggested_sampling"):
        return None
    wire = model.suggested_sampling
    try:
        return SuggestedSampling(
            wire.temperature, wire.top_k, wire.top_p, wire.min_p, wire.repetition_penalty
        )
    except InvalidSamplingError as error:
        raise MalformedFrameError(f"the edge suggests what cannot be: {error.message}") from error
