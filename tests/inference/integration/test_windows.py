"""A model whose layers see windows, in a replica: replies are the reference's, with drafts, beside
others, and longer than a window."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from outrider.engines.config import EngineConfig
from outrider.engines.openvino.convert import ConvertedModel, convert, read_converted
from outrider.engines.openvino.engine import OpenVinoEngine
from outrider.engines.openvino.layouts import DEFAULT_LAYOUT
from outrider.sampling.params import SamplingParams
from services.inference.reference import generate
from tests.fidelity.models import Shape, weights, write
from tests.inference.harness import running
from tests.inference.letters import VOCABULARY_SIZE, new_reply

WINDOW = 24
SHAPE = Shape(
    "gemma3",
    vocabulary=VOCABULARY_SIZE,
    width=256,
    inner=256,
    layers=3,
    base=10_000.0,
    window=WINDOW,
    window_base=1_000.0,
)
VOCABULARY = ["a", "b", "ab", *(chr(0x103 + n) for n in range(VOCABULARY_SIZE - 3))]
CONFIG = EngineConfig(num_blocks=64, max_fixed_rows=4, pin_threads=False)
NUM_TOKENS = 40
PROMPT_TOKENS = (5, 23, 60, 130)
"""Shorter and longer than a window; of the longest, chunks of a prompt begin behind it."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ConvertedModel:
    work = tmp_path_factory.mktemp("gemma")
    source = write(work / "m.gguf", SHAPE, weights(SHAPE, scale=0.2), vocabulary=VOCABULARY)
    (work / "out").mkdir()
    convert(source, work / "out", DEFAULT_LAYOUT)
    return read_converted(work / "out")


def sampling_of(number: int) -> SamplingParams:
    temperature = 0.8 if number % 2 else 0.0
    return SamplingParams(
        temperature=temperature, seed=number, max_tokens=NUM_TOKENS, ignore_eos=True
    )


async def test_replies_are_the_references_with_drafts_and_neighbours(
    model: ConvertedModel,
) -> None:
    random = np.random.default_rng(4)
    prompts = [random.integers(0, VOCABULARY_SIZE, count).tolist() for count in PROMPT_TOKENS]
    alone = OpenVinoEngine(model, CONFIG)
    truth = [
        list(generate(alone, prompt, sampling_of(number), new_reply).ids)
        for number, prompt in enumerate(prompts)
    ]
    alone.close()
    assert all(len(ids) == NUM_TOKENS for ids in truth)
    assert len({tuple(ids) for ids in truth}) == len(truth)
    async with running(OpenVinoEngine(model, CONFIG)) as replica:
        peer = replica.peer()
        for number, prompt in enumerate(prompts):
            await peer.open(number + 1, prompt, sampling_of(number))
        drafted = replica.peer()
        for number, prompt in enumerate(prompts):
            guess = list(truth[number])
            guess[9::10] = [(token + 1) % VOCABULARY_SIZE for token in guess[9::10]]
            await drafted.open(number + 1, prompt, sampling_of(number), drafts=(1, guess))
        for number, ids in enumerate(truth, start=1):
            plain, guessed = await asyncio.gather(peer.finish(number), drafted.finish(number))
            assert plain.error is None and guessed.error is None
            assert plain.ids == ids
            assert guessed.ids == ids
            assert guessed.num_accepted > 0
