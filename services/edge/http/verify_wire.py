"""Messages of VerifyService (protos/outrider/v1/verify.proto) as requests, drafts and events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Final, TypeAlias

from google.protobuf.message import DecodeError

from outrider.errors import (
    EmptyPromptError,
    InvalidRequestError,
    InvalidSamplingError,
    MalformedFrameError,
    OutriderError,
)
from outrider.model_identity import check_model_identity
from outrider.models.chat import (
    MAX_CHAT_CHARS,
    check_messages,
    check_num_messages,
    check_text,
)
from outrider.models.template_variables import read_date
from outrider.sampling.params import SamplingParams
from outrider.session.client import Accepted, Committed, Done
from outrider.v1 import common_pb2, verify_pb2
from outrider.wire import (
    error_to_proto,
    finish_reason_to_proto,
    message_from_proto,
    priority_from_proto,
    sampling_from_proto,
    timings_to_proto,
    usage_to_proto,
)
from services.edge.session.client_drafts import ClientDrafts
from services.edge.session.events import CancelAsked, ChatRequest, RawPrompt, ResumePoint
from services.edge.session.request_fields import request_id, residency

MAX_IDS: Final = 1024
"""Drafts in one message."""
_MAX_DIGEST_BYTES: Final = 64


@dataclass(frozen=True, slots=True)
class Opening:
    """The first message of a call."""

    request: ChatRequest
    user: str
    """Which of the tenant's; empty: none in particular."""
    may_return: bool
    """Whether the client can find the session again."""
    wants_prompt_ids: bool


@dataclass(frozen=True, slots=True)
class Drafted:
    """Drafts of the client."""

    epoch: int
    base: int
    ids: Sequence[int]


Asked: TypeAlias = Opening | Drafted | CancelAsked


def read(payload: bytes, deadline_ms: int = 0, trace: tuple[str, str] = ("", "")) -> Asked:
    """One message of a client. `deadline_ms`: of the call, 0 for none. Raises MalformedFrameError
    and InvalidRequestError."""
    try:
        message = verify_pb2.VerifyRequest.FromString(payload)
    except DecodeError as error:
        raise MalformedFrameError(
            "a message is no VerifyRequest; check the protocol's version, and that text is UTF-8"
        ) from error
    kind = message.WhichOneof("kind")
    if kind == "draft":
        draft = message.draft
        if len(draft.ids) > MAX_IDS:
            raise InvalidRequestError(
                f"a message has at most {MAX_IDS} drafts, not {len(draft.ids)}; send fewer"
            )
        return Drafted(draft.epoch, draft.base, draft.ids)
    if kind == "open":
        return _opening(message.open, deadline_ms, trace)
    if kind == "cancel":
        return CancelAsked()
    raise MalformedFrameError("a message holds neither an open, drafts nor a cancel")


def _opening(
    wire: verify_pb2.OpenVerification, deadline_ms: int, trace: tuple[str, str]
) -> Opening:
    if len(wire.vocabulary_digest) > _MAX_DIGEST_BYTES:
        raise InvalidRequestError(f"a vocabulary's digest has at most {_MAX_DIGEST_BYTES} bytes")
    check_num_messages(len(wire.messages))
    messages = tuple(map(message_from_proto, wire.messages))
    raw = _raw_prompt(wire, has_messages=bool(messages))
    if messages:
        check_messages(messages)
    limits = [ms for ms in (wire.deadline_ms, deadline_ms) if ms]
    request = ChatRequest(
        request_id=request_id(wire.idempotency_key),
        model=wire.model,
        messages=messages,
        sampling=_sampling(wire.sampling),
        priority=priority_from_proto(wire.priority),
        deadline_ms=min(limits, default=0),
        raw_prompt=raw,
        residency=residency(wire.residency),
        trace=trace,
        resume=_resume(wire),
        run=wire.resume.run,
        digest=_digest(wire),
        drafts_itself=True,
        vocabulary_digest=wire.vocabulary_digest,
    )
    return Opening(request, wire.user, bool(wire.idempotency_key), wire.wants_prompt_ids)


def _sampling(wire: common_pb2.Sampling) -> SamplingParams:
    params = replace(sampling_from_proto(wire), reasoning_tags=None)
    if params.acceptance_threshold or params.num_logprobs >= 0:
        raise InvalidSamplingError(
            "verification is exact and tells ids alone; leave acceptance_threshold and "
            "num_logprobs out"
        )
    return params


def _raw_prompt(wire: verify_pb2.OpenVerification, *, has_messages: bool) -> RawPrompt | None:
    if has_messages + bool(wire.text) + bool(wire.ids) != 1:
        raise EmptyPromptError("send one prompt: messages, a text, or ids")
    if len(wire.text) > MAX_CHAT_CHARS or len(wire.ids) > MAX_CHAT_CHARS:
        raise InvalidRequestError(
            f"a prompt has at most {MAX_CHAT_CHARS} characters or ids; shorten it"
        )
    if wire.ids:
        if not wire.vocabulary_digest:
            raise InvalidRequestError(
                "ids need the vocabulary_digest of the vocabulary they are of"
            )
        return tuple(wire.ids)
    if wire.text:
        check_text(wire.text)
        return wire.text
    return None


def _resume(wire: verify_pb2.OpenVerification) -> ResumePoint:
    point = wire.resume
    if point.resume_token:
        raise InvalidRequestError("a session is found again by its idempotency_key; send no token")
    if len(point.ids) not in (0, point.upto):
        raise InvalidRequestError(
            f"resume has {len(point.ids)} ids, but upto is {point.upto}; send all of them or none"
        )
    return ResumePoint(
        upto=point.upto,
        num_chars=point.num_chars,
        ids=tuple(point.ids),
        model_identity=check_model_identity(point.model_identity),
        template_date=point.template_date and read_date(point.template_date).isoformat(),
    )


def _digest(wire: verify_pb2.OpenVerification) -> bytes:
    """BLAKE2b-128 (RFC 7693) of what has to be the same when it is sent again."""
    bare = verify_pb2.OpenVerification()
    bare.CopyFrom(wire)
    for field in ("model", "resume", "deadline_ms", "user", "wants_prompt_ids"):
        bare.ClearField(field)
    name = b"verify\0"  # a chat with the same key is another request
    return blake2b(name + bare.SerializeToString(deterministic=True), digest_size=16).digest()


def opened(event: Accepted, edge: str, *, with_ids: bool) -> bytes:
    """The session is under way."""
    terms = event.drafting
    told = verify_pb2.VerificationOpened(
        request_id=event.request_id,
        model=event.model,
        prompt_tokens=event.prompt_tokens,
        edge=edge,
        template_date=event.template_date,
    )
    if terms is not None:
        told.vocabulary_digest = terms.vocabulary_digest
        told.max_drafts_ahead = terms.max_ahead
        told.prompt_ids.extend(terms.prompt_ids if with_ids else ())
    return verify_pb2.VerifyResponse(opened=told).SerializeToString()


def verified(event: Committed, accepted: int, epoch: int) -> bytes:
    """Tokens that are final, so many of which were the drafts of this epoch."""
    told = verify_pb2.VerifiedTokens(
        base=event.upto - len(event.ids),
        ids=event.ids,
        accepted=accepted,
        epoch=epoch,
        text=event.text,
        inexact=event.inexact,
    )
    if event.model_identity is not None:
        told.model_identity = event.model_identity
    return verify_pb2.VerifyResponse(verified=told).SerializeToString()


def failed(error: OutriderError) -> bytes:
    """The session failed, or did not begin."""
    return verify_pb2.VerifyResponse(error=error_to_proto(error)).SerializeToString()


def done(event: Done, drafts: ClientDrafts) -> bytes:
    """The reply is whole, or was cancelled."""
    told = verify_pb2.VerificationDone(
        finish_reason=finish_reason_to_proto(event.finish_reason),
        usage=usage_to_proto(event.usage),
        timings=timings_to_proto(event.replica_timings),
        upto=event.upto,
        region=event.region,
        replica=event.replica,
        inexact=event.inexact,
        num_moves=event.num_moves,
        ignored_drafts=drafts.num_ignored,
    )
    return verify_pb2.VerifyResponse(done=told).SerializeToString()
