"""Reads frames of the relay, and writes into them. No I/O, no clock.

`read_request` reads the request of an open once: placement and admission see no frame.

Edges and replicas use the same frames, so a frame is renumbered in place and forwarded unchanged:
no token block is ever decoded or encoded again.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import groupby
from operator import attrgetter
from typing import Final, TypeAlias

from google.protobuf.message import DecodeError

from outrider.codec.block_hashes import inexact_salt
from outrider.codec.tokens import TokenCodec
from outrider.cost import Cost
from outrider.engine_calls import request_key
from outrider.errors import CancelledError, DeadlineError, MalformedFrameError
from outrider.fair_work.turns import Requester
from outrider.model_identity import check_model_identity
from outrider.session.types import FinishReason, Priority
from outrider.v1 import common_pb2, inference_pb2
from outrider.wire import DEFAULT_MAX_TOKENS, finish_reason_to_proto, set_cost
from services.router.relay.sessions import Session
from services.router.session_request import SessionRequest

Up: TypeAlias = inference_pb2.SessionUp
Down: TypeAlias = inference_pb2.SessionDown
RelayedSession: TypeAlias = Session[Up]

_PRIORITIES: Final[dict[int, Priority]] = {int(priority): priority for priority in Priority}
_CUT_SHORT: Final = {finish_reason_to_proto(it): it.error_reason for it in FinishReason}


def requester_of(opening: inference_pb2.OpenSession) -> Requester:
    """For whom a session is."""
    return Requester.of(opening.tenant, opening.address_hash, opening.cache_salt)


def read_request(
    opening: inference_pb2.OpenSession, now: float, *, allows_inexact: bool
) -> SessionRequest:
    """The request in an open that has just arrived; `allows_inexact` is its tenant's setting.
    Raises MalformedFrameError."""
    num_committed = opening.resume.count + sum(block.count for block in opening.resumed)
    identity = check_model_identity(opening.model_identity)
    left_ms = opening.deadline_ms
    return SessionRequest(
        model=opening.model,
        vocabulary_digest=opening.vocabulary_digest,
        prompt_tokens=opening.ids.tail.count,
        num_committed=num_committed,
        identity=identity if num_committed else None,
        allows_inexact=allows_inexact,
        residency=tuple(opening.residency),
        priority=_PRIORITIES.get(opening.priority, Priority.MEDIUM),
        max_tokens=opening.sampling.max_tokens or DEFAULT_MAX_TOKENS,
        tenant=opening.tenant,
        flow=requester_of(opening).origin,
        address_hash=opening.address_hash,
        deadline_at=now + left_ms / 1000.0 if left_ms else None,
        chat_digest=chat_key(opening),
        call_key=request_key(opening.tenant, opening.request_id),
        is_background=opening.background,
        begun_ahead=opening.begun_ahead,
        is_proven=opening.proven,
        run=opening.run,
    )


def kv_salt(opening: inference_pb2.OpenSession) -> bytes:
    """The salt by which replicas name the session's KV blocks."""
    salt = opening.cache_salt
    return inexact_salt(salt) if opening.allows_inexact else salt


def with_prompt(request: SessionRequest, opening: inference_pb2.OpenSession) -> SessionRequest:
    """The same request once its open has the prompt's ids."""
    return replace(
        request,
        vocabulary_digest=opening.vocabulary_digest,
        prompt_tokens=opening.ids.tail.count,
        chat_digest=chat_key(opening),
    )


def renew_deadline(session: RelayedSession, now: float) -> None:
    """State the time that is left in the open, which is less than on arrival. Raises
    DeadlineError."""
    deadline_at = session.request.deadline_at
    if deadline_at is None:
        return
    left_ms = round((deadline_at - now) * 1000.0)
    if left_ms <= 0:
        raise DeadlineError("the deadline passed before a replica was found")
    session.open_frame.open.deadline_ms = left_ms


def open_for_replica(session: RelayedSession) -> Up:
    """First frame for the next replica: the open, with the tokens committed since it arrived.
    Raises MalformedFrameError if a commit is not a valid token block."""
    request = session.open_frame
    if session.is_under_way or session.tried_replicas:
        # The one before may still be queued for another replica, under the number it has there.
        request = _copy(request)
    request.session = session.upstream_session_id
    request.open.alone = session.losses.goes_alone
    if session.replay is None or not session.is_under_way:
        return request
    opening = request.open
    try:
        # Serialised entries of a repeated field, one behind the other, are such a field.
        opening.MergeFromString(bytes(session.replay.committed))
    except DecodeError as error:
        raise MalformedFrameError(
            "a replica committed bytes that are no token block; open the session again"
        ) from error
    opening.model_identity = b"" if session.request.allows_inexact else session.model_identity
    opening.echo = 0  # the time since then is not that of one way
    return request


def drafts_for_replica(session: RelayedSession) -> list[Up]:
    """The kept drafts as the replica that has it now is sent them: as `open_for_replica`."""
    drafts = [_copy(draft) for draft in session.replay.drafts] if session.replay else []
    for draft in drafts:
        draft.session = session.upstream_session_id
    return drafts


def _copy(frame: Up) -> Up:
    copied = Up()
    copied.CopyFrom(frame)
    return copied


def joined(blocks: Iterable[common_pb2.TokenBlock]) -> Iterator[tuple[int, int, bytes]]:
    """Codec, count and payload of joined neighbours, to be read in one call: LEB128 payloads may be
    concatenated. A block in RANK_CLASSES is never joined."""
    for codec, some in groupby(blocks, key=attrgetter("codec")):
        if codec == TokenCodec.RANK_CLASSES:
            yield from ((codec, block.count, block.payload) for block in some)
        else:
            of_codec = list(some)
            count = sum(block.count for block in of_codec)
            yield codec, count, b"".join(block.payload for block in of_codec)


def committed_blocks(session: RelayedSession) -> list[common_pb2.TokenBlock]:
    """The committed tokens, in order; none where they are no token blocks."""
    opening = session.open_frame.open
    blocks = [*([opening.resume] if opening.resume.count else []), *opening.resumed]
    if session.replay is not None and session.replay.committed:
        since = inference_pb2.OpenSession()
        try:
            # Serialised entries of a repeated field, one behind the other, are such a field.
            since.MergeFromString(bytes(session.replay.committed))
        except DecodeError:
            return []
        blocks += since.resumed
    return blocks


def chat_key(opening: inference_pb2.OpenSession) -> bytes:
    """The same for all runs of one chat, which give the same text: tenant, request id, prompt and
    sampling; b"" for an open without a request id. The prompt has to be ids."""
    if not opening.request_id:
        return b""
    prompt = opening.ids
    # The same whether a part of the prompt was left out or not.
    num_tokens = prompt.prefix_tokens + prompt.tail.count
    checksum = struct.pack("<QI", num_tokens, prompt.tail.checksum)
    digest = hashlib.blake2b(checksum, digest_size=16)
    for part in (
        opening.tenant.encode(),
        opening.request_id.encode(),
        opening.model.encode(),
        opening.sampling.SerializeToString(deterministic=True),
        opening.vocabulary_digest,
    ):
        digest.update(len(part).to_bytes(4, "little") + part)
    return digest.digest()


def run_key(session: RelayedSession) -> tuple[str, str, bytes]:
    """Tenant, request id, and a digest of the request, messages included."""
    opening = session.open_frame.open
    digest = hashlib.blake2b(session.request.chat_digest, digest_size=16)
    if opening.HasField("messages"):
        digest.update(opening.messages.SerializeToString(deterministic=True))
    return opening.tenant, opening.request_id, digest.digest()


def session_moved(
    opened: inference_pb2.SessionOpened, session: RelayedSession
) -> inference_pb2.SessionDown:
    """Frame for an edge that already knows that its session is open: the session has moved."""
    moved = inference_pb2.SessionMoved(
        replica=opened.replica,
        region=opened.region,
        max_drafts=opened.max_drafts,
        epoch=max(0, session.void_epoch),
        model_identity=opened.model_identity,
    )
    return inference_pb2.SessionDown(session=session.edge_session_id, moved=moved)


def complete_done(
    done: inference_pb2.SessionDone, session: RelayedSession, cost: Cost | None, now: float
) -> None:
    """Add to the end of a session what its last replica cannot know: the cost of the whole chat,
    and the times of the whole session where it moved."""
    set_cost(done.usage, cost)
    if session.num_moves and session.first_token_at is not None:
        done.timings.ttft_ms = (session.first_token_at - session.opened_at) * 1e3
        done.timings.total_ms = (now - session.opened_at) * 1e3


def cut_short(frame: Down | None) -> str | None:
    """Reason, in the terms of errors, for which a replica ended a session before its reply was
    complete: CANCELLED or DEADLINE. None for any other frame."""
    if frame is None or not frame.HasField("done"):
        return None
    return _CUT_SHORT.get(frame.done.finish_reason)


def cancelled(why: str = "the session was cancelled") -> CancelledError:
    """The error of a session that was cancelled."""
    return CancelledError(why)
