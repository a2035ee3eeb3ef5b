"""Generates one process's share of a split into shards, where the last run left off."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from outrider.engines.base import Engine
from outrider.engines.config import EngineConfig
from outrider.engines.factory import create_engine
from outrider.models.catalog import ModelSpec, lookup
from outrider.models.store import ModelStore, default_root
from outrider.models.vocabulary import load_vocabulary
from tools.train_draft.corpus.generation import MAX_CONTEXT_TOKENS, Generator
from tools.train_draft.corpus.records import Reply, load, save, shards
from tools.train_draft.prompts.chats import Chat, Split, draw_chat

_REPLIES_PER_SHARD = 500
_KV_BLOCK_TOKENS = 32


def produce(
    folder: Path,
    split: Split,
    share: tuple[int, int],
    num_chats: int,
    seconds: float,
    *,
    model: str = "",
    slots: int = 64,
) -> None:
    """Have the target answer chats share[0], share[0] + share[1], ... below `num_chats`.

    Ends after `seconds` at the latest, but for the replies under way, which are lost. Run one
    process per core, each with a share of its own.
    """
    process, num_processes = share
    folder.mkdir(parents=True, exist_ok=True)
    spec = lookup(model)
    vocabulary = load_vocabulary(spec, ModelStore(default_root()))
    done = {reply.number for reply in load(folder) if reply.number % num_processes == process}
    chats = _chats(split, range(process, num_chats, num_processes), done)
    end = time.monotonic() + seconds
    generator = Generator(_engine(spec, split, slots), vocabulary, slots)
    _collect(generator.answers(chats), lambda: time.monotonic() > end, folder, f"{split}-{process}")


def _engine(spec: ModelSpec, split: Split, slots: int) -> Engine:
    # Text to learn from need not be exact, at half the rows; text to be measured on is what users
    # get.
    num_blocks = (slots + 1) * (-(-MAX_CONTEXT_TOKENS // _KV_BLOCK_TOKENS) + 1)
    config = EngineConfig(
        model=spec.name,
        num_blocks=num_blocks,
        exact=split != "train",
        pin_threads=False,
        max_fixed_rows=0,
    )
    return create_engine(config)


def _chats(split: Split, numbers: range, done: set[int]) -> Iterator[tuple[int, Chat]]:
    return ((number, draw_chat(split, number)) for number in numbers if number not in done)


def _collect(
    replies: Iterator[Reply], is_late: Callable[[], bool], folder: Path, name: str
) -> None:
    first, begin = len(shards(folder)), time.monotonic()
    for count in itertools.count(first):
        batch = list(_until(itertools.islice(replies, _REPLIES_PER_SHARD), is_late))
        if batch:
            save(folder / f"{name}-{count:05d}.npz", batch)
        num_tokens = sum(len(reply.ids) for reply in batch)
        print(f"{name}-{count:05d}: {num_tokens} tokens, {time.monotonic() - begin:.0f} s in all")
        if len(batch) < _REPLIES_PER_SHARD:
            return


def _until(replies: Iterator[Reply], is_late: Callable[[], bool]) -> Iterator[Reply]:
    for reply in replies:
        yield reply
        if is_late():
            return
