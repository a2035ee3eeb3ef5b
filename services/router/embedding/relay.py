"""The shell of requests for vectors: a call to every replica that has inputs of one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Any, Final

import grpc.aio
import structlog

from outrider.cost import Cost
from outrider.errors import (
    InvalidRequestError,
    MalformedFrameError,
    OutriderError,
    UnavailableError,
    UnknownModelError,
)
from outrider.fair_work.places import FairPlaces
from outrider.rpc import discarded, incoming, make_channel
from outrider.session.types import Usage
from outrider.telemetry.refusals import RefusalLog
from outrider.tls import PLAINTEXT, Role, Tls
from outrider.v1 import embedding_pb2, embedding_pb2_grpc
from outrider.wire import (
    check_at_once,
    error_to_proto,
    requester_from_proto,
    set_cost,
    usage_to_proto,
)
from services.router.admission.admission import Admission
from services.router.admission.pricing import PriceTable
from services.router.embedding.calls import MAX_CALLS, Call, CallAtOnce, CallInFrames, Peer
from services.router.embedding.machine import (
    EmbeddingFleet,
    Failed,
    NewInput,
    RequestMachine,
    Send,
    Step,
)
from services.router.fleet.registry import Registry
from services.router.fleet.replica import Replica

_MAX_WAITING: Final = 64
"""Answers that wait for an edge; beyond it no more inputs are read of it."""

_log = structlog.get_logger()


class EmbeddingRelay:
    """All requests for vectors of one router."""

    def __init__(
        self,
        fleet: EmbeddingFleet,
        admission: Admission,
        prices: PriceTable,
        *,
        clock: Callable[[], float],
        max_message_bytes: int,
        tls: Tls = PLAINTEXT,
    ) -> None:
        self.fleet = fleet
        self.admission = admission
        self.prices = prices
        self.clock = clock
        self.refused = RefusalLog("embeddings")
        self._max_message_bytes = max_message_bytes
        self._tls = tls
        self._peers: dict[str, Peer] = {}
        """By address."""
        self._material = tls.current
        self._tasks: set[asyncio.Future[None]] = set()
        self.num_requests = 0
        """Under way."""

    def peer(self, replica: Replica) -> Peer:
        """The way to a replica; connections to those that are gone are closed, and all of them when
        this router's certificate is another one."""
        known = {it.address for it in self.fleet.registry}
        is_renewed = self._tls.current is not self._material
        for address in [it for it in self._peers if is_renewed or it not in known]:
            self._closing(self._peers.pop(address).channel)
        self._material = self._tls.current
        peer = self._peers.get(replica.address)
        if peer is None:
            channel = make_channel(
                replica.address,
                tls=self._tls,
                role=Role.INFERENCE,
                region=replica.region,
                max_message_bytes=self._max_message_bytes,
            )
            stub = embedding_pb2_grpc.EmbeddingServiceStub(channel)
            peer = self._peers[replica.address] = Peer(
                channel, stub, FairPlaces(MAX_CALLS, MAX_CALLS)
            )
        return peer

    async def close(self) -> None:
        """End all connections."""
        peers, self._peers = self._peers, {}
        for peer in peers.values():
            await peer.channel.close()

    def _closing(self, channel: grpc.aio.Channel) -> None:
        task = asyncio.ensure_future(channel.close(1.0))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class EmbeddingRouterService(embedding_pb2_grpc.EmbeddingRouterServiceServicer):
    """Embed, for edges."""

    def __init__(self, relay: EmbeddingRelay, *, serving: Callable[[], bool]) -> None:
        self._relay = relay
        self._serving = serving

    async def Embed(
        self, request_iterator: Any, context: Any
    ) -> AsyncIterator[embedding_pb2.EmbedResponse]:
        frames = incoming(request_iterator)
        relayed: _Relayed | None = None
        try:
            if not self._serving():
                raise UnavailableError("this router is shutting down; ask another")
            relayed = _Relayed(self._relay, await _opened(frames))
            reader = asyncio.create_task(relayed.read(frames))
            try:
                while (answer := await relayed.next(reader)) is not None:
                    yield answer
            finally:
                reader.cancel()
                await asyncio.gather(reader, return_exceptions=True)
        except OutriderError as error:
            self._relay.refused.note(error.reason)
            yield embedding_pb2.EmbedResponse(error=error_to_proto(error))
            if relayed is not None:
                await relayed.close()
            await discarded(frames)
        finally:
            if relayed is not None:
                await relayed.close()

    async def EmbedAtOnce(
        self, request: embedding_pb2.EmbedAtOnceRequest, context: Any
    ) -> embedding_pb2.EmbedAtOnceResponse:
        answers: list[embedding_pb2.EmbedResponse] = []
        relayed: _Relayed | None = None
        try:
            if not self._serving():
                raise UnavailableError("this router is shutting down; ask another")
            check_at_once(request)
            relayed = _Relayed(self._relay, request.open)
            relayed.take(request.inputs)
            while (answer := await relayed.rest()) is not None:
                answers.append(answer)
        except OutriderError as error:
            self._relay.refused.note(error.reason)
            answers.append(embedding_pb2.EmbedResponse(error=error_to_proto(error)))
        finally:
            if relayed is not None:
                await relayed.close()
        return embedding_pb2.EmbedAtOnceResponse(answers=answers)


class _Relayed:
    """One request: what its machine answers is carried out."""

    def __init__(self, relay: EmbeddingRelay, opened: embedding_pb2.OpenEmbed) -> None:
        self._relay = relay
        self._is_one_part = False
        """Whether all its inputs are there, and placed together: no two calls of it go to one
        replica at once."""
        self._opened = opened
        self.requester = requester_from_proto(opened.requester, opened.tenant)
        model = opened.model or _only_model(relay.fleet.registry)
        self._machine = RequestMachine(relay.fleet, model, tuple(opened.residency))
        self._calls: dict[str, Call] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._answers: asyncio.Queue[embedding_pb2.EmbedResponse | None] = asyncio.Queue()
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._began_at = relay.clock()
        self._reserved_tokens = max(1, opened.estimated_tokens)
        self._reservation = relay.admission.tenants.open(
            opened.tenant, self._reserved_tokens, self._began_at
        )
        relay.num_requests += 1
        self._is_closed = self._is_accounted = False
        if opened.deadline_ms:
            self._deadline_at: float | None = self._began_at + opened.deadline_ms / 1e3
        else:
            self._deadline_at = None

    async def next(self, reader: asyncio.Task[None]) -> embedding_pb2.EmbedResponse | None:
        """The next answer; None behind the last. Raises OutriderError."""
        getting = asyncio.ensure_future(self._answers.get())
        try:
            await asyncio.wait({getting, reader}, return_when=asyncio.FIRST_COMPLETED)
            if not getting.done() and reader.done():
                reader.result()  # raises what is wrong with the frames
            answer = await getting
        finally:
            getting.cancel()
        if self._answers.qsize() <= _MAX_WAITING:
            self._has_room.set()
        return answer

    def take(self, inputs: Sequence[embedding_pb2.EmbedInput]) -> None:
        """Take all inputs of the request at once. Raises OutriderError."""
        self._is_one_part = len(inputs) <= self._relay.fleet.policy.part_inputs
        self._do(self._machine.add([_new_input(given) for given in inputs], self._relay.clock()))
        self._do(self._machine.no_more_inputs())

    async def rest(self) -> embedding_pb2.EmbedResponse | None:
        """The next answer where all inputs are there; None behind the last."""
        return await self._answers.get()

    async def read(self, frames: AsyncIterator[embedding_pb2.EmbedRequest]) -> None:
        """Take what the edge sends. Raises OutriderError."""
        async for frame in frames:
            await self._has_room.wait()
            kind = frame.WhichOneof("kind")
            if kind == "inputs":
                inputs = [_new_input(given) for given in frame.inputs.inputs]
                self._do(self._machine.add(inputs, self._relay.clock()))
            else:
                raise MalformedFrameError("a request is opened once, and inputs follow")
        self._do(self._machine.no_more_inputs())

    async def close(self) -> None:
        """The request is over, or its edge is gone."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        tasks = [call.task for call in self._calls.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._account()
        self._machine.close()
        self._relay.num_requests -= 1

    def _account(self) -> None:
        """Charge the tenant, once: before the last frame, so that its receiver may ask for the
        unused tokens."""
        if self._is_accounted:
            return
        self._is_accounted = True
        machine, relay, now = self._machine, self._relay, self._relay.clock()
        relay.fleet.stats.ended(machine.model, is_done=machine.is_done)
        admission, tenant = relay.admission, self._opened.tenant
        admission.tenants.close(
            tenant,
            self._reservation,
            # Below 0: the estimate was too low, and the tenant is charged for what it had.
            unused_tokens=self._reserved_tokens - machine.num_tokens,
            duration_s=now - self._began_at,
            now=now,
        )
        label = admission.tenants.label(tenant)
        admission.stats.sessions[label, "admitted"] += 1
        admission.stats.tokens[(label,)] += machine.num_tokens
        cost = self._cost()
        if cost is not None and cost.amount_nanos:  # else the model may be no replica's
            admission.stats.costs_nanos[label, machine.model] += cost.amount_nanos

    def opening(self) -> embedding_pb2.OpenEmbed:
        """First message of a call to a replica."""
        opened = embedding_pb2.OpenEmbed()
        opened.CopyFrom(self._opened)
        opened.model = self._machine.model
        opened.model_identity = self._machine.identity
        if self._deadline_at is not None:
            opened.deadline_ms = max(1, int((self._deadline_at - self._relay.clock()) * 1e3))
        return opened

    # What comes back.

    def answered(self, replica: str, answer: embedding_pb2.EmbedResponse) -> None:
        """A replica answers some inputs."""
        if answer.HasField("failed"):
            steps = self._machine.failed_at(replica, answer.failed.id)
        else:
            told = answer.vectors
            if len(told.num_tokens) != len(told.ids):
                raise MalformedFrameError(f"the replica {replica} does not count all tokens")
            num_tokens = sum(told.num_tokens)
            steps = self._machine.answered(replica, told.ids, num_tokens, self._relay.clock())
        self._put(answer)
        self._do(steps)

    def lost(self, replica: str, why: OutriderError, *, had_them: bool) -> None:
        """A replica's call has ended before all inputs were answered."""
        self._calls.pop(replica, None)
        steps = self._machine.lost(replica, self._relay.clock(), had_them=had_them)
        if steps:
            _log.info("embeddings_moved", replica=replica, why=why.message)
        self._do(steps)

    def refused(self, replica: str, error: OutriderError) -> None:
        """A replica does not take the request: nor would another one."""
        self._calls.pop(replica, None)
        self._do(self._machine.refused(replica, error))

    # What is to be done.

    def _do(self, steps: Iterable[Step]) -> None:
        for step in steps:
            if isinstance(step, Send):
                self._send(step)
            elif isinstance(step, Failed):
                failed = embedding_pb2.InputFailed(id=step.number, error=error_to_proto(step.error))
                self._put(embedding_pb2.EmbedResponse(failed=failed))
            else:
                self._account()
                self._put(self._done())
                self._answers.put_nowait(None)
        retry_at = self._machine.retry_at
        if retry_at is not None and self._timer is None and not self._is_closed:
            delay_s = max(0.0, retry_at - self._relay.clock())
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._do(self._machine.tick(self._relay.clock()))

    def _send(self, step: Send) -> None:
        name = step.replica.name
        peer = self._relay.peer(step.replica)
        inputs = [embedding_pb2.EmbedInput.FromString(each.frame) for each in step.inputs]
        if self._is_one_part and peer.is_connected:
            self._calls[name] = CallAtOnce(self, name, peer, inputs)
            return
        call = self._calls.get(name)
        if not isinstance(call, CallInFrames):
            call = self._calls[name] = CallInFrames(self, name, peer)
        call.send(embedding_pb2.EmbedRequest(inputs=embedding_pb2.EmbedInputs(inputs=inputs)))

    def _put(self, answer: embedding_pb2.EmbedResponse) -> None:
        self._answers.put_nowait(answer)
        if self._answers.qsize() > _MAX_WAITING:
            self._has_room.clear()

    def _done(self) -> embedding_pb2.EmbedResponse:
        machine = self._machine
        usage = usage_to_proto(Usage(prompt_tokens=machine.num_tokens))
        set_cost(usage, self._cost())
        done = embedding_pb2.EmbedDone(
            model=machine.model, usage=usage, model_identity=machine.identity
        )
        return embedding_pb2.EmbedResponse(done=done)

    def _cost(self) -> Cost | None:
        machine = self._machine
        return self._relay.prices.cost(self._opened.tenant, machine.model, machine.num_tokens, 0)


def _new_input(given: embedding_pb2.EmbedInput) -> NewInput:
    num_bytes = len(given.text.encode()) if given.HasField("text") else len(given.ids)
    return NewInput(given.id, given.SerializeToString(), num_bytes)


def _only_model(registry: Registry) -> str:
    """Name of the model for a request that names none. Raises UnknownModelError,
    InvalidRequestError."""
    found = sorted({it.model.name for it in registry if it.model and it.model.dimensions})
    if not found:
        raise UnknownModelError("no replica here embeds texts")
    if len(found) > 1:
        raise InvalidRequestError(f"several models embed here; name one of {', '.join(found)}")
    return found[0]


async def _opened(frames: AsyncIterator[embedding_pb2.EmbedRequest]) -> embedding_pb2.OpenEmbed:
    async for frame in frames:
        if frame.WhichOneof("kind") == "open":
            return frame.open
        break
    raise MalformedFrameError("a request begins with its open")
