"""A client's edge, a link and a replica in virtual time: real session, real scheduler, fake model.

Nothing of it runs beside anything else: events are taken from a heap in the order of their times.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

from outrider.engines.base import LogitsRows
from outrider.engines.fake import FakeEngine
from outrider.sampling.reply import ReplyText
from outrider.session.client import Committed
from outrider.session.region import Draft, Pace
from outrider.session.types import FinishReason
from services.edge.session.acceptance import Averages
from services.edge.session.draft_chain import DraftLimits
from services.edge.session.events import (
    Action,
    ChatAsked,
    DraftsReady,
    Input,
    OpenRegion,
    PromptReady,
    RegionDone,
    RegionOpened,
    Tick,
)
from services.edge.session.machine import ChatSession, SessionPolicy
from services.edge.session.reply import ReplyPolicy, ReplyTools
from services.edge.session.upload_control import UploadPolicy
from services.inference.reference import generate
from services.inference.scheduler.batch import Batch
from services.inference.scheduler.limits import SchedulerLimits
from services.inference.scheduler.scheduler import Scheduler
from services.inference.scheduler.types import Event, Finished, Opened, OpenRequest, SessionCommit
from tests.edge.session.simulation.circumstances import (
    PROMPT,
    SESSION,
    Circumstances,
    Words,
    sampling,
    word,
)
from tests.edge.session.simulation.drafter import VirtualDrafter
from tests.edge.session.toolkit import DIGEST, request
from tests.inference import letters


@dataclass
class Outcome:
    """What came of a chat."""

    arrivals: list[tuple[float, int]] = field(default_factory=list)
    """When commits reached the edge, and how many tokens were final then."""
    ids: list[int] = field(default_factory=list)
    num_calls: int = 0
    modes: list[bool] = field(default_factory=list)
    """SessionCommit by commit, whether drafts went up."""

    @property
    def token_s(self) -> float:
        """Seconds per token after the first commit."""
        (begin, before), (end, after) = self.arrivals[0], self.arrivals[-1]
        return (end - begin) / (after - before)


class Mesh:
    """Runs one chat."""

    def __init__(
        self,
        at: Circumstances,
        *,
        upload: UploadPolicy | None = None,
        averages: Averages | None = None,
        region_drafts: bool = True,
        limits: SchedulerLimits | None = None,
    ) -> None:
        self.at, self.now = at, 0.0
        self.rng = Random(at.seed)
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._last = {"up": 0.0, "down": 0.0}
        self.truth = generate(
            FakeEngine(at.options()), PROMPT, sampling(at.num_tokens), letters.new_reply
        ).ids
        self.engine = FakeEngine(at.options())
        limits = limits or SchedulerLimits(fixed_ms=at.call_s * 1e3, row_ms=at.row_s * 1e3)
        self.scheduler = Scheduler(self.engine.info, limits, letters.new_reply)
        self.limits = limits
        self._region_drafts = region_drafts
        self._is_computing = False
        self._echo = (0, 0.0)
        self.drop: Callable[[Draft], Draft | None] = lambda frame: frame
        """What the link makes of a frame of drafts."""
        self.outcome = Outcome()
        self.actions: list[tuple[float, Action]] = []
        policy = ReplyPolicy(
            drafts=DraftLimits(max_lead=32, min_survival=0.1), upload=upload or UploadPolicy()
        )
        self.chat = ChatSession(
            SessionPolicy(DIGEST, 2048, reply=policy), self._tools(averages or Averages()), 0.0
        )

    def confidence(self, rng: Random) -> float:
        """Of the next draft; a mean of `accuracy`, spread as models' are."""
        accuracy = self.at.accuracy
        if accuracy in (0.0, 1.0):
            return accuracy
        return rng.betavariate(3 * accuracy, 3 * (1 - accuracy))

    def run(self, *, provisional: bool = False) -> Outcome:
        """Until the reply is whole."""
        asked = request(sampling=sampling(self.at.num_tokens), provisional=provisional)
        self.feed(ChatAsked(asked))
        self.feed(PromptReady(PROMPT))
        while self._heap:
            self.now, _, do = heapq.heappop(self._heap)
            do()
        assert self.outcome.ids == list(self.truth), "whatever the drafts, the text is the same"
        return self.outcome

    # Edge.

    def _tools(self, averages: Averages) -> ReplyTools:
        return ReplyTools(
            new_reply=lambda params: ReplyText(params, {letters.STOP_ID}, Words()),
            new_drafter=lambda needs: VirtualDrafter(self, self.truth),
            token_bytes=lambda token: word(token).encode(),
            stop_ids=frozenset({letters.STOP_ID}),
            averages=lambda group: averages,
        )

    def wake(self, at: float) -> None:
        """The drafter will have another token then."""
        self.later(at, lambda: self.feed(DraftsReady()))

    def feed(self, item: Input) -> None:
        """Something happened at the edge."""
        for action in self.chat.handle(item, self.now):
            self.actions.append((self.now, action))
            self._perform(action)
        if (due := self.chat.next_deadline()) is not None:
            self.later(due, self._tick)

    def _tick(self) -> None:
        due = self.chat.next_deadline()
        if due is not None and due <= self.now + 1e-9:
            self.feed(Tick())

    def _perform(self, action: Action) -> None:
        if isinstance(action, OpenRegion):
            self._send("up", lambda: self._open(action))
        elif isinstance(action, Draft):
            frame = self.drop(action)
            if frame is not None:
                self._send("up", lambda: self._draft(frame))
        elif isinstance(action, Committed):
            self.outcome.ids += action.ids
            self.outcome.arrivals.append((self.now, action.upto))
            assert self.chat.reply is not None
            self.outcome.modes.append(self.chat.reply.controller.sends)

    # Link.

    def later(self, at: float, do: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (max(at, self.now), next(self._order), do))

    def _send(self, way: str, do: Callable[[], None]) -> None:
        """In order: a frame that is held up holds up those behind it."""
        rtt_s = self.at.rtt_at(self.now) if self.at.rtt_at else self.at.rtt_s
        at = self.now + rtt_s / 2 + self.rng.uniform(0, self.at.jitter_s)
        self._last[way] = max(self._last[way], at)
        self.later(self._last[way], do)

    # Replica.

    def _open(self, action: OpenRegion) -> None:
        assert action.prompt is not None
        opening = OpenRequest(
            SESSION, action.prompt, action.request.sampling, region_drafts=self._region_drafts
        )
        (event,) = self.scheduler.open(opening, self.now)
        assert isinstance(event, Opened)
        most = self.limits.max_draft_tokens
        opened = RegionOpened(
            event.prompt_tokens, 0, "replica", "region", DIGEST, most, action.echo
        )
        self._send("down", lambda: self.feed(opened))
        self._compute()

    def _draft(self, frame: Draft) -> None:
        drafts = Draft(frame.epoch, frame.base, frame.ids, frame.continues)
        self.scheduler.draft(SESSION, drafts, self.now)
        self._echo = frame.echo, self.now

    def _compute(self) -> None:
        if self._is_computing:
            return
        batch = self.scheduler.schedule(self.now)
        if batch is None:
            return
        rows = batch.run(self.engine, self.scheduler.overlapped_work)
        self._is_computing = True
        self.outcome.num_calls += 1
        duration_s = self.engine.step_ms / 1e3 if batch.slices else 0.0
        self.later(self.now + duration_s, lambda: self._computed(batch, rows))

    def _computed(self, batch: Batch, rows: Sequence[LogitsRows]) -> None:
        self._is_computing = False
        for event in self.scheduler.postprocess(batch, rows, self.now):
            self._tell(event)
        self._compute()

    def _tell(self, event: Event) -> None:
        item: Input
        if isinstance(event, SessionCommit):
            (echo, came_at), self._echo = self._echo, (0, 0.0)
            pace = Pace(
                interval_s=event.interval_ms / 1e3,
                row_s=event.row_ms / 1e3,
                max_lead=self.limits.max_lead,
                overload_level=self.scheduler.load().overload_level,
                echo=echo,
                ack_delay_s=self.now - came_at if echo else 0.0,
            )
            item = event.commit._replace(pace=pace)
        elif isinstance(event, Finished):
            item = RegionDone(FinishReason.LENGTH, event.upto)
        else:
            raise AssertionError(f"the replica says {event}")
        self._send("down", lambda: self.feed(item))
