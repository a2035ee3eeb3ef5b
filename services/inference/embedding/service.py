"""The gRPC side of a replica that embeds: requests, and what routers watch."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from outrider.codec.vectors import VectorFormat, packed
from outrider.engines.embedding import Ids, shortened
from outrider.errors import (
    DrainingError,
    InvalidRequestError,
    MalformedFrameError,
    OutriderError,
    UnavailableError,
    UnknownModelError,
    VocabularyMismatchError,
)
from outrider.model_identity import short_form
from outrider.rpc import discarded, incoming
from outrider.session.types import Priority, Usage
from outrider.telemetry.refusals import RefusalLog
from outrider.v1 import embedding_pb2, inference_pb2
from outrider.v1.embedding_pb2_grpc import EmbeddingServiceServicer
from outrider.v1.inference_pb2_grpc import InferenceServiceServicer
from outrider.wire import (
    check_at_once,
    error_to_proto,
    priority_from_proto,
    requester_from_proto,
    usage_to_proto,
)
from services.inference.embedding.pipeline import (
    EmbeddingInput,
    EmbeddingPipeline,
    Outcome,
    ids_of,
)
from services.inference.streaming.wire import error_frame

_LOAD_INTERVAL_MS: Final = 50
_MAX_WAITING: Final = 64
"""Answers that wait for a peer to read them; meanwhile nothing more is read of it."""
MAX_UNREAD_BYTES: Final = 8 << 20
"""Most bytes of vectors for a request's inputs, from their arrival until the peer reads the
answers."""
_MAX_INPUTS: Final = 1 << 16
"""Most inputs of one request."""


@dataclass(frozen=True, slots=True)
class EmbeddingContract:
    """The replica's properties, for routers."""

    model: str
    replica: str
    region: str
    vocabulary_digest: bytes
    vocabulary_size: int
    model_identity: bytes
    engine: str
    dimensions: int
    max_tokens: int
    normalizes: bool

    def to_proto(self) -> inference_pb2.GetModelResponse:
        """For GetModel."""
        return inference_pb2.GetModelResponse(
            model=self.model,
            vocabulary_digest=self.vocabulary_digest,
            vocabulary_size=self.vocabulary_size,
            max_context_tokens=self.max_tokens,
            engine=self.engine,
            replica=self.replica,
            region=self.region,
            model_identity=self.model_identity,
            embedding_dimensions=self.dimensions,
        )


class _Request:
    """One Embed call: its inputs in, their answers out."""

    def __init__(
        self,
        contract: EmbeddingContract,
        pipeline: EmbeddingPipeline,
        opened: embedding_pb2.OpenEmbed,
    ) -> None:
        """Raises UnknownModelError, InvalidRequestError, VocabularyMismatchError."""
        if opened.model not in ("", contract.model):
            raise UnknownModelError(f"this replica serves {contract.model}")
        if opened.model_identity not in (b"", contract.model_identity):
            raise VocabularyMismatchError(
                f"this replica is {short_form(contract.model_identity)}, the request is of "
                f"{short_form(opened.model_identity)}; their vectors differ"
            )
        if opened.dimensions > contract.dimensions:
            raise InvalidRequestError(
                f"{contract.model} has {contract.dimensions} dimensions, not {opened.dimensions}"
            )
        try:
            self._format = VectorFormat(opened.format or VectorFormat.F32)
        except ValueError:
            raise MalformedFrameError(f"vectors have no format {opened.format}") from None
        self._contract = contract
        self._pipeline = pipeline
        self._dimensions = opened.dimensions or contract.dimensions
        self._truncate = opened.truncate
        self._requester = requester_from_proto(opened.requester, opened.tenant)
        self._priority = priority_from_proto(opened.priority) or Priority.MEDIUM
        self._deadline_at = (
            time.monotonic() + opened.deadline_ms / 1e3 if opened.deadline_ms else None
        )
        self._ids: dict[int, int] = {}
        """Numbers of inputs without an answer by the pipeline's keys."""
        self._seen: set[int] = set()
        """Numbers of all inputs."""
        self._answers: asyncio.Queue[embedding_pb2.EmbedResponse | Exception | None]
        self._answers = asyncio.Queue()
        self._num_unread = 0
        """Inputs whose answer the peer has not read."""
        self._most_unread = max(1, MAX_UNREAD_BYTES // (4 * self._dimensions))
        self._was_read = asyncio.Event()
        self._answer = self._answered
        """A single object, by which the pipeline recognises the inputs of a request."""
        self._is_whole = False
        self._num_tokens = 0

    async def next(self) -> embedding_pb2.EmbedResponse | None:
        """The next answer for the peer; None: every input has its answer. Raises the error given to
        `broken`."""
        answer = await self._answers.get()
        if isinstance(answer, Exception):
            raise answer
        if answer is not None:
            is_vectors = answer.HasField("vectors")
            self._num_unread -= len(answer.vectors.ids) if is_vectors else 1
        self._was_read.set()
        return answer

    @property
    def _has_room(self) -> bool:
        return self._num_unread < self._most_unread and self._answers.qsize() <= _MAX_WAITING

    async def _room(self) -> None:
        """Return once the peer has read enough of its answers for another input. A peer that reads
        always gets there: no answer waits for further inputs."""
        while not self._has_room:
            self._was_read.clear()
            await self._was_read.wait()

    async def take(self, frame: embedding_pb2.EmbedRequest) -> None:
        """Take a frame from the peer, its inputs as there is room. Raises MalformedFrameError."""
        kind = frame.WhichOneof("kind")
        if kind == "inputs":
            for given in frame.inputs.inputs:
                if not self._has_room:
                    await self._room()
                self.add(given)
        else:
            raise MalformedFrameError("a request is opened once, and inputs follow")

    def add(self, given: embedding_pb2.EmbedInput) -> None:
        """One input. Raises MalformedFrameError."""
        if given.id in self._seen:
            raise MalformedFrameError(f"two inputs have the number {given.id}")
        if len(self._seen) >= _MAX_INPUTS:
            raise MalformedFrameError(f"a request has at most {_MAX_INPUTS} inputs; open another")
        self._seen.add(given.id)
        self._num_unread += 1
        try:
            key = self._pipeline.submit(self._input(given))
        except OutriderError as error:
            self._fail(given.id, error)
            return
        self._ids[key] = given.id

    def no_more_inputs(self) -> None:
        """The peer has sent all."""
        self._is_whole = True
        self._end_if_done()

    def broken(self, error: Exception) -> None:
        """The peer's stream broke."""
        self._answers.put_nowait(error)

    def leave(self) -> None:
        """The peer is gone."""
        self._pipeline.cancel(list(self._ids))

    def done(self) -> embedding_pb2.EmbedResponse:
        """The last frame."""
        return embedding_pb2.EmbedResponse(
            done=embedding_pb2.EmbedDone(
                model=self._contract.model,
                usage=usage_to_proto(Usage(prompt_tokens=self._num_tokens)),
                model_identity=self._contract.model_identity,
            )
        )

    def _input(self, given: embedding_pb2.EmbedInput) -> EmbeddingInput:
        kind = given.WhichOneof("content")
        content: str | Ids
        if kind == "ids":
            if len(given.ids) % 4:
                raise MalformedFrameError("token ids are four bytes each")
            content, num_bytes = ids_of(given.ids), len(given.ids)
        else:
            content, num_bytes = given.text, len(given.text.encode())
        return EmbeddingInput(
            content,
            num_bytes,
            self._truncate,
            self._requester,
            self._priority,
            self._deadline_at,
            self._answer,
        )

    def _answered(self, outcomes: list[tuple[int, Outcome]]) -> None:
        found: list[tuple[int, Any, int]] = []
        failed: list[tuple[int, OutriderError]] = []
        for key, outcome in outcomes:
            number = self._ids.pop(key)
            if isinstance(outcome, OutriderError):
                failed.append((number, outcome))
            else:
                found.append((number, *outcome))
        if found:
            vectors = shortened(
                np.stack([vector for _, vector, _ in found]),
                self._dimensions,
                normalizes=self._contract.normalizes,
            )
            data, scales = packed(vectors, self._format)
            self._num_tokens += sum(count for _, _, count in found)
            told = embedding_pb2.Vectors(
                ids=[number for number, _, _ in found],
                num_tokens=[count for _, _, count in found],
                dimensions=vectors.shape[1],
                format=embedding_pb2.VectorFormat.ValueType(self._format),
                data=data,
                scales=scales,
            )
            self._answers.put_nowait(embedding_pb2.EmbedResponse(vectors=told))
        for number, error in failed:
            self._fail(number, error)
        self._end_if_done()

    def _fail(self, number: int, error: OutriderError) -> None:
        failed = embedding_pb2.InputFailed(id=number, error=error_to_proto(error))
        self._answers.put_nowait(embedding_pb2.EmbedResponse(failed=failed))

    def _end_if_done(self) -> None:
        if self._is_whole and not self._ids:
            self._answers.put_nowait(None)


class EmbeddingReplicaService(EmbeddingServiceServicer, InferenceServiceServicer):
    """Requests over one pipeline, and the reports of every replica to routers. Sessions are
    refused: this replica makes no replies."""

    def __init__(self, contract: EmbeddingContract, pipeline: EmbeddingPipeline) -> None:
        self._contract = contract
        self._pipeline = pipeline
        self._changed = asyncio.Event()
        self._is_closed = False
        self._is_drained = False
        self._num_requests = 0
        self._refused = RefusalLog("embeddings")

    @property
    def num_requests(self) -> int:
        """Under way."""
        return self._num_requests

    def changed(self) -> None:
        """The load is another one."""
        self._changed.set()
        self._changed = asyncio.Event()

    def set_drained(self, *, drained: bool) -> None:
        """No new requests from now on, or again."""
        self._is_drained = drained
        self.changed()

    async def idle(self, limit_s: float) -> None:
        """Return when no request is under way, or after so long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                while self._num_requests:
                    await self._changed.wait()

    def close(self) -> None:
        """End what routers watch."""
        self._is_closed = True
        self.changed()

    async def Embed(
        self, request_iterator: Any, context: Any
    ) -> AsyncIterator[embedding_pb2.EmbedResponse]:
        frames = incoming(request_iterator)
        try:
            self._check()
            request = _Request(self._contract, self._pipeline, await _opened(frames))
            async with aclosing(self._answers(request, frames)) as answers:
                async for answer in answers:
                    yield answer
        except OutriderError as error:
            self._refused.note(error.reason)
            yield embedding_pb2.EmbedResponse(error=error_to_proto(error))
            await discarded(frames)

    def _check(self) -> None:
        if self._is_closed:
            raise UnavailableError("this replica is shutting down; ask another")
        if self._is_drained:
            raise DrainingError("this replica takes no new requests; ask another")

    async def EmbedAtOnce(
        self, request: embedding_pb2.EmbedAtOnceRequest, context: Any
    ) -> embedding_pb2.EmbedAtOnceResponse:
        answers: list[embedding_pb2.EmbedResponse] = []
        try:
            self._check()
            check_at_once(request)
            asked = _Request(self._contract, self._pipeline, request.open)
            with self._serving(asked):
                for given in request.inputs:
                    asked.add(given)
                asked.no_more_inputs()
                while (answer := await asked.next()) is not None:
                    answers.append(answer)
            answers.append(asked.done())
        except OutriderError as error:
            self._refused.note(error.reason)
            answers.append(embedding_pb2.EmbedResponse(error=error_to_proto(error)))
        return embedding_pb2.EmbedAtOnceResponse(answers=answers)

    @contextlib.contextmanager
    def _serving(self, request: _Request) -> Iterator[None]:
        """Count a request while the context lasts; its remaining inputs are then cancelled."""
        self._num_requests += 1
        try:
            yield
        finally:
            self._num_requests -= 1
            self.changed()
            request.leave()

    async def _answers(
        self, request: _Request, frames: AsyncIterator[embedding_pb2.EmbedRequest]
    ) -> AsyncGenerator[embedding_pb2.EmbedResponse, None]:
        """All answers. Raises OutriderError for malformed frames."""
        with self._serving(request):
            reader = asyncio.create_task(_read(frames, request))
            try:
                while (answer := await request.next()) is not None:
                    yield answer
                yield request.done()
            finally:
                reader.cancel()
                await asyncio.gather(reader, return_exceptions=True)

    async def Generate(
        self, request_iterator: Any, context: Any
    ) -> AsyncIterator[inference_pb2.GenerateResponse]:
        """Routers keep a stream to every replica."""
        error = InvalidRequestError(
            f"{self._contract.model} makes vectors of texts and writes no replies; ask "
            "/v1/embeddings, or name another model"
        )
        async for message in incoming(request_iterator):
            opened = [frame.session for frame in message.frames if frame.HasField("open")]
            if opened:
                frames = [error_frame(number, error) for number in opened]
                yield inference_pb2.GenerateResponse(frames=frames)

    async def WatchLoad(
        self, request: inference_pb2.WatchLoadRequest, context: Any
    ) -> AsyncIterator[inference_pb2.WatchLoadResponse]:
        interval_s = (request.min_interval_ms or _LOAD_INTERVAL_MS) / 1e3
        longest_s = request.max_interval_ms / 1e3 or None
        while not self._is_closed:
            changed = self._changed
            load = self._pipeline.load
            yield inference_pb2.WatchLoadResponse(
                running_sessions=self._num_requests,
                queued_prompt_tokens=load.num_tokens,
                row_ms=load.token_ms,
                draining=self._is_drained,
            )
            await asyncio.sleep(interval_s)
            try:
                async with asyncio.timeout(longest_s and max(0.0, longest_s - interval_s)):
                    await changed.wait()
            except TimeoutError:
                pass  # time for a heartbeat

    async def WatchKv(
        self, request: inference_pb2.WatchKvRequest, context: Any
    ) -> AsyncIterator[inference_pb2.WatchKvResponse]:
        """The replica has no KV, so the stream ends at once."""
        nothing: tuple[inference_pb2.WatchKvResponse, ...] = ()
        for response in nothing:
            yield response

    async def GetModel(
        self, request: inference_pb2.GetModelRequest, context: Any
    ) -> inference_pb2.GetModelResponse:
        return self._contract.to_proto()

    async def Drain(
        self, request: inference_pb2.DrainRequest, context: Any
    ) -> inference_pb2.DrainResponse:
        self.set_drained(drained=not request.undo)
        return inference_pb2.DrainResponse()


async def _opened(frames: AsyncIterator[embedding_pb2.EmbedRequest]) -> embedding_pb2.OpenEmbed:
    async for frame in frames:
        if frame.WhichOneof("kind") == "open":
            return frame.open
        break
    raise MalformedFrameError("a request begins with its open")


async def _read(frames: AsyncIterator[embedding_pb2.EmbedRequest], request: _Request) -> None:
    try:
        async for frame in frames:
            await request.take(frame)
        request.no_more_inputs()
    except Exception as error:
        request.broken(error)
