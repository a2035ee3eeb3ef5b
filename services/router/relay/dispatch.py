"""The relay's side towards the replicas: the stream of each session, and the choice of its replica.

No I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from outrider.errors import NoReplicaError, OutriderError, OverloadedError
from outrider.lru_map import LruMap
from outrider.v1 import common_pb2, inference_pb2
from services.router.fleet.registry import Registry
from services.router.placement.placement import Placement
from services.router.placement.types import RETRY_DELAY_MS, Decision
from services.router.prefix_index.index import PrefixIndex
from services.router.prefix_index.prompt import HashedPrompt, TokenIdReader
from services.router.relay import frames
from services.router.relay.frames import RelayedSession, Up
from services.router.relay.sessions import SessionTable
from services.router.session_request import SessionRequest

if TYPE_CHECKING:
    from outrider.rpc import Outbox
    from services.router.relay.telemetry import SessionTelemetry

_MAX_CACHED_PROMPTS: Final = 64
"""Prompts kept as ids."""


class PromptCache:
    """The prompts of sessions that are being placed: read once, however often it is tried."""

    def __init__(self, index: PrefixIndex, ids: TokenIdReader) -> None:
        self._index = index
        self._ids = ids
        self._prompts: LruMap[tuple[int, int], HashedPrompt] = LruMap(_MAX_CACHED_PROMPTS)
        """By session and number of committed tokens."""

    def of(self, session: RelayedSession, ids: bytes | None = None) -> HashedPrompt:
        """The known beginning of the prompt and the reply so far, hashed: the part that replicas
        may have cached. `ids`: those of the prompt, if they were read already."""
        opening = session.open_frame.open
        key = session.router_session_id, session.num_committed
        found = self._prompts.get(key)
        if found is None:
            if ids is None or session.num_committed:
                found = self._read(opening, frames.committed_blocks(session))
            else:
                found = self._index.prompt(ids, frames.kv_salt(opening))
            self._prompts.put(key, found)
        return found

    def read(self, opening: inference_pb2.OpenSession) -> HashedPrompt:
        """The prompt of an open that brings ids."""
        return self._read(opening, ())

    def _read(
        self, opening: inference_pb2.OpenSession, committed: Iterable[common_pb2.TokenBlock]
    ) -> HashedPrompt:
        digest, ids = opening.vocabulary_digest, b""
        for codec, count, payload in frames.joined((opening.ids.tail, *committed)):
            found = self._ids.read(codec, count, payload, digest)
            ids += found
            if count and not found:
                break  # what follows is not behind what came before
        return self._index.prompt(ids, frames.kv_salt(opening))


@dataclass(frozen=True, slots=True)
class _ReplicaStream:
    replica: str
    outbox: Outbox[Up]


class Dispatch:
    """Open replica streams, and placement onto them."""

    def __init__(
        self,
        table: SessionTable[Up],
        registry: Registry,
        telemetry: SessionTelemetry,
        placement: Placement,
        prompts: PromptCache,
        timer: Callable[[], float],
    ) -> None:
        """`timer` is in seconds and measures how long decisions take."""
        self._table = table
        self._registry = registry
        self._telemetry = telemetry
        self._placement = placement
        self._prompts = prompts
        self._timer = timer
        self._streams: dict[int, _ReplicaStream] = {}
        self._stream_of: dict[str, int] = {}
        """By replica."""
        self._decision_ms = 0.0
        """Milliseconds that the latest decision took."""

    def attach(self, replica: str, outbox: Outbox[Up]) -> int:
        """A replica's stream is up."""
        stream = self._table.attach_replica()
        self._streams[stream] = _ReplicaStream(replica, outbox)
        self._stream_of[replica] = stream
        return stream

    def detach(self, stream: int) -> None:
        """A replica's stream broke; it may have another one already."""
        replica = self._streams.pop(stream).replica
        if self._stream_of.get(replica) == stream:
            del self._stream_of[replica]

    @property
    def streams(self) -> dict[int, str]:
        """The replicas that are up, by stream."""
        return {stream: it.replica for stream, it in self._streams.items()}

    def send(self, stream: int, request: Up, *, last: bool) -> bool:
        """Queue a frame; False if that replica's buffer is full."""
        return self._streams[stream].outbox.offer(request, last=last)

    def hint(self, replica: str, request: Up) -> None:
        """Queue a frame that may be dropped, if this replica is up."""
        stream = self._stream_of.get(replica)
        if stream is not None:
            self.send(stream, request, last=False)

    def cancel(self, stream: int | None, upstream_session_id: int, error: OutriderError) -> None:
        """Ask the replica that had a session to stop, if its stream is still open."""
        found = self._streams.get(stream) if stream is not None else None
        if found is not None:
            cancel = inference_pb2.CancelSession(reason=error.reason)
            found.outbox.offer(Up(session=upstream_session_id, cancel=cancel), last=True)

    def release(self, session: RelayedSession) -> None:
        """A session left the replica it was on."""
        self._registry.release(session.replica, session.router_session_id)
        self._placement.release(session.router_session_id)

    def place(
        self, session: RelayedSession, now: float, refusal: OutriderError | None = None
    ) -> None:
        """Find a replica and send it the open and the kept drafts.

        `refusal` is why the replica before did not do. Raises what `Placement.decide` raises,
        DeadlineError, or `refusal` where no other replica is left.
        """
        excluded = set(session.tried_replicas)
        try:
            request = self.request_of(session)
            while True:
                frames.renew_deadline(session, now)
                decision = self.decide(request, now, excluded)
                if self.put(session, decision, now):
                    return
                excluded.add(decision.replica)
                refusal = refusal or _full(decision.replica)
        except NoReplicaError as error:
            # That no other replica is left explains less than what the first one said.
            raise refusal or error from None

    def decide(
        self, request: SessionRequest, now: float, exclude: Collection[str] = ()
    ) -> Decision:
        """`Placement.decide`; records the time that it takes."""
        started_s = self._timer()
        decision = self._placement.decide(request, now, exclude)
        self._decision_ms = (self._timer() - started_s) * 1000.0
        return decision

    def request_of(self, session: RelayedSession, ids: bytes | None = None) -> SessionRequest:
        """The request of a session whose prompt is ids, for its next replica, with the hashed
        prompt. `ids`: see `PromptCache.of`."""
        return replace(session.current_request, prompt=self._prompts.of(session, ids))

    def _name_holder(self, opening: inference_pb2.OpenSession, decision: Decision) -> None:
        """Name the replica from which this one may fetch KV. Overwrites an entry of the edge, or
        one that was meant for another replica."""
        opening.ClearField("kv_holder")
        source = decision.kv_source
        holder = self._registry.find(source.replica) if source is not None else None
        if source is not None and holder is not None:
            opening.kv_holder.replica = holder.name
            opening.kv_holder.region = holder.region
            opening.kv_holder.address = holder.address
            opening.kv_holder.num_tokens = source.num_tokens

    def put(self, session: RelayedSession, decision: Decision, now: float) -> bool:
        """Send the open and the kept drafts; False if that replica's buffer is full."""
        stream = self._stream_of[decision.replica]
        request = self.request_of(session)
        opening = frames.open_for_replica(session)
        opening.open.shared_prefix_tokens = shared_prefix_tokens(decision)
        self._name_holder(opening.open, decision)
        if not self.send(stream, opening, last=False):
            return False
        self._table.bind(session, stream, decision.replica, now)
        for draft in frames.drafts_for_replica(session):
            self.send(stream, draft, last=False)
        session.prompt_ms = decision.wait.idle_prefill_ms
        self._registry.place(decision.replica, session.router_session_id, now)
        self._placement.put(session.router_session_id, request, decision, now)
        self._telemetry.placed(session.router_session_id, request, decision, self._decision_ms, now)
        return True


def shared_prefix_tokens(decision: Decision) -> int:
    """Tokens of a prompt that another replica has cached, or will have soon, and the chosen one
    has not: it is placed elsewhere for want of room, and its beginning is wanted in both."""
    other = decision.runner_up
    if other is None or other.cached_tokens <= decision.cached_tokens:
        return 0
    return other.cached_tokens


def _full(replica: str) -> OverloadedError:
    return OverloadedError(
        f"the buffer towards replica {replica} is full; try again later",
        retry_delay_ms=RETRY_DELAY_MS,
    )
