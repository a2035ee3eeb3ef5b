"""Many replies on one draft model: what the next call computes, and what came of the last (pure).

The caller repeats three steps: `schedule` a call, `run` it, `apply` its rows. Replies may be
opened, committed to and closed between any two of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

import numpy as np

from outrider.engines.base import (
    Engine,
    EngineInfo,
    LogitsRows,
    OverlappedWork,
    SequenceSlice,
    no_work,
)
from outrider.engines.draft_calibration import DraftCalibration
from outrider.errors import ConfigError
from outrider.sampling.params import SamplingParams
from outrider.speculation.suffix_drafter import SuffixDrafter
from services.edge.drafter.branch import DraftBranch
from services.edge.drafter.calibration import GroupLearning
from services.edge.drafter.counters import DrafterCounters
from services.edge.drafter.kept_kv import Ids, KeptKv, common_tokens
from services.edge.drafter.kv import KvBlockPool, KvOperations, KvSequence
from services.edge.drafter.proposer import Proposer
from services.edge.drafter.protocol import CommitTokens, DraftUpdate, OpenReply
from services.edge.drafter.session import DraftSession
from services.edge.drafter.settings import DrafterLimits

_PREFIX: Final = 0
"""The number of the session that computes a static prefix: the edge's begin at 1."""


@dataclass(frozen=True, slots=True)
class ScheduledSlice:
    """One session's part of a call."""

    session: int
    slice: SequenceSlice


@dataclass(frozen=True, slots=True)
class EngineCall:
    """One call of the engine: the KV operations, then one step of all slices."""

    operations: KvOperations
    scheduled: tuple[ScheduledSlice, ...]

    @property
    def slices(self) -> tuple[SequenceSlice, ...]:
        """For Engine.step."""
        return tuple(it.slice for it in self.scheduled)


@dataclass(frozen=True, slots=True)
class PinnedPrefix:
    """A static prefix: replies share its KV, which stays as it is."""

    ids: Ids
    kv: KvSequence


def run(
    engine: Engine, call: EngineCall, overlapped_work: OverlappedWork = no_work
) -> list[LogitsRows]:
    """Make the call. Raises EngineError."""
    for sequence in call.operations.closes:
        engine.close_sequence(sequence)
    for sequence in call.operations.opens:
        engine.open(sequence, np.zeros(0, np.int32))
    for source, target in call.operations.copies:
        engine.copy_block(source, target)
    return engine.step(call.slices, overlapped_work)


class Drafter:
    """Schedules sessions, named by the edge's number, on one engine."""

    def __init__(
        self,
        info: EngineInfo,
        limits: DrafterLimits,
        calibration: DraftCalibration,
        learning: GroupLearning | None = None,
        admit: Callable[[bytes], None] = lambda group: None,
    ) -> None:
        """`learning`: what sessions learn from others; `admit` is called with groups whose
        statistics may be kept. Raises ConfigError for an engine that cannot compute slices of one
        token."""
        if info.min_rows > 1:
            raise ConfigError(f"the engine {info.name} takes no slices of one token; use another")
        self._info = info
        self._limits = limits
        self._calibration = calibration
        self.learning = learning or GroupLearning()
        self._admit = admit
        self._pool = KvBlockPool(info)
        self._kept = KeptKv(limits.max_kept, info.block_tokens)
        self._pinned: list[PinnedPrefix | None] = []
        """Prefixes by number; None: the prefix had no room."""
        self._num_pinned_blocks = 0
        self._sessions: dict[int, DraftSession] = {}
        self._in_call: set[int] = set()
        """Sessions with a slice in the call being made."""
        self.counters = DrafterCounters()

    @property
    def num_sessions(self) -> int:
        return len(self._sessions)

    @property
    def num_modelled(self) -> int:
        """Number of sessions that use the model."""
        return sum(session.is_modelled for session in self._sessions.values())

    @property
    def num_free_blocks(self) -> int:
        return self._pool.num_free

    @property
    def num_kept(self) -> int:
        """Number of ended replies whose KV is kept."""
        return len(self._kept)

    # Messages from the edge.

    def open(self, opening: OpenReply, now: float) -> None:
        """Draft a reply, unless `max_sessions` are open already.

        Raises InvalidSamplingError for ids outside the vocabulary.
        """
        self.close(opening.session)
        if len(self._sessions) >= self._limits.max_sessions:
            self.counters.num_refused += 1
            return
        if opening.group_lasts:
            self._admit(opening.group)
        sampled = opening.params.temperature > 0.0
        vocabulary_size = self._info.vocabulary_size
        ngrams, calibration = self.learning.of(opening.group, are_sampled=sampled)
        self._sessions[opening.session] = DraftSession(
            opening,
            proposer=Proposer(opening.params, vocabulary_size, opening.prompt, self._calibration),
            copier=SuffixDrafter(
                max(2, self._info.max_context_tokens),
                ngrams,
                num_prompt=len(opening.prompt),
                sampled=sampled,
            ),
            calibration=calibration.for_reply(),
            limits=self._limits,
            counters=self.counters,
            kv=self._kv_for(opening),
            now=now,
        )

    def _kv_for(self, opening: OpenReply) -> KvSequence:
        """KV to start with: what the chat's last turn left, as far as its prompt continues it, or
        the common beginning with a static prefix that it may use."""
        pinned, common = self._pinned_for(opening)
        # At least the last token is computed, and never into a block that is shared.
        found = self._kept.take(opening.group, opening.prompt[:-1]) if opening.group else None
        if found is not None and found.num_tokens < common:
            self._pool.free([found.kv])
            found = None
        if found is not None:
            self.counters.num_reused += found.num_tokens
            return found.kv
        shared = self._pool.share(pinned.kv, common) if pinned is not None else None
        if shared is None:
            return self._pool.allocate()
        self.counters.num_reused += common
        return shared

    def _pinned_for(self, opening: OpenReply) -> tuple[PinnedPrefix | None, int]:
        """The prefix that begins most of the prompt, and how much."""
        best: tuple[PinnedPrefix | None, int] = None, 0
        prompt = np.array(opening.prompt[:-1], np.int32)
        for number in opening.prefixes:
            pinned = self._pinned[number] if number < len(self._pinned) else None
            common = common_tokens(pinned.ids, prompt) if pinned is not None else 0
            if common > best[1]:
                best = pinned, common
        return best

    # Static prefixes.

    def open_prefix(self, ids: Sequence[int], now: float) -> bool:
        """Begin to compute the next static prefix, before any reply is opened; `pin_prefix` follows
        once `is_prefix_computed`. False if it has no room: together, prefixes take at most half of
        the KV pool."""
        num_blocks = -(-(len(ids) + self._info.scratch_tokens) // self._info.block_tokens)
        fits_pool = self._num_pinned_blocks + num_blocks <= self._info.num_blocks // 2
        fits_model = len(ids) + self._info.scratch_tokens < self._info.max_context_tokens
        if not (ids and fits_pool and fits_model):
            self._pinned.append(None)
            return False
        self.open(OpenReply(_PREFIX, tuple(ids), (), SamplingParams(max_tokens=1)), now)
        return True

    @property
    def is_prefix_computed(self) -> bool:
        """Whether all KV of that prefix is there."""
        session = self._sessions[_PREFIX]
        return session.main.kv.length >= len(session.final) or not session.is_modelled

    def pin_prefix(self) -> bool:
        """Keep the prefix's KV for good, under its number; returns whether it has any."""
        session = self._sessions.pop(_PREFIX)
        kv = session.main.kv
        session.replace_kv(KvSequence(0))
        is_there = session.is_modelled
        if is_there:
            session.dropped.remove(kv)
            kv.crop(len(session.final))
            self._pool.trim(kv)
            self._num_pinned_blocks += len(kv.table)
        self._free_dropped(session)
        ids = np.array(session.final, np.int32)
        self._pinned.append(PinnedPrefix(ids, kv) if is_there else None)
        return is_there

    def commit(self, commit: CommitTokens, now: float) -> None:
        """Ids that became final. Unknown sessions are ignored."""
        session = self._sessions.get(commit.session)
        if session is not None and max(commit.ids, default=0) >= self._info.vocabulary_size:
            self.close(commit.session)  # padding of a larger target: the model cannot read on
        elif session is not None:
            session.touched_at = now
            session.commit(commit.ids, commit.lead)
            self._free_dropped(session)

    def close(self, number: int) -> None:
        """No more drafts are wanted. Unknown numbers are ignored."""
        session = self._sessions.pop(number, None)
        if session is not None:
            session.learn_last()
            kv = session.main.kv
            session.replace_kv(KvSequence(0))
            if session.is_modelled and session.group:
                session.dropped.remove(kv)
                session.dropped += self._kept.put(session.group, session.final, kv)
                self._pool.trim(kv)
            self._free_dropped(session)

    # Calls of the model.

    def schedule(self, now: float, *, is_paused: bool = False) -> EngineCall | None:
        """The next call; None if nothing is to be computed. `apply` must follow before the next
        one. `is_paused`: the model is only asked for the first tokens of replies."""
        self._in_call.clear()
        for session in self._sessions.values():
            if session.pause(is_paused):
                self._free_dropped(session)
            session.grow(session.main)
        scheduled = self._steps(now)
        chunks = self._chunks(now, is_idle=not scheduled)
        num_rows = sum(len(it.slice.tokens) for it in scheduled)
        scheduled += chunks
        if not scheduled:
            found = self._alternatives(now, self._limits.min_branch)
            scheduled = list(islice(found, self._limits.max_slices))
        elif not chunks:
            found = self._alternatives(now, self._limits.min_cheap_branch)
            scheduled += islice(found, max(0, self._limits.cheap_rows - num_rows))
        if not scheduled:
            # Sessions that just found no blocks for the model go on with copies alone.
            for session in self._sessions.values():
                session.grow(session.main)
            return None
        return EngineCall(self._pool.take_operations(), tuple(scheduled))

    def apply(self, call: EngineCall, rows: Sequence[LogitsRows], took_s: float) -> None:
        """Use the results of a call, computed in `took_s`: one LogitsRows per slice. Raises
        EngineError for rows without finite scores."""
        self.counters.record_call(took_s)
        num_rows = sum(len(it.slice.tokens) for it in call.scheduled)
        if num_rows >= self._limits.chunk_tokens:
            self.counters.record_prefill(num_rows, took_s)
        for scheduled, answer in zip(call.scheduled, rows, strict=True):
            self.counters.num_rows += len(scheduled.slice.tokens)
            session = self._sessions.get(scheduled.session)
            branch = session.branch_of(scheduled.slice.sequence) if session else None
            if session is not None and branch is not None:
                session.computed(branch, scheduled.slice, answer)
                session.grow(branch)

    def take_updates(self, now: float) -> list[DraftUpdate]:
        """Drafts that the edge should be sent now."""
        call_us = self.counters.recent_call_us
        return [
            session.take_update(call_us, now)
            for session in self._sessions.values()
            if session.is_update_due(now)
        ]

    # Slices of a call.

    def _steps(self, now: float) -> list[ScheduledSlice]:
        """Slices of sessions whose KV is missing for a few tokens, the likeliest chains first."""
        ready = [
            session
            for session in self._sessions.values()
            if session.main.wants_row
            and session.main.num_uncomputed <= self._limits.catch_up_tokens
        ]
        ready.sort(key=lambda session: -session.main.survival())
        found = []
        for session in ready[: self._limits.max_slices]:
            count = max(1, session.main.num_uncomputed)
            found.append(self._slice(session, session.main, count, now))
        return [scheduled for scheduled in found if scheduled is not None]

    def _chunks(self, now: float, *, is_idle: bool) -> list[ScheduledSlice]:
        """The next tokens of prompts, the oldest session first."""
        limits = self._limits
        left = limits.idle_chunk_tokens if is_idle else limits.chunk_tokens
        found = []
        for session in list(self._sessions.values()):
            uncomputed = session.main.num_uncomputed
            if left <= 0 or not session.main.wants_row or uncomputed <= limits.catch_up_tokens:
                continue
            scheduled = self._slice(session, session.main, min(uncomputed, left), now)
            if scheduled is not None:
                found.append(scheduled)
                left -= len(scheduled.slice.tokens)
        return found

    def _alternatives(self, now: float, least: float) -> Iterator[ScheduledSlice]:
        """Slices of alternatives, of one row each but for the first: computed when no chain can
        grow, or beside the chains where their rows cost next to nothing. `least`: how likely
        an alternative has to be needed."""
        for session in self._sessions.values():
            if session.alternative is None and session.asks_alternatives:
                self._open_alternative(session, least)
            branch = session.alternative
            if branch is None:
                continue
            session.grow(branch)
            if branch.wants_row:
                scheduled = self._slice(session, branch, max(1, branch.num_uncomputed), now)
                if scheduled is not None:
                    yield scheduled

    def _open_alternative(self, session: DraftSession, least: float) -> None:
        at = session.weakest(least)
        if at is not None:
            if not self._pool.num_free and len(self._kept):
                self._pool.free([self._kept.pop()])
            kv = self._pool.share(session.main.kv, session.main.begin + at)
            if kv is not None:
                session.open_alternative(at, kv)

    def _slice(
        self, session: DraftSession, branch: DraftBranch, count: int, now: float
    ) -> ScheduledSlice | None:
        """The next `count` tokens of a branch; None without KV blocks for them."""
        kv = branch.kv
        kv.crop(branch.end - 1)  # at least one row is asked for
        end = kv.length + count
        if not self._allocate(session, branch, end, now):
            return None
        self._in_call.add(session.number)
        tokens = np.array(session.ids(branch, kv.length, end), np.int32)
        blocks = np.array(kv.table, np.int32)
        num_rows = int(end == branch.end)
        return ScheduledSlice(
            session.number, SequenceSlice(kv.sequence, tokens, kv.length, blocks, num_rows)
        )

    # KV blocks.

    def _allocate(
        self, session: DraftSession, branch: DraftBranch, num_tokens: int, now: float
    ) -> bool:
        """Allocate blocks for `num_tokens`. Without them an alternative ends, and a session
        continues without the model."""
        if num_tokens + self._info.scratch_tokens <= self._info.max_context_tokens:
            while not self._pool.extend(branch.kv, num_tokens):
                if not len(self._kept):
                    break
                self._pool.free([self._kept.pop()])
            else:
                return True
            if branch is session.main:
                self._evict(self._pool.num_missing(branch.kv, num_tokens), session, now)
                if self._pool.extend(branch.kv, num_tokens):
                    return True
        if branch is session.main:
            session.is_modelled = False
            session.replace_kv(self._pool.allocate())
            self.counters.num_refused += 1
        else:
            session.drop_alternative()
        self._free_dropped(session)
        return False

    def _evict(self, num_blocks: int, asking: DraftSession, now: float) -> None:
        """Take the KV of idle sessions, the longest idle first, until so many blocks are free."""
        idle_since = now - self._limits.evict_idle_s
        others = [
            session
            for number, session in self._sessions.items()
            if session is not asking and number not in self._in_call and session.main.kv.table
        ]
        others.sort(key=lambda session: session.touched_at)
        for session in others:
            if self._pool.num_free >= num_blocks or session.touched_at > idle_since:
                return
            session.replace_kv(self._pool.allocate())
            self._free_dropped(session)
            self.counters.num_evicted += 1

    def _free_dropped(self, session: DraftSession) -> None:
        self._pool.free(session.dropped)
        session.dropped.clear()
