"""A caller that left costs nothing one slice later, whatever it called."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pytest

from outrider.fair_work.threads import WorkerThreads
from outrider.models.detokenizer import Detokenizer
from outrider.models.vocabulary import Vocabulary
from outrider.testing import eventually, leak_check
from outrider.tokenization.backends.fallback import FallbackBackend
from outrider.tokenization.cuts import SLICE_CHARS
from outrider.v1 import common_pb2, tokenizer_pb2
from outrider.wire import token_block_to_proto
from services.tokenizer.long_texts.processes import WorkerProcesses
from services.tokenizer.long_texts.worker_pool import WorkerPool
from services.tokenizer.vocabularies import ServedVocabulary
from tests.tokenizer.running import MODEL, TokenizerUnderTest, running_tokenizer

_SLICES: Final = 5
_TEXT: Final = "one two three " * (_SLICES * SLICE_CHARS // 14)
_SAID: Final = tokenizer_pb2.Conversation(
    messages=[common_pb2.ChatMessage(role="user", content=_TEXT)]
)


def _block(served: ServedVocabulary) -> common_pb2.TokenBlock:
    return token_block_to_proto(served.coder.encode([5] * (_SLICES * 8192)))


@dataclass(frozen=True, slots=True)
class Call:
    """A call that computes for several slices."""

    requests: Callable[[ServedVocabulary], list[Any]]
    unit: tuple[type, str] = (FallbackBackend, "encode")
    """What a thread calls in each slice."""


IN_THREADS: Final[Mapping[str, Call]] = {
    "Encode": Call(lambda served: [tokenizer_pb2.EncodeRequest(number=1, text=_TEXT)]),
    "Encode of a conversation": Call(
        lambda served: [tokenizer_pb2.EncodeRequest(number=1, conversation=_SAID)]
    ),
    "Decode": Call(
        lambda served: [tokenizer_pb2.DecodeRequest(number=1, ids=_block(served))],
        (Detokenizer, "push_all"),
    ),
    "Detokenize": Call(
        lambda served: [tokenizer_pb2.DetokenizeRequest(ids=_block(served))] * 2,
        (Detokenizer, "push_all"),
    ),
}
BY_WORKERS: Final[Mapping[str, Callable[[], Iterator[Any]]]] = {
    "Tokenize": lambda: iter([tokenizer_pb2.TokenizeRequest(text=_TEXT)] * 8),
    "Count": lambda: iter([tokenizer_pb2.CountRequest(text=_TEXT)] * 8),
}
COMPUTES_NOTHING: Final = {"GetVocabulary"}


def test_every_method_has_its_row() -> None:
    (service,) = (
        it
        for it in tokenizer_pb2.DESCRIPTOR.services_by_name.values()
        if it.name == "TokenizerService"
    )
    rows = {name.partition(" ")[0] for name in (*IN_THREADS, *BY_WORKERS)} | COMPUTES_NOTHING
    assert {method.name for method in service.methods} == rows


@pytest.mark.parametrize("name", IN_THREADS)
async def test_threads_compute_nothing_for_a_caller_that_left(
    name: str, vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    call, served = IN_THREADS[name], ServedVocabulary.of(MODEL, vocabulary)
    owner, unit_name = call.unit
    unit, remove = getattr(owner, unit_name), WorkerThreads.remove
    begun, given_up, may_go_on = list[int](), list[Any](), threading.Event()

    def held(of: Any, given: Any) -> Any:
        if len(given) > 1000:
            begun.append(len(given))
            assert may_go_on.wait(60)
        return unit(of, given)

    def removed(threads: WorkerThreads[Any], job: Any) -> bool:
        given_up.append(job)
        return remove(threads, job)

    monkeypatch.setattr(owner, unit_name, held)
    monkeypatch.setattr(WorkerThreads, "remove", removed)
    async with leak_check(), running_tokenizer([served], threads=1) as service:
        calling = getattr(service.stub, name.partition(" ")[0])(iter(call.requests(served)))
        await eventually(lambda: len(begun) == 1)
        calling.cancel()
        await eventually(lambda: len(given_up) == 1)
        may_go_on.set()
        # One thread: whatever went on would be done, or take turns with this.
        await _encoded(service)
    assert len(begun) == 1 and begun[0] < 2 * SLICE_CHARS, "a slice, and no other"


async def _encoded(service: TokenizerUnderTest) -> None:
    for text in ("next", "and next"):
        request = tokenizer_pb2.EncodeRequest(number=1, text=text)
        assert (await service.encode([request]))[1].ids.count


@pytest.mark.parametrize("name", BY_WORKERS)
async def test_workers_get_no_part_of_a_text_whose_caller_left(
    name: str, vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    pools, add = list[WorkerPool](), WorkerPool.add

    def added(pool: WorkerPool, *given: Any) -> None:
        pools.append(pool)
        add(pool, *given)

    monkeypatch.setattr(WorkerPool, "add", added)
    monkeypatch.setattr(WorkerProcesses, "start", lambda processes: None)  # none takes a part
    async with leak_check(), running_tokenizer(vocabulary, worker_processes=1) as service:
        calling = getattr(service.stub, name)(BY_WORKERS[name]())
        await eventually(lambda: len(pools) > 2)
        assert pools[0]._dispatcher.stats.num_queued > 2
        calling.cancel()
        await eventually(lambda: not pools[0].num_jobs)
        assert pools[0]._dispatcher.stats.num_queued == 0
