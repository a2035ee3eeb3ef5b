"""An engine against the reference, over texts: every row teacher-forced, none sampled."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from outrider.engines.base import Engine, Ids, Logits, SequenceSlice
from outrider.errors import ConfigError
from outrider.fidelity.measure import Fidelity, Tally
from outrider.fidelity.reference import Floats, Reference

_CHUNK_TOKENS = 32
"""Rows of an engine call; an exact engine's rows do not depend on it."""
_SEQUENCE = 1


@dataclass(frozen=True, slots=True)
class Expected:
    """A document and the reference's states for it, from which its logits are quickly computed: all
    logits of some thousand tokens at once would take a gigabyte."""

    ids: Ids
    states: Floats
    """[n, width]"""


def expected(
    reference: Reference, documents: Sequence[Ids], on_layer: Callable[[int], None]
) -> list[Expected]:
    """The reference's part; `on_layer` as of Reference.states."""
    states = reference.states(documents, on_layer)
    return [Expected(*pair) for pair in zip(documents, states, strict=True)]


def compare(
    engine: Engine,
    reference: Reference,
    documents: Sequence[Expected],
    on_tokens: Callable[[int], None] = lambda _: None,
) -> Fidelity:
    """Run the documents through the engine, which must have no open sequence; `on_tokens` gets the
    number of tokens of each call. Raises ConfigError for an engine that returns only candidates,
    and EngineError."""
    tally = Tally()
    for document in documents:
        for past, rows in engine_rows(engine, document.ids):
            following = document.ids[past + 1 : past + 1 + len(rows)]
            states = document.states[past : past + len(following)]
            tally.add(reference.logits(states), rows[: len(following)], following.tolist())
            on_tokens(len(rows))
    return tally.figures()


def engine_rows(
    engine: Engine, ids: Ids, chunk_tokens: int = _CHUNK_TOKENS
) -> Iterator[tuple[int, Logits]]:
    """The position of a call's first row, and its [r, V] rows, to be read before the next call.
    Raises ConfigError, EngineError."""
    info = engine.info
    if info.num_candidates:
        raise ConfigError(f"the {info.name} engine gives candidates alone; fidelity needs all rows")
    num_blocks = -(-(len(ids) + info.scratch_tokens) // info.block_tokens)
    blocks = np.arange(num_blocks, dtype=np.int32)
    engine.open(_SEQUENCE, ids)
    try:
        for past in range(0, len(ids), chunk_tokens):
            tokens = ids[past : past + chunk_tokens]
            (rows,) = engine.step([SequenceSlice(_SEQUENCE, tokens, past, blocks, len(tokens))])
            if rows.ids is not None:
                raise ConfigError(
                    "the model's head is trimmed; fidelity needs the whole vocabulary"
                )
            yield past, rows.logits
    finally:
        engine.close_sequence(_SEQUENCE)
