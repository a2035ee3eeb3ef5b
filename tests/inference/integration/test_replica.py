"""The replica with the real model: exact text over gRPC, and the service as a process runs it."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

from outrider.models.chat import Message
from outrider.models.vocabulary import Vocabulary
from outrider.sampling.params import SamplingParams
from outrider.testing import leak_check
from outrider.v1 import common_pb2
from outrider.wire import (
    logprobs_from_proto,
    token_block_to_proto,
)
from services.inference.model import LoadedModel
from services.inference.reference import ReferenceReply, generate
from services.inference.scheduler.limits import SchedulerLimits
from tests.inference.harness import details_of
from tests.inference.integration.real_engine import (
    Borrowed,
    coder_of,
    loaded,
    peer_of,
    replica,
    texts_of,
)

if TYPE_CHECKING:
    from outrider.engines.openvino.engine import OpenVinoEngine

pytestmark = pytest.mark.model

QUESTIONS = (
    "Name three rivers.",
    "Write a Python function that reverses a list.",
    "Was ist die Hauptstadt von Frankreich?",
    "Repeat the word tick ten times.",
    "日本の首都はどこですか。",
    "Summarise: " + "the quick brown fox jumps over the lazy dog. " * 12,
)

RESERVED = range(3, 17)
"""Ids of tokens for repositories and files, which no chat reply has: drafts surely wrong."""


def _sampling(number: int) -> SamplingParams:
    temperature = 0.8 if number % 2 else 0.0
    num_logprobs = (3, -1, 0)[number % 3]
    return SamplingParams(
        temperature=temperature, seed=number, max_tokens=20, num_logprobs=num_logprobs
    )


@pytest.fixture(scope="module")
def prompts(vocabulary: Vocabulary) -> list[list[int]]:
    return [vocabulary.encode_chat([Message("user", question)]) for question in QUESTIONS]


@pytest.fixture(scope="module")
def model(openvino_engine: OpenVinoEngine, vocabulary: Vocabulary) -> LoadedModel:
    return loaded(Borrowed(openvino_engine), vocabulary)


@pytest.fixture(scope="module")
def truth(
    model: LoadedModel, vocabulary: Vocabulary, prompts: list[list[int]]
) -> list[ReferenceReply]:
    return [
        generate(model.engine, prompt, _sampling(number), texts_of(vocabulary))
        for number, prompt in enumerate(prompts)
    ]


@pytest.mark.parametrize(
    ("drafts", "chunk_tokens"), [("own", 5), ("off", 256), ("garbage", 32), ("predicted", 256)]
)
async def test_concurrent_sessions_equal_the_reference(
    model: LoadedModel,
    vocabulary: Vocabulary,
    prompts: list[list[int]],
    truth: list[ReferenceReply],
    drafts: str,
    chunk_tokens: int,
) -> None:
    coder = coder_of(vocabulary)
    garbage = random.Random(1)
    limits = SchedulerLimits(prefill_chunk_tokens=chunk_tokens)
    async with leak_check():
        async with replica(model.engine, vocabulary, scheduler=limits) as (made, _, stub):
            peer = peer_of(stub, vocabulary)
            for number, (prompt, reply) in enumerate(zip(prompts, truth, strict=True), start=1):
                fields: dict[str, Any] = {}
                if drafts == "off":
                    fields["speculation"] = common_pb2.SPECULATION_OFF
                if drafts == "predicted":
                    edited = [*reply.ids[:6], 99, *reply.ids[8:]]
                    fields["prediction"] = token_block_to_proto(coder.encode(edited))
                await peer.open(number, prompt, _sampling(number - 1), **fields)
            live, epoch = list(range(1, len(prompts) + 1)), 0
            while live:
                for number in tuple(live):
                    kind = (await peer.next(number)).WhichOneof("kind")
                    assert kind != "error", peer.replies[number].error
                    if kind == "done":
                        live.remove(number)
                    elif kind == "commit" and drafts == "garbage":
                        epoch += 1
                        guess = [garbage.choice(RESERVED) for _ in range(5)]
                        await peer.draft(number, epoch, len(peer.replies[number].ids), guess)
            await peer.call.done_writing()
    for number, expected in enumerate(truth, start=1):
        found = peer.replies[number]
        assert tuple(found.ids) == expected.ids
        assert found.num_accepted == 0, "nothing that the edge sent was right"
        told = [
            at
            for commit in found.commits
            for at in logprobs_from_proto(details_of(commit).logprobs, max_tokens=64)
        ]
        assert tuple(told) == expected.logprobs, "bit for bit"
    assert made.scheduler.load().kv_blocks_free == model.engine.info.num_blocks
