"""A crew with workers in the same event loop: back-pressure, hellos, silence."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from outrider.errors import InvalidRequestError, UnavailableError, VocabularyMismatchError
from outrider.models.vocabulary import Vocabulary
from outrider.rpc import Outbox
from outrider.telemetry.metrics import Metrics
from outrider.testing import eventually
from outrider.tokenization.backends.base import REFERENCE
from outrider.tokenization.backends.packages import installed_version
from outrider.v1 import common_pb2, tokenizer_pb2
from services.tokenizer.long_texts.jobs import DispatcherLimits
from services.tokenizer.long_texts.processes import WorkerProcesses
from services.tokenizer.long_texts.texts import CutRules, LongTexts
from services.tokenizer.long_texts.worker_pool import (
    QUEUED,
    REASSIGNED,
    SLOTS,
    SLOTS_IN_USE,
    WORKERS,
    PartPayload,
    WorkerPool,
)
from services.tokenizer.served_models import ServedModels
from services.tokenizer.vocabularies import ServedVocabulary

MODEL = "smollm2-135m-instruct"


def message(**kind: object) -> tokenizer_pb2.WorkRequest:
    return tokenizer_pb2.WorkRequest(**kind)  # type: ignore[arg-type]


VERSION = installed_version(REFERENCE) or ""


def hello(
    name: str = "w", slots: int = 2, reference_version: str = VERSION
) -> tokenizer_pb2.WorkRequest:
    said = tokenizer_pb2.WorkerHello(name=name, slots=slots, reference_version=reference_version)
    return message(hello=said)


def result(
    part: tokenizer_pb2.WorkResponse, digest: bytes | None = None
) -> tokenizer_pb2.WorkRequest:
    """A block that says how long the part was."""
    return message(
        result=tokenizer_pb2.PartResult(
            job=part.job,
            sequence=part.sequence,
            ids=common_pb2.TokenBlock(count=len(part.text)),
            vocabulary_digest=part.vocabulary_digest if digest is None else digest,
        )
    )


async def work(crew: WorkerPool) -> None:
    """A worker whose blocks say how long each part was."""
    outbox: Outbox[tokenizer_pb2.WorkRequest] = Outbox(100)
    outbox.put_nowait(hello())
    async for part in crew.work(outbox):
        outbox.put_nowait(result(part))


@pytest.mark.model
async def test_text_is_read_only_while_blocks_are_taken(vocabulary: Vocabulary) -> None:
    metrics = Metrics("tokenizer")
    crew = WorkerPool(DispatcherLimits(window_parts=3), metrics, lambda name: None)
    served = ServedVocabulary.of(MODEL, vocabulary)
    rules = CutRules()
    await rules.of(served)
    texts = LongTexts(
        ServedModels.of([served]), rules, crew, WorkerProcesses(0, metrics), 100, 1000
    )
    worker = asyncio.create_task(work(crew))
    sent = 0

    async def source() -> AsyncIterator[tokenizer_pb2.TokenizeRequest]:
        nonlocal sent
        for _ in range(50):
            sent += 1
            yield tokenizer_pb2.TokenizeRequest(text="ten chars " * 20)
            await asyncio.sleep(0)

    await asyncio.sleep(0)
    blocks = texts.blocks(source())
    total, taken = 0, 0
    async for _, block in blocks:
        taken += 1
        for _ in range(50):  # all that can go on without us does
            await asyncio.sleep(0)
        # Three parts of some 100 characters, and what completes the next.
        assert sent * 200 <= total + 200 * 4 + 600
        total += block.count
    assert total == 50 * 200
    assert taken >= 50
    assert crew.num_jobs == 0
    worker.cancel()
    metrics.close()


@pytest.mark.parametrize(
    "first", [hello(name=""), hello(slots=0), hello(slots=65), message(), None]
)
async def test_a_worker_that_does_not_say_hello_is_refused(
    first: tokenizer_pb2.WorkRequest | None,
) -> None:
    metrics = Metrics("tokenizer")
    crew = WorkerPool(DispatcherLimits(), metrics, lambda name: None)
    outbox: Outbox[tokenizer_pb2.WorkRequest] = Outbox(1)
    if first is not None:
        outbox.put_nowait(first)
    outbox.close()
    with pytest.raises(InvalidRequestError, match="worker"):
        await anext(crew.work(outbox))
    assert crew.num_workers == 0
    metrics.close()


async def test_a_silent_worker_is_given_up_and_ended() -> None:
    metrics = Metrics("tokenizer")
    ended: list[str] = []
    crew = WorkerPool(DispatcherLimits(worker_timeout_s=0.01), metrics, ended.append)
    outbox: Outbox[tokenizer_pb2.WorkRequest] = Outbox(1)
    outbox.put_nowait(hello("quiet"))
    watching = asyncio.create_task(crew.watch())
    with pytest.raises(UnavailableError, match="given up"):
        await anext(crew.work(outbox))
    assert ended == ["quiet"]
    assert crew.num_workers == 0
    watching.cancel()
    metrics.close()


async def test_operators_see_the_places_what_waits_and_what_was_given_to_another() -> None:
    metrics = Metrics("tokenizer")
    crew = WorkerPool(DispatcherLimits(), metrics, lambda name: None)
    watching = asyncio.create_task(crew.watch())

    def stats() -> list[float | None]:
        names = (WORKERS, SLOTS, SLOTS_IN_USE, QUEUED, REASSIGNED)
        return [metrics.registry.get_sample_value(name.replace(".", "_")) for name in names]

    job = crew.open()
    for text in ("a", "b", "c"):
        crew.add(job, PartPayload(MODEL, b"", 0, text))
    await eventually(lambda: stats() == [0, 0, 0, 3, 0])
    outbox: Outbox[tokenizer_pb2.WorkRequest] = Outbox(1)
    outbox.put_nowait(hello(slots=2))
    parts = crew.work(outbox)
    assert (await anext(parts)).text == "a"
    await eventually(lambda: stats() == [1, 2, 2, 1, 0])
    await parts.aclose()
    await eventually(lambda: stats() == [0, 0, 0, 3, 2])
    watching.cancel()
    metrics.close()


async def test_a_worker_with_another_vocabulary_is_refused_by_name() -> None:
    """Its ids go nowhere, its part goes to another worker, and it is not let in again at once."""
    metrics = Metrics("tokenizer")
    crew = WorkerPool(DispatcherLimits(), metrics, lambda name: None)
    job = crew.open()
    crew.add(job, PartPayload(MODEL, b"ours", 0, "text"))
    outbox: Outbox[tokenizer_pb2.WorkRequest] = Outbox(2)
    outbox.put_nowait(hello("stranger"))
    parts = crew.work(outbox)
    outbox.put_nowait(result(await anext(parts), b"theirs"))
    with pytest.raises(VocabularyMismatchError, match=f"stranger.*{b'theirs'.hex()}"):
        await asyncio.wait_for(anext(parts), 10.0)  # one that is not refused waits for a part
    assert crew.num_workers == 0 and job.state.take() == []
    again: Outbox[tokenizer_pb2.WorkRequest] = Outbox(1)
    again.put_nowait(hello("stranger"))
    with pytest.raises(VocabularyMismatchError, match=r"stranger.*again after"):
        await anext(crew.work(again))
    working = asyncio.create_task(work(crew))
    await eventually(lambda: not job.state.parts)
    assert [block.count for block in job.state.take()] == [4]
    working.cancel()
    metrics.close()


async def test_what_a_worker_says_of_itself_touches_no_worker_of_another_owner() -> None:
    """Not if it uses another's name, falls silent under it, or is refused under it."""
    metrics = Metrics("tokenizer")
    ended: list[str] = []
    crew = WorkerPool(DispatcherLimits(worker_timeout_s=0.01), metrics, ended.append)
    job = crew.open()
    crew.add(job, PartPayload(MODEL, b"ours", 0, "text"))
    outboxes = [Outbox[tokenizer_pb2.WorkRequest](2) for _ in range(2)]
    for outbox in outboxes:
        outbox.put_nowait(hello("local-1"))
    stranger = crew.work(outboxes[0], "a certificate")
    part = await anext(stranger)
    own = asyncio.create_task(anext(crew.work(outboxes[1])))
    await eventually(lambda: crew.num_workers == 2)
    outboxes[0].put_nowait(result(part, b"theirs"))
    with pytest.raises(VocabularyMismatchError):
        await anext(stranger)
    assert (await own).text == "text"
    crew.close(job)
    again: Outbox[tokenizer_pb2.WorkRequest] = Outbox(1)
    again.put_nowait(hello("local-1"))
    silent = asyncio.create_task(anext(crew.work(again, "another certificate")))
    await eventually(lambda: crew.num_workers == 2)
    watching = asyncio.create_task(crew.watch())
    with pytest.raises(UnavailableError, match="given up"):
        await silent
    await eventually(lambda: crew.num_workers == 0)
    assert ended == ["local-1"], "once, for the one of this node"
    watching.cancel()
    metrics.close()


async def test_a_worker_that_answers_what_it_has_not_read_costs_no_text() -> None:
    metrics = Metrics("tokenizer")
    crew = WorkerPool(DispatcherLimits(), metrics, lambda name: None)
    job = crew.open()
    outbox: Outbox[tokenizer_pb2.WorkRequest] = Outbox(3)
    outbox.put_nowait(hello(slots=1))
    parts = crew.work(outbox)
    crew.add(job, PartPayload(MODEL, b"", 0, "first"))
    crew.add(job, PartPayload(MODEL, b"", 0, "unread"))
    first = await anext(parts)
    for sequence in (0, 1):
        first.sequence = sequence
        outbox.put_nowait(result(first))
    await eventually(lambda: not job.state.parts)
    crew.add(job, PartPayload(MODEL, b"", 0, "next"))
    assert crew.num_workers == 0 and job.state.num_queued == 1 and job.state.error is None
    await parts.aclose()
    metrics.close()


async def test_a_worker_with_another_version_of_the_reference_is_refused_by_name() -> None:
    metrics = Metrics("tokenizer")
    crew = WorkerPool(DispatcherLimits(), metrics, lambda name: None)
    outbox: Outbox[tokenizer_pb2.WorkRequest] = Outbox(1)
    outbox.put_nowait(hello("old", reference_version="0.1"))
    with pytest.raises(VocabularyMismatchError, match=r"old has tokenizers 0\.1"):
        await anext(crew.work(outbox))
    metrics.close()


async def test_a_worker_that_leaves_gets_no_further_part_and_is_read_to_its_last_result() -> None:
    metrics = Metrics("tokenizer")
    crew = WorkerPool(DispatcherLimits(max_worker_deaths=1), metrics, lambda name: None)
    job = crew.open()
    crew.add(job, PartPayload(MODEL, b"", 0, "one"))
    outbox: Outbox[tokenizer_pb2.WorkRequest] = Outbox(3)
    outbox.put_nowait(hello())
    parts = crew.work(outbox)
    part = await anext(parts)
    outbox.put_nowait(message(leaving=tokenizer_pb2.WorkerLeaving()))
    await eventually(lambda: not len(outbox))
    crew.add(job, PartPayload(MODEL, b"", 0, "more"))
    outbox.put_nowait(result(part))
    assert await anext(parts, None) is None, "the stream ends, with no further part"
    assert [block.count for block in job.state.take()] == [3]
    assert job.state.num_queued == 1 and job.state.error is None
    metrics.close()


async def test_a_text_fails_when_no_worker_is_left_for_long() -> None:
    metrics = Metrics("tokenizer")
    crew = WorkerPool(DispatcherLimits(no_worker_timeout_s=0.01), metrics, lambda name: None)
    watching = asyncio.create_task(crew.watch())
    job = crew.open()
    crew.add(job, PartPayload(MODEL, b"", 0, "text"))
    await asyncio.wait_for(job.changed.wait(), 60)
    assert isinstance(job.state.error, UnavailableError)
    watching.cancel()
    metrics.close()
