"""Session frames between edge and region (router and replica)."""

from __future__ import annotations

from collections.abc import Sequence

from outrider.codec.prompt_memory import (
    PromptMemory,
    as_bytes,
    prompt_name,
    prompt_scope,
    reply_name,
)
from outrider.codec.tokens import TokenCodec, TokenCoder
from outrider.errors import BadTokenBlockError, MalformedFrameError
from outrider.model_identity import check_model_identity
from outrider.session.region import Commit, Draft
from outrider.session.region_wire import commit_from_proto, draft_to_proto, seconds
from outrider.session.types import MAX_DRAFTS_PER_CALL
from outrider.tokenization.rewriting import Rewriter
from outrider.v1 import common_pb2, inference_pb2
from outrider.wire import (
    error_from_proto,
    finish_reason_from_proto,
    message_to_proto,
    priority_to_proto,
    sampling_to_proto,
    speculation_to_proto,
    timings_from_proto,
    token_block_to_proto,
    usage_from_proto,
)
from services.edge.access.identity import UNIDENTIFIED, Identity
from services.edge.session.events import (
    OpenRegion,
    RegionDone,
    RegionFailed,
    RegionMoved,
    RegionOpened,
)

NOTHING_KNOWN = PromptMemory(0)
"""For a router that must get whole prompts."""

RegionInput = Commit | RegionOpened | RegionMoved | RegionDone | RegionFailed


class RegionCodec:
    """The codec that a model's replicas last named: prompts go up in it. VARINT at first, which
    every replica reads, and again after a block that one did not read."""

    def __init__(self) -> None:
        self.codec = TokenCodec.VARINT


class RegionWire:
    """One session's frames."""

    def __init__(
        self,
        coder: TokenCoder,
        vocabulary_digest: bytes,
        origin_region: str,
        identity: Identity = UNIDENTIFIED,
        rewriter: Rewriter | None = None,
        region_codec: RegionCodec | None = None,
    ) -> None:
        """`region_codec` is shared by all sessions with the model. `rewriter` puts the operator's
        prefix before messages that the region tokenizes; the region shortens what is too long."""
        self._coder = coder
        self._digest = vocabulary_digest
        self._origin_region = origin_region
        self._identity = identity
        self._rewriter = rewriter or Rewriter()
        self._region_codec = region_codec or RegionCodec()
        self._codec = self._region_codec.codec
        # Of a chat that shares nothing with any other the region is to remember nothing either.
        salt = identity.cache_salt if identity.group else b""
        self._scope = prompt_scope(salt, vocabulary_digest)
        self._prompt: tuple[int, ...] = ()
        self._prompt_name = b""
        self._left_out_of = b""
        """The name that the prompt's beginning was left out for; empty: it was sent whole."""

    def open(
        self, action: OpenRegion, trace: tuple[str, str], known: PromptMemory = NOTHING_KNOWN
    ) -> inference_pb2.SessionUp:
        """The frame that opens the session. `known`: what the router it goes to has of earlier
        prompts."""
        request = action.request
        opening = inference_pb2.OpenSession(
            request_id=request.request_id,
            model=request.model,
            sampling=sampling_to_proto(request.sampling),
            priority=priority_to_proto(request.priority),
            deadline_ms=action.deadline_ms,
            speculation=speculation_to_proto(request.speculation),
            codecs=[common_pb2.TokenCodec.ValueType(codec) for codec in self._coder.supported],
            tenant=self._identity.tenant,
            cache_salt=self._identity.cache_salt,
            group_lasts=self._identity.group_lasts,
            address_hash=self._identity.address_hash,
            residency=request.residency,
            echo=action.echo,
            origin_region=self._origin_region,
            trace=common_pb2.TraceContext(traceparent=trace[0], tracestate=trace[1]),
            background=request.is_background,
            begun_ahead=action.begun_ahead,
            proven=action.is_proven,
            run=request.run,
            knows_waking=True,
        )
        if request.resume.ids:
            opening.resume.CopyFrom(self._block(request.resume.ids))
            opening.model_identity = request.resume.model_identity
        if action.prediction:
            opening.prediction.CopyFrom(self._block(action.prediction))
        if action.prompt is not None:
            opening.vocabulary_digest = self._digest
            self._prompt = action.prompt
            opening.ids.CopyFrom(self._delta(known))
        else:
            messages = self._rewriter.prepare(request.messages)
            opening.messages.messages.extend(map(message_to_proto, messages))
            opening.messages.tools.extend(request.tools)
            opening.messages.template_variables = request.template_variables
            opening.messages.prefixed = self._rewriter.has_prefix
        return inference_pb2.SessionUp(open=opening)

    def whole_prompt(self, known: PromptMemory) -> inference_pb2.SessionUp:
        """The answer to a router that does not know what was left out of the open."""
        known.forget(self._scope, self._left_out_of)
        return inference_pb2.SessionUp(prompt=self._delta(known, is_whole=True))

    def replied(self, known: PromptMemory, reply: Sequence[int], checksum: int) -> None:
        """The session has its whole reply: the router knows prompt and reply together."""
        if self._prompt_name and reply:
            name = reply_name(self._scope, self._prompt_name, len(reply), checksum)
            ids = as_bytes(self._prompt) + as_bytes(reply)
            known.remember(self._scope, name, ids, self._prompt_name)

    def draft(self, draft: Draft) -> inference_pb2.SessionUp:
        """A frame of drafts."""
        return inference_pb2.SessionUp(draft=draft_to_proto(draft, self._coder, self._codec))

    def read(self, frame: inference_pb2.SessionDown) -> RegionInput:
        """Read a frame from the region. Raises MalformedFrameError and BadTokenBlockError."""
        kind = frame.WhichOneof("kind")
        if kind == "commit":
            return commit_from_proto(frame.commit, self._coder)
        if kind == "opened":
            return self._opened(frame.opened)
        if kind == "done":
            return _done(frame.done)
        if kind == "moved":
            moved = frame.moved
            identity = check_model_identity(moved.model_identity)
            return RegionMoved(moved.replica, moved.region, moved.epoch, identity)
        if kind == "error":
            error = error_from_proto(frame.error)
            if isinstance(error, BadTokenBlockError):
                self._region_codec.codec = TokenCodec.VARINT
            return RegionFailed(error)
        raise MalformedFrameError("the region sent a frame of no known kind")

    def _delta(self, known: PromptMemory, *, is_whole: bool = False) -> inference_pb2.PromptDelta:
        """The prompt without what the router knows of it."""
        prompt = self._prompt
        self._left_out_of = b""
        if not self._scope or not known.max_bytes:
            return inference_pb2.PromptDelta(tail=self._block(prompt))
        raw = as_bytes(prompt)
        found = None if is_whole else known.longest(self._scope, raw)
        self._prompt_name = prompt_name(self._scope, raw)
        known.remember(self._scope, self._prompt_name, raw, found.name if found else b"")
        if found is None:
            return inference_pb2.PromptDelta(tail=self._block(prompt), remember=True)
        self._left_out_of = found.name
        tail = self._block(prompt[found.num_tokens :])
        tail.checksum = self._coder.checksum(prompt)
        return inference_pb2.PromptDelta(
            prefix_tokens=found.num_tokens, prefix_hash=found.name, tail=tail, remember=True
        )

    def _block(self, ids: tuple[int, ...]) -> common_pb2.TokenBlock:
        return token_block_to_proto(self._coder.encode(ids, self._codec))

    def _opened(self, opened: inference_pb2.SessionOpened) -> RegionOpened:
        if int(opened.codec) in self._coder.supported:
            self._codec = self._region_codec.codec = TokenCodec(opened.codec)
        return RegionOpened(
            prompt_tokens=opened.prompt_tokens,
            cached_tokens=opened.cached_tokens,
            replica=opened.replica,
            region=opened.region,
            vocabulary_digest=opened.vocabulary_digest,
            max_drafts=min(opened.max_drafts, MAX_DRAFTS_PER_CALL),
            echo=opened.echo,
            ack_delay_s=seconds(opened.ack_delay_ms),
            model_identity=check_model_identity(opened.model_identity),
        )


def cancel(reason: str) -> inference_pb2.SessionUp:
    """The frame that ends a session from this side."""
    return inference_pb2.SessionUp(cancel=inference_pb2.CancelSession(reason=reason))


def _done(done: inference_pb2.SessionDone) -> RegionDone:
    return RegionDone(
        finish_reason=finish_reason_from_proto(done.finish_reason),
        upto=done.upto,
        checksum=done.checksum,
        usage=usage_from_proto(done.usage),
        timings=timings_from_proto(done.timings),
    )
