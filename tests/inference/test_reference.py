"""The reference against an even simpler loop, and its limits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.engines.base import SequenceSlice
from outrider.engines.fake import FakeEngine, FakeOptions
from outrider.errors import (
    EmptyPromptError,
    EngineError,
    InvalidRequestError,
    PromptTooLongError,
)
from outrider.sampling.params import SamplingParams
from outrider.sampling.sampler import Sampler
from services.inference.reference import generate
from tests.inference.letters import STOP_ID, new_reply


def _from_scratch(prompt: list[int], sampling: SamplingParams) -> tuple[str, tuple[int, ...]]:
    """Recompute everything for every token, in one pass over fresh blocks."""
    engine = FakeEngine()
    sampler = Sampler(sampling, engine.info.vocabulary_size, prompt)
    reply, ids, text = new_reply(sampling), list(prompt), ""
    for number in range(10_000):
        engine.open(number, np.array(ids, np.int32))
        blocks = np.arange(len(ids) // engine.info.block_tokens + 1, dtype=np.int32)
        rows = engine.step([SequenceSlice(number, np.array(ids, np.int32), 0, blocks, 1)])[0]
        chosen = sampler.choose(rows.logits[0], len(ids))
        sampler.observe(chosen)
        ids.append(chosen)
        text += reply.push(chosen)
        if reply.finished:
            break
    return text, tuple(ids[len(prompt) :])


@given(
    prompt=st.lists(st.integers(0, 63), min_size=1, max_size=70),
    temperature=st.sampled_from([0.0, 0.8, 1.5]),
    seed=st.integers(0, 2**64 - 1),
    min_rows=st.integers(1, 4),
    chunk_tokens=st.integers(1, 80),
    stop=st.sampled_from([(), ("ab",), (" ", "e")]),
)
def test_equals_a_run_from_scratch(
    prompt: list[int],
    temperature: float,
    seed: int,
    min_rows: int,
    chunk_tokens: int,
    stop: tuple[str, ...],
) -> None:
    sampling = SamplingParams(temperature=temperature, seed=seed, max_tokens=24, stop=stop)
    pieces: list[str] = []
    reply = generate(
        FakeEngine(FakeOptions(min_rows=min_rows)),
        prompt,
        sampling,
        new_reply,
        chunk_tokens=chunk_tokens,
        on_text=pieces.append,
    )
    assert (reply.text, reply.ids) == _from_scratch(prompt, sampling)
    assert "".join(pieces) == reply.text
    assert reply.finish_reason in ("stop", "length")


@pytest.mark.parametrize("min_rows", [1, 2, 4])
@pytest.mark.parametrize(("context", "blocks"), [(40, 99), (999, 3)])
def test_a_full_context_ends_the_reply(min_rows: int, context: int, blocks: int) -> None:
    options = FakeOptions(
        min_rows=min_rows, max_context_tokens=context, num_blocks=blocks, scratch_tokens=3
    )
    sampling = SamplingParams(max_tokens=999, ignore_eos=True)
    reply = generate(FakeEngine(options), [5, 6, 7], sampling, new_reply)
    room = min(context, blocks * options.block_tokens - options.scratch_tokens)
    assert reply.finish_reason == "length"
    assert 3 + len(reply.ids) == room - max(0, min_rows - 2)
    longest = list(range(3)) * (room // 3 + 1)
    with pytest.raises(PromptTooLongError, match="at most"):
        generate(FakeEngine(options), longest, sampling, new_reply)


def test_held_back_text_comes_out_at_a_full_context() -> None:
    options = FakeOptions(max_context_tokens=20)
    greedy = SamplingParams(max_tokens=999, ignore_eos=True)
    plain = generate(FakeEngine(options), [5], greedy, new_reply)
    stop = plain.text[-1] + "\x00"
    held = SamplingParams(max_tokens=999, ignore_eos=True, stop=(stop,))
    assert generate(FakeEngine(options), [5], held, new_reply) == plain


def test_a_stop_id_is_committed_and_silent() -> None:
    for seed in range(50):
        sampling = SamplingParams(temperature=1.0, seed=seed, max_tokens=400)
        reply = generate(FakeEngine(), [9, 8], sampling, new_reply)
        assert len(reply.text) == len(reply.ids) - (reply.finish_reason == "stop")
        assert STOP_ID not in reply.ids[:-1]


def test_bad_prompts() -> None:
    with pytest.raises(EmptyPromptError):
        generate(FakeEngine(), [], SamplingParams(), new_reply)
    with pytest.raises(InvalidRequestError):
        generate(FakeEngine(), [1, 64], SamplingParams(), new_reply)


def test_the_sequence_is_closed_after_a_failure() -> None:
    engine = FakeEngine(FakeOptions(fail_on_step=2))
    with pytest.raises(EngineError):
        generate(engine, [1, 2], SamplingParams(), new_reply)
    again = generate(engine, [1, 2], SamplingParams(max_tokens=9), new_reply)
    assert again == generate(FakeEngine(), [1, 2], SamplingParams(max_tokens=9), new_reply)
