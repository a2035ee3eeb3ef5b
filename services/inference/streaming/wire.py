"""Frames to the scheduler's requests, validated, and its events to frames."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Final, TypeAlias

from outrider.codec.block_hashes import inexact_salt
from outrider.codec.tokens import TokenCodec, TokenCoder, negotiate
from outrider.engine_calls import EngineCall, request_key
from outrider.errors import (
    BadTokenBlockError,
    EmptyPromptError,
    InvalidRequestError,
    OutriderError,
    PrefixUnknownError,
    PromptTooLongError,
    UnavailableError,
    UnknownModelError,
    VocabularyMismatchError,
)
from outrider.model_identity import check_model_identity, same_model, short_form
from outrider.session.region import Draft, Pace
from outrider.session.region_wire import draft_from_proto
from outrider.session.types import Priority, Speculation
from outrider.v1 import common_pb2, inference_pb2
from outrider.wire import (
    error_to_proto,
    finish_reason_to_proto,
    priority_from_proto,
    sampling_from_proto,
    speculation_from_proto,
    timings_to_proto,
    token_block_from_proto,
    usage_to_proto,
)
from services.inference.call_record import CallRecord
from services.inference.kv_tiers.tiers import KeepRequest, TierCounts
from services.inference.scheduler.types import (
    Finished,
    KvHolder,
    Opened,
    OpenRequest,
    OverloadLevel,
    SchedulerLoad,
    SessionCommit,
)
from services.inference.static_prefixes.prefixes import StaticPrefix

Down: TypeAlias = inference_pb2.SessionDown | bytes
"""A frame towards the peer, or its bytes."""
_NO_COUNTS: Final = TierCounts()
"""Counts of a tier that the replica does not have."""
MAX_REQUEST_ID_CHARS = 128
MAX_SALT_BYTES = 64
_OWN_SALT_BYTES = 16
MAX_DRAFT_TOKENS = 1024
"""Most drafts of one frame: many times what is kept, and thousands of frames may wait for the model
thread."""
MAX_PREDICTION_TOKENS = 1 << 17
LONG_CALL_MS: Final = 1000.0
"""Calls of this length are reported while they run."""
MAX_HOLDER_CHARS = 256
"""Longest name, region and address of a replica."""

_SPECULATION = {
    Speculation.ON: (True, True),
    Speculation.OFF: (False, False),
    Speculation.REGION_ONLY: (False, True),
}
"""Whether drafts of the edge and of the region are used."""


@dataclass(frozen=True, slots=True)
class Contract:
    """This replica's properties, which a session must agree with."""

    model: str
    replica: str
    region: str
    vocabulary_digest: bytes
    model_identity: bytes
    vocabulary_size: int
    coder: TokenCoder
    context_limit: int
    """Most tokens of prompt and reply together."""
    engine: str
    block_tokens: int
    max_lead: int
    """Most edge drafts kept ahead of a session's commits."""
    max_drafts: int
    """Most drafts of one session in one call."""
    prefill_limits: inference_pb2.PrefillLimits | None = None
    """Limits of a call's prompt tokens, for routers."""
    tokens_digest: bytes = b""
    """Digest of the vocabulary's ids, independent of its chat template."""
    static_prefixes: tuple[StaticPrefix, ...] = ()
    inexact_kv: bool = False
    """Whether KV for sessions whose tenant allows inexact text may travel in 8 bits."""
    guarantees: tuple[str, ...] = ()
    """What this replica promises of its replies (outrider.engines.guarantees)."""
    verifies_drafts: bool = True
    """Otherwise edges are told that drafts are not worth sending."""


@dataclass(frozen=True, slots=True)
class Echo:
    """A number that a peer sent to measure the round trip, and wants back."""

    number: int = 0
    """0: none."""
    came_at: float = 0.0

    def delay_s(self, now: float) -> float:
        """Seconds since it arrived; 0 without one."""
        return now - self.came_at if self.number else 0.0


NO_ECHO = Echo()

_PACE_CHANGE: Final = 0.05
"""Share by which a time must change before it is sent to the edge: its predictions are no finer."""


class SentPace:
    """The replica's pace as last sent to a session's edge."""

    __slots__ = ("_interval_ms", "_overload_level", "_row_ms")

    def __init__(self) -> None:
        self._interval_ms = self._row_ms = 0.0
        self._overload_level = -1
        """-1: nothing was sent to the edge yet."""

    def update(
        self, event: SessionCommit, load: SchedulerLoad, contract: Contract, echo: Echo, now: float
    ) -> Pace | None:
        """The pace to send with this commit. None: the edge knows it, and waits for no number."""
        interval_ms, row_ms, level = event.interval_ms, event.row_ms, load.overload_level
        if not contract.verifies_drafts:
            level = max(level, OverloadLevel.NO_DRAFTS)
        if not (
            echo.number
            or level != self._overload_level
            or _has_changed(self._interval_ms, interval_ms)
            or _has_changed(self._row_ms, row_ms)
        ):
            return None
        self._interval_ms, self._row_ms, self._overload_level = interval_ms, row_ms, level
        return Pace(
            interval_ms / 1e3,
            row_ms / 1e3,
            contract.max_lead,
            level,
            echo.number,
            echo.delay_s(now),
        )


def _has_changed(before: float, now: float) -> bool:
    return abs(now - before) > _PACE_CHANGE * before


def open_request(
    number: int, frame: inference_pb2.OpenSession, contract: Contract, now: float
) -> tuple[OpenRequest, TokenCodec]:
    """The session to run under the engine session id `number`, and the codec its opener reads.

    Raises InvalidRequestError and its kinds, UnknownModelError, VocabularyMismatchError,
    UnavailableError for a reply that another model began, and PrefixUnknownError. Ids are known to
    be of the vocabulary afterwards.
    """
    _check_identity(frame, contract)
    codec = negotiate(frame.codecs, contract.coder.supported)
    priority = priority_from_proto(frame.priority) or Priority.MEDIUM
    speculation = speculation_from_proto(frame.speculation)
    edge_drafts, region_drafts = _SPECULATION[speculation]
    prompt = _prompt(frame, contract)
    drafts = draft_of(frame.draft, contract) if frame.HasField("draft") else None
    salt = inexact_salt(frame.cache_salt) if frame.allows_inexact else frame.cache_salt
    request = OpenRequest(
        session_id=number,
        prompt=prompt,
        sampling=sampling_from_proto(frame.sampling),
        priority=priority,
        deadline=now + frame.deadline_ms / 1e3 if frame.deadline_ms else None,
        resume=_resumed(frame, contract),
        epoch=frame.epoch,
        drafts=drafts,
        edge_drafts=edge_drafts,
        region_drafts=region_drafts,
        # A session without a salt belongs to no trust group and shares nothing with any other.
        cache_salt=salt or secrets.token_bytes(_OWN_SALT_BYTES),
        takes_inexact_kv=frame.allows_inexact and contract.inexact_kv,
        group_lasts=frame.group_lasts and bool(frame.cache_salt),
        shared_prefix_tokens=frame.shared_prefix_tokens,
        # What is longer than a reply can be is of no use, and no reason to refuse.
        prediction=_ids(frame.prediction, contract, MAX_PREDICTION_TOKENS)[
            : contract.context_limit
        ],
        kv_holder=_kv_holder(frame, contract),
        request_key=request_key(frame.tenant, frame.request_id),
        goes_alone=frame.alone,
        is_background=frame.background,
    )
    return request, codec


def keep_request(
    session: int, frame: inference_pb2.KeepKv, contract: Contract
) -> KeepRequest | None:
    """What is to be kept of a session that another replica serves; None where this replica has
    another vocabulary, or the frame names nothing. Raises BadTokenBlockError."""
    holder = _kv_holder(frame, contract)
    if holder is None or frame.vocabulary_digest != contract.vocabulary_digest:
        return None
    if len(frame.cache_salt) > MAX_SALT_BYTES or frame.ids.count > contract.context_limit:
        return None
    ids = _ids(frame.ids, contract, contract.context_limit, needs_checksum=False)
    return KeepRequest(session, frame.cache_salt, ids, holder) if ids else None


def _kv_holder(
    frame: inference_pb2.OpenSession | inference_pb2.KeepKv, contract: Contract
) -> KvHolder | None:
    """The replica that has KV of the session; None without one. It is a hint: an empty one is no
    reason to refuse the session."""
    said = frame.kv_holder
    has_names = max(len(said.replica), len(said.region), len(said.address)) <= MAX_HOLDER_CHARS
    # Nothing is known by the salt of a session that shares nothing.
    if not (said.address and said.num_tokens and has_names and frame.cache_salt):
        return None
    if said.replica == contract.replica:
        return None
    return KvHolder(said.replica, said.region, said.address, said.num_tokens)


def _check_identity(frame: inference_pb2.OpenSession, contract: Contract) -> None:
    if not 0 < len(frame.request_id) <= MAX_REQUEST_ID_CHARS:
        raise InvalidRequestError(f"request_id must have 1 to {MAX_REQUEST_ID_CHARS} characters")
    if len(frame.cache_salt) > MAX_SALT_BYTES:
        raise InvalidRequestError(f"cache_salt must have at most {MAX_SALT_BYTES} bytes")
    if frame.model not in ("", contract.model):
        raise UnknownModelError(
            f"this replica serves {contract.model}, not {frame.model[:100]!r}",
            metadata={"model": contract.model},
        )
    if frame.HasField("messages"):
        raise InvalidRequestError("a replica takes token ids; the router turns messages into them")
    if frame.vocabulary_digest != contract.vocabulary_digest:
        theirs, ours = frame.vocabulary_digest[:32].hex(), contract.vocabulary_digest.hex()
        raise VocabularyMismatchError(
            f"the request's vocabulary is {theirs or 'not named'}, this replica's is {ours}; "
            "use the same model files on both sides, or send text",
            metadata={"theirs": theirs, "ours": ours},
        )
    _check_model_identity(frame, contract)


def _check_model_identity(frame: inference_pb2.OpenSession, contract: Contract) -> None:
    """The router places by what replicas reported; this one may be another process by now."""
    theirs, ours = check_model_identity(frame.model_identity), contract.model_identity
    has_tokens = frame.resume.count or frame.resumed
    if has_tokens and theirs and not same_model(theirs, ours):
        raise UnavailableError(
            f"the reply was begun by a replica that computes as {short_form(theirs)}, this one "
            f"computes as {short_form(ours)}; open the session on one that computes the same"
        )


def _prompt(frame: inference_pb2.OpenSession, contract: Contract) -> tuple[int, ...]:
    if not frame.HasField("ids"):
        raise EmptyPromptError("the session has no prompt; send its token ids")
    if frame.ids.prefix_tokens:
        raise PrefixUnknownError("this replica holds no prompt of that prefix; send the whole one")
    if frame.ids.tail.count >= contract.context_limit:
        raise PromptTooLongError.of(frame.ids.tail.count, contract.context_limit - 1)
    if not frame.ids.tail.count:
        raise EmptyPromptError("the prompt has no tokens; send at least one")
    return _ids(frame.ids.tail, contract, contract.context_limit)


def _resumed(frame: inference_pb2.OpenSession, contract: Contract) -> tuple[int, ...]:
    """Raises BadTokenBlockError, PromptTooLongError before anything of it is decoded."""
    blocks = (frame.resume, *frame.resumed)
    if (count := sum(block.count for block in blocks)) > contract.context_limit:
        raise PromptTooLongError(
            f"resume has {count} tokens, the context has room for {contract.context_limit}"
        )
    limit = contract.context_limit
    # Whoever moves a session has no checksum of what it saw.
    begun = _ids(frame.resume, contract, limit)
    since = [_ids(block, contract, limit, needs_checksum=False) for block in frame.resumed]
    return tuple(chain(begun, *since))


def draft_of(frame: inference_pb2.Draft, contract: Contract) -> Draft:
    """A draft of the edge. Raises BadTokenBlockError."""
    return draft_from_proto(frame, contract.coder, max_count=MAX_DRAFT_TOKENS)


def _ids(
    block: common_pb2.TokenBlock,
    contract: Contract,
    max_count: int,
    *,
    needs_checksum: bool = True,
) -> tuple[int, ...]:
    if not block.count and not block.payload:
        return ()
    try:
        return contract.coder.decode(
            token_block_from_proto(block), max_count=max_count, needs_checksum=needs_checksum
        )
    except BadTokenBlockError as error:
        error.metadata["vocabulary_digest"] = contract.vocabulary_digest.hex()
        raise


def opened_frame(
    number: int, event: Opened, contract: Contract, codec: TokenCodec
) -> inference_pb2.SessionDown:
    """The answer to an admitted session."""
    opened = inference_pb2.SessionOpened(
        prompt_tokens=event.prompt_tokens,
        cached_tokens=event.cached_tokens,
        replica=contract.replica,
        region=contract.region,
        model=contract.model,
        vocabulary_digest=contract.vocabulary_digest,
        model_identity=contract.model_identity,
        codec=common_pb2.TokenCodec.ValueType(codec),
        max_drafts=contract.max_drafts,
    )
    return inference_pb2.SessionDown(session=number, opened=opened)


def begun_frame(number: int) -> inference_pb2.SessionDown:
    """The session has waited, and is computed from now on."""
    return inference_pb2.SessionDown(session=number, begun=inference_pb2.SessionBegun())


def done_frame(number: int, event: Finished, checksum: int) -> inference_pb2.SessionDown:
    """The end of a session; `checksum` of all its tokens."""
    done = inference_pb2.SessionDone(
        finish_reason=finish_reason_to_proto(event.reason),
        usage=usage_to_proto(event.usage),
        timings=timings_to_proto(event.timings),
        upto=event.upto,
        checksum=checksum,
    )
    return inference_pb2.SessionDown(session=number, done=done)


def error_frame(number: int, error: OutriderError) -> inference_pb2.SessionDown:
    """The end of a session by an error."""
    return inference_pb2.SessionDown(session=number, error=error_to_proto(error))


_STATES: Final = (
    *("running_sessions", "queued_sessions", "queued_prompt_tokens", "paused_sessions"),
    *("kv_blocks_total", "max_sessions", "draining", "restarting"),
    *("overload_level", "queues_low", "refuses_sessions", "is_cost_guessed"),
)
_CLASSES: Final = ("low", "medium")
_ESTIMATES: Final = (
    *("fixed_ms", "row_ms", "service_ms", "reply_tokens", "peer_block_ms", "peer_first_ms"),
)
_LEAST_MOVE: Final = 0.1
"""Least relative change of an estimate, and of blocks as a share of the pool."""


def load_response(
    load: SchedulerLoad,
    tiers: Mapping[str, TierCounts],
    *,
    draining: bool = False,
    restarting: bool = False,
    running_call: EngineCall | None = None,
) -> inference_pb2.WatchLoadResponse:
    """A report for routers, with what went through the KV tiers, by their names; of a running call
    where it has lasted long."""
    store, peers = tiers.get("redis", _NO_COUNTS), tiers.get("peer", _NO_COUNTS)
    tokens = load.kv_hits.tiers()
    is_long = running_call is not None and running_call.duration_ms >= LONG_CALL_MS
    return inference_pb2.WatchLoadResponse(
        running_sessions=load.running_sessions,
        queued_sessions=load.queued_sessions,
        queued_prompt_tokens=load.queued_prompt_tokens,
        kv_blocks_total=load.kv_blocks_total,
        kv_blocks_free=load.kv_blocks_free,
        kv_blocks_owed=load.kv_blocks_owed,
        reply_tokens=load.reply_tokens,
        fixed_ms=load.fixed_ms,
        row_ms=load.row_ms,
        is_cost_guessed=load.is_cost_guessed,
        max_sessions=load.max_sessions,
        max_queued_sessions=load.max_queue,
        draining=draining,
        restarting=restarting,
        paused_sessions=load.paused_sessions,
        overload_level=load.overload_level,
        low=inference_pb2.ClassLoad(**asdict(load.low)),
        medium=inference_pb2.ClassLoad(**asdict(load.medium)),
        service_ms=load.service_ms,
        queues_low=load.overload_level >= OverloadLevel.QUEUE_LOW,
        refuses_sessions=load.overload_level >= OverloadLevel.REFUSE,
        kv=inference_pb2.KvCounts(
            prompt_tokens=load.kv_hits.prompt_tokens,
            # A block may be loaded for a session that ended before it counted.
            pool_tokens=max(0, tokens["device"]),
            store_tokens=tokens.get("redis", 0),
            sync_bytes=store.num_bytes,
            store_failures=store.num_failures,
            peer_tokens=tokens.get("peer", 0),
            peer_bytes=peers.num_bytes,
            peer_failures=peers.num_failures,
        ),
        peer_block_ms=peers.block_ms,
        peer_first_ms=peers.first_ms,
        running_call=call_to_proto(running_call) if running_call is not None and is_long else None,
    )


def call_to_proto(call: EngineCall) -> inference_pb2.EngineCall:
    """An engine call as reported to routers."""
    return inference_pb2.EngineCall(
        requests=sorted(call.requests),
        num_sessions=call.num_sessions,
        duration_ms=call.duration_ms,
    )


def is_news(report: inference_pb2.WatchLoadResponse, told: inference_pb2.WatchLoadResponse) -> bool:
    """Whether a router with the report `told` needs `report` now, because it would place sessions
    differently. Estimates and free blocks move with every call: changes below _LEAST_MOVE, and
    counters (kv), wait for the next report."""
    if any(getattr(report, name) != getattr(told, name) for name in _STATES):
        return True
    if any(_counts(getattr(report, name)) != _counts(getattr(told, name)) for name in _CLASSES):
        return True
    if any(_has_moved(getattr(report, name), getattr(told, name)) for name in _ESTIMATES):
        return True
    least_blocks = _LEAST_MOVE * max(1, report.kv_blocks_total)
    before, now = _kv_blocks(told), _kv_blocks(report)
    return any(abs(one - other) >= least_blocks for one, other in zip(now, before, strict=True))


def _counts(part: inference_pb2.ClassLoad) -> tuple[int, int]:
    return part.sessions, part.queued_prompt_tokens


def _kv_blocks(report: inference_pb2.WatchLoadResponse) -> tuple[int, ...]:
    """The blocks that are free, those that will be, and those that classes give up."""
    free = report.kv_blocks_free
    return free, free - report.kv_blocks_owed, report.low.kv_blocks, report.medium.kv_blocks


def _has_moved(now: float, before: float) -> bool:
    return abs(now - before) > _LEAST_MOVE * max(abs(now), abs(before))


def model_response(contract: Contract, record: CallRecord) -> inference_pb2.GetModelResponse:
    """This replica's properties for routers, and crashes of its earlier processes."""
    return inference_pb2.GetModelResponse(
        model=contract.model,
        vocabulary_digest=contract.vocabulary_digest,
        model_identity=contract.model_identity,
        tokens_digest=contract.tokens_digest,
        vocabulary_size=contract.vocabulary_size,
        max_context_tokens=contract.context_limit,
        engine=contract.engine,
        block_tokens=contract.block_tokens,
        codecs=_codecs(contract.coder.supported),
        replica=contract.replica,
        region=contract.region,
        prefill_limits=contract.prefill_limits,
        static_prefixes=[
            inference_pb2.StaticPrefix(name=it.name, tokens=len(it.ids), tenants=it.tenants)
            for it in contract.static_prefixes
        ],
        process=record.process,
        crashes=[
            inference_pb2.Crash(process=crash.process, call=call_to_proto(crash.call))
            for crash in record.crashes
        ],
        guarantees=contract.guarantees,
    )


def _codecs(supported: Sequence[TokenCodec]) -> list[common_pb2.TokenCodec.ValueType]:
    return [common_pb2.TokenCodec.ValueType(codec) for codec in supported]
