"""The life of one chat at the edge, as a table: (state, input) -> what to do.

AWAITING --ChatAsked--> TOKENIZING --PromptReady--> OPENING --RegionOpened--> STREAMING
    \\---ChatAsked, thin chat----------------------/^                             |
any state --an end: done, failed, cancelled, client gone--> CLOSED <--------------/
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from enum import Enum, auto
from typing import Any, TypeAlias

from outrider.errors import (
    DeadlineError,
    MalformedFrameError,
    OutriderError,
    PromptTooLongError,
    VocabularyMismatchError,
)
from services.edge.session.actions import (
    Accepted,
    Action,
    CancelRegion,
    Commit,
    Done,
    Failed,
    Finish,
    OpenRegion,
    Provisional,
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
    FinishReason,
    Input,
    PromptFailed,
    PromptReady,
    RegionCommit,
    RegionDone,
    RegionFailed,
    RegionOpened,
    Tick,
    Timings,
    Usage,
)
from services.edge.session.policy import Milestones, SessionPolicy
from services.edge.session.reply import ReplyFlow, ReplyTools

Actions: TypeAlias = list[Action]


class State(Enum):
    """Where a chat is."""

    AWAITING = auto()
    """The stream is open, the request has not come."""
    TOKENIZING = auto()
    OPENING = auto()
    """The region was asked; drafts may already be on their way."""
    STREAMING = auto()
    CLOSED = auto()


class ChatSession:
    """One chat. `handle` is the only method that changes it; it never raises for peers' input."""

    def __init__(self, policy: SessionPolicy, tools: ReplyTools, now: float) -> None:
        self._policy = policy
        self._tools = tools
        self._deadline: float | None = now + policy.request_timeout_s
        self._request: ChatRequest | None = None
        self._opened: RegionOpened | None = None
        self._resumed: Actions = []
        self._num_prompt_tokens = 0
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
        times = [at for at in (self._deadline, refresh_at) if at is not None]
        return min(times, default=None)

    def handle(self, item: Input, now: float) -> Actions:
        """Take one input; what is returned is to be done in this order, then time goes on."""
        try:
            actions = TABLE[self.state, type(item)](self, item, now)
        except OutriderError as error:
            actions = self._fail(error)
        self._note(actions, now)
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
            raise PromptTooLongError(
                f"the prompt has {len(item.ids)} tokens, at most {longest} fit; shorten it"
            )
        self._num_prompt_tokens = len(item.ids)
        return [*self._open(item.ids, now), self._accepted(), *self._resumed]

    def _open(self, prompt: tuple[int, ...] | None, now: float) -> Actions:
        request, asked = self._request, self.milestones.asked
        assert request is not None and asked is not None
        left_ms = request.deadline_ms
        if request.deadline_ms:
            left_ms -= round((now - asked) * 1000)
            if left_ms <= 0:
                raise DeadlineError("the deadline passed before the prompt was tokenized")
        self.reply = ReplyFlow(request, prompt or (), self._tools, self._policy.reply)
        self._resumed = [*self.reply.resume(request.resume.ids)]
        begun = self.reply.start(now)
        self.milestones.opened = now
        self.state = State.OPENING
        number = self.reply.controller.number(now)
        return [OpenRegion(request, prompt, left_ms, number), *begun]

    def _region_opened(self, item: RegionOpened, now: float) -> Actions:
        ours = self._policy.vocabulary_digest
        if item.vocabulary_digest != ours:
            raise VocabularyMismatchError(
                f"the region's vocabulary is {item.vocabulary_digest.hex()}, this edge's is "
                f"{ours.hex()}; both have to serve the same model"
            )
        self._opened = item
        self.state = State.STREAMING
        request = self._request
        assert request is not None and self.reply is not None
        self.reply.opened(item, now)
        if not request.thin:
            return []
        self._num_prompt_tokens = item.prompt_tokens
        return [self._accepted(), *self._resumed]

    def _commit(self, item: RegionCommit, now: float) -> Actions:
        assert self.reply is not None
        return self.reply.commit(item, now)

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

    def _failed(self, item: ClientFailed | PromptFailed | RegionFailed, now: float) -> Actions:
        if isinstance(item, RegionFailed):
            self.error = item.error
            self.state = State.CLOSED
            return [Failed(item.error), Finish()]
        return self._fail(item.error)

    def _drafts_ready(self, item: DraftsReady, now: float) -> Actions:
        assert self.reply is not None
        self.reply.ready(item.heard, now)
        return []

    def _tick(self, item: Tick, now: float) -> Actions:
        if self._deadline is not None and now >= self._deadline:
            if self.state is State.AWAITING:
                raise DeadlineError("the stream was opened but no chat request came; send it first")
            raise DeadlineError("the deadline passed and the region did not answer; try again")
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
        self.error = error
        return [*self._leave(error.reason), Failed(error), Finish()]

    def _leave(self, reason: str) -> Actions:
        at_region = self.state in (State.OPENING, State.STREAMING)
        self.state = State.CLOSED
        return [CancelRegion(reason)] if at_region else []

    def _note(self, actions: Actions, now: float) -> None:
        for action in actions:
            if isinstance(action, Provisional) and self.milestones.provisional is None:
                self.milestones.provisional = now
            is_new = isinstance(action, Commit) and action.upto > self.num_resumed
            if is_new and self.milestones.committed is None:
                self.milestones.committed = now


Handler: TypeAlias = Callable[[ChatSession, Any, float], Actions]
_S = ChatSession
_COLUMNS: dict[type[Input], tuple[Handler, Handler, Handler, Handler]] = {
    # input:       AWAITING, TOKENIZING, OPENING, STREAMING; CLOSED ignores everything
    ChatAsked: (_S._ask, *(_S._misplaced_by_client,) * 3),
    CancelAsked: (_S._misplaced_by_client, *(_S._cancel,) * 3),
    ClientGone: (_S._gone,) * 4,
    AudienceChanged: (_S._ignore, *(_S._audience,) * 3),
    ClientFailed: (_S._failed,) * 4,
    PromptReady: (_S._ignore, _S._prompt, _S._ignore, _S._ignore),
    PromptFailed: (_S._ignore, _S._failed, _S._ignore, _S._ignore),
    RegionOpened: (*(_S._misplaced_by_region,) * 2, _S._region_opened, _S._misplaced_by_region),
    RegionCommit: (*(_S._misplaced_by_region,) * 3, _S._commit),
    RegionDone: (*(_S._misplaced_by_region,) * 2, *(_S._region_done,) * 2),
    RegionFailed: (*(_S._misplaced_by_region,) * 2, *(_S._failed,) * 2),
    DraftsReady: (*(_S._ignore,) * 2, *(_S._drafts_ready,) * 2),
    Tick: (_S._tick,) * 4,
}
TABLE: dict[tuple[State, type[Input]], Handler] = {
    (state, kind): handler
    for kind, handlers in _COLUMNS.items()
    for state, handler in zip(State, (*handlers, _S._ignore), strict=True)
}
"""The state machine, whole: every (state, input) pair has an entry."""
