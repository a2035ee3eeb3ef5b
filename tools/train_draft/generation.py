"""Has the target answer chats, many at a time, on the engine seam alone; and generates one
process's share of a split into shards, from where the last run stopped."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from outrider.engines.base import Engine, LogitsRows, SequenceSlice
from outrider.engines.config import EngineConfig
from outrider.engines.factory import create_engine
from outrider.models.catalog import ModelSpec, lookup
from outrider.models.chat import Message
from outrider.models.store import ModelStore, default_root
from outrider.models.vocabulary import Vocabulary, load_vocabulary
from outrider.sampling.params import SamplingParams
from outrider.sampling.sampler import Sampler
from tools.train_draft.progress import Progress
from tools.train_draft.prompts import Chat, ReplyPlan, Split, draw_chat
from tools.train_draft.replies import Halves, Ids, Reply, load, save, shards, top_of

MAX_CONTEXT_TOKENS = 512
"""Prompt and reply together; longer prompts are left out."""
_BEGIN = -1
"""Sequence number of the tokens that most chats begin with."""


@dataclass(slots=True)
class _Run:
    """A reply being generated in one slot."""

    number: int
    turn: int
    chat: Chat
    prompt: list[int]
    sampler: Sampler
    num_cached: int
    """Tokens of the prompt whose KV was there before."""
    ids: list[int] = field(default_factory=list)
    tops: list[tuple[Ids, Halves]] = field(default_factory=list)

    def pending(self) -> list[int]:
        """Tokens whose KV is not computed yet."""
        return self.ids[-1:] if self.ids else self.prompt[self.num_cached :]

    def finished(self, stop_ids: frozenset[int]) -> bool:
        return len(self.ids) >= self.chat.plan.max_tokens or self.ids[-1] in stop_ids

    def reply(self) -> Reply:
        return Reply(
            number=self.number,
            turn=self.turn,
            kind=self.chat.kind,
            temperature=self.chat.plan.temperature,
            seed=self.chat.plan.seed,
            prompt=np.array(self.prompt, np.int32),
            ids=np.array(self.ids, np.int32),
            top_ids=np.stack([ids for ids, _ in self.tops]),
            top_logprobs=np.stack([logprobs for _, logprobs in self.tops]),
        )


class Generator:
    """Answers chats with up to `num_slots` of them under way at a time."""

    def __init__(self, engine: Engine, vocabulary: Vocabulary, num_slots: int) -> None:
        """The engine must have no open sequence."""
        self._engine = engine
        self._vocabulary = vocabulary
        info = engine.info
        size = -(-(MAX_CONTEXT_TOKENS + info.scratch_tokens) // info.block_tokens)
        slots = min(num_slots, (info.num_blocks - size) // size)
        self._blocks = [np.arange(s * size, (s + 1) * size, dtype=np.int32) for s in range(slots)]
        self._runs: dict[int, _Run] = {}
        self._begin = _usual_begin(vocabulary)[: info.block_tokens]
        self._begin_block = slots * size
        self._compute_begin()

    def answers(self, chats: Iterator[tuple[int, Chat]]) -> Iterator[Reply]:
        """Each reply as it ends, the follow-up turns of a chat after its first."""
        waiting = True
        while waiting or self._runs:
            for slot in range(len(self._blocks)):
                if waiting and slot not in self._runs:
                    waiting = self._admit(slot, chats)
            yield from self._step()

    def _compute_begin(self) -> None:
        """Compute the KV of the tokens that most chats begin with, once, to be copied."""
        tokens = np.array(self._begin, np.int32)
        blocks = self._begin_block + np.arange(2, dtype=np.int32)
        self._engine.open(_BEGIN, tokens)
        self._engine.step([SequenceSlice(_BEGIN, tokens, 0, blocks, 1)])
        self._engine.close_sequence(_BEGIN)

    def _admit(self, slot: int, chats: Iterator[tuple[int, Chat]]) -> bool:
        """Start the next chat that fits; whether there was one."""
        for number, chat in chats:
            if self._start(slot, number, 0, chat):
                return True
        return False

    def _start(self, slot: int, number: int, turn: int, chat: Chat) -> bool:
        """Whether the chat fits a slot."""
        prompt = self._vocabulary.encode_chat(chat.messages)
        if len(prompt) + chat.plan.max_tokens > MAX_CONTEXT_TOKENS:
            return False
        params = SamplingParams(temperature=chat.plan.temperature, seed=chat.plan.seed)
        sampler = Sampler(params, self._vocabulary.size, prompt)
        num_cached = 0
        if prompt[: len(self._begin)] == self._begin:
            num_cached = len(self._begin)
            self._engine.copy_block(self._begin_block, int(self._blocks[slot][0]))
        self._runs[slot] = _Run(number, turn, chat, prompt, sampler, num_cached)
        self._engine.open(slot, np.array(prompt, np.int32))
        return True

    def _step(self) -> Iterator[Reply]:
        """Generate one token for every running chat; yields the replies that end with it."""
        if not self._runs:
            return
        slots = list(self._runs)
        answers = self._engine.step([self._round(slot) for slot in slots])
        ended = [slot for slot, rows in zip(slots, answers, strict=True) if self._take(slot, rows)]
        for slot in ended:
            self._engine.close_sequence(slot)
            run = self._runs.pop(slot)
            self._follow(slot, run)
            yield run.reply()

    def _round(self, slot: int) -> SequenceSlice:
        run = self._runs[slot]
        tokens = run.pending()
        past = len(run.prompt) + len(run.ids) - len(tokens)
        # An engine may ask for more rows than there are tokens: padding behind changes nothing.
        padding = max(0, self._engine.info.min_rows - len(tokens))
        row_of = np.array([*tokens, *tokens[-1:] * padding], np.int32)
        size, scratch = self._engine.info.block_tokens, self._engine.info.scratch_tokens
        num_blocks = -(-(past + len(row_of) + scratch) // size)
        return SequenceSlice(slot, row_of, past, self._blocks[slot][:num_blocks], 1 + padding)

    def _take(self, slot: int, rows: LogitsRows) -> bool:
        """Choose the next token; whether it ends the reply."""
        run = self._runs[slot]
        row = rows.logits[0]
        run.tops.append(top_of(row))
        run.ids.append(run.sampler.choose(row, len(run.prompt) + len(run.ids)))
        return run.finished(self._vocabulary.stop_ids)

    def _follow(self, slot: int, run: _Run) -> None:
        """Go on with the chat's next turn, if it has one."""
        if not run.chat.follow_ups:
            return
        text = self._vocabulary.decode(i for i in run.ids if i not in self._vocabulary.stop_ids)
        chat = next_turn(run.chat, text)
        self._start(slot, run.number, run.turn + 1, chat)


def _usual_begin(vocabulary: Vocabulary) -> list[int]:
    """The prompt ids that all chats without a system message of their own have in common."""
    one, other = (vocabulary.encode_chat([Message("user", text)]) for text in ("a", "b"))
    same = [a == b for a, b in zip(one, other, strict=False)]
    return one[: same.index(False)]


def next_turn(chat: Chat, reply: str) -> Chat:
    """The chat with the reply and the user's first follow-up behind it."""
    messages: Sequence[Message] = (
        *chat.messages,
        Message("assistant", reply),
        Message("user", chat.follow_ups[0]),
    )
    plan = ReplyPlan(chat.plan.max_tokens, chat.plan.temperature, chat.plan.seed + 1)
    return replace(chat, messages=tuple(messages), follow_ups=chat.follow_ups[1:], plan=plan)


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
    bar = Progress()
    begin = end - seconds

    def show(count: int) -> None:
        share = max(count / max(1, num_left), (time.monotonic() - begin) / seconds)
        bar.show(min(1.0, share), f"{count} replies")

    num_left = len(range(process, num_chats, num_processes)) - len(done)
    _collect(
        _counted(generator.answers(chats), show),
        lambda: time.monotonic() > end,
        folder,
        f"{split}-{process}",
    )
    bar.close()


def _counted(replies: Iterator[Reply], show: Callable[[int], None]) -> Iterator[Reply]:
    """Pass the replies on, and call `show` with their number so far."""
    for count, reply in enumerate(replies, 1):
        show(count)
        yield reply


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
