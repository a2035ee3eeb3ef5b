"""One reply at the drafter: its final tokens, the drafts behind them, and one alternative to these
(pure)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from operator import mul

from outrider.engines.base import LogitsRows, SequenceSlice
from outrider.speculation.suffix_drafter import SuffixDrafter
from outrider.speculation.verification import common_prefix_length
from services.edge.drafter.branch import DraftBranch, DraftToken, best_draft
from services.edge.drafter.calibration import OnlineCalibration
from services.edge.drafter.counters import DrafterCounters
from services.edge.drafter.kv import KvSequence
from services.edge.drafter.proposer import Proposer, TokenEstimate
from services.edge.drafter.protocol import DraftUpdate, OpenReply
from services.edge.drafter.settings import DrafterLimits


class DraftSession:
    """Drafts of one reply. The caller allocates KV blocks and frees what `dropped` lists.

    Invariant: the KV at positions 0 .. kv.length - 1 of a branch is that of the branch's text.
    """

    def __init__(
        self,
        opening: OpenReply,
        *,
        proposer: Proposer,
        copier: SuffixDrafter,
        calibration: OnlineCalibration,
        limits: DrafterLimits,
        counters: DrafterCounters,
        kv: KvSequence,
        now: float,
    ) -> None:
        self.number = opening.session
        self.group = opening.group
        self._final = list(opening.prompt)
        self._num_prompt = len(opening.prompt)
        self._max_tokens = opening.params.max_tokens
        self._ends = frozenset(opening.ends)
        self._lead = opening.lead
        self._proposer = proposer
        self._copier = copier
        self._calibration = calibration
        self._limits = limits
        self._counters = counters
        self.main = DraftBranch(len(self._final), kv)
        self.alternative: DraftBranch | None = None
        """Another token in the place of one of `main`, and drafts behind it."""
        self.is_modelled = True
        """Whether the model is asked for this session."""
        self._is_paused = False
        self.dropped: list[KvSequence] = []
        """KV that nothing refers to any more, to be freed by the caller."""
        self.touched_at = now
        """When the edge opened the session or committed to it last."""
        self._num_reported = 0
        """Drafts at the start of the chain that the edge knows."""
        self._has_news = False
        """Whether the chain is not the one reported last."""
        self._reported_at = now
        copier.extend(opening.prompt)
        if opening.reply:
            self.commit(opening.reply, opening.lead)

    @property
    def final(self) -> Sequence[int]:
        """Tokens of prompt and reply that never change."""
        return self._final

    @property
    def num_reply(self) -> int:
        """Final tokens of the reply."""
        return len(self._final) - self._num_prompt

    def branch_of(self, sequence: int) -> DraftBranch | None:
        """The branch whose KV is this sequence of the engine."""
        branches = (self.main, self.alternative)
        return next((it for it in branches if it and it.kv.sequence == sequence), None)

    def ids(self, branch: DraftBranch, begin: int, end: int) -> list[int]:
        """The branch's tokens at absolute positions [begin, end)."""
        known, main = len(self._final), self.main
        ids = self._final[begin : min(end, known)]
        at = max(begin, known)
        # The alternative follows the main chain up to where it begins.
        shared = main.chain[at - known : max(0, min(end, branch.begin) - known)]
        own = branch.chain[max(0, at - branch.begin) : max(0, end - branch.begin)]
        return ids + [draft.token for draft in (*shared, *own)]

    @property
    def asks_alternatives(self) -> bool:
        """Whether the model may be asked for other tokens than the likeliest."""
        return self.is_modelled and not self._is_paused

    def pause(self, is_paused: bool) -> bool:
        """Pause or resume the model beyond the reply's first tokens, which the reader waits for;
        copies of the text continue. Returns whether that is a change."""
        if is_paused == self._is_paused:
            return False
        self._is_paused = is_paused
        self.main.reconsider()
        if is_paused:
            self.drop_alternative()
        return True

    # Commits.

    def commit(self, ids: Sequence[int], lead: int) -> None:
        """Append final ids: the chain keeps the drafts that agree with them."""
        self._lead = lead
        matched = self._match(ids, 0)
        diverged = matched < len(ids) and matched < len(self.main.chain)
        if diverged and self._promote(matched, ids[matched]):
            matched = self._match(ids, matched)
            diverged = matched < len(ids) and matched < len(self.main.chain)
        main, base = self.main, len(self._final)
        if diverged or matched < len(ids):
            main.kv.crop(base + matched)
            main.chain.clear()
            main.proposal = None
            self._num_reported = 0
        else:
            del main.chain[:matched]
            self._num_reported = max(0, self._num_reported - matched)
        self._final += ids
        main.begin = len(self._final)
        main.reconsider()
        if self.alternative is not None and (diverged or self.alternative.begin < main.begin):
            self.drop_alternative()
        self._copier.extend(ids)
        self._proposer.observe(ids)

    def learn_last(self) -> None:
        """The reply is over: what was committed last is learnt too."""
        self._copier.update_statistics()

    def _match(self, ids: Sequence[int], start: int) -> int:
        """How many of `ids` the chain has, looking from number `start` on; the calibration learns
        from each."""
        for at in range(start, min(len(ids), len(self.main.chain))):
            draft, token = self.main.chain[at], ids[at]
            position = self.num_reply + at
            for said in draft.estimates:
                hit = said.estimate.token == token
                self._calibration.observe(said.source, position, said.estimate.probability, hit)
            if draft.token != token:
                return at
            self._counters.accepted[draft.source] += 1
        return min(len(ids), len(self.main.chain))

    def _promote(self, at: int, token: int) -> bool:
        """Put the alternative in the place of the chain from number `at` on, if its first token is
        `token`."""
        alternative, main = self.alternative, self.main
        if (
            alternative is None
            or alternative.begin != main.begin + at
            or alternative.chain[0].token != token
        ):
            return False
        # The blocks that the two shared are the alternative's from now on.
        self.dropped.append(KvSequence(main.kv.sequence, main.kv.table, alternative.kv.num_shared))
        alternative.kv.num_shared = main.kv.num_shared
        alternative.chain[:0] = main.chain[:at]
        alternative.begin = main.begin
        alternative.reconsider()
        self.main = alternative
        self.alternative = None
        self._num_reported = min(self._num_reported, at)
        self._has_news = True
        self._counters.num_promoted += 1
        return True

    # Updates to the edge. A frame costs the edge's event loop tens of microseconds; a draft that
    # arrives a few milliseconds later costs nothing unless it is the next one needed.

    def is_update_due(self, now: float) -> bool:
        """Whether to send the edge the chain now."""
        if not self._has_news or not self.main.chain:
            return False
        num_new = len(self.main.chain) - self._num_reported
        return (
            self._num_reported == 0
            or self.num_reply + self._num_reported <= self._limits.first_tokens
            or num_new >= self._limits.update_tokens
            or not self.main.wants_row
            or now - self._reported_at >= self._limits.update_interval_s
        )

    def take_update(self, call_us: int, now: float) -> DraftUpdate:
        """The chain as it is; it counts as reported."""
        chain = self.main.chain
        self._num_reported = len(chain)
        self._has_news = False
        self._reported_at = now
        return DraftUpdate(
            session=self.number,
            base=self.num_reply,
            ids=tuple(draft.token for draft in chain),
            survival=tuple(accumulate((draft.probability for draft in chain), mul)),
            sources=tuple(draft.source for draft in chain),
            call_us=call_us,
        )

    # Drafts.

    def grow(self, branch: DraftBranch) -> None:
        """Extend the branch as far as possible without a further row of the model; `wants_row` is
        then whether one would extend it further."""
        if branch.is_settled:
            return
        while self._has_room(branch):
            copied = self._copied(branch)
            if branch.proposal is None and self._asks_model(branch, copied):
                branch.wants_row = True
                branch.is_settled = True
                return
            position = branch.end - self._num_prompt
            draft = best_draft(copied, branch.proposal, self._calibration, position)
            if draft is None:
                break
            if self._survival(branch) * draft.probability < self._limits.least(position):
                break
            self._push(branch, draft)
        branch.wants_row = False
        branch.is_settled = True

    def computed(self, branch: DraftBranch, done: SequenceSlice, rows: LogitsRows) -> None:
        """A slice of this branch was computed. Raises EngineError for a row with no finite
        scores."""
        if branch.kv.length < done.past:
            return  # the text before it changed meanwhile
        length = len(done.tokens)
        now = self.ids(branch, done.past, done.past + length)
        kept = common_prefix_length(now, done.tokens.tolist())
        branch.kv.length = done.past + kept
        if kept < length or not len(rows.logits) or branch.end != branch.kv.length:
            return
        columns = None if rows.ids is None else rows.ids[-1]
        ahead = self.ids(branch, len(self._final), branch.end)
        branch.proposal = self._proposer.propose(rows.logits[-1], columns, branch.end, ahead)
        branch.is_settled = False
        branch.wants_row = False

    def replace_kv(self, kv: KvSequence) -> None:
        """Give up all KV; `kv`, empty, takes its place."""
        self.drop_alternative()
        self.dropped.append(self.main.kv)
        self.main.kv = kv
        self.main.reconsider()

    def weakest(self, least: float) -> int | None:
        """The place in the chain whose alternative is likeliest to be needed, if its probability
        exceeds `least`."""
        best = least
        found: int | None = None
        survival = 1.0
        for at, draft in enumerate(self.main.chain):
            has_kv = self.main.kv.length >= self.main.begin + at
            if draft.alternative is not None and has_kv:
                needed = survival * draft.alternative.probability
                if needed > best:
                    best = needed
                    found = at
            survival *= draft.probability
        return found

    def open_alternative(self, at: int, kv: KvSequence) -> None:
        """Draft behind the alternative of number `at` of the chain, on the KV up to there."""
        draft = self.main.chain[at]
        assert draft.alternative is not None
        other = DraftToken(draft.alternative.token, draft.alternative.probability, draft.source)
        self.alternative = DraftBranch(self.main.begin + at, kv, [other])
        self._counters.num_branches += 1

    def drop_alternative(self) -> None:
        """Give up the alternative, if one is open."""
        if self.alternative is not None:
            self.dropped.append(self.alternative.kv)
            self.alternative = None

    def _has_room(self, branch: DraftBranch) -> bool:
        last: int | None = None
        if branch.chain:
            last = branch.chain[-1].token
        elif self.num_reply:
            last = self._final[-1]
        if last in self._ends:
            return False
        if branch is not self.main and len(branch.chain) > self._limits.branch_tokens:
            return False
        ahead = branch.end - len(self._final)
        return ahead < min(self._lead, self._limits.max_lead, self._max_tokens - self.num_reply)

    def _survival(self, branch: DraftBranch) -> float:
        """Survival of the branch's last draft; of the alternative, given that its first token is
        right."""
        return branch.survival(0 if branch is self.main else 1)

    def _copied(self, branch: DraftBranch) -> TokenEstimate | None:
        if not branch.asked_copy:
            ahead = self.ids(branch, len(self._final), branch.end)
            found = self._copier.draft_after(ahead, 1)
            branch.copied = TokenEstimate(found.ids[0], found.survival[0]) if found.ids else None
            branch.asked_copy = True
        return branch.copied

    def _asks_model(self, branch: DraftBranch, copied: TokenEstimate | None) -> bool:
        """Whether a row of the model is worth waiting for."""
        position = branch.end - self._num_prompt
        if not self.is_modelled or (self._is_paused and position >= self._limits.first_tokens):
            return False
        return not self._is_sure(branch, copied)

    def _is_sure(self, branch: DraftBranch, copied: TokenEstimate | None) -> bool:
        """Whether the copy is taken without asking the model."""
        position = branch.end - self._num_prompt
        if position < self._limits.first_tokens:
            return False  # what a prompt repeats is seldom how its answer begins
        draft = best_draft(copied, None, self._calibration, position)
        return draft is not None and draft.probability >= self._limits.sure

    def _push(self, branch: DraftBranch, draft: DraftToken) -> None:
        branch.push(draft)
        if branch is self.main:
            self._counters.drafted[draft.source] += 1
            self._has_news = True
