"""The switch's side towards the replicas: which stream is whose, and who gets a session."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from outrider.errors import NoReplicaError, OutriderError
from outrider.v1 import inference_pb2, router_pb2
from services.router.fleet.registry import Registry
from services.router.placement.placement import Placement
from services.router.placement.request import Decision, Request
from services.router.relay import assignment
from services.router.relay.journal import Journal
from services.router.relay.sessions import Session, SessionTable

if TYPE_CHECKING:
    from outrider.rpc import Outbox

Up = router_pb2.RouteRequest


class Dispatch:
    """Open replica streams, and placement onto them."""

    def __init__(
        self,
        table: SessionTable[Up],
        registry: Registry,
        journal: Journal,
        placement: Placement,
        prompts: assignment.Prompts,
    ) -> None:
        self._table = table
        self._registry = registry
        self._journal = journal
        self._placement = placement
        self._prompts = prompts
        self._outboxes: dict[int, Outbox[Up]] = {}
        self._stream_of: dict[str, int] = {}
        self._name_of: dict[int, str] = {}
        self._decided_ms = 0.0

    def attach(self, replica: str, outbox: Outbox[Up]) -> int:
        """A replica's stream is up."""
        stream = self._table.attach_stream()
        self._outboxes[stream] = outbox
        self._stream_of[replica] = stream
        self._name_of[stream] = replica
        return stream

    def detach(self, replica: str, stream: int) -> None:
        """A replica's stream broke."""
        del self._outboxes[stream], self._stream_of[replica], self._name_of[stream]

    def send(self, stream: int, request: Up, *, last: bool) -> bool:
        """Queue a frame; False if that replica's buffer is full."""
        return self._outboxes[stream].offer(request, last=last)

    def cancel(self, stream: int | None, leg: int, error: OutriderError) -> None:
        """Tell the replica that had a session to stop, if its stream is still there."""
        outbox = self._outboxes.get(stream) if stream is not None else None
        if outbox is not None:
            cancel = inference_pb2.CancelSession(reason=error.reason)
            outbox.offer(Up(frame=inference_pb2.SessionUp(session=leg, cancel=cancel)), last=True)

    def release(self, session: Session[Up]) -> None:
        """A session left the replica it was on."""
        self._registry.release(session.replica, session.relayed)
        self._placement.release(session.relayed)

    @property
    def streams(self) -> list[int]:
        """Those of all replicas that are up."""
        return list(self._name_of)

    def replica_of(self, stream: int) -> str:
        """Whose stream it is."""
        return self._name_of[stream]

    def place(self, session: Session[Up], now: float, refusal: OutriderError | None = None) -> None:
        """Find a replica and send it the open and the kept drafts.

        `refusal` is why the replica before did not do. Raises what `find` raises, or `refusal`
        where no other replica is left.
        """
        unable = set(session.tried)
        try:
            while not self.put(session, found := self.find(session, now, frozenset(unable)), now):
                unable.add(found.replica)
                refusal = refusal or assignment.full(found.replica)
        except NoReplicaError as error:
            # That no other replica is left explains less than what the first one said.
            raise refusal or error from None

    def find(
        self, session: Session[Up], now: float, exclude: frozenset[str] = frozenset()
    ) -> Decision:
        """Where the session should go; nothing is done yet. Raises what `Placement.decide` raises,
        EmptyPromptError, DeadlineError."""
        assert session.open is not None, "a session that is placed has its open"
        assignment.renew_deadline(session.open, session.deadline_at, now)
        return self.decide(replace(self.request_of(session), exclude=exclude), now)

    def decide(self, request: Request, now: float) -> Decision:
        """As `Placement.decide`, with the time it takes."""
        started_s = self._journal.clock()
        decision = self._placement.decide(request, now)
        self._decided_ms = (self._journal.clock() - started_s) * 1000.0
        return decision

    def request_of(self, session: Session[Up]) -> Request:
        """What placement has to know of a session. Raises EmptyPromptError."""
        return assignment.request_of(session, self._prompts)

    def put(self, session: Session[Up], decision: Decision, now: float) -> bool:
        """Send the open and the kept drafts; False if that replica's buffer is full."""
        name = decision.replica
        stream = self._stream_of[name]
        request = self.request_of(session)
        if not self.send(stream, assignment.opening_of(session), last=False):
            return False
        self._table.bind(session, stream, name, now)
        for draft in session.kept:
            draft.frame.session = session.leg
            self.send(stream, draft, last=False)
        self._registry.place(name, session.relayed, now)
        self._placement.put(session.relayed, request, decision, now)
        self._journal.placed(session.relayed, request, decision, self._decided_ms, now)
        return True
