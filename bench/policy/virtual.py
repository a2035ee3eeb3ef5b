"""The scheduler on an engine that knows all replies, in virtual time."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from bench.policy.recorded import Chat
from outrider.engines.base import EngineInfo, LogitsRows
from outrider.sampling.params import SamplingParams
from outrider.sampling.reply import ReplyEnd
from outrider.speculation.ngrams import NgramPrior
from services.inference.scheduler.batch import Batch
from services.inference.scheduler.limits import SchedulerLimits
from services.inference.scheduler.scheduler import Scheduler
from services.inference.scheduler.types import Committed, Event, Finished, OpenRequest

CALL_MS, CHAT_MS = 0.2, 0.04
"""Python per call, and per chat in it. Fixed, so that runs differ by the rules alone."""
ATTEMPT_MS, NO_ATTEMPT_MS = 0.08, 0.01
"""Python per chat for its suffix drafter: if it is asked for drafts, and if it only learns."""
CHOICE_MS = {False: 0.01, True: 0.06}
"""Greedy, and sampled with the noise drawn before: of one token from a row of logits
(bench.sampling)."""
_MOST_ROWS = 1024
_SURE = 1e4
"""A logit that no noise outweighs."""


@dataclass(slots=True)
class Served:
    """What the readers saw."""

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
        self, info: EngineInfo, durations: Mapping[int, float], prior: NgramPrior | None
    ) -> None:
        self._info = replace(info, num_blocks=4096)
        self._sizes, self._ms = list(durations), list(durations.values())
        self._prior = prior
        self._rows = np.zeros((_MOST_ROWS, info.vocabulary_size), np.float32)

    def serve(
        self, chats: Sequence[Chat], *, drafts: bool, sessions: int = 0, rate: float = 0.0
    ) -> Served:
        """`sessions` at a time, one after the other; or `rate` a second, as a Poisson process."""
        self._scheduler = Scheduler(
            self._info,
            SchedulerLimits(),
            lambda params: ReplyEnd(params, ()),
            self._prior,
        )
        self._drafts, self._now, self._served = drafts, 0.0, Served()
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
        request = OpenRequest(number, chat.prompt, sampling, region_drafts=self._drafts)
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
