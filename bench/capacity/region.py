"""One core of a region in virtual time: the real scheduler over a target without weights, and, if
the region drafts, a draft model whose steps take turns with its calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from bench.capacity.pairs import Pair, guess_of
from bench.capacity.virtual_time import VirtualTime
from outrider.engines.base import LogitsRows
from outrider.engines.fake import FakeEngine
from outrider.sampling.params import SamplingParams
from outrider.sampling.reply import ReplyText
from outrider.session.region import Draft, Pace
from services.inference.scheduler.batch import Batch
from services.inference.scheduler.limits import SchedulerLimits
from services.inference.scheduler.scheduler import Scheduler
from services.inference.scheduler.types import Event, Finished, OpenRequest, SessionCommit


@dataclass(slots=True)
class _Chat:
    """What the region knows of one, for its draft model."""

    opened: OpenRequest
    truth: Sequence[int]
    """What the target will say."""
    tell: Callable[[SessionCommit | Finished], None]
    num_reply: int = 0
    epoch: int = 0
    echo: int = 0
    echo_at: float = 0.0


@dataclass(slots=True)
class CallRecord:
    """One turn of the core: a call of the target, and the draft model's steps before it."""

    ended_at: float
    verify_ms: float
    draft_ms: float
    num_chats: int
    num_rows: int
    committed: dict[int, int] = field(default_factory=dict)
    """Tokens by chat."""


class Region:
    """Serves chats as long as there are any."""

    def __init__(
        self,
        time: VirtualTime,
        engine: FakeEngine,
        pair: Pair,
        limits: SchedulerLimits,
        new_reply: Callable[[SamplingParams], ReplyText],
        *,
        num_drafts: int = 0,
        least_survival: float = 0.2,
    ) -> None:
        """`num_drafts`: most that its own draft model makes for each chat before each call, as long
        as a chain's chance is at least `least_survival`; 0: it has none."""
        self._time, self._engine, self._pair, self.limits = time, engine, pair, limits
        self._scheduler = Scheduler(engine.info, limits, new_reply)
        self._num_drafts, self._least_survival = num_drafts, least_survival
        self._chats: dict[int, _Chat] = {}
        self._is_busy = False
        self.records: list[CallRecord] = []

    def open(
        self,
        request: OpenRequest,
        truth: Sequence[int],
        tell: Callable[[SessionCommit | Finished], None],
    ) -> None:
        """A chat comes; `tell` is called with its commits and its end."""
        self._scheduler.open(request, self._time.now)
        self._chats[request.session_id] = _Chat(request, truth, tell)
        self._time.at(self._time.now, self._turn)

    def draft(self, chat: int, frame: Draft) -> None:
        """An edge's drafts arrive."""
        self._scheduler.draft(chat, frame, self._time.now)
        if frame.echo and chat in self._chats:
            self._chats[chat].echo, self._chats[chat].echo_at = frame.echo, self._time.now

    def pace(self, commit: SessionCommit) -> Pace:
        """What goes to the edge with a commit; call it once for each."""
        chat = self._chats[commit.session_id]
        echo, chat.echo = chat.echo, 0
        return Pace(
            interval_s=commit.interval_ms / 1e3,
            row_s=commit.row_ms / 1e3,
            max_lead=self.limits.max_lead,
            overload_level=self._scheduler.load().overload_level,
            echo=echo,
            ack_delay_s=self._time.now - chat.echo_at if echo else 0.0,
        )

    def _turn(self) -> None:
        """Draft, if this region does, then verify."""
        if self._is_busy or not self._scheduler.has_work:
            return
        self._is_busy = True
        draft_ms, frames = self._drafts()
        self._time.at(self._time.now + draft_ms / 1e3, lambda: self._verify(draft_ms, frames))

    def _drafts(self) -> tuple[float, list[tuple[int, Draft]]]:
        """Milliseconds of the draft model's steps, and what they make: a token for each chat whose
        chain is likely enough, step by step."""
        chains = {
            number: (1.0, True, list[int]())
            for number, chat in self._chats.items()
            if chat.num_reply and self._num_drafts
        }
        size, took_ms, growing = self._engine.info.vocabulary_size, 0.0, list(chains)
        for _ in range(self._num_drafts):
            took_ms += self._pair.draft.ms(len(growing))
            for number in tuple(growing):
                chat, (survival, alive, ids) = self._chats[number], chains[number]
                place = chat.num_reply + len(ids)
                guess = guess_of(self._pair, number, place, size)
                survival *= guess.confidence
                alive = alive and guess.is_right and place < len(chat.truth)
                if survival < self._least_survival:
                    growing.remove(number)
                    continue
                ids.append(chat.truth[place] if alive else guess.wrong_id)
                chains[number] = survival, alive, ids
        frames = []
        for number, (_, _, ids) in chains.items():
            if ids:
                chat = self._chats[number]
                chat.epoch += 1
                frames.append((number, Draft(chat.epoch, chat.num_reply, tuple(ids))))
        return took_ms, frames

    def _verify(self, draft_ms: float, frames: Sequence[tuple[int, Draft]]) -> None:
        for number, frame in frames:
            self._scheduler.draft(number, frame, self._time.now)
        batch = self._scheduler.schedule(self._time.now)
        if batch is None:
            self._is_busy = False
            return
        rows = batch.run(self._engine, self._scheduler.overlapped_work)
        verify_ms = self._engine.step_ms if batch.slices else 0.0
        begun = self._time.now
        # The scheduler times a call from schedule() on, so the draft model's steps are no part.
        record = CallRecord(
            begun + verify_ms / 1e3, verify_ms, draft_ms, len(batch.slices), batch.num_tokens
        )
        self._time.at(record.ended_at, lambda: self._verified(batch, rows, record))

    def _verified(self, batch: Batch, rows: Sequence[LogitsRows], record: CallRecord) -> None:
        self._is_busy = False
        self.records.append(record)
        for event in self._scheduler.postprocess(batch, rows, self._time.now):
            self._tell(event, record)
        self._turn()

    def _tell(self, event: Event, record: CallRecord) -> None:
        if isinstance(event, SessionCommit):
            chat, commit = self._chats[event.session_id], event.commit
            record.committed[event.session_id] = commit.upto - commit.base
            chat.num_reply = commit.upto
            chat.tell(event)
        elif isinstance(event, Finished):
            self._chats.pop(event.session_id).tell(event)
        else:
            raise AssertionError(f"the scheduler says {event}")
