"""A router's calls to replicas, each for one request for vectors."""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, Protocol

import grpc
import grpc.aio
import structlog

from outrider.errors import (
    CancelledError,
    OutriderError,
    UnavailableError,
    UnknownModelError,
    VocabularyMismatchError,
)
from outrider.fair_work.places import FairPlaces
from outrider.fair_work.turns import Requester
from outrider.rpc import LOSSES, end_call, loss_reason
from outrider.v1 import embedding_pb2, embedding_pb2_grpc
from outrider.wire import error_from_proto

_log = structlog.get_logger()
_LOST: Final = (
    UnavailableError,
    VocabularyMismatchError,
    UnknownModelError,
    CancelledError,  # by nobody here: a server that ends says so of calls that it has just taken
)
"""Errors of a replica that cannot continue or now serves something else: its inputs go
elsewhere."""
MAX_CALLS: Final = 512
"""To one replica at a time; further ones wait for their turns. What a connection has beyond the
streams that the server allows (outrider.rpc.server.MAX_STREAMS) gRPC may refuse as if the
connection had broken."""


class Peer(NamedTuple):
    """The way to one replica."""

    channel: grpc.aio.Channel
    stub: embedding_pb2_grpc.EmbeddingServiceAsyncStub
    places: FairPlaces
    """One for each call under way."""

    @property
    def is_connected(self) -> bool:
        """Whether a call that begins now reaches it."""
        return self.channel.get_state() is grpc.ChannelConnectivity.READY


class Caller(Protocol):
    """The request that a call is for."""

    requester: Requester
    """Whose request it is."""

    def opening(self) -> embedding_pb2.OpenEmbed:
        """First message of a call to a replica."""

    def answered(self, replica: str, answer: embedding_pb2.EmbedResponse) -> None:
        """A replica answers some inputs. Raises MalformedFrameError."""

    def lost(self, replica: str, why: OutriderError, *, had_them: bool) -> None:
        """A replica's call has ended before all inputs were answered."""

    def refused(self, replica: str, error: OutriderError) -> None:
        """A replica does not take the request: nor would another one."""


class Call(ABC):
    """A call to one replica, for one request. It ends with an error: where every input was answered
    before, that is no loss."""

    def __init__(self, caller: Caller, name: str, peer: Peer) -> None:
        self._caller = caller
        self._name = name
        self._peer = peer
        self._is_connected = False
        self.task = asyncio.create_task(self._run())

    @abstractmethod
    async def _exchange(self) -> None:
        """Ask, and pass answers on. Raises what ends the call."""

    async def _run(self) -> None:
        try:
            async with self._peer.places.held(self._caller.requester):
                await self._exchange()
        except asyncio.CancelledError:
            if self.task.cancelling():
                raise
            # Not this task: the call, as its channel was closed for a renewed certificate.
            self._lose(UnavailableError("its connection was closed"))
        except LOSSES as loss:
            self._lose(loss)
        except Exception as defect:
            _log.exception("embedding_relay_failed", replica=self._name)
            self._caller.refused(
                self._name, OutriderError(f"the router failed: {type(defect).__name__}")
            )

    def _lose(self, loss: Exception) -> None:
        reason = loss_reason(loss)
        is_answer = isinstance(reason, OutriderError) and type(reason) is not OutriderError
        if is_answer and not isinstance(reason, _LOST):
            assert isinstance(reason, OutriderError), "it is an answer"
            self._caller.refused(self._name, reason)
        else:
            why = UnavailableError(str(reason) or type(reason).__name__)
            self._caller.lost(self._name, why, had_them=self._is_connected)

    def _take(self, answer: embedding_pb2.EmbedResponse) -> None:
        if answer.HasField("error"):
            raise error_from_proto(answer.error)
        if answer.HasField("done"):
            raise UnavailableError(f"the replica {self._name} ended its answer")
        self._caller.answered(self._name, answer)


class CallInFrames(Call):
    """Frames both ways."""

    def __init__(self, caller: Caller, name: str, peer: Peer) -> None:
        self._outbox: asyncio.Queue[embedding_pb2.EmbedRequest] = asyncio.Queue()
        self._outbox.put_nowait(embedding_pb2.EmbedRequest(open=caller.opening()))
        super().__init__(caller, name, peer)

    def send(self, frame: embedding_pb2.EmbedRequest) -> None:
        """Queue a frame; as many as the request has inputs at most."""
        self._outbox.put_nowait(frame)

    async def _exchange(self) -> None:
        call: Any = self._peer.stub.Embed()
        writer = asyncio.create_task(self._write(call))
        try:
            await call.wait_for_connection()
            self._is_connected = True
            async for answer in call:
                self._take(answer)
            raise UnavailableError(f"the replica {self._name} ended its answer")
        finally:
            writer.cancel()
            end_call(call)
            await asyncio.gather(writer, return_exceptions=True)

    async def _write(self, call: Any) -> None:
        # What is wrong with the call is told by its answers.
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            while True:
                await call.write(await self._outbox.get())


class CallAtOnce(Call):
    """One message each way."""

    def __init__(
        self,
        caller: Caller,
        name: str,
        peer: Peer,
        inputs: Sequence[embedding_pb2.EmbedInput],
    ) -> None:
        self._request = embedding_pb2.EmbedAtOnceRequest(open=caller.opening(), inputs=inputs)
        super().__init__(caller, name, peer)

    async def _exchange(self) -> None:
        self._is_connected = True  # or it were a stream
        for answer in (await self._peer.stub.EmbedAtOnce(self._request)).answers:
            self._take(answer)
        raise UnavailableError(f"the replica {self._name} ended its answer")
