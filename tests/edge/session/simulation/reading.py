"""A chat whose reply comes from the region token by token, and what the reader sees of it."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from functools import partial
from random import Random

from outrider.sampling.reply import ReplyText
from outrider.session.region import Commit
from outrider.session.types import FinishReason, Speculation
from services.edge.session.acceptance import Averages
from services.edge.session.display import DisplayPolicy
from services.edge.session.draft_chain import DraftLimits
from services.edge.session.events import (
    ChatAsked,
    DraftsReady,
    Input,
    PromptReady,
    RegionDone,
    RegionOpened,
    Tick,
)
from services.edge.session.machine import ChatSession, SessionPolicy
from services.edge.session.reply import ReplyPolicy, ReplyTools
from tests.edge.session.simulation.circumstances import PROMPT, Circumstances, Words, sampling, word
from tests.edge.session.simulation.drafter import VirtualDrafter
from tests.edge.session.toolkit import DIGEST, request
from tests.inference import letters


class Reading:
    """Runs one chat; the region commits on its own, one token per call."""

    def __init__(
        self,
        at: Circumstances,
        display: DisplayPolicy | None = None,
        *,
        averages: Averages | None = None,
        boast: float = 1.0,
    ) -> None:
        self.at, self.now = at, 0.0
        rng = Random(at.seed)
        self._truth = [rng.randrange(3, 60) for _ in range(at.num_tokens)]
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        reply = ReplyPolicy(
            drafts=DraftLimits(min_survival=0.1), display=display or DisplayPolicy()
        )
        known = averages or Averages()
        tools = ReplyTools(
            new_reply=lambda params: ReplyText(params, {letters.STOP_ID}, Words()),
            new_drafter=lambda needs: VirtualDrafter(self, self._truth, boast=boast),
            token_bytes=lambda token: word(token).encode(),
            stop_ids=frozenset({letters.STOP_ID}),
            averages=lambda group: known,
        )
        self.chat = ChatSession(SessionPolicy(DIGEST, 2048, reply=reply), tools, 0.0)

    @property
    def erasure(self) -> float:
        """Normalised: tokens taken back over tokens of the reply."""
        assert self.chat.reply is not None
        return self.chat.reply.display.erased_tokens / len(self._truth)

    @property
    def shown_early(self) -> float:
        """Share of the reply's tokens that were shown before they were final."""
        assert self.chat.reply is not None
        return self.chat.reply.display.shown_tokens / len(self._truth)

    def run(self) -> Reading:
        """Until the reply is whole."""
        asked = request(sampling=sampling(self.at.num_tokens), speculation=Speculation.REGION_ONLY)
        self._feed(ChatAsked(asked))
        self._feed(PromptReady(PROMPT))
        opened_at = self.at.rtt_s
        self._later(opened_at, partial(self._feed, RegionOpened(1, 0, "r", "r", DIGEST)))
        for number, token in enumerate(self._truth):
            commit = Commit(0, number, 0, (token,))
            self._later(opened_at + (number + 1) * self.at.call_s, partial(self._feed, commit))
        end = RegionDone(FinishReason.LENGTH, len(self._truth))
        self._later(opened_at + (len(self._truth) + 1) * self.at.call_s, partial(self._feed, end))
        while self._heap:
            self.now, _, do = heapq.heappop(self._heap)
            do()
        return self

    def wake(self, at: float) -> None:
        """The drafter will have another token then."""
        self._later(at, partial(self._feed, DraftsReady()))

    def confidence(self, rng: Random) -> float:
        """Of the next draft; spread as models' are: mostly sure, now and then not at all."""
        accuracy = self.at.accuracy
        return rng.betavariate(3 * accuracy, 3 * (1 - accuracy))

    def _later(self, at: float, do: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (max(at, self.now), next(self._order), do))

    def _feed(self, item: Input) -> None:
        self.chat.handle(item, self.now)
        if (due := self.chat.next_deadline()) is not None:
            self._later(due, self._tick)

    def _tick(self) -> None:
        due = self.chat.next_deadline()
        if due is not None and due <= self.now + 1e-9:
            self._feed(Tick())
