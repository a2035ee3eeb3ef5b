"""A small real RouterService: verifies drafts against a fixed reply and commits it in steps."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import grpc.aio

from outrider.codec.tokens import TokenCodec, TokenCoder
from outrider.errors import OutriderError
from outrider.models.bpe import VocabularyDefinition
from outrider.models.pre_tokenizers import pre_tokenizer_of
from outrider.models.vocabulary import Vocabulary
from outrider.rpc import Outbox, bind, make_server, outgoing, received
from outrider.session.region_wire import ids_of, put_ids
from outrider.session.types import ScoredToken, TokenLogprobs
from outrider.tls import PLAINTEXT, Tls
from outrider.v1 import (
    common_pb2,
    embedding_pb2,
    embedding_pb2_grpc,
    inference_pb2,
    router_pb2,
    router_pb2_grpc,
)
from outrider.wire import error_to_proto, logprobs_to_proto, token_block_from_proto
from tests.embedding_frames import frames_of

IDENTITY = b"\x0a" * 32
"""What the region's replica says that it computes."""
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def small_vocabulary(
    first: int = 0, *, adds_bos: bool = False, template: str = TEMPLATE
) -> Vocabulary:
    """One token per byte, and the two control tokens of ChatML. Vocabularies that begin with
    another `first` byte mean something else by nearly every id."""
    from tokenizers import pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    alphabet = alphabet[first:] + alphabet[:first]
    return Vocabulary.from_definition(
        VocabularyDefinition(
            tokens=(*alphabet, "<|im_start|>", "<|im_end|>"),
            merges=(),
            pipeline=pre_tokenizer_of("gpt-2").pipeline,
            control_ids=(len(alphabet), len(alphabet) + 1),
            user_defined_ids=(),
            stop_ids=(len(alphabet) + 1,),
            bos_token="<|im_start|>" if adds_bos else "",
            eos_token="<|im_end|>",
            chat_template=template,
            adds_bos=adds_bos,
        )
    )


@dataclass
class RegionSession:
    """What the region knows of a session."""

    open: inference_pb2.OpenSession
    reply: tuple[int, ...]
    codec: TokenCodec
    committed: int = 0
    epoch: int = 0
    begin: int = 0
    drafts: list[int] = field(default_factory=list)
    num_accepted: int = 0
    num_frames: int = 0
    echo: int = 0
    task: asyncio.Task[None] | None = None


def scripted_logprobs(position: int, token: int, count: int) -> TokenLogprobs:
    """What the region says of a token of its reply, and of `count` others in its place."""
    others = ((position * 7 + rank) % 250 for rank in range(count))
    return TokenLogprobs(
        ScoredToken(token, -position / 8),
        tuple(ScoredToken(other, -rank / 4) for rank, other in enumerate(others)),
    )


TIMINGS = common_pb2.Timings(queue_ms=1, prefill_ms=20, ttft_ms=30, total_ms=400)
"""What the region says of every session."""


class Region(router_pb2_grpc.RouterServiceServicer):
    """Answers every session with `reply`; the hooks let a test make it misbehave."""

    def __init__(self, vocabulary: Vocabulary, reply: str) -> None:
        self.embeddings = Embeddings()
        self.vocabulary = vocabulary
        self.coder = TokenCoder(vocabulary.digest, vocabulary.size)
        self.reply = (*vocabulary.encode(reply), min(vocabulary.stop_ids))
        self.digest = vocabulary.digest
        self.error: OutriderError | None = None
        """Answer with this instead of opening."""
        self.stop_after: int | None = None
        """Commit so many tokens, then fall silent."""
        self.gate = asyncio.Event()
        """While it is not set, no session gets past `hold_at` tokens."""
        self.gate.set()
        self.hold_at = 0
        self.block_tokens = 3
        self.described = router_pb2.DescribeMeshResponse(region="test-region")
        self.num_described = 0
        """How often it was asked of the mesh."""
        self.mangle: Callable[[inference_pb2.SessionDown], None] = lambda frame: None
        self.opened: list[inference_pb2.OpenSession] = []
        self.cancelled: list[str] = []
        self.live: dict[int, RegionSession] = {}
        self.asked: dict[int, list[inference_pb2.SessionUp]] = {}
        """Opens that left out a part of their prompt, all of which the region has forgotten, and
        the drafts behind them."""
        self.num_asked = 0
        self.finished: list[RegionSession] = []
        self.calls: set[Any] = set()
        self.others: dict[str, Region] = {}
        """Who answers for models of these names, each in a vocabulary of its own."""
        self.faults: list[Exception] = []
        """What the edge did that no region may be sent; `running` fails with the first."""

    async def Route(
        self, request_iterator: Any, context: Any
    ) -> AsyncIterator[router_pb2.RouteResponse]:
        outbox = Outbox[inference_pb2.SessionDown](10_000)
        reader = asyncio.create_task(self._read(request_iterator, outbox))
        reader.add_done_callback(partial(self._ended, outbox))
        self.calls.add(outbox)
        try:
            async for response in outgoing(outbox, router_pb2.RouteResponse.FromString):
                yield response
        finally:
            self.calls.discard(outbox)
            reader.cancel()
            for number in list(self.live):
                self._close(number)

    async def GetRouter(
        self, request: router_pb2.GetRouterRequest, context: Any
    ) -> router_pb2.GetRouterResponse:
        return router_pb2.GetRouterResponse(region="test-region", serving=True)

    async def DescribeMesh(
        self, request: router_pb2.DescribeMeshRequest, context: Any
    ) -> router_pb2.DescribeMeshResponse:
        self.num_described += 1
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        return self.described

    async def ListReplicas(
        self, request: router_pb2.ListReplicasRequest, context: Any
    ) -> router_pb2.ListReplicasResponse:
        return router_pb2.ListReplicasResponse()

    async def ListModels(
        self, request: router_pb2.ListModelsRequest, context: Any
    ) -> router_pb2.ListModelsResponse:
        return router_pb2.ListModelsResponse()

    async def DrainReplica(
        self, request: router_pb2.DrainReplicaRequest, context: Any
    ) -> router_pb2.DrainReplicaResponse:
        return router_pb2.DrainReplicaResponse()

    async def Explain(
        self, request: router_pb2.ExplainRequest, context: Any
    ) -> router_pb2.ExplainResponse:
        return router_pb2.ExplainResponse()

    def hold(self, num_tokens: int) -> None:
        """From now on no session gets past so many tokens, until the gate is set."""
        self.hold_at = num_tokens
        self.gate.clear()

    def break_streams(self) -> None:
        """End every Route stream."""
        for outbox in self.calls:
            outbox.close()

    async def _read(
        self, requests: AsyncIterator[router_pb2.RouteRequest], outbox: Outbox[Any]
    ) -> None:
        async for frame in _frames(requests):
            kind = frame.WhichOneof("kind")
            if kind == "open":
                if frame.open.ids.prefix_tokens:
                    self._ask(frame, outbox)
                    continue
                region = self.others.get(frame.open.model, self)
                region._open(frame.session, frame.open, outbox)
                continue
            if kind == "prompt":
                first, *drafts = self.asked.pop(frame.session)
                first.open.ids.CopyFrom(frame.prompt)
                region = self.others.get(first.open.model, self)
                region._open(frame.session, first.open, outbox)
                for kept in drafts:
                    region._draft(region.live[frame.session], kept.draft)
                continue
            if kind == "draft" and frame.session in self.asked:
                self.asked[frame.session].append(frame)
                continue
            everywhere = (self, *self.others.values())
            region = next((it for it in everywhere if frame.session in it.live), self)
            if kind == "draft" and frame.session in region.live:
                region._draft(region.live[frame.session], frame.draft)
            elif kind == "cancel":
                region.cancelled.append(frame.cancel.reason)
                region._close(frame.session)

    def _ask(self, frame: inference_pb2.SessionUp, outbox: Outbox[Any]) -> None:
        self.num_asked += 1
        self.asked[frame.session] = [frame]
        unknown = inference_pb2.PromptUnknown()
        self._send(outbox, inference_pb2.SessionDown(session=frame.session, prompt_unknown=unknown))

    def _open(self, number: int, opening: inference_pb2.OpenSession, outbox: Outbox[Any]) -> None:
        self.opened.append(opening)
        if self.error is not None:
            detail = error_to_proto(self.error)
            self._send(outbox, inference_pb2.SessionDown(session=number, error=detail))
            return
        most = opening.sampling.max_tokens if opening.background else len(self.reply)
        session = RegionSession(opening, self.reply[:most], TokenCodec(opening.codecs[-1]))
        if opening.resume.count:
            had = self.coder.decode(token_block_from_proto(opening.resume), max_count=100_000)
            assert had == self.reply[: len(had)], "the ids of the run before"
            assert opening.model_identity == IDENTITY, "whose ids they are"
            session.committed = session.begin = len(had)
        self.live[number] = session
        session.task = asyncio.create_task(self._run(number, session, outbox))
        session.task.add_done_callback(partial(self._ended, outbox))

    def _draft(self, session: RegionSession, draft: inference_pb2.Draft) -> None:
        ids = ids_of(draft, self.coder, max_count=1000)
        session.num_frames += 1
        session.echo = draft.echo
        if draft.epoch != session.epoch:
            assert draft.epoch > session.epoch
            session.epoch, session.begin, session.drafts = draft.epoch, draft.base, []
        # Those that a frame brings again, because the edge learnt of `max_lead` after it had sent
        # more: a region may have dropped them.
        again = session.drafts[max(0, draft.base - session.begin) :]
        assert session.begin <= draft.base <= session.begin + len(session.drafts), "no gaps"
        assert again[: len(ids)] == list(ids[: len(again)]), "the same drafts"
        session.drafts += ids[len(again) :]

    def _ended(self, outbox: Outbox[Any], task: asyncio.Task[None]) -> None:
        """Whoever waits for an answer is told at once that none will come."""
        if task.cancelled():
            return
        if isinstance(fault := task.exception(), AssertionError | OutriderError):
            self.faults.append(fault)
            outbox.close()

    async def _run(self, number: int, session: RegionSession, outbox: Outbox[Any]) -> None:
        opened = self._opened(session)
        self._send(outbox, inference_pb2.SessionDown(session=number, opened=opened))
        while session.committed < len(session.reply):
            if session.committed >= self.hold_at:
                await self.gate.wait()
            await asyncio.sleep(0)
            if self.stop_after is not None and session.committed >= self.stop_after:
                return
            commit = self._commit(session)
            self._send(outbox, inference_pb2.SessionDown(session=number, commit=commit))
        done = inference_pb2.SessionDone(
            finish_reason=(
                common_pb2.FINISH_REASON_STOP
                if session.reply == self.reply
                else common_pb2.FINISH_REASON_LENGTH
            ),
            upto=session.committed,
            checksum=self.coder.checksum(session.reply[: session.committed]),
            usage=common_pb2.Usage(completion_tokens=session.committed),
            timings=TIMINGS,
        )
        self._send(outbox, inference_pb2.SessionDown(session=number, done=done))
        del self.live[number]
        self.finished.append(session)

    def _opened(self, session: RegionSession) -> inference_pb2.SessionOpened:
        return inference_pb2.SessionOpened(
            prompt_tokens=self._num_prompt_tokens(session.open),
            replica="scripted",
            region="test-region",
            vocabulary_digest=self.digest,
            model_identity=IDENTITY,
            codec=common_pb2.TokenCodec.ValueType(session.codec),
            echo=session.open.echo,
        )

    def _commit(self, session: RegionSession) -> inference_pb2.Commit:
        base, truth = session.committed, session.reply
        alive = base >= session.begin and session.drafts[: base - session.begin] == list(
            truth[session.begin : base]
        )
        accepted = 0
        for draft, true in zip(
            session.drafts[base - session.begin :] if alive else [], truth[base:], strict=False
        ):
            if draft != true:
                break
            accepted += 1
        ids = truth[base + accepted : base + accepted + self.block_tokens]
        session.committed += accepted + len(ids)
        session.num_accepted += accepted
        echo, session.echo = session.echo, 0
        wanted = session.open.sampling
        num_logprobs = wanted.num_logprobs if wanted.HasField("num_logprobs") else -1
        told = truth[base : session.committed] if num_logprobs >= 0 else ()
        details = inference_pb2.CommitDetails(
            pace=inference_pb2.Pace(max_lead=16, echo=echo),
            logprobs=logprobs_to_proto(
                scripted_logprobs(base + index, token, num_logprobs)
                for index, token in enumerate(told)
            ),
        )
        commit = inference_pb2.Commit(
            epoch=session.epoch,
            base=base,
            accepted=accepted,
            upto=session.committed,
            details=details.SerializeToString(),
        )
        put_ids(commit, self.coder, ids, session.codec)
        return commit

    def prompt(self, opening: inference_pb2.OpenSession) -> tuple[int, ...]:
        """The ids that a session was opened with."""
        block = token_block_from_proto(opening.ids.tail)
        return tuple(self.coder.decode(block, max_count=100_000))

    def _num_prompt_tokens(self, opening: inference_pb2.OpenSession) -> int:
        if opening.HasField("ids"):
            return len(self.prompt(opening))
        return sum(len(message.content) for message in opening.messages.messages)

    def _send(self, outbox: Outbox[Any], frame: inference_pb2.SessionDown) -> None:
        self.mangle(frame)
        if not outbox.closed:
            outbox.put_nowait(frame)

    def _close(self, number: int) -> None:
        session = self.live.pop(number, None)
        if session is not None and session.task is not None:
            session.task.cancel()


async def _frames(
    requests: AsyncIterator[router_pb2.RouteRequest],
) -> AsyncIterator[inference_pb2.SessionUp]:
    async for frames in received(requests):
        for frame in frames:
            yield frame


class Embeddings(embedding_pb2_grpc.EmbeddingRouterServiceServicer):
    """The vector of a text is its number in the request; each has 5 tokens."""

    def __init__(self) -> None:
        self.num_taken = 0

    async def Embed(
        self, request_iterator: Any, context: Any
    ) -> AsyncIterator[embedding_pb2.EmbedResponse]:
        async for frame in request_iterator:
            for given in frame.inputs.inputs:
                self.num_taken += 1
                told = embedding_pb2.Vectors(
                    ids=[given.id],
                    num_tokens=[5],
                    dimensions=1,
                    format=embedding_pb2.VECTOR_FORMAT_F32,
                    data=struct.pack("<f", given.id),
                )
                yield embedding_pb2.EmbedResponse(vectors=told)
        yield embedding_pb2.EmbedResponse(done=embedding_pb2.EmbedDone(model_identity=b"1234"))

    async def EmbedAtOnce(
        self, request: embedding_pb2.EmbedAtOnceRequest, context: Any
    ) -> embedding_pb2.EmbedAtOnceResponse:
        answers = [answer async for answer in self.Embed(frames_of(request), context)]
        return embedding_pb2.EmbedAtOnceResponse(answers=answers)


@asynccontextmanager
async def serving(region: Region, port: int = 0, tls: Tls = PLAINTEXT) -> AsyncIterator[int]:
    """Serve `region` on loopback; yields its port."""
    server: grpc.aio.Server = make_server(tls)
    router_pb2_grpc.add_RouterServiceServicer_to_server(region, server)
    embedding_pb2_grpc.add_EmbeddingRouterServiceServicer_to_server(region.embeddings, server)
    bound = bind(server, "127.0.0.1", port, tls)
    await server.start()
    try:
        yield bound
    finally:
        await server.stop(None)
