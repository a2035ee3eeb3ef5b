"""What every engine promises (outrider/engines/base.py), as tests to inherit.

A subclass provides the fixtures `engine` (may be shared by all tests; they leave it as they found
it), `other` (an equal engine with a pool of its own) and `spare` (an engine the test may close).
"""

from __future__ import annotations

import threading

import numpy as np
import pytest

from outrider.engines.base import Engine, Ids, SequenceSlice
from outrider.errors import EngineError
from tests.engines.seam.driving import (
    all_rows,
    assert_answers,
    assert_same,
    numbers,
    opened,
    random_ids,
    run,
    table,
)
from tests.engines.seam.refusals import RefusalContract


class EngineContract(RefusalContract):
    """Inherit as a test class."""

    exact = True
    """What the engine says of itself; an engine that is not exact on its hardware still has to
    keep the contract on a stand-in."""

    def test_info_describes_a_usable_engine(self, engine: Engine) -> None:
        info = engine.info
        assert info.exact is self.exact
        assert info.name
        assert min(info.vocabulary_size, info.block_tokens, info.num_blocks, info.block_bytes) > 0
        assert info.min_rows >= 1
        assert info.max_context_tokens >= info.block_tokens

    def test_busy_time_grows_with_every_call(self, engine: Engine) -> None:
        ids, blocks = random_ids(engine, 40), table(engine, 40)
        with opened(engine, ids) as (sequence,):
            before = engine.busy_s
            run(engine, sequence, ids, 0, blocks, 1)
            assert engine.busy_s > before

    @pytest.mark.parametrize("chunk", [1, 2, 3, 7, 16, 31, 32, 33, 64, 65])
    def test_rows_do_not_depend_on_chunking(self, engine: Engine, chunk: int) -> None:
        ids = random_ids(engine, 100)
        expected = all_rows(engine, ids, table(engine, 100, 1))
        assert_same(all_rows(engine, ids, table(engine, 100, 2), chunk), expected)

    @pytest.mark.parametrize("length", [1, 2, 31, 32, 33])
    def test_short_prompts(self, engine: Engine, length: int) -> None:
        ids = random_ids(engine, length + 40)
        expected = all_rows(engine, ids, table(engine, len(ids), 1))
        assert_same(all_rows(engine, ids[:length], table(engine, length, 2)), expected[:length])

    def test_asked_rows_are_the_last_ones(self, engine: Engine) -> None:
        ids, blocks = random_ids(engine, 40), table(engine, 40)
        expected = all_rows(engine, ids, blocks)
        with opened(engine, ids) as (sequence,):
            for rows in (0, 1, 2, 39, 40):
                assert_same(run(engine, sequence, ids, 0, blocks, rows), expected[40 - rows :])

    def test_a_row_depends_on_every_id_before_it(self, engine: Engine) -> None:
        ids, blocks = random_ids(engine, 40), table(engine, 40)
        expected = all_rows(engine, ids, blocks)
        for position in (0, 20, 39):
            changed = ids.copy()
            changed[position] = (changed[position] + 1) % engine.info.vocabulary_size
            rows = all_rows(engine, changed, blocks)
            assert_same(rows[:position], expected[:position])
            assert (rows[39] != expected[39]).any()

    @pytest.mark.parametrize("kept", [0, 1, 3])
    def test_wrong_drafts_behind_a_row_never_change_it(self, engine: Engine, kept: int) -> None:
        ids, blocks = random_ids(engine, 70), table(engine, 80)
        expected = all_rows(engine, ids, blocks)
        with opened(engine, ids) as (sequence,):
            run(engine, sequence, ids[:29], 0, blocks, 0)
            past, garbage = 29, random_ids(engine, 200, 9)
            while past < len(ids):
                right = ids[past : past + 1 + kept]
                tokens = np.concatenate([right, garbage[past : past + 3]])
                rows = run(engine, sequence, tokens, past, blocks, len(tokens))
                assert_same(rows[: len(right)], expected[past : past + len(right)])
                past += len(right)

    def test_dirty_blocks_are_as_good_as_new(self, engine: Engine) -> None:
        ids, blocks = random_ids(engine, 60), table(engine, 100)
        expected = all_rows(engine, ids, blocks)
        all_rows(engine, random_ids(engine, 100, 5), blocks[::-1].copy())
        assert_same(all_rows(engine, ids, blocks, 13), expected)

    def test_rows_do_not_depend_on_the_rest_of_the_batch(self, engine: Engine) -> None:
        rng = np.random.default_rng(3)
        prompts = [random_ids(engine, 90, seed) for seed in range(4)]
        per = len(table(engine, 90))
        blocks = np.split(table(engine, 4 * 90 + 3 * engine.info.block_tokens)[: 4 * per], 4)
        expected = [all_rows(engine, ids, own) for ids, own in zip(prompts, blocks, strict=True)]
        with opened(engine, *prompts) as sequences:
            past = [0, 0, 0, 0]
            while any(position < 90 for position in past):
                members = [int(i) for i in rng.permutation(4) if past[i] < 90]
                members = members[: int(rng.integers(1, 5))]
                sizes = [int(rng.choice([1, 1, 2, 5, 33])) for _ in members]
                slices = [
                    _round(sequences[i], prompts[i], past[i], size, blocks[i], rng)
                    for i, size in zip(members, sizes, strict=True)
                ]
                answers = engine.step(slices)
                for i, part, answer in zip(members, slices, answers, strict=True):
                    past[i] += len(part.tokens)
                    assert_answers(engine, answer, expected[i][past[i] - part.num_rows : past[i]])

    def test_sequences_share_whole_blocks(self, engine: Engine) -> None:
        shared = engine.info.block_tokens * 2
        ids = [random_ids(engine, shared + 9, seed) for seed in (1, 2)]
        ids[1][:shared] = ids[0][:shared]
        whole = table(engine, shared + 9)
        expected = [all_rows(engine, each, whole) for each in ids]
        blocks = table(engine, shared + 9 + 2 * engine.info.block_tokens)
        tables = [blocks[: len(whole)], np.append(blocks[:2], blocks[len(whole) :])]
        with opened(engine, *ids) as sequences:
            run(engine, sequences[0], ids[0][:shared], 0, tables[0], 0)
            for past in range(shared, shared + 9):
                answers = engine.step(
                    [
                        SequenceSlice(sequence, each[past : past + 1], past, own, 1)
                        for sequence, each, own in zip(sequences, ids, tables, strict=True)
                    ]
                )
                for rows, answer in zip(expected, answers, strict=True):
                    assert_answers(engine, answer, rows[past : past + 1])

    @pytest.mark.parametrize("shared", [1, 2, 7, 15])
    def test_a_copied_block_serves_whoever_shares_its_beginning(
        self, engine: Engine, shared: int
    ) -> None:
        size = engine.info.block_tokens
        kept = size + shared
        ids = [random_ids(engine, 2 * size + 9, seed) for seed in (1, 2)]
        ids[1][:kept] = ids[0][:kept]
        blocks = table(engine, len(ids[0]) + 3 * size)
        per = len(table(engine, len(ids[0])))
        own = np.concatenate([blocks[:1], blocks[per:]])[:per]
        expected = [all_rows(engine, each, blocks[:per]) for each in reversed(ids)]
        engine.copy_block(int(blocks[1]), int(own[1]))
        with opened(engine, *ids) as sequences:
            # Both go on behind what they share: neither writes into the other's block.
            slices = [
                SequenceSlice(sequences[0], ids[0][-9:], len(ids[0]) - 9, blocks[:per], 9),
                SequenceSlice(sequences[1], ids[1][kept:], kept, own, len(ids[1]) - kept),
            ]
            rows = engine.step(slices)
        assert_answers(engine, rows[0], expected[1][-9:])
        assert_answers(engine, rows[1], expected[0][kept:])

    def test_a_copied_block_has_the_same_bits(self, engine: Engine) -> None:
        ids, blocks = random_ids(engine, 20), table(engine, 80)
        all_rows(engine, ids, blocks)
        source, target = int(blocks[0]), int(blocks[-1])
        engine.copy_block(source, target)
        assert engine.export_blocks([source]) == engine.export_blocks([target])

    def test_a_cached_prompt_needs_its_last_token_only(self, engine: Engine) -> None:
        length = engine.info.block_tokens * 2
        ids, blocks = random_ids(engine, length), table(engine, length)
        expected = all_rows(engine, ids, blocks)
        with opened(engine, ids) as (sequence,):
            rows = run(engine, sequence, ids[-1:], length - 1, blocks, 1)
        assert_same(rows, expected[-1:])

    def test_exported_kv_serves_in_another_pool(self, engine: Engine, other: Engine) -> None:
        ids = random_ids(engine, 80)
        source, target = table(engine, 80, 1), table(other, 80, 2)
        expected = all_rows(engine, ids, source)
        held = -(-50 // engine.info.block_tokens)
        data = engine.export_blocks(source[:held].tolist())
        assert len(data) == held * engine.info.block_bytes
        other.import_blocks(target[:held].tolist(), data)
        assert other.export_blocks(target[:held].tolist()) == data
        with opened(other, ids) as (sequence,):
            rows = run(other, sequence, ids[50:], 50, target, 30)
        assert_same(rows, expected[50:])

    def test_an_empty_call_is_answered(self, engine: Engine) -> None:
        assert engine.step([]) == []

    def test_other_work_is_done_once_in_its_own_thread(self, engine: Engine) -> None:
        """In calls with rows, of inner chunks of a prompt alone, and after such a call."""
        ids, blocks = random_ids(engine, 20), table(engine, 20)
        threads: list[int] = []
        with opened(engine, ids) as (sequence,):
            for past, end, num_rows in ((0, 8, 0), (8, 16, 0), (16, 20, 1)):
                part = SequenceSlice(sequence, ids[past:end], past, blocks, num_rows)
                engine.step([part], lambda: threads.append(threading.get_ident()))
                assert threads == [threading.get_ident()]
                threads.clear()

    def test_a_call_ends_before_the_error_of_other_work_is_raised(self, engine: Engine) -> None:
        ids, blocks = random_ids(engine, 40), table(engine, 40)
        expected = all_rows(engine, ids, blocks)
        with opened(engine, ids) as (sequence,):
            with pytest.raises(RuntimeError, match="other work"):
                engine.step([SequenceSlice(sequence, ids, 0, blocks, 40)], _fail)
            assert_same(run(engine, sequence, ids, 0, blocks, 40), expected)

    def test_closing_an_unknown_sequence_is_ignored(self, engine: Engine) -> None:
        engine.close_sequence(next(numbers))

    def test_a_number_is_free_again_after_closing(self, engine: Engine) -> None:
        ids = random_ids(engine, 3)
        sequence = next(numbers)
        for _ in range(2):
            engine.open(sequence, ids)
            with pytest.raises(EngineError, match="open already"):
                engine.open(sequence, ids)
            engine.close_sequence(sequence)


def _round(
    sequence: int, ids: Ids, past: int, size: int, blocks: Ids, rng: np.random.Generator
) -> SequenceSlice:
    tokens = ids[past : past + size]
    return SequenceSlice(sequence, tokens, past, blocks, int(rng.integers(0, len(tokens) + 1)))


def _fail() -> None:
    raise RuntimeError("other work")
