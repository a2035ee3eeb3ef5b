"""The reply as it grows: final ids and text, drafts ahead of them, what the client sees."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from outrider.errors import InvalidRequestError, MalformedFrameError
from outrider.sampling.params import SamplingParams
from outrider.session_types import Speculation
from services.edge.session.actions import (
    Action,
    ClientEvent,
    Commit,
    OpenDrafter,
    RidingAhead,
    SendDraft,
    TellDrafter,
)
from services.edge.session.control.acceptance import Averages
from services.edge.session.control.controller import Controller, ControlPolicy
from services.edge.session.display import Display, DisplayPolicy
from services.edge.session.drafting import DraftChain, DraftLimits, Resolved
from services.edge.session.inputs import ChatRequest, Heard, RegionCommit, RegionOpened
from services.edge.session.sources.base import Drafter
from services.edge.session.sources.tandem import TandemDrafter
from services.edge.session.text import ReplyFront

if TYPE_CHECKING:
    from outrider.sampling.reply import ReplyText


@dataclass(frozen=True, slots=True)
class ReplyTools:
    """What a reply is made with; all of one vocabulary."""

    new_reply: Callable[[SamplingParams], ReplyText]
    new_drafter: Callable[[], Drafter]
    token_bytes: Callable[[int], bytes]
    """The text of an id as bytes; empty for control tokens."""
    stop_ids: frozenset[int]
    """Ids that end a reply unless the request ignores them."""
    has_drafter: bool = False
    """Whether there may be a drafter in another process, too."""
    first_guess_s: Callable[[int], float | None] = lambda num_prompt_tokens: None
    """By when at the latest it should have guessed how the reply to a prompt of so many tokens
    begins; None: it is not up."""
    averages: Callable[[bytes], Averages] = lambda group: Averages()
    """What the chats of a trust group have learned; each adds to it."""


@dataclass(frozen=True, slots=True)
class ReplyPolicy:
    """How an edge drafts and shows."""

    drafts: DraftLimits = field(default_factory=DraftLimits)
    display: DisplayPolicy = field(default_factory=DisplayPolicy)
    control: ControlPolicy = field(default_factory=ControlPolicy)
    coalesce_s: float = 0.001
    """Drafting follows the prompt and each commit after this time: what is to be sent has gone
    out by then, and commits close together are answered by one draft frame."""


class ReplyFlow:
    """Text, drafts and display of one reply.

    Drafting is put off to `refresh`, after what `commit` returned has been sent: neither the
    prompt nor a commit ever waits for a draft.
    """

    def __init__(
        self, request: ChatRequest, prompt: tuple[int, ...], tools: ReplyTools, policy: ReplyPolicy
    ) -> None:
        params, drafts, averages = request.sampling, policy.drafts, tools.averages(request.group)
        self._request, self._prompt, self._policy = request, prompt, policy
        self._ends = ends = _ends_of(params, tools)
        self._front = _front(params, tools, ends)
        self._sends = sends = request.speculation is Speculation.ON
        self._shows = shows = request.provisional and request.speculation is not Speculation.OFF
        # Without the prompt another process has nothing to go by.
        self._tells_drafter = tools.has_drafter and not request.thin and (sends or shows)
        self._first_guess_s = tools.first_guess_s(len(prompt)) if self._tells_drafter else None
        self._drafter = TandemDrafter(
            tools.new_drafter(),
            len(prompt),
            awaited=self._first_guess_s is not None,
            first_tokens=drafts.first_tokens,
        )
        self._awaited_until: float | None = None
        """The drafter in another process has until then for its first guess."""
        self._calibrations = averages.calibrations(sampled=params.temperature > 0)
        self.chain = DraftChain(
            self._drafter, drafts, ends, params.max_tokens, self._calibrations.chance
        )
        self.chain.learn(prompt)
        self.ids = array("I")
        """The final ones."""
        self.display = Display(policy.display)
        self.controller = Controller(
            policy.control, averages, max_lead=drafts.max_lead, sends=sends, shows=shows
        )
        self.refresh_at: float | None = None
        """When `refresh` has something to do."""

    def resume(self, ids: tuple[int, ...]) -> list[ClientEvent]:
        """The reply begins with these ids, which another run committed; nothing else has happened.
        Raises InvalidRequestError for ids past the reply's end."""
        if not ids:
            return []
        try:
            text = self._front.resume(ids)
        except MalformedFrameError as error:
            raise InvalidRequestError(
                "the chat to resume has ids past its end; send only what was committed"
            ) from error
        self.chain.resume(ids)
        self.ids.extend(ids)
        return [Commit(text, ids, len(ids))]

    def change_audience(self, provisional: bool, now: float) -> None:
        """Another client listens, or none; it has no provisional text."""
        self.display.forget()
        self._shows = provisional and self._request.speculation is not Speculation.OFF
        self.controller.shows = self._shows
        if not self._front.finished:
            self._due(now)

    def start(self, now: float) -> list[Action]:
        """Draft from the prompt once it has been sent; nothing if an earlier run was whole."""
        if self._front.finished:
            return []
        self._due(now + self._policy.coalesce_s)
        if not self._tells_drafter:
            return []
        if self._first_guess_s is not None:
            self._awaited_until = now + self._first_guess_s
        request, lead = self._request, self.controller.lead
        return [
            OpenDrafter(
                *(self._prompt, request.resume.ids, request.sampling, self._ends, lead),
                request.group,
            )
        ]

    def opened(self, opened: RegionOpened, now: float) -> None:
        """The replica took the session."""
        self.controller.opened(opened.echo, opened.held_s, opened.max_drafts, now)

    def lost(self, epoch: int | None = None) -> None:
        """Drafts of this epoch and before, all of them without one, reached nobody who is left."""
        self.chain.lose(self.chain.epoch if epoch is None else epoch)

    def commit(self, commit: RegionCommit, now: float) -> list[Action]:
        """What client and drafter get to know. Raises MalformedFrameError for what cannot be."""
        resolved = self._resolve(commit)
        self._learn(commit, resolved, now)
        text, spans = self._front.commit(resolved.ids)
        self.ids.extend(resolved.ids)
        ended = self._front.finished
        retract = self.display.confirm(text, resolved.diverged or ended, now, len(resolved.ids))
        if ended:
            self.refresh_at = None
        else:
            self._due(now + self._policy.coalesce_s)
        lossy_spans = tuple(spans[number - commit.base] for number in commit.lossy)
        committed = Commit(text, resolved.ids, commit.upto, commit.lossy, lossy_spans)
        told = [TellDrafter(resolved.ids, self.controller.lead)] if self._tells_drafter else []
        return [*([] if retract is None else [retract]), committed, *told]

    def _resolve(self, commit: RegionCommit) -> Resolved:
        resolved = self.chain.commit(commit.epoch, commit.base, commit.accepted, commit.ids)
        if commit.upto != self.chain.committed:
            raise MalformedFrameError(
                f"a commit ends at token {self.chain.committed}, not at {commit.upto} as it says"
            )
        if not all(commit.base <= number < commit.upto for number in commit.lossy):
            raise MalformedFrameError("a commit calls a token lossy that is not one of its own")
        return resolved

    def _learn(self, commit: RegionCommit, resolved: Resolved, now: float) -> None:
        self.chain.limit_lead(commit.pace.max_lead)
        self.controller.checked(resolved.outcomes, resolved.ended_at)
        for outcome in resolved.outcomes:
            if outcome.decides:
                self._calibrations.observe(
                    outcome.source, outcome.promise, outcome.position, outcome.right
                )
        self.controller.committed(
            commit.pace,
            len(resolved.ids),
            on_its_own=resolved.on_its_own,
            by_drafts=commit.accepted > 0,
            now=now,
        )

    def refresh(self, now: float) -> list[Action]:
        """Draft on, send what is new, show what is likely."""
        self.refresh_at = None
        self._await_drafter(now)
        progress = self.chain.advance(self.controller.lead)
        if progress.is_behind:
            self.refresh_at = now
            return []
        self.controller.drafted(progress)
        draft = self._take_unsent(now) if self.controller.sends else None
        shown = self._show(now) if self._shows else None
        return [action for action in (draft, shown) if action is not None]

    def finish(self, now: float) -> list[ClientEvent]:
        """The reply has ended: what is still to be taken back and to be committed."""
        self.refresh_at = None
        retract = self.display.clear(now)
        events: list[ClientEvent] = [] if retract is None else [retract]
        if text := self._front.finish():
            events.append(Commit(text, (), self.chain.committed))
        return events

    def ready(self, heard: Heard | None, now: float) -> None:
        """A drafter has more; `heard`: that of another process, this."""
        if heard is not None:
            self._drafter.hear(heard)
            self._awaited_until = None
        if not self._front.finished:
            self._due(now)

    def ahead(self) -> RidingAhead:
        """What drafting came to."""
        controller = self.controller
        tally, pace = controller.tally, controller.pace
        return RidingAhead(
            shown_tokens=self.display.shown_tokens,
            erased_tokens=self.display.erased_tokens,
            drafted_tokens=tally.drafted,
            sent_tokens=tally.sent,
            checked_tokens=tally.checked,
            right_tokens=tally.right,
            sending_rounds=tally.sending_rounds,
            holding_rounds=tally.holding_rounds,
            switches=tally.switches,
            rtt_ms=(controller.round_trip.median_s or 0.0) * 1e3,
            commit_interval_ms=pace.interval_s * 1e3,
            draft_ms=pace.draft_s * 1e3,
        )

    def _await_drafter(self, now: float) -> None:
        """Until its time is over the own drafter leaves the reply's first tokens to it."""
        until = self._awaited_until
        if until is not None and now < until:
            self._due(until)
        elif until is not None:
            self._drafter.await_no_longer()
            self._awaited_until = None

    def _take_unsent(self, now: float) -> SendDraft | None:
        draft = self.chain.take_unsent()
        if draft is None:
            return None
        self.controller.sent(len(draft.ids))
        return replace(draft, echo=self.controller.number(now))

    def _show(self, now: float) -> ClientEvent | None:
        if now < self.display.quiet_until and self.chain.ids:
            self.refresh_at = self.display.quiet_until
            return None
        chain = self.chain
        return self.display.show(
            self._front.outlook(chain.committed, chain.ids, chain.survival, chain.ends_reply), now
        )

    def _due(self, at: float) -> None:
        if self._sends or self._shows:
            self.refresh_at = at if self.refresh_at is None else min(self.refresh_at, at)


def _ends_of(params: SamplingParams, tools: ReplyTools) -> frozenset[int]:
    """Ids that end the reply."""
    return frozenset(params.stop_ids) | (frozenset() if params.ignore_eos else tools.stop_ids)


def _front(params: SamplingParams, tools: ReplyTools, ends: frozenset[int]) -> ReplyFront:
    def token_bytes(token: int) -> bytes:
        return b"" if token in ends else tools.token_bytes(token)

    return ReplyFront(tools.new_reply(params), token_bytes, params.stop)
