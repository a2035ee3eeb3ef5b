"""One reply as it grows: final ids and text, drafts ahead of them, and the text shown to the
client."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from outrider.errors import InvalidRequestError, MalformedFrameError
from outrider.reply_parsing.reasoning import ReasoningMeter
from outrider.sampling.params import SamplingParams
from outrider.session.client import Committed
from outrider.session.region import Commit, Draft, Pace
from outrider.session.types import (
    ScoredToken,
    Speculation,
    SpeculationStats,
    TokenLogprobs,
    Usage,
)
from services.edge.session.acceptance import Averages
from services.edge.session.continuity import ModelContinuity
from services.edge.session.display import Display, DisplayPolicy, ReplyDecoder
from services.edge.session.display_worth import Drafting, Shown
from services.edge.session.draft_chain import CheckedDrafts, DraftChain, DraftLimits
from services.edge.session.draft_sources import (
    CombinedDrafter,
    Drafter,
    DrafterNeeds,
    NoDrafter,
)
from services.edge.session.events import (
    Action,
    ChatRequest,
    ClientEvent,
    DrafterReport,
    OpenDrafter,
    RegionMoved,
    RegionOpened,
    TellDrafter,
)
from services.edge.session.upload_control import UploadController, UploadPolicy, Uploads

if TYPE_CHECKING:
    from outrider.sampling.reply import ReplyText


_LEARN_TOKENS: Final = 64
"""Batch size in which final tokens are learnt while no draft is wanted: a token then costs a sixth
of what it costs alone."""


@dataclass(frozen=True, slots=True)
class ReplyTools:
    """Shared parts from which all replies of one vocabulary are made."""

    new_reply: Callable[[SamplingParams], ReplyText]
    new_drafter: Callable[[DrafterNeeds], Drafter]
    token_bytes: Callable[[int], bytes]
    """The text of an id as bytes; empty for control tokens."""
    stop_ids: frozenset[int]
    """Ids that end a reply unless the request ignores them."""
    all_bytes: Callable[[int], bytes] | None = None
    """Like `token_bytes`, but control tokens give their names; None: the vocabulary has no such
    names."""
    strips_space: bool = False
    """A reply's text loses the space it begins with."""
    has_drafter: bool = False
    """Whether the edge has a drafter process."""
    first_guess_s: Callable[[int], float | None] = lambda num_prompt_tokens: None
    """Time within which the drafter process should report for the first time, by the number of
    prompt tokens; None: it is not up."""
    averages: Callable[[bytes], Averages] = lambda group: Averages()
    """Statistics of a trust group's chats; each chat adds to them."""
    admit: Callable[[bytes], None] = lambda group: None
    """Called with each group whose statistics may be kept."""


@dataclass(frozen=True, slots=True)
class ReplyPolicy:
    """How an edge drafts, shows drafts and uploads them."""

    drafts: DraftLimits = field(default_factory=DraftLimits)
    display: DisplayPolicy = field(default_factory=DisplayPolicy)
    upload: UploadPolicy = field(default_factory=UploadPolicy)
    coalesce_s: float = 0.001
    """Delay from the prompt, and from each commit, to drafting: what is to be sent has left by
    then, and commits close together are followed by one draft frame."""


class ReplyFlow:
    """Text, drafts and display of one reply.

    Drafting happens in `refresh`, after the actions of `commit` have been carried out: neither the
    prompt nor a commit waits for a draft.
    """

    def __init__(
        self, request: ChatRequest, prompt: tuple[int, ...], tools: ReplyTools, policy: ReplyPolicy
    ) -> None:
        params = request.sampling
        if request.group_lasts:
            tools.admit(request.group)
        # What strangers draft says nothing of the edge's own drafts.
        is_foreign = self._is_foreign = request.drafts_itself
        averages = Averages() if is_foreign else tools.averages(request.group)
        self._request = request
        self._prompt = prompt
        self._policy = policy
        self._ends = _ends_of(params, tools)
        self._decoder = _decoder(params, tools, self._ends)
        self._token_bytes = tools.token_bytes
        self._sends = request.speculation is Speculation.ON
        self._shows = request.provisional and request.speculation is not Speculation.OFF
        # Of thin chats the edge has no prompt ids, without which the drafter cannot draft.
        self._tells_drafter = (
            tools.has_drafter and not (request.thin or is_foreign) and (self._sends or self._shows)
        )
        self._first_guess_s = tools.first_guess_s(len(prompt)) if self._tells_drafter else None
        needs = DrafterNeeds(request.group, len(prompt), is_sampled=params.temperature > 0)
        self._drafter = CombinedDrafter(
            NoDrafter() if is_foreign else tools.new_drafter(needs),
            len(prompt),
            awaited=self._first_guess_s is not None,
            first_tokens=policy.drafts.first_tokens,
        )
        self._awaited_until: float | None = None
        """Time until which the reply's first tokens are left to the drafter process; None: they are
        not, or it has reported."""
        self._averages = averages
        self._rtt_s = None if averages.conditions is None else averages.conditions.rtt_s
        """Round trip by which it was decided whether to draft for display."""
        self.drafting = (
            averages.display_worth.begin(self._rtt_s, sampled=params.temperature > 0)
            if self._shows and not is_foreign
            else Drafting.OFF
        )
        """Whether drafts are made for display alone; those that go up are shown in any case."""
        self._calibrations = averages.calibrations(sampled=params.temperature > 0)
        # A client knows which of its drafts are worth sending; all go up that have a place.
        chances = {} if is_foreign else {"chance": self._calibrations.chance}
        self.chain = DraftChain(
            self._drafter, policy.drafts, self._ends, params.max_tokens, **chances
        )
        self.chain.learn(prompt)
        self.ids = array("I")
        """The final ones."""
        self._num_lossy = 0
        """How many of them only the acceptance threshold let through."""
        self._reasoning = _reasoning_of(request, tools)
        """Counts those of reasoning; None: there is none."""
        resume = request.resume
        self.model = ModelContinuity(resume.model_identity, has_tokens=resume.upto > 0)
        self.display = Display(policy.display, policy.drafts.first_tokens)
        self.controller = UploadController(
            replace(policy.upload, uploads=Uploads.ALWAYS) if is_foreign else policy.upload,
            averages,
            max_lead=policy.drafts.max_lead,
            sends=self._sends,
            shows=self._drafts_for_display,
        )
        self.refresh_at: float | None = None
        """When `refresh` has something to do."""

    def resume(self, ids: tuple[int, ...]) -> list[ClientEvent]:
        """The reply begins with these ids, which another run committed; nothing else has happened.
        Raises InvalidRequestError for ids past the reply's end."""
        if not ids:
            return []
        try:
            text = self._decoder.resume(ids)
        except MalformedFrameError as error:
            raise InvalidRequestError(
                "the chat to resume has ids past its end; send only what was committed"
            ) from error
        self.chain.resume(ids)
        self.ids.extend(ids)
        self._count_reasoning(ids)
        return [Committed(text, ids, len(ids))]

    def change_client(self, provisional: bool, now: float) -> None:
        """Another client receives the reply, or none does; it has no provisional text."""
        self.display.forget()
        self._shows = provisional and self._request.speculation is not Speculation.OFF
        self.controller.shows = self._drafts_for_display
        if not self._decoder.finished:
            self._schedule_refresh(now)

    def start(self, now: float) -> list[Action]:
        """Draft from the prompt once it has been sent; nothing if an earlier run was whole."""
        if self._decoder.finished:
            return []
        self._schedule_refresh(now + self._policy.coalesce_s)
        if not self._tells_drafter:
            return []
        if self._first_guess_s is not None:
            self._awaited_until = now + self._first_guess_s
        request = self._request
        return [
            OpenDrafter(
                prompt=self._prompt,
                reply=request.resume.ids,
                params=request.sampling,
                ends=self._ends,
                lead=self.controller.lead,
                group=request.group,
                group_lasts=request.group_lasts,
            )
        ]

    def asked_again(self, now: float) -> None:
        """Another session is being opened for the rest of the reply: existing drafts are sent to
        it."""
        self._schedule_refresh(now + self._policy.coalesce_s)

    def opened(self, opened: RegionOpened, now: float) -> None:
        """The replica opened the session."""
        self.model.placed(opened.model_identity)
        self.controller.opened(opened.echo, opened.ack_delay_s, opened.max_drafts, now)

    def moved(self, moved: RegionMoved) -> None:
        """Another replica has the reply now."""
        self.model.placed(moved.model_identity)
        self.lost(moved.lost_epoch)

    def lost(self, epoch: int | None = None) -> None:
        """The region has no drafts of this epoch or any before it; without `epoch`, none at all."""
        self.chain.lose(self.chain.epoch if epoch is None else epoch)

    def unsent(self, frame: Draft) -> None:
        """The drafts that `refresh` returned last could not be sent."""
        self.chain.requeue(frame)

    def commit(self, commit: Commit, now: float) -> list[Action]:
        """Take over a commit; returns the actions for client and drafter. Raises
        MalformedFrameError for an impossible commit."""
        ids, checked = self.chain.commit(commit.epoch, commit.base, commit.accepted, commit.ids)
        self._learn(commit.pace, len(ids), checked, now)
        self._num_lossy += commit.num_lossy
        self._count_reasoning(ids)
        text = self._decoder.commit(ids)
        self.ids.extend(ids)
        ended = self._decoder.finished
        retract = self.display.confirm(text, checked.diverged or ended, now, len(ids))
        if ended:
            self.refresh_at = None
        elif self.controller.lead or self.chain.num_unlearned >= _LEARN_TOKENS:
            self._schedule_refresh(now + self._policy.coalesce_s)
        origin = self.model.committed(is_inexact=commit.is_inexact)
        committed = Committed(
            text,
            ids,
            commit.upto,
            origin.identity,
            origin.is_inexact,
            self._logprobs(commit, ids),
        )
        actions: list[Action] = [committed] if retract is None else [retract, committed]
        if self._tells_drafter:
            actions.append(TellDrafter(ids, self.controller.lead))
        return actions

    @property
    def may_show(self) -> bool:
        """Whether the client takes provisional text."""
        return self._shows

    @property
    def _drafts_for_display(self) -> bool:
        return self._shows and self.drafting is not Drafting.OFF

    def counted(self, usage: Usage) -> Usage:
        """The region's usage with what is counted here."""
        num_reasoning = self._reasoning.num_tokens if self._reasoning is not None else 0
        return replace(usage, lossy_tokens=self._num_lossy, reasoning_tokens=num_reasoning)

    def _count_reasoning(self, ids: Iterable[int]) -> None:
        if self._reasoning is not None and not self._reasoning.is_over:
            for token in ids:
                self._reasoning.push(token)

    def _logprobs(self, commit: Commit, ids: tuple[int, ...]) -> tuple[TokenLogprobs, ...]:
        """Log probabilities with the tokens' texts. Raises MalformedFrameError for others than were
        asked for."""
        most = self._request.sampling.num_logprobs
        if not commit.logprobs and most < 0:
            return ()
        wanted = ids if most >= 0 else ()
        if tuple(at.chosen.id for at in commit.logprobs) != wanted:
            raise MalformedFrameError(
                "the replica did not send the log probabilities of the tokens that it committed; "
                "run all replicas in this version"
            )
        if any(len(at.top) > most for at in commit.logprobs):
            raise MalformedFrameError(f"the replica sent more than {most} likely tokens")
        try:
            return tuple(
                TokenLogprobs(self._named(at.chosen), tuple(map(self._named, at.top)))
                for at in commit.logprobs
            )
        except InvalidRequestError as error:
            raise MalformedFrameError(f"of the replica's likely tokens: {error.message}") from error

    def _named(self, token: ScoredToken) -> ScoredToken:
        return token._replace(text=self._token_bytes(token.id))

    def _learn(
        self, pace: Pace | None, num_tokens: int, checked: CheckedDrafts, now: float
    ) -> None:
        if pace is not None:
            self.chain.limit_lead(pace.max_lead)
        if checked.outcomes or checked.ended_at is not None:
            self.controller.checked(checked.outcomes, checked.ended_at)
        for outcome in checked.outcomes:
            if outcome.decides:
                self._calibrations.observe(
                    outcome.source, outcome.confidence, outcome.position, outcome.right
                )
        self.controller.committed(pace, num_tokens, on_its_own=checked.on_its_own, now=now)

    def refresh(self, now: float, *, has_region: bool = True) -> list[Action]:
        """Add drafts, upload those not sent yet if a region session is open (`has_region`), show
        those likely enough."""
        self.refresh_at = None
        self._await_drafter(now)
        progress = self.chain.advance(self.controller.lead)
        if progress.is_behind:
            self.refresh_at = now
            return []
        self.controller.drafted(progress)
        draft = self._take_unsent(now) if has_region and self.controller.sends else None
        shown = self._show(now) if self._shows else None
        return [action for action in (draft, shown) if action is not None]

    def finish(self, now: float, *, is_whole: bool) -> list[ClientEvent]:
        """The reply has ended; returns the last events: a retraction and a commit, each only if
        needed. If it was cut off (not `is_whole`), held-back text is not committed: when the chat
        is asked for again, half a character or the start of a stop string may become something
        else."""
        self.refresh_at = None
        retract = self.display.clear(now)
        self._judge_display()
        events: list[ClientEvent] = [] if retract is None else [retract]
        if is_whole and (text := self._decoder.finish()):
            events.append(Committed(text, (), self.chain.committed))
        return events

    def _judge_display(self) -> None:
        """What the provisional text brought, for the group's later chats."""
        if not self._drafts_for_display:
            return
        display, num_final = self.display, len(self.ids) - len(self._request.resume.ids)
        shown = Shown(num_final, display.shown_tokens, display.erased_tokens, display.sooner_s)
        sampled = self._request.sampling.temperature > 0
        self._averages.display_worth.ended(self._rtt_s, shown, sampled=sampled)

    def learn_more(self) -> bool:
        """After the reply, learn some of its unlearned tokens for later replies; returns whether
        more are left. A prompt without a reply teaches nothing."""
        chain = self.chain
        return bool(chain.committed and chain.num_unlearned) and chain.advance(0).is_behind

    def ready(self, report: DrafterReport | None, now: float) -> None:
        """More drafts can be had; `report` is of the drafter process, or the client, if they come
        from there. Raises InvalidRequestError for a client's that are outside the vocabulary."""
        if report is not None:
            if self._is_foreign:
                self._check_ids(report.ids)
            self._drafter.take_report(report)
            self._awaited_until = None
        if not self._decoder.finished:
            self._schedule_refresh(now)

    def _check_ids(self, ids: Iterable[int]) -> None:
        """Raises InvalidRequestError."""
        for token in ids:
            self._token_bytes(token)

    @property
    def stop_string(self) -> str:
        """The stop string that it ended at; empty: none."""
        return self._decoder.stop_string

    def stats(self) -> SpeculationStats:
        """Counts of the edge's drafts so far."""
        controller = self.controller
        counts, pace = controller.counts, controller.pace
        return SpeculationStats(
            shown_tokens=self.display.shown_tokens,
            erased_tokens=self.display.erased_tokens,
            drafted_tokens=counts.drafted,
            sent_tokens=counts.sent,
            checked_tokens=counts.checked,
            right_tokens=counts.right,
            commits_with_uploads=counts.commits_with_uploads,
            commits_without_uploads=counts.commits_without_uploads,
            switches=counts.switches,
            rtt_ms=(controller.round_trip.median_s or 0.0) * 1e3,
            commit_interval_ms=pace.interval_s * 1e3,
            draft_ms=pace.draft_s * 1e3,
        )

    def _await_drafter(self, now: float) -> None:
        until = self._awaited_until
        if until is not None and now < until:
            self._schedule_refresh(until)
        elif until is not None:
            self._drafter.await_no_longer()
            self._awaited_until = None

    def _take_unsent(self, now: float) -> Draft | None:
        draft = self.chain.take_unsent()
        if draft is None:
            return None
        self.controller.sent(len(draft.ids))
        return replace(draft, echo=self.controller.round_trip.next_echo(now))

    def _show(self, now: float) -> ClientEvent | None:
        chain = self.chain
        ids = chain.ids
        if not ids:
            return None
        if now < self.display.quiet_until:
            self.refresh_at = self.display.quiet_until
            return None
        drafts = self._decoder.draft_text(chain.committed, ids, chain.survival, chain.ends_reply)
        return self.display.show(drafts, now)

    def _schedule_refresh(self, at: float) -> None:
        if self._sends or self._shows:
            self.refresh_at = at if self.refresh_at is None else min(self.refresh_at, at)


def _ends_of(params: SamplingParams, tools: ReplyTools) -> frozenset[int]:
    """Ids that end the reply."""
    return frozenset(params.stop_ids) | (frozenset() if params.ignore_eos else tools.stop_ids)


def _reasoning_of(request: ChatRequest, tools: ReplyTools) -> ReasoningMeter | None:
    found = request.reply_format
    if found is None or found.reasoning is None:
        return None
    bytes_of = tools.token_bytes
    if request.sampling.special_tokens and tools.all_bytes is not None:
        bytes_of = tools.all_bytes
    return ReasoningMeter(found.reasoning, bytes_of, begins_in_reasoning=found.begins_in_reasoning)


def _decoder(params: SamplingParams, tools: ReplyTools, ends: frozenset[int]) -> ReplyDecoder:
    bytes_of = tools.all_bytes if params.special_tokens and tools.all_bytes else tools.token_bytes

    def token_bytes(token: int) -> bytes:
        return b"" if token in ends else bytes_of(token)

    return ReplyDecoder(
        tools.new_reply(params), token_bytes, params.stop, strips_space=tools.strips_space
    )
