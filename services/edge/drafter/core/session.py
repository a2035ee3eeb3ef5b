"""One reply at the drafter: what is final, the chain of guesses behind it, a second guess."""

from __future__ import annotations

from collections.abc import Sequence

from outrider.engines.base import LogitsRows, SequenceSlice
from outrider.speculation.suffix_drafter import SuffixDrafter
from outrider.speculation.verification import common_prefix_length
from services.edge.drafter.core.chooser import Chooser, Opinion
from services.edge.drafter.core.kv import Kv
from services.edge.drafter.core.line import Entry, Line, weigh
from services.edge.drafter.core.rates import Rates
from services.edge.drafter.core.tally import Tally
from services.edge.drafter.messages import Open
from services.edge.drafter.settings import DrafterLimits


class DraftSession:
    """`commit`, `grow`, `branch_off` and `computed` change it; blocks are handed out elsewhere.

    Invariant: KV at positions 0 .. kv.length - 1 of a line is that of the line's text.
    """

    def __init__(
        self,
        opening: Open,
        *,
        chooser: Chooser,
        copier: SuffixDrafter,
        rates: Rates,
        limits: DrafterLimits,
        tally: Tally,
        kv: Kv,
    ) -> None:
        self.number = opening.session
        self._final = list(opening.prompt)
        self._num_prompt = len(opening.prompt)
        self._max_tokens = opening.params.max_tokens
        self._ends = frozenset(opening.ends)
        self._lead = opening.lead
        self._chooser = chooser
        self._copier = copier
        self._rates = rates
        self._limits = limits
        self._tally = tally
        self.main = Line(len(self._final), kv)
        self.branch: Line | None = None
        self.is_modelled = True
        """Whether the model is asked for this session."""
        self.dropped: list[Kv] = []
        """KV that nothing refers to any more; whoever hands out blocks takes it."""
        self.num_told = 0
        """Guesses of the chain that the edge knows."""
        self.has_news = False
        copier.extend(opening.prompt)
        if opening.reply:
            self.commit(opening.reply, opening.lead)

    @property
    def num_reply(self) -> int:
        """Final tokens of the reply."""
        return len(self._final) - self._num_prompt

    def line_of(self, sequence: int) -> Line | None:
        """The line with the KV of this number."""
        lines = (self.main, self.branch)
        return next((line for line in lines if line and line.kv.sequence == sequence), None)

    def ids(self, line: Line, begin: int, end: int) -> list[int]:
        """The line's tokens at absolute positions [begin, end)."""
        known, main = len(self._final), self.main
        ids = self._final[begin : min(end, known)]
        at = max(begin, known)
        # A branch follows the main chain up to where it begins.
        shared = main.chain[at - known : max(0, min(end, line.begin) - known)]
        own = line.chain[max(0, at - line.begin) : max(0, end - line.begin)]
        return ids + [entry.token for entry in (*shared, *own)]

    # What became final.

    def commit(self, ids: Sequence[int], lead: int) -> None:
        """These follow what was final: the chain goes on behind them as far as it was right."""
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
            self.num_told = 0
        else:
            del main.chain[:matched]
            self.num_told = max(0, self.num_told - matched)
        self._final += ids
        main.begin = len(self._final)
        main.reconsider()
        if self.branch is not None and (diverged or self.branch.begin < main.begin):
            self._drop_branch()
        self._copier.extend(ids)
        self._chooser.observe(ids)

    def _match(self, ids: Sequence[int], start: int) -> int:
        """How many of `ids` the chain has, from number `start` on; the sources learn from it."""
        for at in range(start, min(len(ids), len(self.main.chain))):
            entry, token = self.main.chain[at], ids[at]
            for voice in entry.voices:
                hit = voice.opinion.token == token
                position = self.num_reply + at
                self._rates.observe(voice.source, position, voice.opinion.chance, hit)
            if entry.token != token:
                return at
            self._tally.accepted[entry.source] += 1
        return min(len(ids), len(self.main.chain))

    def _promote(self, at: int, token: int) -> bool:
        """Put the branch in the place of the chain from number `at` on, if it says `token`."""
        branch, main = self.branch, self.main
        if branch is None or branch.begin != main.begin + at or branch.chain[0].token != token:
            return False
        self._drop(main.kv)
        branch.kv.num_shared = 0
        branch.chain[:0] = main.chain[:at]
        branch.begin = main.begin
        branch.reconsider()
        self.main, self.branch = branch, None
        self.num_told, self.has_news = min(self.num_told, at), True
        self._tally.num_promoted += 1
        return True

    def _drop(self, kv: Kv) -> None:
        """The main line's KV, but for the blocks that the branch shares and now owns."""
        assert self.branch is not None
        shared = self.branch.kv.num_shared
        self.dropped.append(Kv(kv.sequence, kv.table, shared))

    def _drop_branch(self) -> None:
        assert self.branch is not None
        self.dropped.append(self.branch.kv)
        self.branch = None

    # Guesses.

    def grow(self, line: Line) -> None:
        """Guess on as far as can be told without the model; says in `wants_row` if that is asked
        for."""
        if line.is_settled:
            return
        while self._has_room(line):
            copied = self._copied(line)
            if line.proposal is None and self.is_modelled and not self._is_sure(line, copied):
                line.wants_row = line.is_settled = True
                return
            position = line.end - self._num_prompt
            entry = weigh(copied, line.proposal, self._rates, position)
            if entry is None or self._survival(line) * entry.chance < self._limits.least(position):
                break
            self._push(line, entry)
        line.wants_row, line.is_settled = False, True

    def computed(self, line: Line, done: SequenceSlice, rows: LogitsRows) -> None:
        """A round of this line was computed. Raises EngineError for a row that is no use."""
        if line.kv.length < done.past:
            return  # the text changed before it, while it was under way
        length = len(done.tokens)
        now = self.ids(line, done.past, done.past + length)
        kept = common_prefix_length(now, done.tokens.tolist())
        line.kv.length = done.past + kept
        if kept < length or not len(rows.logits) or line.end != line.kv.length:
            return
        columns = None if rows.ids is None else rows.ids[-1]
        ahead = self.ids(line, len(self._final), line.end)
        line.proposal = self._chooser.propose(rows.logits[-1], columns, line.end, ahead)
        line.is_settled = line.wants_row = False

    def forget_model(self, kv: Kv) -> None:
        """The KV is gone: `kv`, empty, is in its place."""
        if self.branch is not None:
            self._drop_branch()
        self.dropped.append(self.main.kv)
        self.main.kv = kv
        self.main.reconsider()

    def weakest(self) -> int | None:
        """The place whose second guess is likeliest to be needed, if that is likely enough."""
        best, found, survival = self._limits.min_branch, None, 1.0
        for at, entry in enumerate(self.main.chain):
            usable = entry.other is not None and self.main.kv.length >= self.main.begin + at
            if usable and entry.other is not None and survival * entry.other.chance > best:
                best, found = survival * entry.other.chance, at
            survival *= entry.chance
        return found

    def branch_off(self, at: int, kv: Kv) -> None:
        """A second guess in the place of number `at` of the chain, on the KV up to there."""
        entry = self.main.chain[at]
        assert entry.other is not None
        second = Entry(entry.other.token, entry.other.chance, entry.source)
        self.branch = Line(self.main.begin + at, kv, [second])
        self._tally.num_branches += 1

    def drop_branch(self) -> None:
        """There is no room for it."""
        if self.branch is not None:
            self._drop_branch()

    def _has_room(self, line: Line) -> bool:
        last = line.chain[-1].token if line.chain else self._final[-1] if self.num_reply else None
        if last in self._ends:
            return False
        if line is not self.main and len(line.chain) > self._limits.branch_tokens:
            return False
        ahead = line.end - len(self._final)
        return ahead < min(self._lead, self._limits.max_lead, self._max_tokens - self.num_reply)

    def _survival(self, line: Line) -> float:
        """Of a branch: given that it is needed."""
        return line.survival(0 if line is self.main else 1)

    def _copied(self, line: Line) -> Opinion | None:
        if not line.asked_copy:
            ahead = self.ids(line, len(self._final), line.end)
            guess = self._copier.draft_after(ahead, 1)
            line.copied = Opinion(guess.ids[0], guess.survival[0]) if guess.ids else None
            line.asked_copy = True
        return line.copied

    def _is_sure(self, line: Line, copied: Opinion | None) -> bool:
        position = line.end - self._num_prompt
        if position < self._limits.first_tokens:
            return False  # what a prompt repeats is seldom how its answer begins
        entry = weigh(copied, None, self._rates, position)
        return entry is not None and entry.chance >= self._limits.sure

    def _push(self, line: Line, entry: Entry) -> None:
        line.push(entry)
        if line is self.main:
            self._tally.drafted[entry.source] += 1
            self.has_news = True
