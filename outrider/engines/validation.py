"""What every engine refuses: one place, so that all engines fail alike."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from outrider.engines.base import EngineInfo, Ids, SequenceSlice
from outrider.errors import EngineError


def check_slices(
    info: EngineInfo, opened: Collection[int], slices: Sequence[SequenceSlice]
) -> None:
    """Check a call before anything is written. Raises EngineError."""
    seen: set[int] = set()
    for part in slices:
        if part.sequence not in opened:
            raise EngineError(f"sequence {part.sequence} is not open; open it before its slices")
        if part.sequence in seen:
            raise EngineError(f"sequence {part.sequence} is twice in one call; give it one slice")
        seen.add(part.sequence)
        _check_tokens(info, part)
        _check_blocks(info, part)


def check_opening(info: EngineInfo, opened: Collection[int], sequence: int, prompt: Ids) -> None:
    """Check an announced sequence. Raises EngineError."""
    if sequence in opened:
        raise EngineError(f"sequence {sequence} is open already; use a new number")
    check_ids(info, prompt)


def check_ids(info: EngineInfo, ids: Ids) -> None:
    """Check that every id is in the vocabulary. Raises EngineError."""
    if len(ids) and (ids.min() < 0 or ids.max() >= info.vocabulary_size):
        bad = ids[(ids < 0) | (ids >= info.vocabulary_size)][0]
        raise EngineError(f"id {bad} is outside the vocabulary of {info.vocabulary_size} ids")


def check_block_ids(info: EngineInfo, blocks: Sequence[int] | Ids) -> None:
    """Check that every block is one of the pool's. Raises EngineError."""
    table = np.asarray(blocks)
    if table.size and (table.min() < 0 or table.max() >= info.num_blocks):
        bad = table[(table < 0) | (table >= info.num_blocks)][0]
        raise EngineError(f"block {bad} is outside the pool of {info.num_blocks} blocks")


def _check_tokens(info: EngineInfo, part: SequenceSlice) -> None:
    count = len(part.tokens)
    if count < info.min_rows or count < 1:
        raise EngineError(f"a slice has {count} tokens; give it at least {max(1, info.min_rows)}")
    if not 0 <= part.num_rows <= count:
        raise EngineError(f"{part.num_rows} rows asked of {count} tokens; ask for 0..{count}")
    if part.past < 0 or part.past + count > info.max_context_tokens:
        raise EngineError(
            f"tokens at {part.past}..{part.past + count - 1} are outside the context of "
            f"{info.max_context_tokens} tokens"
        )
    check_ids(info, part.tokens)


def _check_blocks(info: EngineInfo, part: SequenceSlice) -> None:
    needed = part.past + len(part.tokens) + info.scratch_tokens
    if len(part.blocks) * info.block_tokens < needed:
        raise EngineError(
            f"{len(part.blocks)} blocks of {info.block_tokens} tokens do not cover {needed} tokens"
        )
    check_block_ids(info, part.blocks)
