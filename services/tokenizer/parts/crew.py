"""The workers of one service, wherever they run, and the jobs they work at."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import structlog

from outrider.errors import InvalidRequestError, OutriderError, UnavailableError
from outrider.rpc import Outbox, incoming
from outrider.telemetry.metrics import Metrics
from outrider.v1 import common_pb2, tokenizer_pb2
from outrider.wire.errors import from_detail
from services.tokenizer.jobs import Dispatcher, Limits, PartId
from services.tokenizer.jobs.parts import Job

QUEUED: Final = "outrider.tokenizer.parts.queued"
PLACES: Final = "outrider.tokenizer.worker.places"
HELD: Final = "outrider.tokenizer.worker.places_taken"
WORKERS: Final = "outrider.tokenizer.workers"
REASSIGNED: Final = "outrider.tokenizer.parts.reassigned"

MAX_PLACES: Final = 64
_TICK_S: Final = 0.5

Messages = AsyncIterator[tokenizer_pb2.WorkRequest]
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Payload:
    """What a worker is told of a part."""

    model: str
    vocabulary_digest: bytes
    codec: int
    text: str


@dataclass(slots=True)
class OpenJob:
    """A job, and what wakes those who write and read it."""

    number: int
    core: Job[Payload, common_pb2.TokenBlock]
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when there may be results, or an error."""
    room: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when results were taken."""


class Crew:
    """One event loop's. `watch` has to run while workers are there."""

    def __init__(self, limits: Limits, metrics: Metrics, end: Callable[[str], None]) -> None:
        """`end` is told the name of a worker that is silent."""
        self._core: Dispatcher[Payload, common_pb2.TokenBlock] = Dispatcher(limits)
        self._metrics = metrics
        self._end = end
        self._outboxes: dict[str, Outbox[tokenizer_pb2.WorkResponse]] = {}
        self._jobs: dict[int, OpenJob] = {}
        self._idle = asyncio.Event()

    @property
    def num_workers(self) -> int:
        """Workers that are there."""
        return len(self._outboxes)

    @property
    def num_jobs(self) -> int:
        """Texts being tokenized."""
        return len(self._jobs)

    def open(self) -> OpenJob:
        """A new job; to be closed. Raises OverloadedError."""
        number = self._core.open()
        self._jobs[number] = OpenJob(number, self._core.job(number))
        return self._jobs[number]

    def close(self, job: OpenJob) -> None:
        """Forget a job and all it holds."""
        self._core.close(job.number)
        self._jobs.pop(job.number, None)
        if not self._jobs:
            self._idle.set()

    async def drain(self, timeout_s: float) -> None:
        """Until no job is open, at most for `timeout_s`."""
        if not self._jobs:
            return
        self._idle.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()

    def add(self, job: OpenJob, payload: Payload) -> None:
        """A part for whichever worker has a place; the job has room."""
        job.core.add(payload)
        self._pump()

    async def work(self, requests: Messages) -> AsyncGenerator[tokenizer_pb2.WorkResponse, None]:
        """One worker's parts, until it leaves or is lost. Raises InvalidRequestError."""
        messages = incoming(requests)
        hello = _checked(await anext(messages, None))
        outbox: Outbox[tokenizer_pb2.WorkResponse] = Outbox(hello.places)
        self._lose(hello.name)
        self._outboxes[hello.name] = outbox
        self._core.join(hello.name, hello.places, _now())
        reader = asyncio.create_task(self._hear(hello.name, messages, outbox))
        _log.info("worker_joined", worker=hello.name, workers=self.num_workers)
        try:
            self._pump()
            async for part in outbox:
                yield part
        finally:
            in_order = reader.done() and not reader.cancelled() and reader.exception() is None
            reader.cancel()
            if self._outboxes.get(hello.name) is outbox:
                self._lose(hello.name, died=not in_order)

    async def watch(self) -> None:
        """See to silent workers and slow parts, for ever."""
        while True:
            await asyncio.sleep(_TICK_S)
            for name in self._core.tick(_now()):
                _log.warning("worker_silent", worker=name)
                self._lose(str(name))
                self._end(str(name))
            self._pump()
            self._report()

    async def _hear(
        self, name: str, messages: Messages, outbox: Outbox[tokenizer_pb2.WorkResponse]
    ) -> None:
        try:
            async for message in messages:
                self._core.heard(name, _now())
                if message.HasField("result"):
                    self._finish(name, message.result)
            outbox.close()
        except OutriderError as error:
            outbox.close(error)
            raise

    def _finish(self, name: str, result: tokenizer_pb2.PartResult) -> None:
        part = PartId(result.job, result.sequence)
        if result.WhichOneof("result") == "ids":
            self._core.finish(name, part, result.ids)
        else:
            self._core.fail(name, part, from_detail(result.error))
        job = self._jobs.get(part.job)
        if job is not None:
            job.changed.set()
        self._pump()

    def _lose(self, name: str, *, died: bool = True) -> None:
        outbox = self._outboxes.pop(name, None)
        if outbox is None:
            return
        outbox.close(UnavailableError("This worker was given up: join again."))
        self._core.leave(name, died=died)
        _log.info("worker_left", worker=name, died=died, workers=self.num_workers)
        for job in self._jobs.values():
            job.changed.set()
        self._pump()

    def _pump(self) -> None:
        """A part for every free place."""
        for name, outbox in self._outboxes.items():
            while not outbox.closed and (task := self._core.pull(name, _now())) is not None:
                payload = task.payload
                outbox.put_nowait(
                    tokenizer_pb2.WorkResponse(
                        job=task.part.job,
                        sequence=task.part.sequence,
                        model=payload.model,
                        vocabulary_digest=payload.vocabulary_digest,
                        codec=common_pb2.TokenCodec.ValueType(payload.codec),
                        text=payload.text,
                    )
                )

    def _report(self) -> None:
        figures = self._core.figures
        self._metrics.gauge(QUEUED).set(figures.num_queued)
        self._metrics.gauge(PLACES).set(figures.num_places)
        self._metrics.gauge(HELD).set(figures.num_held)
        self._metrics.gauge(WORKERS).set(figures.num_workers)
        self._metrics.gauge(REASSIGNED).set(figures.num_reassigned)


def _now() -> float:
    return asyncio.get_running_loop().time()


def _checked(message: tokenizer_pb2.WorkRequest | None) -> tokenizer_pb2.WorkerHello:
    if message is None or not message.HasField("hello"):
        raise InvalidRequestError("A worker says hello first.")
    hello = message.hello
    if not 0 < len(hello.name) <= 200 or not 0 < hello.places <= MAX_PLACES:
        raise InvalidRequestError(
            f"A worker has a name of 1 to 200 characters and 1 to {MAX_PLACES} places."
        )
    return hello
