"""The waiting verifier's process.

Its first line of output is {"port": PORT} of a gRPC InferenceService that knows Generate. After
that every line of input is answered by a line with what its calls cost so far, `Costs` as JSON. It
ends with its input.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import sys
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import grpc

from bench.wan.waiting_verifier import (
    MAX_LEAD,
    Costs,
    ScheduledSession,
    Verdict,
    Verifier,
    VerifierSession,
)
from outrider.codec.shipped import shipped_table
from outrider.codec.tokens import TokenCoder
from outrider.engines.base import Engine, LogitsRows
from outrider.engines.config import EngineConfig
from outrider.engines.factory import create_engine, warm_up
from outrider.engines.fake import FakeOptions
from outrider.models.catalog import DEFAULT_MODEL
from outrider.models.store import ModelStore, default_root
from outrider.models.vocabulary import Vocabulary, load_vocabulary
from outrider.rpc import Outbox, bind, make_server, outgoing, received
from outrider.sampling.params import SamplingParams
from outrider.sampling.reply import ReplyText
from outrider.telemetry.logs import configure_logging
from outrider.v1 import common_pb2, inference_pb2
from outrider.wire import ids_of, put_ids, sampling_from_proto, token_block_from_proto
from services.inference.scheduler.types import Drafts

_SERVICE = inference_pb2.DESCRIPTOR.services_by_name["InferenceService"].full_name
_WARM_UP_ROWS = 272
_MAX_PROMPT_TOKENS = 8192


@dataclass(slots=True)
class VerifierLoop:
    """The verifier, the one thread of its engine, and the streams that get its verdicts."""

    engine: Engine
    verifier: Verifier
    coder: TokenCoder
    costs: Costs = field(default_factory=Costs)
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    peers: dict[int, tuple[Outbox[inference_pb2.SessionDown], int]] = field(default_factory=dict)
    """By session: the stream's outbox, and the peer's own number."""
    jobs: list[Callable[[], None]] = field(default_factory=list)
    """For the engine, before its next call."""

    async def work(self) -> None:
        """Call after call, for ever."""
        with ThreadPoolExecutor(1, "engine") as thread:
            loop = asyncio.get_running_loop()
            while True:
                self.wake.clear()
                parts = self.verifier.decide()
                if not parts:
                    await self.wake.wait()
                    continue
                jobs, self.jobs = self.jobs, []
                rows = await loop.run_in_executor(thread, self._compute, jobs, parts)
                for verdict in self.verifier.apply(parts, rows):
                    self._tell(verdict)

    def _compute(
        self, jobs: list[Callable[[], None]], parts: list[ScheduledSession]
    ) -> list[LogitsRows]:
        for job in jobs:
            job()
        began = time.perf_counter()
        rows = self.engine.step([part.slice for part in parts])
        num_rows = sum(len(part.slice.tokens) for part in parts)
        self.costs.add(num_rows, time.perf_counter() - began)
        return rows

    def open(self, number: int, frame: inference_pb2.OpenSession) -> None:
        prompt = self._ids(frame.ids.tail, _MAX_PROMPT_TOKENS)
        ids = self.verifier.open(number, prompt, sampling_from_proto(frame.sampling))
        self.jobs.append(lambda: self.engine.open(number, ids))
        self.wake.set()

    def draft(self, number: int, frame: inference_pb2.Draft) -> None:
        ids = ids_of(frame, self.coder, max_count=MAX_LEAD)
        self.verifier.draft(number, Drafts(frame.epoch, frame.base, ids, frame.continues))
        self.wake.set()

    def close(self, number: int) -> VerifierSession | None:
        self.peers.pop(number, None)
        session = self.verifier.close(number)
        if session is not None:
            self.jobs.append(lambda: self.engine.close_sequence(number))
        return session

    def _ids(self, block: common_pb2.TokenBlock, max_count: int) -> tuple[int, ...]:
        if not block.count:
            return ()
        return self.coder.decode(token_block_from_proto(block), max_count=max_count)

    def _tell(self, verdict: Verdict) -> None:
        outbox, number = self.peers[verdict.session]
        commit = inference_pb2.Commit(
            epoch=verdict.epoch,
            base=verdict.base,
            accepted=verdict.accepted,
            upto=verdict.upto,
        )
        put_ids(commit, self.coder, verdict.ids, self.coder.supported[0])
        outbox.put_nowait(inference_pb2.SessionDown(session=number, commit=commit))
        if verdict.finished:
            session = self.close(verdict.session)
            assert session is not None
            usage = common_pb2.Usage(
                prompt_tokens=session.num_prompt,
                completion_tokens=session.num_reply,
                draft_tokens=session.num_drafts,
                accepted_tokens=session.num_accepted,
            )
            done = inference_pb2.SessionDone(usage=usage, upto=verdict.upto)
            outbox.put_nowait(inference_pb2.SessionDown(session=number, done=done))


async def _frames(requests: Any) -> AsyncIterator[inference_pb2.SessionUp]:
    async for frames in received(requests):
        for frame in frames:
            yield frame


class WaitingService:
    """Streams of sessions; peers are the bench's own, and errors end the stream."""

    def __init__(self, verifier_loop: VerifierLoop) -> None:
        self._loop = verifier_loop
        self._numbers = itertools.count(1)

    def handlers(self) -> grpc.GenericRpcHandler:
        """InferenceService with Generate alone."""
        generate = grpc.stream_stream_rpc_method_handler(
            self._generate,
            request_deserializer=inference_pb2.GenerateRequest.FromString,
            response_serializer=inference_pb2.GenerateResponse.SerializeToString,
        )
        return grpc.method_handlers_generic_handler(_SERVICE, {"Generate": generate})

    async def _generate(
        self, request_iterator: Any, context: Any
    ) -> AsyncIterator[inference_pb2.GenerateResponse]:
        outbox: Outbox[inference_pb2.SessionDown] = Outbox(4096)
        known: dict[int, int] = {}
        reader = asyncio.create_task(self._read(request_iterator, outbox, known))
        try:
            async for response in outgoing(outbox, inference_pb2.GenerateResponse.FromString):
                yield response
        finally:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)
            for number in known.values():
                self._loop.close(number)

    async def _read(
        self, requests: Any, outbox: Outbox[inference_pb2.SessionDown], known: dict[int, int]
    ) -> None:
        async for frame in _frames(requests):
            match frame.WhichOneof("kind"):
                case "open":
                    number = known[frame.session] = next(self._numbers)
                    self._loop.peers[number] = outbox, frame.session
                    self._loop.open(number, frame.open)
                case "draft":
                    self._loop.draft(known[frame.session], frame.draft)
                case "cancel":
                    self._loop.close(known[frame.session])
        outbox.close()


def make_verifier_loop(engine: Engine, vocabulary: Vocabulary) -> VerifierLoop:
    """The parts around an engine."""

    def new_reply(params: SamplingParams) -> ReplyText:
        return ReplyText(params, vocabulary.stop_ids, vocabulary.detokenizer())

    digest = vocabulary.digest
    coder = TokenCoder(digest, vocabulary.size, shipped_table(vocabulary.tokens_digest))
    return VerifierLoop(engine, Verifier(engine.info, new_reply), coder)


@contextlib.asynccontextmanager
async def serving(verifier_loop: VerifierLoop) -> AsyncIterator[tuple[int, asyncio.Task[None]]]:
    """A server on a free port: the port, and the work, which ends only by failing."""
    server = make_server()
    server.add_generic_rpc_handlers((WaitingService(verifier_loop).handlers(),))
    port = bind(server, "127.0.0.1", 0)
    await server.start()
    work = asyncio.create_task(verifier_loop.work())
    try:
        yield port, work
    finally:
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        await server.stop(grace=None)


async def serve(verifier_loop: VerifierLoop) -> None:
    """Until the input ends, or the work fails."""
    async with serving(verifier_loop) as (port, work):
        print(json.dumps({"port": port}), flush=True)
        answers = asyncio.create_task(_answer(verifier_loop.costs))
        done, _ = await asyncio.wait({answers, work}, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()


async def _answer(costs: Costs) -> None:
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while await reader.readline():
        print(json.dumps(costs.to_json()), flush=True)


def main() -> None:
    flags = argparse.ArgumentParser(prog="python -m bench.wan.waiting_server", description=__doc__)
    flags.add_argument("--threads", type=int, default=1, help="threads of the engine")
    flags.add_argument("--engine", choices=("openvino", "fake"), default="openvino")
    flags.add_argument("--max-fixed-rows", type=int, default=64, help="as a replica's")
    arguments = flags.parse_args()
    configure_logging("waiting", "error")  # its output is for answers
    vocabulary = load_vocabulary(DEFAULT_MODEL, ModelStore(default_root()))
    engine = create_engine(_engine_config(arguments, vocabulary))
    try:
        warm_up(engine, _WARM_UP_ROWS)
        asyncio.run(serve(make_verifier_loop(engine, vocabulary)))
    finally:
        engine.close()


def _engine_config(arguments: argparse.Namespace, vocabulary: Vocabulary) -> EngineConfig:
    """As the replica's beside it."""
    return EngineConfig(
        engine=arguments.engine,
        threads=arguments.threads,
        kv_bytes=1 << 29,
        max_fixed_rows=arguments.max_fixed_rows,
        prepare_first=True,
        fake=FakeOptions(vocabulary_size=vocabulary.size),
    )


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C reaches the bench too, which says so
        main()
