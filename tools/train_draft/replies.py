"""Replies of the target with its likeliest ids at every token, in shards on disk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Ids: TypeAlias = npt.NDArray[np.int32]
Halves: TypeAlias = npt.NDArray[np.float16]

NUM_TOP = 64
"""Likeliest ids kept of each row. On chats of a 135M model they hold all but 2 % of the mass."""


@dataclass(frozen=True, slots=True)
class Reply:
    """One reply."""

    number: int
    """Number of its chat in the split."""
    turn: int
    """0 for the first reply of the chat."""
    kind: str
    temperature: float
    seed: int
    prompt: Ids
    """[p] all before the reply."""
    ids: Ids
    """[n] token ids; ids[i] was sampled with the noise of position p + i."""
    top_ids: Ids
    """[n, NUM_TOP] the target's likeliest ids at each position, likeliest first."""
    top_logprobs: Halves
    """[n, NUM_TOP] their log probabilities at temperature 1 over the whole vocabulary."""


def top_of(logits: npt.NDArray[np.float32]) -> tuple[Ids, Halves]:
    """The NUM_TOP likeliest of a row [V] and their log probabilities, likeliest first."""
    best = np.float32(logits.max())
    candidates = np.flatnonzero(logits > best - 9.0)
    if len(candidates) < NUM_TOP:
        candidates = np.argpartition(logits, -NUM_TOP)[-NUM_TOP:]
    order = np.argsort(-logits[candidates], kind="stable")[:NUM_TOP]
    ids = candidates[order]
    log_mass = best + np.log(np.exp(logits - best).sum())
    return ids.astype(np.int32), (logits[ids] - log_mass).astype(np.float16)


def save(path: Path, replies: Sequence[Reply]) -> None:
    """Write a shard in one step: a reader never finds half of one."""
    partial = path.with_suffix(".partial.npz")
    np.savez(
        partial,
        facts=np.array([(r.number, r.turn, r.seed) for r in replies], np.int64),
        temperatures=np.array([r.temperature for r in replies]),
        kinds=np.array([r.kind for r in replies]),
        lengths=np.array([(len(r.prompt), len(r.ids)) for r in replies], np.int64),
        prompts=np.concatenate([r.prompt for r in replies]),
        ids=np.concatenate([r.ids for r in replies]),
        top_ids=np.concatenate([_small(r.top_ids) for r in replies]),
        top_logprobs=np.concatenate([r.top_logprobs for r in replies]),
    )
    partial.replace(path)


def load(folder: Path) -> Iterator[Reply]:
    """All replies of the folder's shards, in the order of their names."""
    for path in shards(folder):
        with np.load(path) as shard:
            yield from _replies(dict(shard))


def shards(folder: Path) -> list[Path]:
    """The folder's whole shards."""
    return sorted(p for p in folder.glob("*.npz") if not p.stem.endswith(".partial"))


def _replies(shard: dict[str, Any]) -> Iterator[Reply]:
    lengths = shard["lengths"]
    prompt_ends, ends = np.cumsum(lengths[:, 0]), np.cumsum(lengths[:, 1])
    for at, (num_prompt, num_ids) in enumerate(lengths.tolist()):
        prompt = slice(prompt_ends[at] - num_prompt, prompt_ends[at])
        rows = slice(ends[at] - num_ids, ends[at])
        number, turn, seed = shard["facts"][at].tolist()
        yield Reply(
            number=number,
            turn=turn,
            kind=str(shard["kinds"][at]),
            temperature=float(shard["temperatures"][at]),
            seed=seed,
            prompt=shard["prompts"][prompt],
            ids=shard["ids"][rows],
            top_ids=shard["top_ids"][rows].astype(np.int32),
            top_logprobs=shard["top_logprobs"][rows],
        )


def _small(ids: Ids) -> npt.NDArray[np.uint16] | Ids:
    """In 16 bits where they fit: most of a shard is this."""
    return ids.astype(np.uint16) if ids.max(initial=0) < 1 << 16 else ids
