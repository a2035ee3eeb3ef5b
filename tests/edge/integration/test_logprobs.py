"""Log probabilities and predictions through a mesh that is real but for its engine: as the
reference has them, also when a replica dies in the middle of the reply."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from outrider.client import (
    ChatResult,
    Client,
    Committed,
    Message,
    SamplingParams,
    ScoredToken,
    TokenLogprobs,
    connect,
)
from outrider.codec.tokens import TokenCoder
from outrider.engines.fake import FakeEngine, FakeOptions
from outrider.errors import InvalidRequestError
from outrider.models.vocabulary import Vocabulary
from outrider.sampling.reply import Reply, ReplyText, reply_end
from outrider.telemetry.metrics import Metrics
from outrider.testing import eventually
from services.edge.app import Edge
from services.edge.config import EdgeConfig
from services.edge.drafter.settings import NO_DRAFT_MODEL, DrafterConfig
from services.inference.app import LoadedModel, Replica
from services.inference.config import InferenceConfig
from services.inference.reference import ReferenceReply, generate
from services.router.config import ReplicaConfig
from tests.edge.integration.running import catalog_of, loading
from tests.inference.harness import GatedEngine
from tests.router.replica import running_router
from tests.telemetry.mesh import MODEL, PATIENT_EDGE, PATIENT_ROUTER

ASK = [Message("user", "Tell me something.")]
LONG = SamplingParams(temperature=0.9, seed=3, max_tokens=300, ignore_eos=True, num_logprobs=4)


@dataclass(frozen=True)
class Fleet:
    """A client, and the replicas behind its edge."""

    client: Client
    replicas: tuple[Replica, ...]
    engines: tuple[GatedEngine, ...]
    words: Vocabulary

    def reference(self, sampling: SamplingParams) -> ReferenceReply:
        """The reply of an engine alone, its log probabilities with the tokens' texts."""

        def new_reply(params: SamplingParams) -> ReplyText:
            return ReplyText(params, self.words.stop_ids, self.words.detokenizer())

        engine = FakeEngine(_options(self.words))
        return generate(engine, self.words.encode_chat(ASK), sampling, new_reply)

    def named(self, logprobs: tuple[TokenLogprobs, ...]) -> tuple[TokenLogprobs, ...]:
        def named(token: ScoredToken) -> ScoredToken:
            return token._replace(text=self.words.text_bytes(token.id))

        return tuple(TokenLogprobs(named(at.chosen), tuple(map(named, at.top))) for at in logprobs)


def _options(words: Vocabulary) -> FakeOptions:
    return FakeOptions(vocabulary_size=words.size, min_rows=2, repetition=0.2)


@asynccontextmanager
async def fleet(words: Vocabulary, state_dir: Path) -> AsyncIterator[Fleet]:
    """Edge, router and two replicas, each on a socket of its own."""

    def new_reply(params: SamplingParams) -> Reply:
        return reply_end(params, words.stop_ids, words.detokenizer)

    engines = tuple(GatedEngine(_options(words)) for _ in range(2))
    coder = TokenCoder(words.digest, words.size)
    async with AsyncExitStack() as stack:
        replicas = []
        for name, engine in zip("ab", engines, strict=True):
            engine.gate.set()
            model = LoadedModel(MODEL, engine, coder, words.digest, new_reply, b"m" * 32)
            metrics = Metrics("inference")
            stack.callback(metrics.close)
            config = InferenceConfig(engine="fake", port=0, replica=name, region="us", drain_s=0.0)
            replica = Replica(config, model, metrics)
            await replica.start()
            stack.push_async_callback(replica.stop)
            replicas.append(replica)
        router = await stack.enter_async_context(
            running_router(
                replicas=tuple(
                    ReplicaConfig(name, "us", f"127.0.0.1:{replica.port}")
                    for name, replica in zip("ab", replicas, strict=True)
                ),
                default_model=MODEL,
                **PATIENT_ROUTER,
            )
        )
        edge_config = EdgeConfig(
            port=0,
            routers=(f"127.0.0.1:{router.ports.main}",),
            state_dir=state_dir,
            drain_s=0.0,
            drafter=DrafterConfig(model=NO_DRAFT_MODEL),
            anonymous=True,
            **PATIENT_EDGE,
        )
        edge_metrics = Metrics("edge")
        stack.callback(edge_metrics.close)
        edge = Edge(edge_config, catalog_of(MODEL), edge_metrics, load=loading(words))
        ports = await edge.start()
        stack.push_async_callback(edge.stop)
        await eventually(lambda: edge.upstream.ready)
        ca = state_dir / "tls" / "cert.pem"
        client = await stack.enter_async_context(connect("127.0.0.1", ports.main, ca=ca))
        yield Fleet(client, tuple(replicas), engines, words)


async def ask(mesh: Fleet, sampling: SamplingParams = LONG, prediction: str = "") -> ChatResult:
    async with mesh.client.chat(ASK, sampling=sampling, prediction=prediction) as chat:
        return await chat.result()


async def test_they_are_the_references_with_the_tokens_texts(
    words: Vocabulary, tmp_path: Path
) -> None:
    async with fleet(words, tmp_path) as mesh:
        truth = mesh.reference(LONG)
        results = await asyncio.gather(*(ask(mesh) for _ in range(4)), ask(mesh, prediction="no"))
        for result in results:
            assert result.ids == truth.ids
            assert result.logprobs == mesh.named(truth.logprobs)
        assert any(at.chosen.text for at in mesh.named(truth.logprobs))
        plain = await ask(mesh, SamplingParams(max_tokens=9))
        assert plain.logprobs == ()


async def test_a_replica_that_dies_takes_none_of_them_with_it_and_the_prediction_goes_on(
    words: Vocabulary, tmp_path: Path
) -> None:
    async with fleet(words, tmp_path) as mesh:
        truth = mesh.reference(LONG)
        # What the reply says, by bytes that are characters for certain, with an edit.
        prediction = "".join(chr(32 + token % 90) for token in truth.ids)
        async with mesh.client.chat(ASK, sampling=LONG, prediction=prediction) as chat:
            async for event in chat:
                if isinstance(event, Committed):
                    break
            (first,) = (n for n, engine in enumerate(mesh.engines) if engine.waiting.is_set())
            mesh.engines[first].gate.clear()
            dying = asyncio.create_task(mesh.replicas[first].stop())
            result = await chat.result()
            mesh.engines[first].gate.set()
            await dying
        assert result.replica == "ab"[1 - first], "the other one ended it"
        assert result.ids == truth.ids
        assert result.logprobs == mesh.named(truth.logprobs)


async def test_a_right_prediction_is_counted_and_changes_nothing(
    words: Vocabulary, tmp_path: Path
) -> None:
    said = "".join(chr(97 + number * 7 % 26) for number in range(200))
    wanted = dict.fromkeys(words.encode("abcdefgh"), 100.0)
    sampling = SamplingParams(
        max_tokens=120, ignore_eos=True, logit_bias=wanted, temperature=1.0, seed=2
    )
    async with fleet(words, tmp_path) as mesh:
        truth = mesh.reference(sampling)
        alone = await ask(mesh, sampling)
        right = await ask(mesh, sampling, prediction=truth.text)
        wrong = await ask(mesh, sampling, prediction=said)
        assert alone.text == right.text == wrong.text == truth.text
        assert alone.usage.accepted_prediction_tokens == 0
        assert right.usage.accepted_prediction_tokens > 20
        assert right.usage.prompt_tokens == alone.usage.prompt_tokens, "it is no part of the prompt"
        assert wrong.usage.accepted_prediction_tokens < 60
        with pytest.raises(InvalidRequestError, match="leave out one of them"):
            async with mesh.client.chat(ASK, prediction="x", thin=True) as chat:
                await chat.result()
