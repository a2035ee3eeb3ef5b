"""Names, for sessions in the middle of their replies, the replica that would take over. Pure.

That replica copies the session's KV from the one that serves it (KeepKv), so that after a loss
little is left to recompute. It is the replica that placement would choose if the present one were
gone. It is told anew whenever half a block has been added. Replicas with work to shed, on either
side, are left in peace. Frames are hints: one that is lost costs recomputing.
"""

from __future__ import annotations

from heapq import nsmallest
from typing import TYPE_CHECKING, Final

from outrider.codec.tokens import TokenCodec
from outrider.errors import OutriderError
from outrider.v1 import common_pb2, inference_pb2
from services.router.relay import frames
from services.router.relay.frames import RelayedSession, Up
from services.router.relay.sessions import SessionState

if TYPE_CHECKING:
    from services.router.fleet.registry import Registry
    from services.router.placement.types import Decision
    from services.router.prefix_index.prompt import TokenIdReader
    from services.router.relay.dispatch import Dispatch
    from services.router.relay.policy import KvAheadPolicy
    from services.router.relay.sessions import SessionTable
    from services.router.session_request import SessionRequest

MAX_PER_TICK: Final = 8
"""Sessions looked at in one tick, those first that have waited longest: a placement is decided for
each."""
_VARINT: Final = common_pb2.TokenCodec.ValueType(TokenCodec.VARINT)


class KvAhead:
    """Finds standby replicas and asks them to copy."""

    def __init__(
        self,
        table: SessionTable[Up],
        dispatch: Dispatch,
        registry: Registry,
        ids: TokenIdReader,
        policy: KvAheadPolicy,
    ) -> None:
        self._table = table
        self._dispatch = dispatch
        self._registry = registry
        self._ids = ids
        self._policy = policy

    def tick(self, now: float) -> None:
        """Call it some ten times a second."""
        if not self._policy.enabled:
            return
        due = [
            session
            for stream in self._dispatch.streams
            for session in self._table.replica_sessions(stream)
            if self._is_due(session)
        ]
        for session in nsmallest(MAX_PER_TICK, due, key=lambda session: session.standby_at):
            session.standby_at = now
            self._look(session, now)

    def _is_due(self, session: RelayedSession) -> bool:
        if session.state is not SessionState.STREAMING or session.replay is None:
            return False
        replica = self._registry.find(session.replica)
        model = replica.model if replica is not None else None
        # Sessions without a salt share nothing, not even with themselves elsewhere.
        if model is None or not model.block_tokens or not session.open_frame.open.cache_salt:
            return False
        num_new = _num_tokens(session) - session.standby_tokens
        return num_new >= max(1, model.block_tokens // 2) and not session.request.is_background

    def _look(self, session: RelayedSession, now: float) -> None:
        request = self._dispatch.request_of(session)
        decision = self._decide(session, request, now)
        if decision is None or decision.replica == session.replica:
            return
        session.standby_tokens = _num_tokens(session)
        source = decision.kv_source
        holder = self._registry.find(source.replica) if source is not None else None
        standby = self._registry.find(decision.replica)
        if source is None or holder is None or standby is None or request.prompt is None:
            return  # it has what there is
        session.standby = decision.replica
        if holder.is_busy or standby.is_busy:
            return
        digest = session.open_frame.open.vocabulary_digest
        keep = inference_pb2.KeepKv(
            vocabulary_digest=digest,
            cache_salt=frames.kv_salt(session.open_frame.open),
            ids=common_pb2.TokenBlock(
                codec=_VARINT,
                count=request.prompt.num_tokens,
                payload=self._ids.write(TokenCodec.VARINT, request.prompt.ids, digest),
            ),
            kv_holder=inference_pb2.KvHolder(
                replica=holder.name,
                region=holder.region,
                address=holder.address,
                num_tokens=source.num_tokens,
            ),
        )
        self._dispatch.hint(decision.replica, Up(session=session.upstream_session_id, keep_kv=keep))

    def _decide(
        self, session: RelayedSession, request: SessionRequest, now: float
    ) -> Decision | None:
        """Where it would go; as before, if that is possible, because of what is there already."""
        others = {replica.name for replica in self._registry} - {session.standby}
        for exclude in (others, {session.replica}):
            try:
                return self._dispatch.decide(request, now, exclude | {session.replica})
            except OutriderError:
                continue
        return None


def _num_tokens(session: RelayedSession) -> int:
    return session.request.prompt_tokens + session.num_committed
