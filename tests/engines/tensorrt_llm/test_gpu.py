"""The engine on a GPU, with a real checkpoint: what the stand-in only assumes.

    OUTRIDER_TEST_TRTLLM_MODEL=/models/... python -m pytest -m gpu -ra tests/engines

Rows of another batch, chunking or cache hit differ in the last bits there: they are compared where
the two likeliest ids are further apart than that.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from outrider.engines.base import Ids, LogitsRows, SequenceSlice
from outrider.engines.config import EngineConfig
from outrider.engines.tensorrt_llm.config import TensorRtLlmOptions
from outrider.engines.tensorrt_llm.engine import TensorRtLlmEngine
from outrider.engines.tensorrt_llm.loading import load_engine
from outrider.engines.tensorrt_llm.signatures import check_sources, find_package
from tests.engines.seam.driving import opened, random_ids, table

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(900)]

MODEL = "OUTRIDER_TEST_TRTLLM_MODEL"
_NEAR_TIE = 0.25
"""Nats between the two likeliest ids below which either may win."""


def missing() -> str:
    """Why these tests cannot run here; empty if they can."""
    if shutil.which("nvidia-smi") is None:
        return "not run: no GPU"
    if find_package() is None:
        return "not run: no GPU engine, tensorrt_llm is not installed"
    return "" if os.environ.get(MODEL) else f"not run: no GPU model, set {MODEL}"


@pytest.fixture(scope="module")
def engine() -> Iterator[TensorRtLlmEngine]:
    if reason := missing():
        pytest.skip(reason)
    options = TensorRtLlmOptions(model_dir=Path(os.environ[MODEL]), num_candidates=8)
    engine = load_engine(
        EngineConfig(engine="tensorrt-llm", max_context_tokens=2048, trtllm=options)
    )
    yield engine
    engine.close()


def greedy(
    engine: TensorRtLlmEngine, prompt: Ids, count: int, salt: bytes
) -> tuple[Ids, LogitsRows]:
    """A reply without drafts, and its rows."""
    ids, blocks = prompt, table(engine, len(prompt) + count)
    rows: list[LogitsRows] = []
    engine.open(1, prompt, salt)
    for _ in range(count):
        past = 0 if not rows else len(ids) - 1
        rows.append(engine.step([SequenceSlice(1, ids[past:], past, blocks, 1)])[0])
        ids = np.append(ids, best(rows[-1])).astype(np.int32)
    engine.close_sequence(1)
    candidates = [row.ids for row in rows if row.ids is not None]
    logits = np.concatenate([row.logits for row in rows])
    return ids[len(prompt) :], LogitsRows(logits, np.concatenate(candidates))


def best(rows: LogitsRows) -> Ids:
    """[r] the likeliest id of each row."""
    assert rows.ids is not None
    return rows.ids[:, 0]


def clear(rows: LogitsRows) -> list[bool]:
    """[r] whether no rounding can change the winner."""
    return [bool(gap > _NEAR_TIE) for gap in rows.logits[:, 0] - rows.logits[:, 1]]


def test_the_pool_has_the_size_the_runtime_tells(engine: TensorRtLlmEngine) -> None:
    ids = random_ids(engine, 8, 4)
    with opened(engine, ids) as (sequence,):
        engine.step([SequenceSlice(sequence, ids, 0, table(engine, 8), 1)])
    stats = engine.stats()
    assert stats is not None, "no statistics"
    assert stats.max_blocks == engine.info.num_blocks


def test_the_sources_are_those_it_was_written_against(engine: TensorRtLlmEngine) -> None:
    package = find_package()
    assert package is not None
    check_sources(package)


@pytest.mark.parametrize("num_drafts", [1, 7, 31])
def test_drafts_get_the_rows_of_plain_decoding(engine: TensorRtLlmEngine, num_drafts: int) -> None:
    prompt = random_ids(engine, 100, num_drafts)
    reply, plain = greedy(engine, prompt, num_drafts + 1, b"plain%d" % num_drafts)
    ids = np.concatenate([prompt, reply[:num_drafts]])
    blocks = table(engine, len(ids))
    engine.open(2, prompt, b"drafts%d" % num_drafts)
    engine.step([SequenceSlice(2, prompt[:-1], 0, blocks, 0)])
    (rows,) = engine.step([SequenceSlice(2, ids[len(prompt) - 1 :], 99, blocks, num_drafts + 1)])
    engine.close_sequence(2)
    assert len(rows.logits) == num_drafts + 1, "rows are missing or misaligned"
    pairs = zip(best(rows).tolist(), reply.tolist(), clear(plain), strict=True)
    assert all(mine == other for mine, other, sure in pairs if sure)
    assert np.abs(rows.logits[:, 0] - plain.logits[:, 0]).max() < _NEAR_TIE


def test_a_repeated_call_has_its_first_row(engine: TensorRtLlmEngine) -> None:
    ids, blocks = random_ids(engine, 80, 5), table(engine, 80)
    with opened(engine, ids) as (sequence,):
        engine.step([SequenceSlice(sequence, ids[:60], 0, blocks, 0)])
        (first,) = engine.step([SequenceSlice(sequence, ids[60:], 60, blocks, 20)])
        (again,) = engine.step([SequenceSlice(sequence, ids[60:], 60, blocks, 20)])
    assert len(first.logits) == 20
    assert 1 <= len(again.logits) < 20
    assert best(again)[0] == best(first)[0] or not clear(first)[0]


def test_salts_do_not_share(engine: TensorRtLlmEngine) -> None:
    ids, blocks = random_ids(engine, 64, 6), table(engine, 64)
    short = engine.num_short_answers
    for number, salt in enumerate((b"a", b"b")):
        engine.open(number, ids, salt)
        engine.step([SequenceSlice(number, ids, 0, blocks, 64)])
        engine.close_sequence(number)
    assert engine.num_short_answers == short


def test_many_sequences_share_iterations(engine: TensorRtLlmEngine) -> None:
    prompts = [random_ids(engine, 50, 100 + number) for number in range(32)]
    blocks = table(engine, 60)
    with opened(engine, *prompts) as sequences:
        slices = [
            SequenceSlice(sequence, ids, 0, blocks, 5)
            for sequence, ids in zip(sequences, prompts, strict=True)
        ]
        answers = engine.step(slices)
    assert [len(rows.logits) for rows in answers] == [5] * 32


def test_a_closed_sequence_leaves_nothing_running(engine: TensorRtLlmEngine) -> None:
    ids = random_ids(engine, 2000, 7)
    with opened(engine, ids) as (sequence,):
        engine.step([SequenceSlice(sequence, ids, 0, table(engine, 2000), 0)])
    short, blocks = random_ids(engine, 8, 8), table(engine, 8)
    with opened(engine, short) as (sequence,):
        engine.step([SequenceSlice(sequence, short, 0, blocks, 1)])
    stats = engine.stats()
    assert stats is not None, "no statistics"
    assert stats.num_active_requests <= 1


def test_block_events_arrive(engine: TensorRtLlmEngine) -> None:
    engine.cache_changes()
    ids, blocks = random_ids(engine, 70, 9), table(engine, 70)
    with opened(engine, ids) as (sequence,):
        engine.step([SequenceSlice(sequence, ids, 0, blocks, 1)])
    assert engine.cache_changes().blocks_stored >= 2
