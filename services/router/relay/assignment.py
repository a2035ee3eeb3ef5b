"""Opens as a router reads and sends them."""

from __future__ import annotations

import hashlib
import struct
from typing import Final

from outrider.codec import varint
from outrider.cost import Cost
from outrider.errors import CancelledError, DeadlineError, EmptyPromptError, OverloadedError
from outrider.v1 import common_pb2, inference_pb2, router_pb2
from outrider.wire import sessions as session_wire
from services.router.placement.request import MEDIUM, RETRY_DELAY_MS, Request
from services.router.prefixes.ids import IdReader
from services.router.prefixes.index import PrefixIndex
from services.router.prefixes.prompt import Prompt
from services.router.prefixes.recent import RecentMap
from services.router.relay.sessions import Session

Up = router_pb2.RouteRequest

_MAX_READ: Final = 64
"""Prompts kept as ids, twice over in the worst case."""
_RESUMED_TAG: Final = varint.encode(inference_pb2.OpenSession.RESUMED_FIELD_NUMBER << 3 | 2)
"""Protocol Buffers, encoding: field number and wire type LEN."""


class Prompts:
    """The prompts of sessions that are being placed: read once, however often it is tried."""

    def __init__(self, index: PrefixIndex, ids: IdReader) -> None:
        self._index = index
        self._ids = ids
        self._read: RecentMap[int, Prompt] = RecentMap(_MAX_READ)

    def of(self, session: Session[Up]) -> Prompt | None:
        """What can be known of the prompt: the part of it that the replica may hold."""
        assert session.open is not None, "a session that is placed has its open"
        opening = session.open.frame.open
        if opening.ids.prefix_tokens:
            return None  # ids that only another peer has
        found = self._read.get(session.relayed)
        if found is None:
            found = self.read(opening)
            self._read.put(session.relayed, found)
        return found

    def read(self, opening: inference_pb2.OpenSession) -> Prompt:
        """The prompt of an open that brings ids."""
        block = opening.ids.tail
        ids = self._ids.read(block.codec, block.count, block.payload, opening.vocabulary_digest)
        return self._index.prompt(ids, opening.cache_salt)


def request_of(session: Session[Up], prompts: Prompts) -> Request:
    """What placement has to know of a session whose prompt is ids. Raises EmptyPromptError."""
    assert session.open is not None, "a session that is placed has its open"
    frame = session.open.frame.open
    prompt_tokens = frame.ids.prefix_tokens + frame.ids.tail.count
    if not prompt_tokens:
        raise EmptyPromptError("The session has no prompt: send messages or token ids.")
    return Request(
        model=frame.model,
        vocabulary_digest=frame.vocabulary_digest,
        # Tokens to resume after are prefilled like the prompt.
        prompt_tokens=prompt_tokens + session.upto,
        residency=tuple(frame.residency),
        priority=frame.priority or MEDIUM,
        prompt=prompts.of(session),
    )


def num_resumed(frame: inference_pb2.OpenSession) -> int:
    """Tokens of the reply that an earlier run committed."""
    return frame.resume.count + sum(block.count for block in frame.resumed)


def opening_of(session: Session[Up]) -> Up:
    """What the next replica is sent: the open, and what was committed since it came."""
    assert session.open is not None, "a session that is placed has its open"
    session.open.frame.session = session.leg
    if not session.is_under_way:
        return session.open
    request = Up()  # a copy: the one before may still be queued for another replica
    request.CopyFrom(session.open)
    opening = request.frame.open
    # Serialised entries of a repeated field, one behind the other, are such a field.
    opening.MergeFromString(bytes(session.committed))
    opening.lost_replicas = session.record.num_lost
    opening.echo = 0  # the time since then is not that of one way
    return request


def tokens_of(commit: inference_pb2.Commit, upto: int) -> bytes | None:
    """The tokens of a commit as entries of OpenSession.resumed; None where they are not all known,
    or do not follow the first `upto`."""
    has_all = commit.accepted_ids.count == commit.accepted
    num_new = commit.accepted + commit.ids.count
    if commit.base != upto or not has_all or commit.upto != upto + num_new:
        return None
    accepted = _entry(commit.accepted_ids) if commit.accepted else b""
    return accepted + (_entry(commit.ids) if commit.ids.count else b"")


def _entry(block: common_pb2.TokenBlock) -> bytes:
    data = block.SerializeToString()
    return b"".join((_RESUMED_TAG, varint.encode(len(data)), data))


def deadline_at(open_request: Up, now: float) -> float | None:
    """When the session has to be over, on this router's clock; None without a deadline."""
    left_ms = open_request.frame.open.deadline_ms
    return now + left_ms / 1000.0 if left_ms else None


def renew_deadline(open_request: Up, at: float | None, now: float) -> None:
    """State the time that is left, which is less than on arrival. Raises DeadlineError."""
    if at is None:
        return
    left_ms = round((at - now) * 1000.0)
    if left_ms <= 0:
        raise DeadlineError("The deadline passed before a replica could be found.")
    open_request.frame.open.deadline_ms = left_ms


def chat_of(frame: inference_pb2.OpenSession) -> bytes:
    """The same for all runs of one chat, which give the same text: tenant, request id, prompt and
    sampling; b"" for an open without a request id. The prompt has to be ids."""
    if not frame.request_id:
        return b""
    prompt = frame.ids
    checksum = struct.pack("<III", prompt.prefix_tokens, prompt.tail.count, prompt.tail.checksum)
    sampling = frame.sampling.SerializeToString(deterministic=True)
    named = (frame.tenant.encode(), frame.request_id.encode(), frame.model.encode(), sampling)
    digest = hashlib.blake2b(checksum, digest_size=16)
    for part in (*named, frame.vocabulary_digest, prompt.prefix_hash):
        digest.update(len(part).to_bytes(4, "little") + part)
    return digest.digest()


def add_up(
    done: inference_pb2.SessionDone, session: Session[Up], cost: Cost | None, now: float
) -> None:
    """The end of a session as one whole: what it costs, which replicas have no say in; and of one
    that moved all of its time, for its last replica knows of its own part."""
    session_wire.set_cost(done.usage, cost)
    if session.num_moves and session.began_at is not None:
        done.timings.ttft_ms = (session.began_at - session.opened_at) * 1e3
        done.timings.total_ms = (now - session.opened_at) * 1e3


def cancelled(why: str = "The session was cancelled.") -> CancelledError:
    """Why a session ends that nobody wants any more."""
    return CancelledError(why)


def full(replica: str) -> OverloadedError:
    """Why an open could not even be queued for a replica."""
    return OverloadedError(
        f"The buffer towards replica {replica} is full: try again later.",
        retry_delay_ms=RETRY_DELAY_MS,
    )
