"""The life of one chat at the edge, as a table: (state, input) -> what to do.

AWAITING --ChatAsked--> TOKENIZING --PromptReady--> OPENING --RegionOpened--> STREAMING
    \\---ChatAsked, thin chat----------------------/^   ^                         |
                                              in a while--- REOPENING <--region lost
any state --an end: done, failed, cancelled, client gone--> CLOSED <--------------/
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

from outrider.errors import (
    DeadlineError,
    MalformedFrameError,
    OutriderError,
    PromptTooLongError,
    VocabularyMismatchError,
)
from outrider.session_types import FinishReason, Timings, Usage
from services.edge.session.actions import (
    Accepted,
    Action,
    CancelRegion,
    Done,
    Failed,
    Finish,
    OpenRegion,
    RidingAhead,
    Tokenize,
)
from services.edge.session.inputs import (
    AudienceChanged,
    CancelAsked,
    ChatAsked,
    ChatRequest,
    ClientFailed,
    ClientGone,
    DraftsReady,
    Input,
    PromptFailed,
    PromptReady,
    RegionCommit,
    RegionDone,
    RegionFailed,
    RegionMoved,
    RegionOpened,
    Tick,
)
from services.edge.session.policy import Milestones, SessionPolicy, State
from services.edge.session.reopening import Reopening
from services.edge.session.reply import ReplyFlow, ReplyTools

Actions: TypeAlias = list[Action]


class ChatSession:
    """One chat. `handle` is the only method that changes it; it never raises for peers' input."""

    def __init__(self, policy: SessionPolicy, tools: ReplyTools, now: float) -> None:
        self._policy = policy
        self._tools = tools
        self._deadline: float | None = now + policy.request_timeout_s
        self._request: ChatRequest | None = None
        self._opened: RegionOpened | None = None
        self._resumed: Actions = []
        self._prompt_ids: tuple[int, ...] | None = None
        self._num_prompt_tokens = 0
        self._reopening = Reopening(policy.reopen)
        self.state = State.AWAITING
        self.reply: ReplyFlow | None = None
        self.milestones = Milestones()
        self.error: OutriderError | None = None
        """Why the chat failed."""

    @property
    def request(self) -> ChatRequest | None:
        """The request, once it has come."""
        return self._request

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of the prompt, as far as they are known."""
        return self._num_prompt_tokens

    @property
    def num_tokens(self) -> int:
        """Final tokens so far, those of earlier runs included."""
        return self.reply.chain.committed if self.reply else 0

    @property
    def num_resumed(self) -> int:
        """Those of earlier runs, once they have been taken over."""
        return min(len(self._request.resume.ids), self.num_tokens) if self._request else 0

    def next_deadline(self) -> float | None:
        """When to call `handle(Tick(), now)`, unless something else comes first."""
        if self.state is State.CLOSED:
            return None
        refresh_at = self.reply.refresh_at if self.reply else None
        again_at = self._reopening.again_at
        times = [at for at in (self._deadline, refresh_at, again_at) if at is not None]
        return min(times, default=None)

    def handle(self, item: Input, now: float) -> Actions:
        """Take one input; what is returned is to be done in this order, then time goes on."""
        try:
            actions = TABLE[self.state, type(item)](self, item, now)
        except OutriderError as error:
            actions = self._fail(error)
        self.milestones.note(actions, self.num_resumed, now)
        return actions

    # What the table points to.

    def _ask(self, item: ChatAsked, now: float) -> Actions:
        request = self._request = item.request
        self.milestones.asked = now
        self._deadline = None
        if request.deadline_ms:
            grace = self._policy.deadline_grace_s
            self._deadline = now + request.deadline_ms / 1000 + grace
        if request.thin:
            return self._open(None, now)
        self.state = State.TOKENIZING
        return [Tokenize(request.messages)]

    def _prompt(self, item: PromptReady, now: float) -> Actions:
        longest = self._policy.max_context_tokens - 1
        if len(item.ids) > longest:
            raise PromptTooLongError.of(len(item.ids), longest)
        self._prompt_ids, self._num_prompt_tokens = item.ids, len(item.ids)
        return [*self._open(item.ids, now), self._accepted(), *self._resumed]

    def _open(self, prompt: tuple[int, ...] | None, now: float) -> Actions:
        request = self._request
        assert request is not None
        self.reply = ReplyFlow(request, prompt or (), self._tools, self._policy.reply)
        self._resumed = [*self.reply.resume(request.resume.ids)]
        begun = self.reply.start(now)
        self.milestones.opened = now
        return [self._ask_region(now), *begun]

    def _ask_region(self, now: float) -> OpenRegion:
        """For what follows the final tokens."""
        request, reply, asked = self._request, self.reply, self.milestones.asked
        assert request is not None and reply is not None and asked is not None
        ids, number = tuple(reply.ids), reply.controller.number(now)
        opening = self._reopening.ask(request, self._prompt_ids, ids, number, now - asked)
        self.state = State.OPENING
        return opening

    def _region_opened(self, item: RegionOpened, now: float) -> Actions:
        ours = self._policy.vocabulary_digest
        if item.vocabulary_digest != ours:
            raise VocabularyMismatchError(
                f"the region's vocabulary is {item.vocabulary_digest.hex()}, this edge's is "
                f"{ours.hex()}; both have to serve the same model"
            )
        self._reopening.opened(item.prompt_tokens, has_tokens=self.num_tokens > 0)
        is_first, self._opened = self._opened is None, item
        self.state = State.STREAMING
        request = self._request
        assert request is not None and self.reply is not None
        self.reply.opened(item, now)
        if not (request.thin and is_first):
            return []
        self._num_prompt_tokens = item.prompt_tokens
        return [self._accepted(), *self._resumed]

    def _commit(self, item: RegionCommit, now: float) -> Actions:
        assert self.reply is not None
        self._reopening.worked()
        return self.reply.commit(item, now)

    def _moved(self, item: RegionMoved, now: float) -> Actions:
        assert self.reply is not None and self._opened is not None
        self._opened = replace(self._opened, replica=item.replica, region=item.region)
        self.reply.lost(item.lost_epoch)
        return []

    def _region_done(self, item: RegionDone, now: float) -> Actions:
        assert self.reply is not None
        if item.upto != self.num_tokens:
            raise MalformedFrameError(
                f"the region ended at token {item.upto}, the edge has {self.num_tokens}"
            )
        events = self.reply.finish(now)
        self.state = State.CLOSED
        return [*events, self._done(item.finish_reason, item.usage, item.timings, now), Finish()]

    def _cancel(self, item: CancelAsked, now: float) -> Actions:
        events = self.reply.finish(now) if self.reply else []
        usage = Usage(prompt_tokens=self._num_prompt_tokens, completion_tokens=self.num_tokens)
        done = self._done(FinishReason.CANCELLED, usage, Timings(), now)
        return [*self._leave("the client cancelled"), *events, done, Finish()]

    def _gone(self, item: ClientGone, now: float) -> Actions:
        return [*self._leave("the client is gone"), Finish()]

    def _audience(self, item: AudienceChanged, now: float) -> Actions:
        assert self._request is not None
        self._request = replace(self._request, provisional=item.provisional)
        if self.reply is not None:
            self.reply.change_audience(item.provisional, now)
        return []

    def _failed(self, item: ClientFailed | PromptFailed, now: float) -> Actions:
        return self._fail(item.error)

    def _region_failed(self, item: RegionFailed, now: float) -> Actions:
        assert self.reply is not None
        self.state = State.REOPENING  # whatever follows, the region has no session any more
        if not self._reopening.failed(item, now, has_tokens=self.num_tokens > 0):
            return self._fail(item.error)
        self.reply.lost()
        return self._tick(Tick(), now)

    def _drafts_ready(self, item: DraftsReady, now: float) -> Actions:
        assert self.reply is not None
        self.reply.ready(item.heard, now)
        return []

    def _tick(self, item: Tick, now: float) -> Actions:
        if self._deadline is not None and now >= self._deadline:
            if self.state is State.AWAITING:
                raise DeadlineError("the stream was opened but no chat request came; send it first")
            raise DeadlineError("the deadline passed and the region did not answer; try again")
        if (again_at := self._reopening.again_at) is not None and now >= again_at:
            return [self._ask_region(now)]
        if self.reply is None or self.reply.refresh_at is None or now < self.reply.refresh_at:
            return []
        return self.reply.refresh(now)

    def _misplaced_by_client(self, item: Input, now: float) -> Actions:
        name = "a second request" if isinstance(item, ChatAsked) else "a cancel"
        raise MalformedFrameError(f"{name} is out of place; a stream is one chat, request first")

    def _misplaced_by_region(self, item: Input, now: float) -> Actions:
        raise MalformedFrameError(
            f"the region sent {type(item).__name__} while the chat was {self.state.name.lower()}"
        )

    def _ignore(self, item: Input, now: float) -> Actions:
        return []

    # Parts of them.

    def _accepted(self) -> Accepted:
        assert self._request is not None
        return Accepted(self._request.request_id, self._request.model, self._num_prompt_tokens)

    def _done(self, reason: FinishReason, usage: Usage, timings: Timings, now: float) -> Done:
        opened, edge = self._opened, self.milestones.timings(now)
        region, replica = (opened.region, opened.replica) if opened else ("", "")
        ahead = self.reply.ahead() if self.reply else RidingAhead()
        return Done(reason, self.num_tokens, usage, timings, edge, region, replica, ahead)

    def _fail(self, error: OutriderError) -> Actions:
        self.error = error.bare()
        return [*self._leave(error.reason), Failed(error), Finish()]

    def _leave(self, reason: str) -> Actions:
        at_region = self.state in (State.OPENING, State.STREAMING)
        self.state = State.CLOSED
        return [CancelRegion(reason)] if at_region else []


Handler: TypeAlias = Callable[[ChatSession, Any, float], Actions]
_S, _R = ChatSession, ChatSession._misplaced_by_region
_COLUMNS: dict[type[Input], tuple[Handler, Handler, Handler, Handler, Handler]] = {
    # input:  AWAITING, TOKENIZING, OPENING, STREAMING, REOPENING; CLOSED ignores everything
    ChatAsked: (_S._ask, *(_S._misplaced_by_client,) * 4),
    CancelAsked: (_S._misplaced_by_client, *(_S._cancel,) * 4),
    ClientGone: (_S._gone,) * 5,
    AudienceChanged: (_S._ignore, *(_S._audience,) * 4),
    ClientFailed: (_S._failed,) * 5,
    PromptReady: (_S._ignore, _S._prompt, *(_S._ignore,) * 3),
    PromptFailed: (_S._ignore, _S._failed, *(_S._ignore,) * 3),
    RegionOpened: (*(_R,) * 2, _S._region_opened, *(_R,) * 2),
    RegionCommit: (*(_R,) * 3, _S._commit, _R),
    RegionMoved: (*(_R,) * 3, _S._moved, _R),
    RegionDone: (*(_R,) * 2, *(_S._region_done,) * 2, _R),
    RegionFailed: (*(_R,) * 2, *(_S._region_failed,) * 2, _S._ignore),
    DraftsReady: (*(_S._ignore,) * 2, *(_S._drafts_ready,) * 3),
    Tick: (_S._tick,) * 5,
}
TABLE: dict[tuple[State, type[Input]], Handler] = {
    (state, kind): handler
    for kind, handlers in _COLUMNS.items()
    for state, handler in zip(State, (*handlers, _S._ignore), strict=True)
}
"""The state machine, whole: every (state, input) pair has an entry."""
