"""The shared real model as a replica takes it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from outrider.codec.shipped import shipped_table
from outrider.codec.tokens import TokenCoder
from outrider.engines.base import (
    Engine,
    EngineInfo,
    Ids,
    LogitsRows,
    OverlappedWork,
    SequenceSlice,
    no_work,
)
from outrider.models.vocabulary import Vocabulary
from outrider.rpc import make_channel
from outrider.sampling.params import SamplingParams
from outrider.sampling.reply import ReplyText
from outrider.telemetry.metrics import Metrics
from outrider.v1 import common_pb2, inference_pb2_grpc
from outrider.wire import token_block_to_proto
from services.inference.app import Replica
from services.inference.model import LoadedModel, replies_in
from tests.inference.harness import Peer, Reply
from tests.mesh import running_replica


class Borrowed:
    """An engine that others own: closing it gives back what was opened, and it lives on."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._opened: set[int] = set()

    @property
    def info(self) -> EngineInfo:
        return self._engine.info

    @property
    def busy_s(self) -> float:
        return self._engine.busy_s

    def open(self, sequence: int, prompt: Ids, salt: bytes = b"", num_candidates: int = 0) -> None:
        self._engine.open(sequence, prompt, salt, num_candidates)
        self._opened.add(sequence)

    def step(
        self, slices: Sequence[SequenceSlice], overlapped_work: OverlappedWork = no_work
    ) -> list[LogitsRows]:
        return self._engine.step(slices, overlapped_work)

    def close_sequence(self, sequence: int) -> None:
        self._engine.close_sequence(sequence)
        self._opened.discard(sequence)

    def copy_block(self, source: int, target: int) -> None:
        self._engine.copy_block(source, target)

    def export_blocks(self, blocks: Sequence[int]) -> bytes:
        return self._engine.export_blocks(blocks)

    def import_blocks(self, blocks: Sequence[int], data: bytes) -> None:
        self._engine.import_blocks(blocks, data)

    def close(self) -> None:
        for sequence in list(self._opened):
            self.close_sequence(sequence)


def coder_of(vocabulary: Vocabulary) -> TokenCoder:
    return TokenCoder(vocabulary.digest, vocabulary.size, shipped_table(vocabulary.tokens_digest))


def loaded(engine: Engine, vocabulary: Vocabulary) -> LoadedModel:
    """The model around one engine."""

    digest = vocabulary.digest
    identity = engine.info.fingerprint
    return LoadedModel(
        "smollm2", engine, coder_of(vocabulary), digest, replies_in(vocabulary), identity
    )


def texts_of(vocabulary: Vocabulary) -> Callable[[SamplingParams], ReplyText]:
    """What makes replies whose text is read."""
    return lambda params: ReplyText(params, vocabulary.stop_ids, vocabulary.detokenizer())


@asynccontextmanager
async def replica(
    engine: Engine, vocabulary: Vocabulary, **settings: Any
) -> AsyncIterator[tuple[Replica, Metrics, inference_pb2_grpc.InferenceServiceAsyncStub]]:
    """A replica around one engine, and how to ask it."""
    async with (
        running_replica(loaded(engine, vocabulary), **settings) as made,
        make_channel(made.address) as channel,
    ):
        yield made.replica, made.metrics, inference_pb2_grpc.InferenceServiceStub(channel)


def peer_of(stub: inference_pb2_grpc.InferenceServiceAsyncStub, vocabulary: Vocabulary) -> Peer:
    return Peer(stub, coder_of(vocabulary), vocabulary.digest)


async def ask(
    stub: inference_pb2_grpc.InferenceServiceAsyncStub,
    vocabulary: Vocabulary,
    prompt: Sequence[int],
    sampling: SamplingParams,
    *,
    resumed: Sequence[int] = (),
    **fields: Any,
) -> Reply:
    """A reply without drafts, on a stream of its own, behind what is `resumed`; `fields` are more
    of OpenSession."""
    peer = peer_of(stub, vocabulary)
    if resumed:
        fields["resume"] = token_block_to_proto(coder_of(vocabulary).encode(resumed))
        peer.replies[1].ids = list(resumed)
    await peer.open(1, prompt, sampling, speculation=common_pb2.SPECULATION_OFF, **fields)
    reply = await peer.finish(1)
    peer.call.cancel()
    assert reply.error is None
    return reply
