"""Gets vectors of texts from a router; if it is lost, another router is asked."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import grpc.aio
import numpy as np
import numpy.typing as npt

from outrider.codec.vectors import VectorFormat, unpacked
from outrider.cost import Cost
from outrider.errors import MalformedFrameError, OutriderError, PeerFaultError, UnavailableError
from outrider.fair_work.turns import ANYBODY, Requester
from outrider.rpc import LOSSES, end_call, loss_reason
from outrider.session.types import Priority
from outrider.v1 import embedding_pb2, embedding_pb2_grpc
from outrider.wire import (
    MAX_AT_ONCE_INPUTS,
    cost_of,
    error_from_proto,
    priority_to_proto,
    requester_to_proto,
)
from services.edge.upstream.link import RouterLink
from services.edge.upstream.pool import RouterPool

MAX_ATTEMPTS: Final = 3
"""Most routers that are asked, one after the other."""
_MAX_FRAME_INPUTS: Final = 256
_MAX_FRAME_BYTES: Final = 1 << 20
"""Most bytes of texts in one message; a single longer text has a message of its own."""
_BYTES_PER_TOKEN: Final = 3
_AGAIN_S: Final = 0.1
"""Time between two attempts to find a router, while none can be reached."""

MAX_CALLS_IN_ALL: Final = 768
"""Most calls of all tenants at once: gRPC may refuse calls beyond the streams that the server
allows (outrider.rpc.server.MAX_STREAMS) as if the connection had broken."""
MAX_CALLS: Final = 256
"""Most calls of one origin at once. Thousands of calls that begin together keep a router busy for
seconds, in which it answers no one; this many are enough for full engine calls."""
MAX_ASKING: Final = 16_384
"""Most requests that are under way or wait for a call, of all origins; a further one is refused if
its origin has its part of them, and may be retried. Their texts count towards the memory for what
clients sent."""

Content = str | bytes
"""A text, or token ids as little-endian u32."""


@dataclass(frozen=True, slots=True)
class EmbeddingQuery:
    """A client's request for vectors."""

    request_id: str
    model: str
    inputs: Sequence[Content]
    tenant: str
    priority: Priority
    residency: Sequence[str]
    dimensions: int = 0
    """First values of each vector to return; 0: all."""
    truncate: bool = False
    requester: Requester = ANYBODY
    """With whom replicas are shared."""


@dataclass(frozen=True, slots=True)
class Embedded:
    """The vectors of a query, and what they cost."""

    vectors: npt.NDArray[np.float32]
    """[n, d] in the order of the inputs."""
    num_tokens: int
    cost: Cost | None
    model_identity: bytes
    """Model identity of the replicas that computed them."""


class InputError(Exception):
    """One input has no vector."""

    def __init__(self, index: int, error: OutriderError) -> None:
        super().__init__(error.message)
        self.index = index
        self.error = error


async def embedded(upstream: RouterPool, query: EmbeddingQuery) -> Embedded:
    """All vectors of a query. Without a router it waits for one that was lost a moment ago. Raises
    InputError for the first input without a vector, and OutriderError."""
    avoided: list[str] = []
    while True:
        link = await _picked(upstream, avoided)
        try:
            return await _RouterCall(query, link).ask()
        except UnavailableError:
            avoided.append(link.address)
            if len(avoided) >= MAX_ATTEMPTS:
                raise


async def _picked(upstream: RouterPool, avoided: Sequence[str]) -> RouterLink:
    while True:
        try:
            return upstream.pick(avoided)
        except UnavailableError:
            if not upstream.may_return:
                raise
        await asyncio.sleep(_AGAIN_S)


class _RouterCall:
    """One router's answers to a query. Those of a router that was lost are dropped: only its last
    frame would have given the model identity that computed them."""

    def __init__(self, query: EmbeddingQuery, link: RouterLink) -> None:
        self._query = query
        self._link = link
        self._rows: dict[int, npt.NDArray[np.float32]] = {}
        self._num_tokens = 0
        self._num_bytes = sum(map(_num_bytes, query.inputs))

    async def ask(self) -> Embedded:
        """Ask the router. Raises what `embedded` raises, and UnavailableError if another router may
        succeed."""
        router = self._link.embedding
        num_inputs = len(self._query.inputs)
        try:
            if num_inputs <= MAX_AT_ONCE_INPUTS and self._num_bytes <= _MAX_FRAME_BYTES:
                done = await self._ask_at_once(router)
            else:
                done = await self._ask_in_frames(router)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # Not this task: the call, as its channel was closed when the router was lost.
            raise UnavailableError("the router was lost") from None
        except MalformedFrameError as error:
            raise PeerFaultError.of(error) from error
        except LOSSES as loss:
            reason = loss_reason(loss)
            if type(reason) is OutriderError or not isinstance(reason, OutriderError):
                raise UnavailableError(f"the router was lost: {reason}") from loss
            self._link.heard()
            raise reason from loss
        vectors = np.stack([self._rows[index] for index in range(num_inputs)])
        return Embedded(vectors, self._num_tokens, cost_of(done.usage), done.model_identity)

    async def _ask_at_once(
        self, router: embedding_pb2_grpc.EmbeddingRouterServiceAsyncStub
    ) -> embedding_pb2.EmbedDone:
        request = embedding_pb2.EmbedAtOnceRequest(open=self._opening())
        for index in range(len(self._query.inputs)):
            self._put(request.inputs.add(id=index), index)
        answered = await router.EmbedAtOnce(request)
        self._link.heard()
        for answer in answered.answers:
            if (done := self._take(answer)) is not None:
                return done
        raise UnavailableError("the router ended its answer")

    async def _ask_in_frames(
        self, router: embedding_pb2_grpc.EmbeddingRouterServiceAsyncStub
    ) -> embedding_pb2.EmbedDone:
        call: Any = router.Embed()
        writer = asyncio.create_task(self._write(call))
        try:
            async for answer in call:
                self._link.heard()
                if (done := self._take(answer)) is not None:
                    return done
            raise UnavailableError("the router ended its answer")
        finally:
            writer.cancel()
            end_call(call)
            await asyncio.gather(writer, return_exceptions=True)

    def _take(self, answer: embedding_pb2.EmbedResponse) -> embedding_pb2.EmbedDone | None:
        """Take an answer; returns the last frame, or None for any other."""
        kind = answer.WhichOneof("kind")
        if kind == "error":
            raise error_from_proto(answer.error)
        if kind == "failed":
            raise InputError(answer.failed.id, error_from_proto(answer.failed.error))
        if kind == "done":
            if len(self._rows) < len(self._query.inputs):
                raise MalformedFrameError("the router left inputs without an answer")
            return answer.done
        told = answer.vectors
        try:
            rows = unpacked(told.data, told.scales, told.dimensions, VectorFormat(told.format))
        except ValueError as error:
            raise MalformedFrameError(f"the router sends no vectors: {error}") from error
        if len(rows) != len(told.ids) or len(told.num_tokens) != len(told.ids):
            raise MalformedFrameError("the router sends vectors of other inputs")
        for index, row, num_tokens in zip(told.ids, rows, told.num_tokens, strict=True):
            if index in self._rows or index >= len(self._query.inputs):
                raise MalformedFrameError("the router answered an input that was not sent")
            self._rows[index] = row
            self._num_tokens += num_tokens
        return None

    async def _write(self, call: Any) -> None:
        # Errors of the call come with its answers.
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            await call.write(embedding_pb2.EmbedRequest(open=self._opening()))
            for frame in self._frames():
                await call.write(frame)
            await call.done_writing()

    def _opening(self) -> embedding_pb2.OpenEmbed:
        query = self._query
        return embedding_pb2.OpenEmbed(
            request_id=query.request_id,
            model=query.model,
            priority=priority_to_proto(query.priority),
            format=embedding_pb2.VECTOR_FORMAT_F32,
            dimensions=query.dimensions,
            truncate=query.truncate,
            tenant=query.tenant,
            residency=query.residency,
            requester=requester_to_proto(query.requester),
            estimated_tokens=self._num_bytes // _BYTES_PER_TOKEN + 2 * len(query.inputs),
        )

    def _frames(self) -> Iterator[embedding_pb2.EmbedRequest]:
        made, num_bytes = embedding_pb2.EmbedInputs(), 0
        for index, content in enumerate(self._query.inputs):
            size = _num_bytes(content)
            is_full = len(made.inputs) >= _MAX_FRAME_INPUTS or num_bytes + size > _MAX_FRAME_BYTES
            if made.inputs and is_full:
                yield embedding_pb2.EmbedRequest(inputs=made)
                made, num_bytes = embedding_pb2.EmbedInputs(), 0
            self._put(made.inputs.add(id=index), index)
            num_bytes += size
        yield embedding_pb2.EmbedRequest(inputs=made)

    def _put(self, message: embedding_pb2.EmbedInput, index: int) -> None:
        content = self._query.inputs[index]
        if isinstance(content, str):
            message.text = content
        else:
            message.ids = content


def _num_bytes(content: Content) -> int:
    return len(content.encode()) if isinstance(content, str) else len(content)
