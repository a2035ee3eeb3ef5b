"""The workers of one service, wherever they run, and the jobs they work on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import structlog

from outrider.errors import (
    InvalidRequestError,
    OutriderError,
    UnavailableError,
    VocabularyMismatchError,
)
from outrider.fair_work.turns import ANYBODY, Requester
from outrider.lru_map import LruMap
from outrider.rpc import Outbox, incoming
from outrider.telemetry.families import Family
from outrider.telemetry.metrics import Metrics
from outrider.tokenization.backends.base import REFERENCE
from outrider.tokenization.backends.packages import installed_version
from outrider.v1 import common_pb2, tokenizer_pb2
from outrider.wire import error_from_proto
from services.tokenizer.long_texts.jobs import (
    AssignedPart,
    DispatcherLimits,
    PartDispatcher,
    PartId,
    TextJob,
)

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

OF_THIS_NODE: Final = ""
"""Owner of the worker processes that this service starts."""
MAX_SLOTS: Final = 64
_TICK_S: Final = 0.5
_REFUSED_S: Final = 30.0
"""How long a worker whose ids were of another vocabulary is not let in again."""
_MAX_REFUSED: Final = 1024
"""Workers that are remembered as refused."""

Messages = AsyncIterator[tokenizer_pb2.WorkRequest]
_log = structlog.get_logger()


class WorkerId(NamedTuple):
    """One worker. What it says of itself can neither replace another's worker, nor have it
    refused."""

    owner: str
    """What its connection proves: `OF_THIS_NODE`, or a digest of its certificate."""
    name: str
    """What it says of itself."""


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


async def _nothing() -> None:
    """Nobody waits for a worker to be let in."""


class WorkerPool:
    """Belongs to one event loop. `watch` has to run as long as workers may join."""

    def __init__(
        self, limits: DispatcherLimits, metrics: Metrics, end: Callable[[str], None]
    ) -> None:
        """`end` is called with the name of a worker of this node that timed out."""
        self._dispatcher: PartDispatcher[PartPayload, common_pb2.TokenBlock] = PartDispatcher(
            limits
        )
        self._metrics = metrics
        self._end = end
        self._outboxes: dict[WorkerId, Outbox[tokenizer_pb2.WorkResponse]] = {}
        self._jobs: dict[int, OpenJob] = {}
        self._refused_until: LruMap[WorkerId, float] = LruMap(_MAX_REFUSED)
        self._idle = asyncio.Event()

    @property
    def num_workers(self) -> int:
        """Workers that have joined."""
        return len(self._outboxes)

    @property
    def num_jobs(self) -> int:
        """Texts being tokenized."""
        return len(self._jobs)

    def open(self, requester: Requester = ANYBODY) -> OpenJob:
        """A new job; to be closed. Another one may lose its place to it, and fail. Raises
        OverloadedError."""
        number = self._dispatcher.open(requester)
        for job in self._jobs.values():
            if job.state.is_given_up:
                job.changed.set()
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

    async def work(
        self,
        requests: Messages,
        owner: str = OF_THIS_NODE,
        let_in: Callable[[], Awaitable[None]] = _nothing,
    ) -> AsyncGenerator[tokenizer_pb2.WorkResponse, None]:
        """The parts of one worker of this owner, until it leaves or is lost; `let_in` is called
        once its hello is accepted. Raises InvalidRequestError, and VocabularyMismatchError for a
        worker that tokenizes otherwise."""
        messages = incoming(requests)
        hello = _checked(await anext(messages, None))
        worker = WorkerId(owner, hello.name)
        self._check_refused(worker)
        await let_in()
        outbox: Outbox[tokenizer_pb2.WorkResponse] = Outbox(hello.slots)
        self._remove_worker(worker)
        self._outboxes[worker] = outbox
        self._dispatcher.join(worker, hello.slots, _now())
        reader = asyncio.create_task(self._read_results(worker, messages, outbox))
        _log.info("worker_joined", worker=worker.name, workers=self.num_workers)
        try:
            self._assign_parts()
            async for part in outbox:
                yield part
        finally:
            reader.cancel()
            if self._outboxes.get(worker) is outbox:
                # gRPC ends the requests of a peer that is gone like those of one that is done.
                has_left = self._dispatcher.is_retired(worker)
                self._remove_worker(worker, died=not has_left)

    async def watch(self) -> None:
        """Remove workers that timed out and hedge slow parts, until cancelled."""
        while True:
            await asyncio.sleep(_TICK_S)
            silent = self._dispatcher.tick(_now())
            for worker in [it for it in self._outboxes if it in silent]:
                _log.warning("worker_silent", worker=worker.name)
                self._remove_worker(worker)
                if worker.owner == OF_THIS_NODE:
                    self._end(worker.name)
            for job in self._jobs.values():
                if job.state.error is not None:
                    job.changed.set()
            self._assign_parts()
            self._report()

    async def _read_results(
        self, worker: WorkerId, messages: Messages, outbox: Outbox[tokenizer_pb2.WorkResponse]
    ) -> None:
        try:
            async for message in messages:
                self._dispatcher.heard(worker, _now())
                if message.HasField("result"):
                    self._check_vocabulary(worker, message.result)
                    self._finish(worker, message.result)
                elif message.HasField("leaving"):
                    self._dispatcher.retire(worker)
                if self._dispatcher.is_released(worker):
                    break
            outbox.close()
        except OutriderError as error:
            outbox.close(error)

    def _check_vocabulary(self, worker: WorkerId, result: tokenizer_pb2.PartResult) -> None:
        """Raises VocabularyMismatchError for ids of another vocabulary than the part's: the worker
        is gone by then, and not let in for a while."""
        payload = self._dispatcher.payload(worker, PartId(result.job, result.sequence))
        is_wrong = payload is not None and result.vocabulary_digest != payload.vocabulary_digest
        if payload is None or not is_wrong or result.WhichOneof("result") != "ids":
            return
        self._refused_until.put(worker, _now() + _REFUSED_S)
        theirs = result.vocabulary_digest.hex() or "unknown"
        error = VocabularyMismatchError(
            f"worker {worker.name} tokenized a part of model {payload.model} with vocabulary "
            f"{theirs}, not {payload.vocabulary_digest.hex()}; restart it, so that it gets the "
            "model's own"
        )
        _log.warning("worker_refused", worker=worker.name, why=error.message)
        self._outboxes[worker].close(error)
        self._remove_worker(worker, died=False)
        raise error

    def _finish(self, worker: WorkerId, result: tokenizer_pb2.PartResult) -> None:
        part = PartId(result.job, result.sequence)
        if result.WhichOneof("result") == "ids":
            self._dispatcher.finish(worker, part, result.ids)
        else:
            self._dispatcher.fail(worker, part, error_from_proto(result.error))
        job = self._jobs.get(part.job)
        if job is not None:
            job.changed.set()
        self._assign_parts()

    def _check_refused(self, worker: WorkerId) -> None:
        if _now() < (self._refused_until.get(worker) or 0.0):
            raise VocabularyMismatchError(
                f"worker {worker.name} tokenized with another vocabulary a moment ago; it may join "
                f"again after {_REFUSED_S:g} s"
            )

    def _remove_worker(self, worker: WorkerId, *, died: bool = True) -> None:
        outbox = self._outboxes.pop(worker, None)
        if outbox is None:
            return
        outbox.close(UnavailableError("this worker was given up; join again"))
        self._dispatcher.leave(worker, died=died)
        _log.info("worker_left", worker=worker.name, died=died, workers=self.num_workers)
        for job in self._jobs.values():
            job.changed.set()
        self._assign_parts()

    def _assign_parts(self) -> None:
        """Give a part to every free slot."""
        for worker, outbox in list(self._outboxes.items()):
            while (
                not outbox.closed
                and (assigned := self._dispatcher.pull(worker, _now())) is not None
            ):
                if not outbox.offer(_part(assigned)):
                    # It answers parts that it has not read.
                    self._remove_worker(worker, died=False)

    def _report(self) -> None:
        stats = self._dispatcher.stats
        self._metrics.gauge(QUEUED).set(stats.num_queued)
        self._metrics.gauge(SLOTS).set(stats.num_slots)
        self._metrics.gauge(SLOTS_IN_USE).set(stats.num_assigned)
        self._metrics.gauge(WORKERS).set(stats.num_workers)
        self._metrics.gauge(REASSIGNED).set(stats.num_reassigned)


def _checked(message: tokenizer_pb2.WorkRequest | None) -> tokenizer_pb2.WorkerHello:
    if message is None or not message.HasField("hello"):
        raise InvalidRequestError("a worker's first message must be its hello")
    hello = message.hello
    if not 0 < len(hello.name) <= 200 or not 0 < hello.slots <= MAX_SLOTS:
        raise InvalidRequestError(
            f"a worker has a name of 1 to 200 characters and 1 to {MAX_SLOTS} slots"
        )
    ours = installed_version(REFERENCE)
    if hello.reference_version != ours:
        raise VocabularyMismatchError(
            f"worker {hello.name} has {REFERENCE} {hello.reference_version or 'unknown'}, this "
            f"service {ours}, and versions differ in ids; install the same"
        )
    return hello


def _part(assigned: AssignedPart[PartPayload]) -> tokenizer_pb2.WorkResponse:
    payload = assigned.payload
    return tokenizer_pb2.WorkResponse(
        job=assigned.part.job,
        sequence=assigned.part.sequence,
        model=payload.model,
        vocabulary_digest=payload.vocabulary_digest,
        codec=common_pb2.TokenCodec.ValueType(payload.codec),
        text=payload.text,
    )


def _now() -> float:
    return asyncio.get_running_loop().time()
