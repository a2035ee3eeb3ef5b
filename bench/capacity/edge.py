"""A chat's edge in virtual time: the real session, over a link, with a draft model of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from bench.capacity.pairs import Pair, guess_of
from bench.capacity.region import Region
from bench.capacity.virtual_time import VirtualTime
from outrider.models.chat import Message
from outrider.sampling.params import SamplingParams
from outrider.sampling.reply import ReplyText
from outrider.session.client import Committed
from outrider.session.region import Draft
from outrider.session.types import FinishReason
from services.edge.session.acceptance import GroupAverages
from services.edge.session.draft_sources import Guess, Wanted, always
from services.edge.session.events import (
    ChatAsked,
    ChatRequest,
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
from services.inference.scheduler.types import Finished, OpenRequest, SessionCommit

_DIGEST: Final = bytes(32)
_GROUP: Final = b"one"


class EdgeDrafter:
    """The draft model on an edge's core: one token after the other, each with its time."""

    def __init__(
        self,
        time: VirtualTime,
        pair: Pair,
        chat: int,
        truth: Sequence[int],
        num_prompt: int,
        vocabulary_size: int,
        ready: Callable[[], None],
    ) -> None:
        """`ready` is called when another token is there."""
        self._time, self._pair, self._chat, self._truth = time, pair, chat, truth
        self._draft_s = pair.draft.ms(1) / 1e3
        self._vocabulary_size = vocabulary_size
        self._ready = ready
        self._num_final = -num_prompt
        self._chain: list[int] = []
        self._busy_since: float | None = None
        """When the token that is being computed was begun; None: none is."""

    def extend(self, ids: Sequence[int]) -> None:
        """See `Drafter.extend`."""
        agrees = self._chain[: len(ids)] == list(ids[: len(self._chain)])
        self._num_final += len(ids)
        self._chain = self._chain[len(ids) :] if agrees else []
        if not self._chain:
            self._busy_since = None

    def draft_after(
        self, tentative_ids: Sequence[int], max_tokens: int, wanted: Wanted = always
    ) -> Guess:
        """See `Drafter.draft_after`. One token at a time: the next is begun when this one is
        wanted."""
        now = self._time.now
        self._chain = list(tentative_ids)
        if self._busy_since is None:
            self._begin(now)
            return Guess(ended=False)
        if now + 1e-9 < self._busy_since + self._draft_s:
            return Guess(ended=False)
        place = self._num_final + len(tentative_ids)
        known = list(tentative_ids) == list(self._truth[self._num_final : place])
        guess = guess_of(self._pair, self._chat, place, self._vocabulary_size)
        right = known and guess.is_right and place < len(self._truth)
        token = self._truth[place] if right else guess.wrong_id
        self._busy_since = None
        is_wanted = wanted("model", guess.confidence)
        if is_wanted:
            self._chain.append(token)
            if max_tokens > 1:
                self._begin(now)
        return Guess((token,), (guess.confidence,), ("model",), self._draft_s, ended=not is_wanted)

    def _begin(self, now: float) -> None:
        self._busy_since = now
        self._time.at(now + self._draft_s, self._ready)


class EdgeChat:
    """One chat whose client is beside its edge, and whose region lies `rtt_s` away."""

    def __init__(
        self,
        time: VirtualTime,
        region: Region,
        pair: Pair,
        opening: OpenRequest,
        truth: Sequence[int],
        new_reply: Callable[[SamplingParams], ReplyText],
        averages: GroupAverages,
        *,
        rtt_s: float,
        vocabulary_size: int,
        upload: UploadPolicy,
    ) -> None:
        self._time, self._region, self._opening, self._truth = time, region, opening, truth
        self._rtt_s = rtt_s
        self.ids: list[int] = []
        """Final ones, as they reached the edge."""
        number, prompt = opening.session_id, opening.prompt
        tools = ReplyTools(
            new_reply=new_reply,
            new_drafter=lambda needs: EdgeDrafter(
                time, pair, number, truth, len(prompt), vocabulary_size, self._drafted
            ),
            token_bytes=lambda token: b" w",
            stop_ids=frozenset({0}),
            averages=averages.of,
        )
        policy = ReplyPolicy(upload=upload)
        self.session = ChatSession(SessionPolicy(_DIGEST, 2048, reply=policy), tools, time.now)

    def begin(self) -> None:
        """The client asks."""
        sampling = self._opening.sampling
        asked = ChatRequest("r", "m", (Message("user", "hello"),), sampling, group=_GROUP)
        self._feed(ChatAsked(asked))
        self._feed(PromptReady(self._opening.prompt))

    def _drafted(self) -> None:
        self._feed(DraftsReady())

    def _feed(self, item: Input) -> None:
        for action in self.session.handle(item, self._time.now):
            if isinstance(action, OpenRegion):
                echo = action.echo
                self._send(lambda echo=echo: self._open(echo))  # type: ignore[misc]
            elif isinstance(action, Draft):
                self._send(lambda frame=action: self._region.draft(self._number, frame))  # type: ignore[misc]
            elif isinstance(action, Committed):
                self.ids += action.ids
        if (due := self.session.next_deadline()) is not None:
            self._time.at(due, self._tick)

    @property
    def _number(self) -> int:
        return self._opening.session_id

    def _tick(self) -> None:
        due = self.session.next_deadline()
        if due is not None and due <= self._time.now + 1e-9:
            self._feed(Tick())

    def _send(self, do: Callable[[], None]) -> None:
        """Half a round trip, up or down."""
        self._time.at(self._time.now + self._rtt_s / 2, do)

    def _open(self, echo: int) -> None:
        self._region.open(self._opening, self._truth, self._told)
        most = self._region.limits.max_draft_tokens
        num_prompt = len(self._opening.prompt)
        opened = RegionOpened(num_prompt, 0, "replica", "region", _DIGEST, most, echo)
        self._send(lambda: self._feed(opened))

    def _told(self, event: SessionCommit | Finished) -> None:
        item: Input
        if isinstance(event, SessionCommit):
            item = event.commit._replace(pace=self._region.pace(event))
        else:
            item = RegionDone(FinishReason.LENGTH, event.upto)
        self._send(lambda: self._feed(item))
