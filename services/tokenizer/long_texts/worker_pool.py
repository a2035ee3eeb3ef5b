"""The workers of one service, wherever they run, and the jobs they work on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import structlog

from outrider.errors import InvalidRequestError, OutriderError, UnavailableError
from outrider.rpc import Outbox, incoming
from outrider.telemetry.families import Family
from outrider.telemetry.metrics import Metrics
from outrider.v1 import common_pb2, tokenizer_pb2
from outrider.wire import error_from_proto
from services.tokenizer.long_texts.jobs import DispatcherLimits, PartDispatcher, PartId, TextJob

QUEUED: Final = Family(
    "outrider_tokenizer_parts_queued",
    "Parts of long texts that wait for a worker.",
)
SLOTS: Final = Family(
    "outrider_tokenizer_worker_slots",
    "Parts that all workers together may hold.",
)
SLOTS_IN_USE: Final = Family("outrider_tokenizer_worker_slots_in_use", "Parts that workers hold.")
WORKERS: Final = Family("outrider_tokenizer_workers", "Workers that are connected.")
REASSIGNED: Final = Family(
    "outrider_tokenizer_parts_reassigned",
    "Parts given to another worker because the first was lost, since the start.",
)

MAX_SLOTS: Final = 64
_TICK_S: Final = 0.5

Messages = AsyncIterator[tokenizer_pb2.WorkRequest]
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class PartPayload:
    """A part and all that a worker needs to tokenize it."""

    model: str
    vocabulary_digest: bytes
    codec: int
    text: str


@dataclass(slots=True)
class OpenJob:
    """A job, with the events that wake its writer and its reader."""

    number: int
    state: TextJob[PartPayload, common_pb2.TokenBlock]
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when there may be results, or an error."""
    room: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when results were taken."""


class WorkerPool:
    """Belongs to one event loop. `watch` has to run as long as workers may join."""

    def __init__(
        self, limits: DispatcherLimits, metrics: Metrics, end: Callable[[str], None]
    ) -> None:
        """`end` is called with the name of a worker that timed out."""
        self._dispatcher: PartDispatcher[PartPayload, common_pb2.TokenBlock] = PartDispatcher(
            limits
        )
        self._metrics = metrics
        self._end = end
        self._outboxes: dict[str, Outbox[tokenizer_pb2.WorkResponse]] = {}
        self._jobs: dict[int, OpenJob] = {}
        self._idle = asyncio.Event()

    @property
    def num_workers(self) -> int:
        """Workers that have joined."""
        return len(self._outboxes)

    @property
    def num_jobs(self) -> int:
        """Texts being tokenized."""
        return len(self._jobs)

    def open(self) -> OpenJob:
        """A new job; to be closed. Raises OverloadedError."""
        number = self._dispatcher.open()
        self._jobs[number] = OpenJob(number, self._dispatcher.job(number))
        return self._jobs[number]

    def close(self, job: OpenJob) -> None:
        """Drop a job and all it holds."""
        self._dispatcher.close(job.number)
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

    def add(self, job: OpenJob, payload: PartPayload) -> None:
        """Add a part, for whichever worker has a free slot; the job has room."""
        job.state.add(payload)
        self._assign_parts()

    async def work(self, requests: Messages) -> AsyncGenerator[tokenizer_pb2.WorkResponse, None]:
        """One worker's parts, until it leaves or is lost. Raises InvalidRequestError."""
        messages = incoming(requests)
        hello = _checked(await anext(messages, None))
        outbox: Outbox[tokenizer_pb2.WorkResponse] = Outbox(hello.slots)
        self._remove_worker(hello.name)
        self._outboxes[hello.name] = outbox
        self._dispatcher.join(hello.name, hello.slots, _now())
        reader = asyncio.create_task(self._read_results(hello.name, messages, outbox))
        _log.info("worker_joined", worker=hello.name, workers=self.num_workers)
        try:
            self._assign_parts()
            async for part in outbox:
                yield part
        finally:
            # The worker closed its side in order: it has left, it did not die.
            in_order = reader.done() and not reader.cancelled() and reader.exception() is None
            reader.cancel()
            if self._outboxes.get(hello.name) is outbox:
                self._remove_worker(hello.name, died=not in_order)

    async def watch(self) -> None:
        """Remove workers that timed out and hedge slow parts, until cancelled."""
        while True:
            await asyncio.sleep(_TICK_S)
            for name in self._dispatcher.tick(_now()):
                _log.warning("worker_silent", worker=name)
                self._remove_worker(str(name))
                self._end(str(name))
            self._assign_parts()
            self._report()

    async def _read_results(
        self, name: str, messages: Messages, outbox: Outbox[tokenizer_pb2.WorkResponse]
    ) -> None:
        try:
            async for message in messages:
                self._dispatcher.heard(name, _now())
                if message.HasField("result"):
                    self._finish(name, message.result)
            outbox.close()
        except OutriderError as error:
            outbox.close(error)
            raise

    def _finish(self, name: str, result: tokenizer_pb2.PartResult) -> None:
        part = PartId(result.job, result.sequence)
        if result.WhichOneof("result") == "ids":
            self._dispatcher.finish(name, part, result.ids)
        else:
            self._dispatcher.fail(name, part, error_from_proto(result.error))
        job = self._jobs.get(part.job)
        if job is not None:
            job.changed.set()
        self._assign_parts()

    def _remove_worker(self, name: str, *, died: bool = True) -> None:
        outbox = self._outboxes.pop(name, None)
        if outbox is None:
            return
        outbox.close(UnavailableError("this worker was given up; join again"))
        self._dispatcher.leave(name, died=died)
        _log.info("worker_left", worker=name, died=died, workers=self.num_workers)
        for job in self._jobs.values():
            job.changed.set()
        self._assign_parts()

    def _assign_parts(self) -> None:
        """Give a part to every free slot."""
        for name, outbox in self._outboxes.items():
            while (
                not outbox.closed and (assigned := self._dispatcher.pull(name, _now())) is not None
            ):
                payload = assigned.payload
                outbox.put_nowait(
                    tokenizer_pb2.WorkResponse(
                        job=assigned.part.job,
                        sequence=assigned.part.sequence,
                        model=payload.model,
                        vocabulary_digest=payload.vocabulary_digest,
                        codec=common_pb2.TokenCodec.ValueType(payload.codec),
                        text=payload.text,
                    )
                )

    def _report(self) -> None:
        stats = self._dispatcher.stats
        self._metrics.gauge(QUEUED).set(stats.num_queued)
        self._metrics.gauge(SLOTS).set(stats.num_slots)
        self._metrics.gauge(SLOTS_IN_USE).set(stats.num_assigned)
        self._metrics.gauge(WORKERS).set(stats.num_workers)
        self._metrics.gauge(REASSIGNED).set(stats.num_reassigned)


def _now() -> float:
    return asyncio.get_running_loop().time()


def _checked(message: tokenizer_pb2.WorkRequest | None) -> tokenizer_pb2.WorkerHello:
    if message is None or not message.HasField("hello"):
        raise InvalidRequestError("a worker's first message must be its hello")
    hello = message.hello
    if not 0 < len(hello.name) <= 200 or not 0 < hello.slots <= MAX_SLOTS:
        raise InvalidRequestError(
            f"a worker has a name of 1 to 200 characters and 1 to {MAX_SLOTS} slots"
        )
    return hello
