"""Log probabilities and predictions through a mesh that is real but for its engine: as the
reference has them, also when a replica dies in the middle of the reply."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
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
)
from outrider.engines.base import SequenceSlice
from outrider.engines.fake import FakeEngine, FakeOptions
from outrider.errors import InvalidRequestError
from outrider.models.vocabulary import Vocabulary
from outrider.sampling.reply import ReplyText
from outrider.testing import eventually
from services.inference.reference import ReferenceReply, generate
from tests.inference.harness import GatedEngine
from tests.mesh import Mesh, running_mesh

ASK = [Message("user", "Tell me something.")]
LONG = SamplingParams(temperature=0.9, seed=3, max_tokens=300, ignore_eos=True, num_logprobs=4)


def options(words: Vocabulary) -> FakeOptions:
    return FakeOptions(vocabulary_size=words.size, min_rows=2, repetition=0.2)


def reference(words: Vocabulary, sampling: SamplingParams) -> ReferenceReply:
    """The reply of an engine alone, its log probabilities with the tokens' texts."""

    def new_reply(params: SamplingParams) -> ReplyText:
        return ReplyText(params, words.stop_ids, words.detokenizer())

    return generate(FakeEngine(options(words)), words.encode_chat(ASK), sampling, new_reply)


def named(words: Vocabulary, logprobs: tuple[TokenLogprobs, ...]) -> tuple[TokenLogprobs, ...]:
    def named(token: ScoredToken) -> ScoredToken:
        return token._replace(text=words.text_bytes(token.id))

    return tuple(TokenLogprobs(named(at.chosen), tuple(map(named, at.top))) for at in logprobs)


class Halfway(GatedEngine):
    """Steps in the middle of `LONG` wait for the gate."""

    def is_held(self, slices: Sequence[SequenceSlice]) -> bool:
        return any(part.past > 150 for part in slices)


@asynccontextmanager
async def two_replicas(
    words: Vocabulary, state_dir: Path
) -> AsyncIterator[tuple[Mesh, Client, list[Halfway]]]:
    """The engines step until a test closes their gates."""
    engines = list[Halfway]()

    def engine() -> Halfway:
        engines.append(Halfway(options(words)))
        engines[-1].gate.set()
        return engines[-1]

    async with (
        running_mesh(words, state_dir, replicas=2, engine=engine) as mesh,
        mesh.client() as client,
    ):
        yield mesh, client, engines


async def ask(client: Client, sampling: SamplingParams = LONG, prediction: str = "") -> ChatResult:
    async with client.chat(ASK, sampling=sampling, prediction=prediction) as chat:
        return await chat.result()


async def test_they_are_the_references_with_the_tokens_texts(
    words: Vocabulary, tmp_path: Path
) -> None:
    async with two_replicas(words, tmp_path) as (_, client, _):
        truth = reference(words, LONG)
        results = await asyncio.gather(
            *(ask(client) for _ in range(4)), ask(client, prediction="no")
        )
        for result in results:
            assert result.ids == truth.ids
            assert result.logprobs == named(words, truth.logprobs)
        assert any(at.chosen.text for at in named(words, truth.logprobs))
        plain = await ask(client, SamplingParams(max_tokens=9))
        assert plain.logprobs == ()


async def test_a_replica_that_dies_takes_none_of_them_with_it_and_the_prediction_goes_on(
    words: Vocabulary, tmp_path: Path
) -> None:
    async with two_replicas(words, tmp_path) as (mesh, client, engines):
        truth = reference(words, LONG)
        # What the reply says, by bytes that are characters for certain, with an edit.
        prediction = "".join(chr(32 + token % 90) for token in truth.ids)
        for engine in engines:
            engine.gate.clear()
        async with client.chat(ASK, sampling=LONG, prediction=prediction) as chat:
            async for event in chat:
                if isinstance(event, Committed):
                    break
            await eventually(lambda: any(engine.waiting.is_set() for engine in engines))
            (first,) = (n for n, engine in enumerate(engines) if engine.waiting.is_set())
            engines[1 - first].gate.set()
            dying = asyncio.create_task(mesh.replicas[first].replica.stop())
            result = await chat.result()
            engines[first].gate.set()
            await dying
        assert result.replica == "ab"[1 - first], "the other one ended it"
        assert result.ids == truth.ids
        assert result.logprobs == named(words, truth.logprobs)


async def test_a_right_prediction_is_counted_and_changes_nothing(
    words: Vocabulary, tmp_path: Path
) -> None:
    said = "".join(chr(97 + number * 7 % 26) for number in range(200))
    wanted = dict.fromkeys(words.encode("abcdefgh"), 100.0)
    sampling = SamplingParams(
        max_tokens=120, ignore_eos=True, logit_bias=wanted, temperature=1.0, seed=2
    )
    async with two_replicas(words, tmp_path) as (_, client, _):
        truth = reference(words, sampling)
        alone = await ask(client, sampling)
        right = await ask(client, sampling, prediction=truth.text)
        wrong = await ask(client, sampling, prediction=said)
        assert alone.text == right.text == wrong.text == truth.text
        assert alone.usage.accepted_prediction_tokens == 0
        assert right.usage.accepted_prediction_tokens > 20
        assert right.usage.prompt_tokens == alone.usage.prompt_tokens, "it is no part of the prompt"
        assert wrong.usage.accepted_prediction_tokens < 60
        with pytest.raises(InvalidRequestError, match="leave out one of them"):
            async with client.chat(ASK, prediction="x", thin=True) as chat:
                await chat.result()
