"""What a draft would have said at every token of the target's replies, on the engine it runs on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from outrider.engines.base import Engine, Ids, LogitsRows, SequenceSlice
from outrider.engines.draft_calibration import sampled_confidence
from outrider.sampling.gumbel import Noise, group_size_of, scaled
from tools.train_draft.artifact.target import Floats
from tools.train_draft.corpus.records import Reply
from tools.train_draft.evaluation.agreement import Trace

_SEQUENCE = 1


def traces(engine: Engine, replies: Iterable[Reply]) -> Iterator[Trace]:
    """One trace per reply: the draft reads the target's own text, so its token at a position is
    the one it would draft there had all before been accepted. Replies that the engine has no room
    for are left out."""
    for reply in replies_with_room(engine, replies):
        yield _trace(reply, read(engine, reply), group_size_of(engine.info.vocabulary_size))


def replies_with_room(engine: Engine, replies: Iterable[Reply]) -> Iterator[Reply]:
    """Those that fit the engine's context and blocks."""
    info = engine.info
    room = min(info.max_context_tokens, info.num_blocks * info.block_tokens)
    for reply in replies:
        if len(reply.prompt) + len(reply.ids) + info.scratch_tokens <= room:
            yield reply


def read(engine: Engine, reply: Reply) -> LogitsRows:
    """The draft's rows before each of the reply's tokens."""
    tokens = np.concatenate((reply.prompt, reply.ids[:-1])).astype(np.int32)
    engine.open(_SEQUENCE, tokens)
    num_blocks = -(-(len(tokens) + engine.info.scratch_tokens) // engine.info.block_tokens)
    blocks = np.arange(num_blocks, dtype=np.int32)
    (rows,) = engine.step([SequenceSlice(_SEQUENCE, tokens, 0, blocks, len(reply.ids))])
    engine.close_sequence(_SEQUENCE)
    return rows


def _trace(reply: Reply, rows: LogitsRows, members: int) -> Trace:
    logits = rows.logits
    ids = _columns(rows)
    choices = [
        _choice(logits[at], ids[at % len(ids)], reply, len(reply.prompt) + at, members)
        for at in range(len(reply.ids))
    ]
    likeliest = [int(ids[at % len(ids)][row.argmax()]) for at, row in enumerate(logits)]
    return Trace(
        kind=reply.kind,
        number=reply.number,
        temperature=reply.temperature,
        agreed=np.array([token for token, _ in choices], np.int32) == reply.ids,
        top_agreed=np.array(likeliest, np.int32) == reply.top_ids[:, 0],
        confidence=np.array([confidence for _, confidence in choices], np.float64),
    )


def _columns(rows: LogitsRows) -> Ids:
    """[1 or r, c] what the columns stand for."""
    if rows.ids is None:
        return np.arange(rows.logits.shape[1], dtype=np.int32)[None]
    return rows.ids


def _choice(row: Floats, ids: Ids, reply: Reply, position: int, members: int) -> tuple[int, float]:
    """The draft's token, with the noise that the target's own choice has, and its confidence."""
    top = float(row.max())
    if reply.temperature == 0:
        return int(ids[row.argmax()]), float(1 / np.exp(row.astype(np.float64) - top).sum())
    noise = Noise(reply.seed, position, members)
    values = scaled(row, top, reply.temperature) + noise.of(ids)
    if len(values) < 2:
        return int(ids[0]), 1.0
    second, first = np.partition(values, -2)[-2:].tolist()
    return int(ids[values.argmax()]), sampled_confidence(reply.temperature * (first - second))
