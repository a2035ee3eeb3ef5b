"""The engine over a stand-in for the runtime: the contract, and what is its own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from structlog.types import EventDict

from outrider.engines.base import Engine, SequenceSlice
from outrider.engines.factory import warm_up
from outrider.engines.tensorrt_llm.reports import CacheChanges, RuntimeStats
from outrider.errors import EngineError
from tests.engines.seam.contract import EngineContract
from tests.engines.seam.driving import all_rows, assert_answers, opened, random_ids, run, table
from tests.engines.tensorrt_llm.fake_llm import CHECKPOINT, VOCABULARY, make_engine, top
from tests.engines.tensorrt_llm.fake_types import TokenRangeRetentionConfig


@pytest.fixture(params=[0, 40], ids=["all ids", "padding"])
def num_ids(request: pytest.FixtureRequest) -> int:
    """Of 40 ids the other 24 that the model scores are padding: most rows have some in front."""
    count: int = request.param
    return count


class TestTensorRtLlmEngine(EngineContract):
    """On the stand-in every row is exact; no GPU's is."""

    exact = False

    @pytest.fixture
    def engine(self, num_ids: int) -> Engine:
        return make_engine(num_ids)[0]

    @pytest.fixture
    def other(self, num_ids: int) -> Engine:
        return make_engine(num_ids)[0]

    @pytest.fixture
    def spare(self, num_ids: int) -> Engine:
        return make_engine(num_ids)[0]


@pytest.mark.parametrize("num_candidates", [1, 5, 40])
def test_padding_ids_are_never_among_the_candidates(num_candidates: int) -> None:
    """A row has the likeliest ids of the vocabulary, whatever padding the model prefers."""
    engine, llm = make_engine(40, num_candidates=num_candidates)
    ids, blocks = random_ids(engine, 60), table(engine, 70)
    with opened(engine, ids) as (sequence,):
        past, lengths = 0, []
        while past < 60:
            part = SequenceSlice(sequence, ids[past:], past, blocks, 60 - past)
            (rows,) = engine.step([part])
            assert rows.ids is not None
            lengths.append(len(rows.logits))
            for offset, row in enumerate(rows.ids.tolist()):
                likeliest = list(top(ids[: past + offset + 1].tolist(), VOCABULARY, 0))
                assert row == [token for token in likeliest if token < 40][:num_candidates]
            past += lengths[-1]
            llm.evict()
    assert sum(lengths) == 60
    assert engine.num_padded_rows > 2, "the test shows nothing"
    asked = {request.params.prompt_logprobs for request in llm.requests}
    assert asked == {num_candidates, num_candidates + 24}


def test_padding_that_the_vocabulary_names_is_not_chosen_either() -> None:
    engine, _ = make_engine(checkpoint=replace(CHECKPOINT, num_tokens=40))
    assert (engine.info.vocabulary_size, engine.info.num_candidates) == (VOCABULARY, 40)
    ids, blocks = random_ids(engine, 30), table(engine, 40)
    with opened(engine, ids) as (sequence,):
        (rows,) = engine.step([SequenceSlice(sequence, ids, 0, blocks, 1)])
    assert rows.ids is not None
    assert sorted(rows.ids[0].tolist()) == list(range(40))


def test_a_slice_is_one_request_with_one_candidate_when_greedy() -> None:
    engine, llm = make_engine(num_candidates=20)
    ids, blocks = random_ids(engine, 40), table(engine, 60)
    engine.open(1, ids[:30], b"tenant", num_candidates=1)
    engine.step([SequenceSlice(1, ids[:30], 0, blocks, 1)])
    llm.requests.clear()
    before = llm.num_computed
    (rows,) = engine.step([SequenceSlice(1, ids[30:34], 30, blocks, 4)])
    (request,) = llm.requests
    assert request.ids == tuple(ids[:34].tolist())
    assert request.salt == b"tenant".hex()
    assert request.params.prompt_logprobs == 1
    assert request.params.ignore_eos
    assert rows.logits.shape == (4, 1)
    assert llm.num_computed - before == 4
    assert list(request.retention.token_range_retention_configs) == [
        TokenRangeRetentionConfig(0, 31, 60),
        TokenRangeRetentionConfig(31, None, 5),
    ]


def test_sampled_rows_have_the_candidates_asked_for() -> None:
    engine, _ = make_engine(num_candidates=20)
    ids, blocks = random_ids(engine, 5), table(engine, 5)
    for number, (wanted, given) in enumerate([(0, 20), (7, 7), (50, 20)]):
        engine.open(number, ids, b"", wanted)
        (rows,) = engine.step([SequenceSlice(number, ids, 0, blocks, 1)])
        assert rows.logits.shape == (1, given)
        assert (np.diff(rows.logits[0]) <= 0).all()


def test_salts_keep_tenants_apart() -> None:
    engine, llm = make_engine()
    ids, blocks = random_ids(engine, 50), table(engine, 50)
    for number, (salt, computed) in enumerate([(b"a", 50), (b"b", 50), (b"a", 2), (b"", 50)]):
        before = llm.num_computed
        engine.open(number, ids, salt)
        engine.step([SequenceSlice(number, ids, 0, blocks, 1)])
        assert llm.num_computed - before == computed, salt


def test_rows_nobody_asked_for_are_not_computed() -> None:
    engine, llm = make_engine()
    ids = random_ids(engine, 200)
    with opened(engine, ids) as (sequence,):
        run(engine, sequence, ids, 0, table(engine, 200), 2)
    ahead, asked = llm.requests
    assert ahead.params.prompt_logprobs is None
    assert len(ahead.ids) == 198
    assert len(asked.outputs[0].prompt_logprobs or []) == 2


def test_drafts_the_runtime_has_seen_leave_the_first_row_alone() -> None:
    engine, llm = make_engine()
    ids, blocks = random_ids(engine, 40), table(engine, 60)
    expected = all_rows(make_engine()[0], ids, blocks)
    with opened(engine, ids, ids) as (first, second):
        run(engine, first, ids[:30], 0, blocks, 0)
        (rows,) = engine.step([SequenceSlice(first, ids[30:], 30, blocks, 10)])
        assert len(rows.logits) == 10
        llm.requests.clear()
        (rows,) = engine.step([SequenceSlice(second, ids[30:], 30, blocks, 10)])
    assert len(rows.logits) == 1
    assert_answers(engine, rows, expected[30:])
    assert [len(request.ids) for request in llm.requests] == [40, 31]
    assert engine.num_short_answers == 1


def test_rows_that_lack_only_the_first_are_completed() -> None:
    engine, _ = make_engine()
    ids, blocks = random_ids(engine, 40), table(engine, 60)
    expected = all_rows(make_engine()[0], ids, blocks)
    with opened(engine, ids) as (sequence,):
        run(engine, sequence, ids[:31], 0, blocks, 0)
        (rows,) = engine.step([SequenceSlice(sequence, ids[30:], 30, blocks, 10)])
    assert len(rows.logits) == 10
    assert_answers(engine, rows, expected[30:])


def test_a_sequence_in_known_text_goes_on_without_drafts_for_a_while() -> None:
    engine, llm = make_engine()
    ids, blocks = random_ids(engine, 300), table(engine, 310)
    all_rows(engine, ids, blocks)
    with opened(engine, ids) as (sequence,):
        past, num_requests = 30, []
        while past < 295:
            llm.requests.clear()
            (rows,) = engine.step([SequenceSlice(sequence, ids[past : past + 4], past, blocks, 4)])
            assert len(rows.logits) == 1
            num_requests.append(len(llm.requests))
            past += 1
    tries = [index for index, count in enumerate(num_requests) if count == 2]
    assert tries[:6] == [0, 2, 5, 10, 19, 36], "after 1, 2, 4, 8, 16, 16 slices without"
    assert tries[6] == 53
    assert sum(num_requests) < 1.1 * len(num_requests)


def test_new_text_brings_the_drafts_back() -> None:
    engine, llm = make_engine()
    ids, blocks = random_ids(engine, 80), table(engine, 90)
    all_rows(engine, ids[:40], blocks)
    with opened(engine, ids) as (sequence,):
        lengths = []
        for past in range(30, 70):
            (rows,) = engine.step([SequenceSlice(sequence, ids[past : past + 4], past, blocks, 4)])
            lengths.append(len(rows.logits))
            llm.evict()
    assert lengths[0] == 1
    assert lengths[2:] == [4] * 38


def test_a_prefill_chunk_is_waited_for_in_the_next_call() -> None:
    engine, llm = make_engine()
    ids, blocks = random_ids(engine, 60), table(engine, 60)
    with opened(engine, ids) as (sequence,):
        (no_work,) = engine.step([SequenceSlice(sequence, ids[:40], 0, blocks, 0)])
        assert no_work.logits.shape == (0, VOCABULARY)
        assert len(llm.in_flight) == 1
        run(engine, sequence, ids[40:], 40, blocks, 1)
        assert not llm.in_flight
    assert llm.num_computed == 60


@pytest.mark.parametrize("num_rows", [0, 1])
def test_other_work_waits_for_no_chunk_that_was_sent_ahead(num_rows: int) -> None:
    """Neither for its own session's, nor for that of another session in the call."""
    engine, llm = make_engine()
    ids, blocks = random_ids(engine, 60), table(engine, 60)
    seen: list[list[bool]] = []
    with opened(engine, ids, ids) as (first, second):
        engine.step([SequenceSlice(first, ids[:40], 0, blocks, 0)])
        chunk = SequenceSlice(first, ids[40:], 40, blocks, num_rows)
        reply = SequenceSlice(second, ids[:20], 0, blocks, 1)
        engine.step([chunk, reply], lambda: seen.append([one.done for one in llm.requests]))
        assert seen == [[False, False]], "the chunk is under way, and the reply"
        engine.step([SequenceSlice(second, ids[20:40], 20, blocks, 0)])
        last = SequenceSlice(second, ids[40:], 40, blocks, num_rows)
        engine.step([last], lambda: seen.append([llm.requests[-1].done]))
        assert seen[1:] == [[False]]


def test_closing_a_sequence_aborts_its_prefill() -> None:
    engine, llm = make_engine()
    ids, blocks = random_ids(engine, 60), table(engine, 60)
    with opened(engine, ids) as (sequence,):
        engine.step([SequenceSlice(sequence, ids[:40], 0, blocks, 0)])
    assert [request.aborted for request in llm.requests] == [True]
    assert not llm.in_flight
    engine.open(1, ids)
    engine.step([SequenceSlice(1, ids[:40], 0, blocks, 0)])
    engine.close()
    assert llm.requests[-1].aborted
    assert llm.down


def test_a_prefill_that_cannot_be_aborted_costs_nobody_else(
    monkeypatch: pytest.MonkeyPatch, logs: list[EventDict]
) -> None:
    engine, llm = make_engine()
    ids, blocks = random_ids(engine, 60), table(engine, 60)
    with opened(engine, ids) as (other,):
        engine.open(1, ids)
        engine.step([SequenceSlice(1, ids[:40], 0, blocks, 0)])

        def broken(self: object) -> None:
            raise RuntimeError("the worker is busy")

        monkeypatch.setattr(type(llm.requests[0]), "abort", broken)
        logs.clear()
        engine.close_sequence(1)
        assert [entry["event"] for entry in logs] == ["trtllm_prefill_not_aborted"]
        run(engine, other, ids, 0, blocks, 1)
        engine.open(1, ids)
        engine.close_sequence(1)


@pytest.mark.parametrize("num_fitting", [1, 2, 5])
def test_logits_in_flight_stay_within_their_memory(num_fitting: int) -> None:
    longest = 512 * VOCABULARY * 4
    engine, llm = make_engine(logits_bytes=num_fitting * longest)
    ids = [random_ids(engine, 500, seed) for seed in range(8)]
    blocks = table(engine, 500)
    expected = [all_rows(make_engine()[0], each, blocks)[-1:] for each in ids]
    with opened(engine, *ids) as sequences:
        answers = engine.step(
            [
                SequenceSlice(sequence, each, 0, blocks, 1)
                for sequence, each in zip(sequences, ids, strict=True)
            ]
        )
    for answer, rows in zip(answers, expected, strict=True):
        assert_answers(engine, answer, rows)
    assert longest * (num_fitting - 1) < llm.most_logits_bytes <= longest * num_fitting


def test_drafts_do_not_win_ties() -> None:
    """A row's entry for the token that followed may have the rank of the best."""
    drafts, num_ties = [3], 0
    for token in random_ids(make_engine()[0], 400).tolist():
        (best, first), (other, second) = list(top(drafts, 2, 0).items())[:2]
        tied = first.logprob == second.logprob
        assert not tied or best < other
        num_ties += tied
        drafts.append(other if tied else token)
    assert num_ties > 3, "the test shows nothing"
    engine, _ = make_engine()
    ids, blocks = np.array(drafts, np.int32), table(engine, 500)
    engine.open(1, ids, b"", num_candidates=1)
    (rows,) = engine.step([SequenceSlice(1, ids, 0, blocks, len(ids))])
    assert rows.ids is not None
    plain = [next(iter(top(drafts[:end], 1, 0))) for end in range(1, len(drafts) + 1)]
    assert rows.ids[:, 0].tolist() == plain


def test_warming_up_leaves_nothing_behind() -> None:
    engine, llm = make_engine()
    warm_up(engine, 12)
    assert llm.requests
    assert not llm.in_flight
    engine.open(0, random_ids(engine, 4))


def test_a_gap_in_the_tokens_is_refused() -> None:
    engine, _ = make_engine()
    ids, blocks = random_ids(engine, 40), table(engine, 40)
    with opened(engine, ids[:10]) as (sequence,):
        with pytest.raises(EngineError, match="10 known tokens"):
            run(engine, sequence, ids[11:], 11, blocks, 1)


def test_statistics_and_events_are_told(logs: list[EventDict]) -> None:
    engine, _ = make_engine()
    assert engine.stats() == RuntimeStats(0, 2, 40, 60, 256, 7, 0.5)
    assert engine.cache_changes() == CacheChanges(2, 1, 256)
    logs.clear()
    for _ in range(3):
        engine.step([])
    (told,) = logs
    assert told["event"] == "trtllm_stats"
    assert (told["used_blocks"], told["blocks_stored"], told["blocks_removed"]) == (40, 2, 1)


def test_a_runtime_without_statistics_still_serves(
    monkeypatch: pytest.MonkeyPatch, logs: list[EventDict]
) -> None:
    engine, llm = make_engine()

    def broken(timeout: float | None) -> None:
        raise RuntimeError("no statistics")

    monkeypatch.setattr(llm, "get_stats", broken)
    logs.clear()
    assert engine.step([]) == []
    assert engine.step([]) == []
    assert [entry["log_level"] for entry in logs] == ["error"]
