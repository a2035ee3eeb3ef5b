"""The life of one chat at the edge, as a table: TABLE[state][input] -> what to do.

AWAITING --ChatAsked--> TOKENIZING --PromptReady--> OPENING --RegionOpened--> STREAMING
    \\---ChatAsked, thin chat----------------------/^   ^                         |
                                           after a pause -- REOPENING <-- region lost
any state --an end: done, failed, cancelled, client gone--> CLOSED <--------------/
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import Any, Final, TypeAlias

from outrider.codec.tokens import ids_checksum
from outrider.errors import (
    DeadlineError,
    DuplicateSessionError,
    InvalidRequestError,
    MalformedFrameError,
    OutriderError,
    OverloadedError,
    PeerFaultError,
    PromptTooLongError,
    VocabularyMismatchError,
)
from outrider.models.template_variables import date_in
from outrider.reply_parsing.reasoning import begins_in_reasoning
from outrider.session.client import (
    Accepted,
    Committed,
    Done,
    DraftingTerms,
    Failed,
    Provisional,
)
from outrider.session.region import Commit
from outrider.session.types import (
    NO_SPECULATION,
    FinishReason,
    FirstText,
    SpeculationStats,
    Timings,
    Usage,
)
from services.edge.session.events import (
    NOTHING_AHEAD,
    Action,
    AheadTokens,
    CancelAsked,
    CancelRegion,
    ChatAsked,
    ChatRequest,
    ClientChanged,
    ClientFailed,
    ClientGone,
    DraftDropped,
    DraftsReady,
    Finish,
    Input,
    LeaveToRegion,
    OpenRegion,
    PromptFailed,
    PromptReady,
    RegionDone,
    RegionFailed,
    RegionMoved,
    RegionOpened,
    ResumePoint,
    Tick,
    Tokenize,
)
from services.edge.session.reopening import Reopening, ReopenPolicy
from services.edge.session.reply import ReplyFlow, ReplyPolicy, ReplyTools

Actions: TypeAlias = list[Action]


class SessionState(Enum):
    """State of a chat."""

    AWAITING = auto()
    """The stream is open, the request has not come."""
    TOKENIZING = auto()
    OPENING = auto()
    """The region was asked; drafts may already be on their way."""
    STREAMING = auto()
    REOPENING = auto()
    """The way to the region broke; it is asked again after a pause."""
    CLOSED = auto()


@dataclass(frozen=True, slots=True)
class SessionPolicy:
    """Limits of one chat, and how it drafts and shows."""

    vocabulary_digest: bytes
    max_context_tokens: int
    """A prompt has to leave room for at least one token of reply."""
    request_timeout_s: float = 10.0
    """How long an open stream may wait with its request."""
    bail_out_s: float = 0.0
    """How long a prompt may take to tokenize here before that is left to the region; 0: as long as
    it takes."""
    deadline_grace_s: float = 1.0
    """How long after its deadline a chat waits for the region to end it."""
    reply: ReplyPolicy = field(default_factory=ReplyPolicy)
    reopen: ReopenPolicy = field(default_factory=ReopenPolicy)


@dataclass(slots=True)
class Milestones:
    """Times of the first event of each kind, on the clock of `now`; None: not yet."""

    asked: float | None = None
    """The request came."""
    opened: float | None = None
    """The region was asked."""
    provisional: float | None = None
    committed: float | None = None

    def note(self, actions: Iterable[Action], num_resumed: int, now: float) -> None:
        """These actions are about to be done; the reply's first `num_resumed` tokens are of earlier
        runs."""
        for action in actions:
            if type(action) is Committed:
                if self.committed is None and action.upto > num_resumed:
                    self.committed = now
            elif self.provisional is None and isinstance(action, Provisional):
                self.provisional = now

    def timings(self, now: float) -> Timings:
        """Milliseconds from the request to each event; 0 for an event that has not happened."""
        start = now if self.asked is None else self.asked
        return Timings(
            queue_ms=_ms(start, self.opened),
            ttft_ms=_ms(start, self.committed),
            total_ms=_ms(start, now),
        )

    def first_text(self, stayed: float | None, rtt_s: float, replica_ttft_ms: float) -> FirstText:
        """`stayed`: when the first provisional word was shown that became final, None: no such one;
        `rtt_s`: round trip to the replica, whose first token took `replica_ttft_ms`; 0: not
        known."""
        start = self.asked
        if start is None:
            return FirstText()
        opened_ms = _ms(start, self.opened)
        return FirstText(
            provisional_ms=_ms(start, self.provisional),
            staying_ms=_ms(start, self.committed if stayed is None else stayed),
            committed_ms=_ms(start, self.committed),
            region_ms=opened_ms + rtt_s * 1000 + replica_ttft_ms if replica_ttft_ms else 0.0,
        )


def _ms(start: float, end: float | None) -> float:
    return 0.0 if end is None else (end - start) * 1000


@dataclass(slots=True)
class _AskedChat:
    """Data of a chat while it is TOKENIZING."""

    request: ChatRequest
    asked_at: float
    bail_out_at: float | None = None
    """When its prompt is left to the region; None: it is not."""


@dataclass(slots=True)
class _OpenedChat:
    """Data of a chat from its first OpenRegion on."""

    request: ChatRequest
    asked_at: float
    prompt: tuple[int, ...] | None
    """None: the region tokenizes."""
    reply: ReplyFlow
    reopening: Reopening
    num_prompt_tokens: int
    """0 until the region says, if it tokenizes."""
    is_accepted: bool
    """Whether the client was sent Accepted. If the region tokenizes, this waits for the number of
    prompt tokens."""
    resumed: Actions = field(default_factory=list)
    """Text of earlier runs, sent to the client right after Accepted."""
    region: str = ""
    replica: str = ""
    num_replicas: int = 0
    """Replicas that have had the reply, one after the other."""
    prediction: tuple[int, ...] = ()
    """Ids of the text that the reply is expected to be."""
    num_ahead: int = 0
    """Tokens of the reply that were computed before it was asked for."""


class ChatSession:
    """One chat. `handle` is the only method that changes it; it never raises for peers' input."""

    def __init__(self, policy: SessionPolicy, tools: ReplyTools, now: float) -> None:
        self._policy = policy
        self._tools = tools
        self._deadline: float | None = now + policy.request_timeout_s
        self._chat: _AskedChat | _OpenedChat | None = None
        """By state: None in AWAITING, _AskedChat in TOKENIZING, _OpenedChat in OPENING, STREAMING
        and REOPENING; in CLOSED the last of these."""
        self.state = SessionState.AWAITING
        self.milestones = Milestones()
        self.num_resumed = 0
        """Final tokens of earlier runs, once they have been taken over."""
        self.done: Done | None = None
        """How the chat ended, unless it failed or lost its client."""
        self.error: OutriderError | None = None
        """Why the chat failed."""
        self.error_reason: str | None = None
        """Why the reply is incomplete: the reason of the error, or of the error that stands for a
        cancellation or a deadline, which end a chat without an error."""

    @property
    def request(self) -> ChatRequest | None:
        """The request; None: it has not come."""
        return self._chat.request if self._chat is not None else None

    @property
    def is_placed(self) -> bool:
        """Whether a region has, or had, its session."""
        return isinstance(self._chat, _OpenedChat) and bool(self._chat.region)

    @property
    def reply(self) -> ReplyFlow | None:
        """The reply, once the region was asked."""
        return self._chat.reply if isinstance(self._chat, _OpenedChat) else None

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of the prompt; 0 until they are known."""
        return self._chat.num_prompt_tokens if isinstance(self._chat, _OpenedChat) else 0

    @property
    def num_tokens(self) -> int:
        """Final tokens so far, those of earlier runs included."""
        return self._chat.reply.chain.committed if isinstance(self._chat, _OpenedChat) else 0

    def next_deadline(self) -> float | None:
        """When to call `handle(Tick(), now)`, unless something else comes first."""
        if self.state is SessionState.CLOSED:
            return None
        chat = self._chat
        if chat is None:
            return self._deadline
        at = self._deadline
        others = (
            (chat.reply.refresh_at, chat.reopening.again_at)
            if isinstance(chat, _OpenedChat)
            else (chat.bail_out_at,)
        )
        for other in others:
            if other is not None and (at is None or other < at):
                at = other
        return at

    def handle(self, item: Input, now: float) -> Actions:
        """Take one input; the returned actions are to be done in this order."""
        try:
            actions = TABLE[self.state][type(item)](self, self._chat, item, now)
        except OutriderError as error:
            is_theirs = isinstance(item, _OF_REGION) and isinstance(error, InvalidRequestError)
            actions = self._fail(PeerFaultError.of(error) if is_theirs else error)
        self.milestones.note(actions, self.num_resumed, now)
        return actions

    # Handlers: the table names them, and passes what there is of the chat in its state.

    def _ask(self, chat: None, item: ChatAsked, now: float) -> Actions:
        request = item.request
        ours = self._policy.vocabulary_digest
        if request.vocabulary_digest not in (b"", ours):
            raise VocabularyMismatchError(
                f"the client's ids are of vocabulary {request.vocabulary_digest.hex()}, the "
                f"model's is {ours.hex()}; draft in the model's own vocabulary"
            )
        asked_at = now - item.waited_s
        asked = self._chat = _AskedChat(request, asked_at)
        self.milestones.asked = asked_at
        self._deadline = None
        if request.deadline_ms:
            grace = self._policy.deadline_grace_s
            self._deadline = asked_at + request.deadline_ms / 1000 + grace
        if request.thin:
            return self._open(asked, None, now)
        self.state = SessionState.TOKENIZING
        raw = request.raw_prompt
        if isinstance(raw, tuple):
            return self._prompt_ready(asked, PromptReady(raw), now)
        if self._policy.bail_out_s and raw is None and not request.prediction:
            asked.bail_out_at = now + self._policy.bail_out_s
        return [
            Tokenize(
                request.messages,
                request.tools,
                request.template_variables,
                request.prediction,
                raw,
                is_prompt=request.raw_gets_ends,
            )
        ]

    def _prompt_ready(self, chat: _AskedChat, item: PromptReady, now: float) -> Actions:
        if item.ids is None:
            chat.request = replace(chat.request, thin=True)
            return self._open(chat, None, now)
        longest = self._policy.max_context_tokens - 1
        if len(item.ids) > longest:
            raise PromptTooLongError.of(len(item.ids), longest)
        reply_format = chat.request.reply_format
        if reply_format is not None and (tags := reply_format.reasoning) is not None:
            # Templates begin reasoning in some chats, and leave it out of others.
            is_open = begins_in_reasoning(
                tags, item.ids, self._tools.all_bytes or self._tools.token_bytes
            )
            reply_format = replace(reply_format, begins_in_reasoning=is_open)
            chat = replace(chat, request=replace(chat.request, reply_format=reply_format))
        return self._open(chat, item.ids, now, item.prediction, item.ahead)

    def _prompt_failed(self, chat: _AskedChat, item: PromptFailed, now: float) -> Actions:
        # Not a RateLimitedError, which is one too: limits of tenants hold wherever ids are made.
        if type(item.error) is OverloadedError and chat.bail_out_at is not None:
            return self._bail_out(chat)
        return self._fail(item.error)

    def _bail_out(self, chat: _AskedChat) -> Actions:
        chat.bail_out_at = None
        return [LeaveToRegion()]

    def _open(
        self,
        asked: _AskedChat,
        prompt: tuple[int, ...] | None,
        now: float,
        prediction: tuple[int, ...] = (),
        ahead: AheadTokens = NOTHING_AHEAD,
    ) -> Actions:
        """Ask the region for the first time, for what follows `ahead`."""
        request = asked.request
        if ahead.ids:
            # To the region it is a reply that another run began, to the client it is a new one.
            resume = ResumePoint(
                upto=len(ahead.ids), ids=ahead.ids, model_identity=ahead.model_identity
            )
            request = replace(request, resume=resume)
        chat = self._chat = _OpenedChat(
            request=request,
            asked_at=asked.asked_at,
            prompt=prompt,
            reply=ReplyFlow(request, prompt or (), self._tools, self._policy.reply),
            reopening=Reopening(self._policy.reopen),
            num_prompt_tokens=len(prompt or ()),
            is_accepted=False,
            prediction=prediction,
            num_ahead=len(ahead.ids),
        )
        identity = request.resume.model_identity or None
        chat.resumed = [
            _with_identity(it, identity) for it in chat.reply.resume(request.resume.ids)
        ]
        self.num_resumed = len(asked.request.resume.ids)
        begun = chat.reply.start(now)
        self.milestones.opened = now
        actions = [self._open_region(chat, now), *begun]
        return actions if prompt is None else [*actions, *self._accept(chat)]

    def _open_region(self, chat: _OpenedChat, now: float) -> OpenRegion:
        """Ask the region for the tokens after the final ones. Raises DeadlineError."""
        opening = chat.reopening.ask(
            chat.request,
            chat.prompt,
            tuple(chat.reply.ids),
            chat.reply.model.identity,
            chat.reply.controller.round_trip.next_echo(now),
            now - chat.asked_at,
        )
        self.state = SessionState.OPENING
        is_new = 0 < chat.num_ahead == self.num_tokens
        return replace(opening, prediction=chat.prediction, begun_ahead=is_new)

    def _region_opened(self, chat: _OpenedChat, item: RegionOpened, now: float) -> Actions:
        ours = self._policy.vocabulary_digest
        if item.vocabulary_digest != ours:
            raise VocabularyMismatchError(
                f"the region's vocabulary is {item.vocabulary_digest.hex()}, this edge's is "
                f"{ours.hex()}; serve the same model at both"
            )
        chat.reopening.opened(item.prompt_tokens, has_tokens=self.num_tokens > 0)
        chat.region = item.region
        chat.replica = item.replica
        chat.num_replicas += 1
        self.state = SessionState.STREAMING
        chat.reply.opened(item, now)
        if chat.is_accepted:
            return []
        chat.num_prompt_tokens = item.prompt_tokens
        return self._accept(chat)

    def _commit(self, chat: _OpenedChat, item: Commit, now: float) -> Actions:
        chat.reopening.worked()
        return chat.reply.commit(item, now)

    def _moved(self, chat: _OpenedChat, item: RegionMoved, now: float) -> Actions:
        chat.region = item.region
        chat.replica = item.replica
        chat.num_replicas += 1
        chat.reopening.moved()
        chat.reply.moved(item)
        return []

    def _region_done(self, chat: _OpenedChat, item: RegionDone, now: float) -> Actions:
        if item.upto != self.num_tokens:
            raise MalformedFrameError(
                f"the region ended at token {item.upto}, the edge has {self.num_tokens}"
            )
        if item.checksum not in (None, self._checksum(chat)):
            raise MalformedFrameError(
                "the reply fails its checksum; the peers' vocabularies or rank tables differ, or "
                "bytes were changed"
            )
        events = chat.reply.finish(now, is_whole=item.finish_reason.is_whole)
        self.state = SessionState.CLOSED
        return [*events, self._done(item.finish_reason, item.usage, item.timings, now), Finish()]

    def _accept(self, chat: _OpenedChat) -> Actions:
        """Tell the client that its chat is under way."""
        chat.is_accepted = True
        request = chat.request
        drafting = None
        if request.drafts_itself:
            max_lead = self._policy.reply.drafts.max_lead
            drafting = DraftingTerms(self._policy.vocabulary_digest, chat.prompt or (), max_lead)
        accepted = Accepted(
            request.request_id,
            request.model,
            chat.num_prompt_tokens,
            reply_format=request.reply_format,
            sampling=request.sampling,
            template_date=date_in(request.template_variables),
            drafting=drafting,
        )
        return [accepted, *chat.resumed]

    def _checksum(self, chat: _OpenedChat) -> int:
        return ids_checksum(self._policy.vocabulary_digest, chat.reply.ids)

    def _cancel(self, chat: _AskedChat | _OpenedChat, item: CancelAsked, now: float) -> Actions:
        events = chat.reply.finish(now, is_whole=False) if isinstance(chat, _OpenedChat) else []
        num_tokens = self.num_tokens
        usage = Usage(self.num_prompt_tokens, 0, num_tokens, uncounted_tokens=num_tokens)
        done = self._done(FinishReason.CANCELLED, usage, Timings(), now)
        return [*self._leave("the client cancelled"), *events, done, Finish()]

    def _client_gone(self, chat: object, item: ClientGone, now: float) -> Actions:
        self.error_reason = FinishReason.CANCELLED.error_reason
        return [*self._leave("the client is gone"), Finish()]

    def _client_changed(
        self, chat: _AskedChat | _OpenedChat, item: ClientChanged, now: float
    ) -> Actions:
        run = max(chat.request.run, item.run)
        chat.request = replace(chat.request, provisional=item.provisional, run=run)
        if isinstance(chat, _OpenedChat):
            chat.reply.change_client(item.provisional, now)
        return []

    def _failed(self, chat: object, item: ClientFailed, now: float) -> Actions:
        return self._fail(item.error)

    def _region_failed(self, chat: _OpenedChat, item: RegionFailed, now: float) -> Actions:
        self.state = SessionState.REOPENING  # in any case the region has no session any more
        if not self._is_asked_again(chat, item, now):
            return self._fail(item.error)
        chat.reply.lost()
        return self._tick_opened(chat, Tick(), now)

    def _is_asked_again(self, chat: _OpenedChat, item: RegionFailed, now: float) -> bool:
        if isinstance(item.error, DuplicateSessionError):
            later = chat.reopening.superseded(chat.request, item.error, now)
            chat.request = later or chat.request
            return later is not None
        return chat.reopening.failed(item, now, has_tokens=self.num_tokens > 0)

    def _drafts_ready(self, chat: _OpenedChat, item: DraftsReady, now: float) -> Actions:
        chat.reply.ready(item.report, now)
        return []

    def _draft_dropped(self, chat: _OpenedChat, item: DraftDropped, now: float) -> Actions:
        chat.reply.unsent(item.frame)
        return []

    def _tick_awaiting(self, chat: None, item: Tick, now: float) -> Actions:
        if self._is_past_deadline(now):
            raise DeadlineError("the stream was opened but no chat request came; send it first")
        return []

    def _tick_tokenizing(self, chat: _AskedChat, item: Tick, now: float) -> Actions:
        if self._is_past_deadline(now):
            raise DeadlineError(_NO_ANSWER)
        if chat.bail_out_at is not None and now >= chat.bail_out_at:
            return self._bail_out(chat)
        return []

    def _tick_opened(self, chat: _OpenedChat, item: Tick, now: float) -> Actions:
        if self._is_past_deadline(now):
            raise DeadlineError(_NO_ANSWER)
        if (again_at := chat.reopening.again_at) is not None and now >= again_at:
            chat.reply.asked_again(now)
            return [self._open_region(chat, now)]
        if (refresh_at := chat.reply.refresh_at) is not None and now >= refresh_at:
            return chat.reply.refresh(now, has_region=self.state is not SessionState.REOPENING)
        return []

    def _misplaced_by_client(self, chat: object, item: Input, now: float) -> Actions:
        name = "a second request" if isinstance(item, ChatAsked) else "a cancel"
        raise MalformedFrameError(f"{name} is out of place; a stream is one chat, request first")

    def _misplaced_by_region(self, chat: object, item: Input, now: float) -> Actions:
        raise MalformedFrameError(
            f"the region sent {type(item).__name__} while the chat was {self.state.name.lower()}"
        )

    def _ignore(self, chat: object, item: Input, now: float) -> Actions:
        return []

    # What several handlers do.

    def _is_past_deadline(self, now: float) -> bool:
        return self._deadline is not None and now >= self._deadline

    def _done(self, reason: FinishReason, usage: Usage, timings: Timings, now: float) -> Done:
        chat = self._chat
        opened = chat if isinstance(chat, _OpenedChat) else None
        self.error_reason = reason.error_reason
        self.done = Done(
            finish_reason=reason,
            upto=self.num_tokens,
            usage=opened.reply.counted(usage) if opened else usage,
            replica_timings=timings,
            edge_timings=self.milestones.timings(now),
            region=opened.region if opened else "",
            replica=opened.replica if opened else "",
            speculation_stats=_stats(opened) if opened else NO_SPECULATION,
            inexact=opened.reply.model.is_inexact if opened else False,
            stop_string=opened.reply.stop_string if opened else "",
            num_moves=max(0, opened.num_replicas - 1) if opened else 0,
            max_drafts=opened.reply.controller.max_drafts if opened else 0,
            first_text=self._first_text(opened, timings),
        )
        return self.done

    def _first_text(self, opened: _OpenedChat | None, timings: Timings) -> FirstText:
        if opened is None:
            return FirstText()
        display = opened.reply.display
        return self.milestones.first_text(
            display.first_word_at if display.first_word_stayed else None,
            opened.reply.controller.round_trip.median_s or 0.0,
            timings.ttft_ms,
        )

    def _fail(self, error: OutriderError) -> Actions:
        self.error = error.bare()
        self.error_reason = error.reason
        return [*self._leave(error.reason), Failed(error), Finish()]

    def _leave(self, reason: str) -> Actions:
        at_region = self.state in (SessionState.OPENING, SessionState.STREAMING)
        self.state = SessionState.CLOSED
        return [CancelRegion(reason)] if at_region else []


_OF_REGION: Final = (RegionOpened, Commit, RegionMoved, RegionDone)
_NO_ANSWER = "the deadline passed and the region did not answer; try again"


def _with_identity(event: Action, identity: bytes | None) -> Action:
    """A commit that says which model computed its tokens; None: it is unknown."""
    return event._replace(model_identity=identity) if isinstance(event, Committed) else event


def _stats(chat: _OpenedChat) -> SpeculationStats:
    return replace(chat.reply.stats(), ahead_tokens=chat.num_ahead)


Handler: TypeAlias = Callable[[ChatSession, Any, Any, float], Actions]

_DEFAULT: dict[type[Input], Handler] = {
    ChatAsked: ChatSession._misplaced_by_client,
    CancelAsked: ChatSession._misplaced_by_client,
    ClientGone: ChatSession._client_gone,
    ClientChanged: ChatSession._ignore,
    ClientFailed: ChatSession._failed,
    PromptReady: ChatSession._ignore,
    PromptFailed: ChatSession._ignore,
    RegionOpened: ChatSession._misplaced_by_region,
    Commit: ChatSession._misplaced_by_region,
    RegionMoved: ChatSession._misplaced_by_region,
    RegionDone: ChatSession._misplaced_by_region,
    RegionFailed: ChatSession._misplaced_by_region,
    DraftsReady: ChatSession._ignore,
    DraftDropped: ChatSession._ignore,
    Tick: ChatSession._ignore,
}
"""Handlers of inputs in states that have no entry of their own for them."""
_ASKED: dict[type[Input], Handler] = {
    **_DEFAULT,
    CancelAsked: ChatSession._cancel,
    ClientChanged: ChatSession._client_changed,
}
_OPENED: dict[type[Input], Handler] = {
    **_ASKED,
    DraftsReady: ChatSession._drafts_ready,
    DraftDropped: ChatSession._draft_dropped,
    Tick: ChatSession._tick_opened,
}
TABLE: dict[SessionState, dict[type[Input], Handler]] = {
    SessionState.AWAITING: {
        **_DEFAULT,
        ChatAsked: ChatSession._ask,
        Tick: ChatSession._tick_awaiting,
    },
    SessionState.TOKENIZING: {
        **_ASKED,
        PromptReady: ChatSession._prompt_ready,
        PromptFailed: ChatSession._prompt_failed,
        Tick: ChatSession._tick_tokenizing,
    },
    SessionState.OPENING: {
        **_OPENED,
        RegionOpened: ChatSession._region_opened,
        RegionDone: ChatSession._region_done,
        RegionFailed: ChatSession._region_failed,
    },
    SessionState.STREAMING: {
        **_OPENED,
        Commit: ChatSession._commit,
        RegionMoved: ChatSession._moved,
        RegionDone: ChatSession._region_done,
        RegionFailed: ChatSession._region_failed,
    },
    SessionState.REOPENING: {
        **_OPENED,
        RegionFailed: ChatSession._ignore,
    },
    SessionState.CLOSED: dict.fromkeys(_DEFAULT, ChatSession._ignore),
}
"""The state machine, whole: every state has an entry for every input."""
