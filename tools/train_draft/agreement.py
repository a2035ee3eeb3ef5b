"""Agreement of a draft with its target at every token of the target's replies, on the engine that
it runs on: how often it gives the target's own token, and with what confidence."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from outrider.engines.base import Engine, Ids, LogitsRows, SequenceSlice
from outrider.engines.draft_calibration import sampled_confidence
from outrider.sampling.gumbel import Noise, group_size_of, scaled
from tools.train_draft.replies import Reply
from tools.train_draft.target import Floats

Bools: TypeAlias = npt.NDArray[np.bool_]

MAX_DRAFT_TOKENS = 8
_FIRST_POSITIONS = 5


@dataclass(frozen=True, slots=True)
class Trace:
    """One reply of n tokens as the draft saw it."""

    kind: str
    number: int
    temperature: float
    agreed: Bools
    """[n] whether the draft's token is the target's, all before being right."""
    top_agreed: Bools
    """[n] whether both find the same id likeliest."""
    confidence: npt.NDArray[np.float64]
    """[n] the draft's confidence in its token, as defined by outrider.engines.draft_calibration."""


def positions_of(traces: Sequence[Trace]) -> npt.NDArray[np.int64]:
    """[tokens] position of each token in its reply, from 0 on, one reply after the other."""
    return np.concatenate(
        [np.zeros(0, np.int64), *(np.arange(len(trace.agreed)) for trace in traces)]
    )


def tokens_per_step(traces: Sequence[Trace], num_draft: int) -> float:
    """Tokens committed per verification of up to `num_draft` drafted tokens: the accepted and the
    target's own behind them, over whole replies."""
    num_steps = num_tokens = 0
    for trace in traces:
        at, end = 0, len(trace.agreed)
        while at < end:
            misses = np.flatnonzero(~trace.agreed[at : at + num_draft])
            accepted = int(misses[0]) if len(misses) else min(num_draft, end - at)
            at += accepted + 1
            num_steps += 1
        num_tokens += end
    return num_tokens / max(1, num_steps)


def acceptance_by_draft_position(traces: Sequence[Trace]) -> list[float]:
    """[MAX_DRAFT_TOKENS]: of the drafts whose first j tokens were right, the share whose next one
    was too. Drafts begin at every token of every reply."""
    reached, right = np.zeros(MAX_DRAFT_TOKENS), np.zeros(MAX_DRAFT_TOKENS)
    for trace in traces:
        alive = np.ones(len(trace.agreed), bool)
        for j in range(MAX_DRAFT_TOKENS):
            alive = alive[: len(trace.agreed) - j]
            now = trace.agreed[j:]
            reached[j] += alive.sum()
            alive = alive & now
            right[j] += alive.sum()
    return [float(share) for share in right / np.maximum(1, reached)]


def acceptance_by_reply_position(traces: Sequence[Trace]) -> list[float]:
    """The share of agreement at each of a reply's first tokens."""
    return [
        float(np.mean([t.agreed[at] for t in traces if len(t.agreed) > at] or [0.0]))
        for at in range(_FIRST_POSITIONS)
    ]


def figures(traces: Sequence[Trace]) -> dict[str, object]:
    """All of the above, rounded for a report."""
    agreed = np.concatenate([trace.agreed for trace in traces])
    top = np.concatenate([trace.top_agreed for trace in traces])
    return {
        "replies": len(traces),
        "tokens": len(agreed),
        "agreement": round(float(agreed.mean()), 4),
        "top1_agreement": round(float(top.mean()), 4),
        "by_reply_position": [round(x, 3) for x in acceptance_by_reply_position(traces)],
        "by_draft_position": [round(x, 3) for x in acceptance_by_draft_position(traces)],
        "tokens_per_step": {k: round(tokens_per_step(traces, k), 3) for k in (2, 4, 8)},
    }


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
    """[1 or r, c] id of each column."""
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
