"""What every engine refuses, and that it costs nothing: the contract about bad calls."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from outrider.engines.base import Engine, Ids, SequenceSlice
from outrider.errors import EngineError
from tests.engines.seam.driving import (
    all_rows,
    assert_same,
    numbers,
    opened,
    random_ids,
    run,
    table,
)


class RefusalContract:
    """See EngineContract for the fixtures."""

    def test_bad_slices_are_refused(self, engine: Engine) -> None:
        ids, blocks, info = random_ids(engine, 40), table(engine, 40), engine.info
        with opened(engine, ids) as (sequence,):
            for past, tokens, own, rows, words in [
                (0, ids, blocks, 41, "41 rows"),
                (0, ids, blocks, -1, "-1 rows"),
                (0, ids[:0], blocks, 0, "0 tokens"),
                (-1, ids, blocks, 1, "outside the context"),
                (info.max_context_tokens, ids, blocks, 1, "outside the context"),
                (0, _with(ids, -1), blocks, 1, "id -1 is outside the vocabulary"),
                (0, _with(ids, info.vocabulary_size), blocks, 1, "outside the vocabulary"),
                (0, ids, _with(blocks, -1), 1, "block -1 is outside the pool"),
                (0, ids, _with(blocks, info.num_blocks), 1, "outside the pool"),
                (0, ids, blocks[:0], 1, "do not cover"),
                (len(blocks) * info.block_tokens - 39, ids, blocks, 1, "do not cover"),
            ]:
                with pytest.raises(EngineError, match=words):
                    run(engine, sequence, tokens, past, own, rows)
            with pytest.raises(EngineError, match="twice"):
                engine.step([SequenceSlice(sequence, ids, 0, blocks, 1)] * 2)
            assert run(engine, sequence, ids, 0, blocks, 1).shape == (1, info.vocabulary_size)

    def test_a_refused_call_writes_nothing(self, engine: Engine) -> None:
        ids = random_ids(engine, 40)
        blocks = table(engine, 80)
        expected = all_rows(engine, ids, blocks)
        with opened(engine, ids) as (sequence,):
            good = SequenceSlice(sequence, random_ids(engine, 9, 7), 0, blocks, 1)
            with pytest.raises(EngineError, match="not open"):
                engine.step([good, SequenceSlice(next(numbers), ids, 0, blocks, 1)])
            assert_same(run(engine, sequence, ids[39:], 39, blocks, 1), expected[39:])

    def test_sequences_must_be_open(self, engine: Engine) -> None:
        ids, blocks = random_ids(engine, 4), table(engine, 4)
        with opened(engine, ids) as (sequence,):
            run(engine, sequence, ids, 0, blocks, 1)
        with pytest.raises(EngineError, match="not open"):
            run(engine, sequence, ids, 0, blocks, 1)
        with pytest.raises(EngineError, match="vocabulary"):
            engine.open(next(numbers), _with(ids, engine.info.vocabulary_size))

    def test_bad_exports_and_imports_are_refused(self, engine: Engine) -> None:
        block = engine.info.block_bytes
        for outside in (-1, engine.info.num_blocks):
            for pair in ((outside, 0), (0, outside)):
                with pytest.raises(EngineError, match="outside the pool"):
                    engine.copy_block(*pair)
        for blocks in ([-1], [engine.info.num_blocks]):
            with pytest.raises(EngineError, match="outside the pool"):
                engine.export_blocks(blocks)
            with pytest.raises(EngineError, match="outside the pool"):
                engine.import_blocks(blocks, bytes(block))
        for size in (0, block - 1, block + 1, 2 * block):
            with pytest.raises(EngineError, match="do not fill"):
                engine.import_blocks([0], bytes(size))
        assert engine.export_blocks([]) == b""
        engine.import_blocks([], b"")

    def test_a_closed_engine_refuses_everything(self, spare: Engine) -> None:
        ids, blocks = random_ids(spare, 4), table(spare, 4)
        spare.open(1, ids)
        spare.close()
        spare.close()
        for verb in (
            lambda: spare.open(2, ids),
            lambda: spare.step([SequenceSlice(1, ids, 0, blocks, 1)]),
            lambda: spare.close_sequence(1),
            lambda: spare.copy_block(0, 0),
            lambda: spare.export_blocks([0]),
            lambda: spare.import_blocks([0], b""),
        ):
            with pytest.raises(EngineError, match="closed"):
                verb()


def _with(ids: Sequence[int] | Ids, value: int) -> Ids:
    changed = np.array(ids, np.int32)
    changed[-1] = value
    return changed
