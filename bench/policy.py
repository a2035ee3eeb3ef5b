"""What the scheduler's rules are worth, free of the machine's noise.

Three steps. The engine is timed on calls of each prepared size, eight sequences of 120 tokens
sharing the larger ones, and on one row for each of these behind 480 tokens, which tells what
reading contexts costs; what counts is the 15th percentile of 60 calls, so one of the quick ones. It
answers chats, once greedily and once at temperature 0.8, and documents. Then the scheduler
serves them in virtual time: an engine that knows the replies and takes just that long for every
call of a size and with so much to read. So drafts on and off, and any rule, are compared on the
same chats with the same durations, to the last digit.

Not in it: that calls of one size and with contexts of one length differ. Python between the calls
counts as so much per call, per chat in it, per chat asked for drafts and per token chosen: fixed
figures, which `python -m bench.tick` and `python -m bench.sampling` gave once on a quiet machine.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

import numpy as np

from bench.harness import Cell, Run, Table, median, parser, quantile, start
from bench.harness.prompts import PromptSupply
from outrider.engines.base import Engine, EngineInfo, LogitsRows, SequenceSlice
from outrider.engines.config import EngineConfig
from outrider.engines.factory import create_engine
from outrider.models.catalog import DEFAULT_MODEL
from outrider.models.chat import Message
from outrider.models.store import ModelStore, default_root
from outrider.models.vocabulary import Vocabulary, load_vocabulary
from outrider.sampling.params import SamplingParams
from outrider.sampling.reply import ReplyEnd, ReplyText
from outrider.speculation.ngrams import NgramPrior
from outrider.speculation.shipped import shipped_prior
from services.inference.scheduler.batch import Batch
from services.inference.scheduler.limits import SchedulerLimits
from services.inference.scheduler.scheduler import Scheduler
from services.inference.scheduler.types import Committed, Event, Finished, OpenRequest

MAX_TOKENS = {"chat": 160, "document": 64}
_CONTEXT = 120
_LONG_CONTEXT = 480
_SESSIONS = 8
_SALT = b"one trust group"
"""Of all chats, as in the other benches: they draft from one another's replies."""
NUM_CALLS = 60
CALL_QUANTILE = 0.15
"""The 15th percentile of the calls: about the time of a call when no other process uses the memory.
A median would include what other work on a shared machine adds."""


@dataclass(frozen=True, slots=True)
class Chat:
    """A prompt, and the whole reply to it."""

    prompt: tuple[int, ...]
    reply: tuple[int, ...]
    temperature: float


def measure_durations(engine: Engine) -> tuple[dict[int, list[float]], list[float]]:
    """Milliseconds of NUM_CALLS calls by their rows, for the sizes that the engine is prepared for,
    and of calls of _SESSIONS rows behind _LONG_CONTEXT tokens each; they are made in turn."""
    longest = _LONG_CONTEXT + max(engine.info.sizing.sizes)
    blocks_each = -(-longest // engine.info.block_tokens) + 1
    for sequence in range(_SESSIONS):
        engine.open(sequence, np.array([1], np.int32))
    samples: dict[int, list[float]] = {size: [] for size in engine.info.sizing.sizes}
    long = list[float]()
    for _ in range(NUM_CALLS):
        for size, times in samples.items():
            times.append(_call_ms(engine, _slices(size, blocks_each)))
        long.append(_call_ms(engine, _slices(_SESSIONS, blocks_each, _LONG_CONTEXT)))
    for sequence in range(_SESSIONS):
        engine.close_sequence(sequence)
    return samples, long


def _call_ms(engine: Engine, slices: Sequence[SequenceSlice]) -> float:
    begin = time.perf_counter()
    engine.step(slices)
    return (time.perf_counter() - begin) * 1e3


def _slices(num_rows: int, blocks_each: int, past: int = _CONTEXT) -> list[SequenceSlice]:
    count = min(num_rows, _SESSIONS)
    shares = [num_rows // count + (index < num_rows % count) for index in range(count)]
    return [
        SequenceSlice(
            index,
            np.arange(500, 500 + rows, dtype=np.int32),
            past,
            np.arange(index * blocks_each, (index + 1) * blocks_each, dtype=np.int32),
            rows,
        )
        for index, rows in enumerate(shares)
    ]


def record_chats(
    engine: Engine, vocabulary: Vocabulary, kind: str, count: int, temperature: float
) -> list[Chat]:
    """Replies to `count` prompts of a kind that were never asked before."""
    texts = PromptSupply(kind).take(count)
    chats = record_replies(engine, vocabulary, texts, MAX_TOKENS[kind], temperature)
    print(f"{count} {kind} prompts answered", file=sys.stderr)
    return chats


def record_replies(
    engine: Engine,
    vocabulary: Vocabulary,
    texts: Sequence[str],
    max_tokens: int,
    temperature: float,
) -> list[Chat]:
    """Replies to these prompts."""
    scheduler = Scheduler(
        engine.info,
        SchedulerLimits(max_queue=len(texts)),
        lambda params: ReplyText(params, vocabulary.stop_ids, vocabulary.detokenizer()),
    )
    prompts = [tuple(vocabulary.encode_chat([Message("user", text)])) for text in texts]
    replies: list[list[int]] = [[] for _ in prompts]
    for number, prompt in enumerate(prompts):
        sampling = SamplingParams(temperature, seed=number, max_tokens=max_tokens)
        request = OpenRequest(number, prompt, sampling)
        scheduler.open(request, time.monotonic())
    while (batch := scheduler.schedule(time.monotonic())) is not None:
        rows = batch.run(engine, scheduler.overlapped_work)
        for event in scheduler.postprocess(batch, rows, time.monotonic()):
            if isinstance(event, Committed):
                replies[event.session_id].extend(event.ids)
    return [Chat(p, tuple(r), temperature) for p, r in zip(prompts, replies, strict=True)]


CALL_MS = 0.2
CHAT_MS = 0.04
"""Time of Python for each engine call, and for each chat in it. Fixed, so that runs differ by the
scheduling rules alone."""
ATTEMPT_MS = 0.08
NO_ATTEMPT_MS = 0.01
"""Time of Python for each chat with drafts on: where drafts are looked for, and where its n-grams
are only updated."""
CHOICE_MS = {False: 0.01, True: 0.06}
"""Time to choose one token from a row of logits, by whether it is sampled (bench.sampling; with the
noise drawn ahead of time)."""
_MOST_ROWS = 1024
_SURE = 1e4
"""A logit so high that sampling noise never outweighs it."""


@dataclass(slots=True)
class Served:
    """What the readers of all chats saw."""

    seconds: float = 0.0
    num_tokens: int = 0
    ttft_ms: list[float] = field(default_factory=list)
    gaps_ms: list[float] = field(default_factory=list)
    """Between two commits of a chat."""
    call_ms: list[float] = field(default_factory=list)
    wrong: int = 0
    """Replies that are not the recorded ones."""


@dataclass(slots=True)
class _Reader:
    chat: Chat
    due: float
    got: list[int] = field(default_factory=list)
    last: float = 0.0


class VirtualReplica:
    """Serves recorded chats. Durations in between the measured sizes are interpolated."""

    def __init__(
        self,
        info: EngineInfo,
        durations: Mapping[int, float],
        prior: NgramPrior | None,
        reading_ms: float = 0.0,
    ) -> None:
        """`durations`: of calls by rows, of up to _SESSIONS sessions with _CONTEXT tokens each;
        `reading_ms`: what a thousand tokens of context add."""
        self._reading_ms = reading_ms
        self._info = replace(info, num_blocks=4096)
        self._sizes = list(durations)
        self._ms = list(durations.values())
        self._prior = prior
        self._rows = np.zeros((_MOST_ROWS, info.vocabulary_size), np.float32)

    def serve(
        self, chats: Sequence[Chat], *, drafts: bool, sessions: int = 0, rate: float = 0.0
    ) -> Served:
        """`sessions` at a time, one after the other; or `rate` a second, as a Poisson process."""
        self._scheduler = Scheduler(
            self._info,
            SchedulerLimits(max_sessions=max(SESSIONS)),
            lambda params: ReplyEnd(params, ()),
            self._prior,
        )
        self._drafts = drafts
        self._now = 0.0
        self._served = Served()
        self._readers: dict[int, _Reader] = {}
        draw = random.Random(1)
        due = [0.0] * len(chats)
        for number in range(1, len(chats)) if rate else ():
            due[number] = due[number - 1] + draw.expovariate(rate)
        coming, places = list(enumerate(chats)), sessions or len(chats)
        while coming or self._readers:
            while coming and len(self._readers) < places and due[coming[0][0]] <= self._now:
                number, chat = coming.pop(0)
                self._open(number, chat, due[number] if rate else self._now)
            if not self._tick():
                self._now = max(self._now, due[coming[0][0]])
        self._served.seconds = self._now
        return self._served

    def _open(self, number: int, chat: Chat, due: float) -> None:
        self._readers[number] = _Reader(chat, due, last=due)
        sampling = SamplingParams(chat.temperature, seed=number, max_tokens=len(chat.reply))
        request = OpenRequest(
            number, chat.prompt, sampling, region_drafts=self._drafts, cache_salt=_SALT
        )
        self._scheduler.open(request, self._now)

    def _tick(self) -> bool:
        batch = self._scheduler.schedule(self._now)
        if batch is None:
            return False
        rows = self._answer(batch)
        if batch.slices:
            ms = self._duration_ms(batch)
            self._now += ms / 1e3
            self._served.call_ms.append(ms)
        self._scheduler.overlapped_work()
        events = self._scheduler.postprocess(batch, rows, self._now)
        self._now += sum(map(self._choice_ms, events)) / 1e3
        for event in events:
            self._take(event)
        return True

    def _choice_ms(self, event: Event) -> float:
        """What choosing its tokens took."""
        if not isinstance(event, Committed):
            return 0.0
        sampled = self._readers[event.session_id].chat.temperature > 0.0
        return CHOICE_MS[sampled] * len(event.ids)

    def _duration_ms(self, batch: Batch) -> float:
        rows = self._info.sizing.padded(batch.num_tokens)
        beyond = max(0, rows - self._sizes[-1])
        slope = (self._ms[-1] - self._ms[-2]) / (self._sizes[-1] - self._sizes[-2])
        ms = float(np.interp(rows, self._sizes, self._ms)) + beyond * slope
        read = sum(part.past for part in batch.slices) - _CONTEXT * min(rows, _SESSIONS)
        ms = max(self._ms[0], ms + self._reading_ms * read / 1e3)
        drafting_ms = sum(
            ATTEMPT_MS if one.attempt is not None else NO_ATTEMPT_MS for one in batch.scheduled
        )
        return ms + CALL_MS + CHAT_MS * len(batch.scheduled) + drafting_ms * self._drafts

    def _answer(self, batch: Batch) -> list[LogitsRows]:
        """Rows in which the recorded token is the best; behind wrong drafts any will do."""
        answers, used = [], 0
        for one, part in zip(batch.scheduled, batch.slices, strict=True):
            chat = self._readers[one.session.session_id].chat
            first = part.past + len(part.tokens) - part.num_rows + 1 - len(chat.prompt)
            rows = self._rows[used : used + part.num_rows]
            used += part.num_rows
            rows[:] = 0.0
            for index, row in enumerate(rows, first):
                row[chat.reply[min(index, len(chat.reply) - 1)]] = _SURE
            answers.append(LogitsRows(rows))
        return answers

    def _take(self, event: Event) -> None:
        reader = self._readers.get(event.session_id)
        if reader is not None and isinstance(event, Committed):
            gaps = self._served.gaps_ms if reader.got else self._served.ttft_ms
            gaps.append((self._now - reader.last) * 1e3)
            reader.last = self._now
            reader.got.extend(event.ids)
            self._served.num_tokens += len(event.ids)
        elif reader is not None and isinstance(event, Finished):
            self._served.wrong += tuple(reader.got) != reader.chat.reply
            del self._readers[event.session_id]


TEMPERATURES = (0.0, 0.8)
SESSIONS = (1, 2, 4, 8, 16, 32)
AT_ONCE = (1, 4, 8, 16, 32)
_FULL = 16
"""Sessions at which the capacity of a replica is taken."""
LOAD_SHARES = (0.5, 0.8, 0.95)
"""Of what the replica serves a second with drafts off and all places taken."""


def main() -> int:
    flags = parser("policy", __doc__ or "")
    flags.add_argument("--threads", type=int, default=1, help="threads of the engine")
    arguments = flags.parse_args()
    run = start("policy", arguments)
    vocabulary = load_vocabulary(DEFAULT_MODEL, ModelStore(default_root()))
    config = EngineConfig(threads=arguments.threads, max_fixed_rows=64, prepare_first=True)
    engine = create_engine(config)
    try:
        durations, long = measure_durations(engine)
        count = 48 if run.quick else 160
        chats = {
            each: record_chats(engine, vocabulary, "chat", count, each) for each in TEMPERATURES
        }
        documents = record_chats(engine, vocabulary, "document", max(AT_ONCE), 0.0)
    finally:
        engine.close()
    table = run.table(
        f"Time of an engine call by rows, ms: what {1 - CALL_QUANTILE:.0%} of {NUM_CALLS} calls "
        "exceeded, which is what every call takes in the tables below",
        *map(str, durations),
    )
    table.add(*(quantile(times, CALL_QUANTILE) for times in durations.values()))
    for size, times in durations.items():
        run.samples(f"a call of {size} rows", times, unit="ms")
    quick_calls = {size: quantile(times, CALL_QUANTILE) for size, times in durations.items()}
    added_ms = quantile(long, CALL_QUANTILE) - quick_calls[_SESSIONS]
    reading_ms = max(0.0, added_ms) / (_SESSIONS * (_LONG_CONTEXT - _CONTEXT)) * 1e3
    table.note(f"Each thousand tokens of context that a call reads add {reading_ms:.2f} ms.")
    run.figures["reading_ms_per_1000_tokens"] = round(reading_ms, 3)
    prior = shipped_prior(vocabulary.tokens_digest)
    replica = VirtualReplica(engine.info, quick_calls, prior, reading_ms)
    run.figures["wrong_texts"] = (
        _closed(run, replica, chats)
        + _arriving(run, replica, chats[0.0])
        + _at_once(run, replica, documents)
    )
    run.finish()
    return int(bool(run.figures["wrong_texts"]))


def _closed(run: Run, replica: VirtualReplica, chats: dict[float, list[Chat]]) -> int:
    """Each chat is followed by the next."""
    title = (
        "Simulated replica that always serves the same number of chats: drafts off and on, times "
        "in ms"
    )
    table = run.table(title, "temperature", "chats", *_COLUMNS, "tokens/s over off")
    ratios: dict[str, dict[str, float]] = {}
    wrong = 0
    for temperature, sessions in product(TEMPERATURES, SESSIONS):
        of_kind = chats[temperature]
        off, on = (replica.serve(of_kind, drafts=d, sessions=sessions) for d in (False, True))
        ratio = round(_speed(on) / _speed(off), 3)
        ratios.setdefault(f"{temperature:g}", {})[str(sessions)] = ratio
        table.add(temperature, sessions, "off", *_cells(table, off), 1.0)
        table.add(temperature, sessions, "on", *_cells(table, on), ratio)
        wrong += off.wrong + on.wrong
    run.figures["drafts_on_over_off"] = ratios
    return wrong


def _arriving(run: Run, replica: VirtualReplica, chats: list[Chat]) -> int:
    """Greedy chats come by themselves."""
    full = replica.serve(chats, drafts=False, sessions=_FULL)
    most, wrong = len(chats) / full.seconds, full.wrong
    table = run.table(
        "Simulated replica while chats arrive as a Poisson process: drafts off and on, times in ms",
        "share of capacity",
        *_COLUMNS,
    )
    for share in LOAD_SHARES:
        for drafts in (False, True):
            served = replica.serve(chats, drafts=drafts, rate=share * most)
            table.add(f"{share:.0%}", "on" if drafts else "off", *_cells(table, served))
            wrong += served.wrong
    return wrong


def _at_once(run: Run, replica: VirtualReplica, documents: list[Chat]) -> int:
    """Greedy replies to documents that come in the same moment."""
    table = run.table(
        "Simulated replica that gets several documents at the same moment: drafts off and on, "
        "times in ms",
        "documents",
        *_COLUMNS,
    )
    wrong = 0
    for count in AT_ONCE:
        for drafts in (False, True):
            served = replica.serve(documents[:count], drafts=drafts, sessions=count)
            table.add(count, "on" if drafts else "off", *_cells(table, served))
            wrong += served.wrong
    return wrong


_COLUMNS = ("drafts", "tokens/s", "engine call", "TTFT p50", "TTFT p95", "ITL p50", "ITL p99")


def _speed(served: Served) -> float:
    return served.num_tokens / served.seconds


def _cells(table: Table, served: Served) -> tuple[Cell, ...]:
    ttft, gaps = served.ttft_ms, served.gaps_ms
    return (
        _speed(served),
        median(served.call_ms),
        *(table.quantile(ttft, share) for share in (0.5, 0.95)),
        *(table.quantile(gaps, share) for share in (0.5, 0.99)),
    )


if __name__ == "__main__":
    sys.exit(main())
