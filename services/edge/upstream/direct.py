"""Commits straight from replicas: a stream to each replica that has sessions of this edge, and the
sessions on it (docs/guides/direct-path.md)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from random import Random
from typing import TYPE_CHECKING, Final, NoReturn

import grpc.aio
import structlog

from outrider.errors import OutriderError, UnavailableError
from outrider.peers.jobs import until_one_fails
from outrider.rpc import (
    LOSSES,
    Outbox,
    end_call,
    loss_text,
    make_channel,
    outgoing,
    received,
    until_distrusted,
)
from outrider.telemetry.families import Family
from outrider.telemetry.metrics import Metrics
from outrider.tls import PLAINTEXT, Role, Tls
from outrider.v1 import direct_pb2, direct_pb2_grpc, inference_pb2
from services.edge.upstream.retry_times import RetryTimes
from services.edge.upstream.switch_over import (
    PathAction,
    PathInput,
    PathState,
    PathStep,
    SwitchOver,
)

if TYPE_CHECKING:
    from services.edge.upstream.link import Sink

DIRECT_SESSIONS: Final = Family(
    "outrider_edge_direct_sessions",
    "Sessions whose commits were to come from the replica itself, by what came of it.",
)
MAX_LINKS: Final = 64
"""Replicas that send commits to this process; sessions on others stay with their routers."""
VERDICT_S: Final = 1.0
"""Time that a router gets to say what became of a session whose stream from its replica broke."""
_FRAMES_PER_TURN: Final = 64
_DETACHING: Final = frozenset(
    {
        PathAction.DETACH,
        PathAction.PASS_DETACHED,
        PathAction.PASS_WITH_END,
        PathAction.AWAIT,
        PathAction.LOSE,
    }
)

log = structlog.get_logger()

_AttachCall = grpc.aio.StreamStreamCall[direct_pb2.AttachRequest, direct_pb2.AttachResponse]


class DirectSession:
    """One session, between what its router and its replica send and the chat that wants it once, in
    order. A Sink of its router's link."""

    def __init__(self, sink: Sink, paths: DirectPaths, cancel: Callable[[], None]) -> None:
        """`cancel` ends the session at its router."""
        self._sink = sink
        self._paths = paths
        self._cancel = cancel
        self._switch: SwitchOver[inference_pb2.SessionDown] = SwitchOver()
        self._link: DirectLink | None = None
        """The stream that it is attached to."""
        self._number = 0
        """Its number there."""
        self._verdict: asyncio.TimerHandle | None = None
        self._is_closed = False
        self.went_direct = False
        """Whether commits came that its router has not seen."""

    @property
    def is_direct(self) -> bool:
        """Whether drafts go straight to the replica."""
        return self._switch.state is PathState.DIRECT

    # --- from its router ---

    def region_frame(self, frame: inference_pb2.SessionDown) -> None:
        """A frame came through the router."""
        kind = frame.WhichOneof("kind")
        if kind == "commit":
            self._do(self._switch.relayed_commit(frame, frame.commit.upto))
        elif kind == "done":
            self._do(self._switch.done(frame, frame.done.upto))
        elif kind == "direct":
            self._apply(PathInput.SWITCHED)
        elif kind == "error":
            self._apply(PathInput.ERROR, frame)
        elif kind == "moved":
            self._apply(PathInput.MOVED, frame)
            self._grant(frame.moved.direct, frame.moved.region)
        else:
            self._sink.region_frame(frame)
            if kind == "opened":
                self._grant(frame.opened.direct, frame.opened.region)

    def region_lost(self, error: OutriderError) -> None:
        """The router is lost, and the session with it."""
        self.close()
        self._sink.region_lost(error)

    # --- from its replica ---

    def direct_frame(self, frame: inference_pb2.SessionDown) -> None:
        """A frame came from the replica."""
        if frame.HasField("commit"):
            self._do(self._switch.direct_commit(frame, frame.commit.upto))
        elif frame.HasField("error"):
            self._apply(PathInput.REFUSED)

    def direct_lost(self) -> None:
        """The stream from the replica broke, or could not be opened."""
        self._apply(PathInput.LOST)

    # --- from its chat ---

    def draft(self, frame: inference_pb2.SessionUp) -> bool:
        """Send drafts to the replica; False if they were dropped."""
        return self._link is not None and self._link.draft(self._number, frame)

    def close(self) -> None:
        """The chat needs nothing more."""
        self._is_closed = True
        self._detach()

    # --- carrying out ---

    def _grant(self, grant: inference_pb2.DirectGrant, region: str) -> None:
        if self._is_closed or not grant.ticket or self._switch.state is not PathState.RELAYED:
            return
        link = self._paths.link(grant.address, region)
        if link is not None and (number := link.attach(self, grant.ticket)):
            self._link, self._number = link, number
            self._apply(PathInput.GRANTED)

    def _no_verdict(self) -> None:
        self._apply(PathInput.NO_VERDICT)

    def _apply(self, event: PathInput, frame: inference_pb2.SessionDown | None = None) -> None:
        before = self._switch.state
        step = self._switch.apply(event, frame)
        self.went_direct |= self.is_direct
        self._paths.count(before, event)
        self._do(step)

    def _do(self, step: PathStep[inference_pb2.SessionDown]) -> None:
        action = step.action
        if action in _DETACHING:
            self._detach()
        for frame in step.frames:
            if not self._is_closed:
                self._sink.region_frame(frame)
        if action is PathAction.AWAIT:
            loop = asyncio.get_running_loop()
            self._verdict = loop.call_later(VERDICT_S, self._no_verdict)
        elif action is PathAction.LOSE and not self._is_closed:
            self._cancel()
            self._sink.region_lost(UnavailableError("the replica's stream of commits was lost"))

    def _detach(self) -> None:
        if self._verdict is not None:
            self._verdict.cancel()
            self._verdict = None
        link, self._link = self._link, None
        if link is not None:
            link.forget(self._number)


class DirectLink:
    """The stream of one replica, from its first session until it breaks."""

    def __init__(
        self,
        address: str,
        region: str,
        *,
        max_queued_frames: int,
        connect_s: float,
        tls: Tls,
        gone: Callable[[DirectLink], None],
    ) -> None:
        """`gone` is called when it has broken, or could not be opened."""
        self.address = address
        self.began_s = asyncio.get_running_loop().time()
        self._region = region
        self._connect_s = connect_s
        self._tls = tls
        self._gone = gone
        self._outbox: Outbox[inference_pb2.SessionUp] = Outbox(max_queued_frames)
        self._sessions: dict[int, DirectSession] = {}
        self._last_number = 0
        self._task = asyncio.create_task(self._run(), name=f"direct {address}")

    @property
    def num_sessions(self) -> int:
        """Sessions attached, or to be attached."""
        return len(self._sessions)

    def attach(self, session: DirectSession, ticket: bytes) -> int:
        """Ask for the commits of a session; its number here, or 0 if too many frames wait."""
        number = self._last_number + 1
        attach = inference_pb2.AttachSession(ticket=ticket)
        if not self._outbox.offer(inference_pb2.SessionUp(session=number, attach=attach)):
            return 0
        self._last_number = number
        self._sessions[number] = session
        return number

    def draft(self, number: int, frame: inference_pb2.SessionUp) -> bool:
        """Queue drafts of a session; False if they were dropped."""
        frame.session = number
        return self._outbox.offer(frame)

    def forget(self, number: int) -> None:
        """A session needs nothing more from here."""
        self._sessions.pop(number, None)

    async def close(self) -> None:
        """End the stream; its sessions are told."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        why = "the edge leaves it"
        try:
            await self._serve()
        except LOSSES as failure:
            why = loss_text(failure)
            log.warning("direct_stream_lost", replica=self.address, why=why)
        except Exception:
            log.exception("direct_stream_failed", replica=self.address)
        finally:
            self._outbox.close()
            self._gone(self)
            sessions, self._sessions = self._sessions, {}
            for session in sessions.values():
                session.direct_lost()

    async def _serve(self) -> NoReturn:
        async with make_channel(
            self.address, tls=self._tls, role=Role.INFERENCE, region=self._region
        ) as channel:
            stub: direct_pb2_grpc.DirectServiceAsyncStub
            stub = direct_pb2_grpc.DirectServiceStub(channel)
            with ExitStack() as ending:
                async with asyncio.timeout(self._connect_s):
                    call = stub.Attach(outgoing(self._outbox, direct_pb2.AttachRequest.FromString))
                    # Closing the channel does not end every call (grpc/grpc issue 42125).
                    ending.callback(end_call, call)
                    await call.wait_for_connection()
                await until_one_fails(self._read(call), self._distrust())

    async def _read(self, call: _AttachCall) -> NoReturn:
        async for frames in received(call, _FRAMES_PER_TURN):
            self._take(frames)
        raise UnavailableError("it ended the stream")

    def _take(self, frames: list[inference_pb2.SessionDown]) -> None:
        # Apart from the loop that reads, which would keep the last ones until others come.
        for frame in frames:
            session = self._sessions.get(frame.session)
            if session is not None:
                session.direct_frame(frame)

    async def _distrust(self) -> NoReturn:
        await until_distrusted(
            self.address, tls=self._tls, role=Role.INFERENCE, region=self._region
        )


class DirectPaths:
    """The streams to replicas of one edge process."""

    def __init__(
        self,
        metrics: Metrics,
        *,
        max_queued_frames: int,
        rng: Random,
        connect_s: float = 5.0,
        tls: Tls = PLAINTEXT,
    ) -> None:
        """`max_queued_frames` may wait for a replica; an attempt to reach one takes `connect_s` at
        most. `rng`: spreads attempts over time."""
        self._counter = metrics.counter(DIRECT_SESSIONS)
        self._max_queued_frames = max_queued_frames
        self._connect_s = connect_s
        self._tls = tls
        self._links: dict[str, DirectLink] = {}
        """By address."""
        self._rng = rng
        self._retry_times = RetryTimes()

    def __len__(self) -> int:
        return len(self._links)

    def wrap(self, sink: Sink, cancel: Callable[[], None]) -> DirectSession:
        """A session that may come to go straight to its replica."""
        return DirectSession(sink, self, cancel)

    def link(self, address: str, region: str) -> DirectLink | None:
        """The stream to a replica, maybe still on its way there; None: not now."""
        found = self._links.get(address)
        if found is not None:
            return found
        now = asyncio.get_running_loop().time()
        if len(self._links) >= MAX_LINKS or not self._retry_times.may_try(address, now):
            return None
        made = DirectLink(
            address,
            region,
            max_queued_frames=self._max_queued_frames,
            connect_s=self._connect_s,
            tls=self._tls,
            gone=self._lost,
        )
        self._links[address] = made
        return made

    def count(self, state: PathState, event: PathInput) -> None:
        """This happened to a session in this state."""
        result = _RESULTS.get((state, event))
        if result:
            self._counter.add(1, {"result": result})

    async def stop(self) -> None:
        """End every stream."""
        for link in list(self._links.values()):
            await link.close()

    def _lost(self, link: DirectLink) -> None:
        del self._links[link.address]
        now = asyncio.get_running_loop().time()
        lasted_s, jitter = now - link.began_s, self._rng.uniform(0.5, 1.0)
        self._retry_times.lost(link.address, now, lasted_s=lasted_s, jitter=jitter)


_RESULTS: Final = {
    (PathState.SWITCHING, PathInput.SWITCHED): "direct",
    (PathState.SWITCHING, PathInput.REFUSED): "refused",
    (PathState.SWITCHING, PathInput.LOST): "unreachable",
    (PathState.RELAYED, PathInput.SWITCHED): "lost",
    (PathState.DIRECT, PathInput.LOST): "lost",
    (PathState.ENDING, PathInput.LOST): "lost",
}
