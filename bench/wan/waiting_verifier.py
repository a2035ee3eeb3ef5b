"""The region of published edge drafting: it verifies what it is sent, and waits when it is sent
nothing (pure).

A replica of ours never waits for an edge, so it cannot show what waiting costs. This verifier is
the region of the published schemes on our engine, sampler and acceptance rule: it takes part in an
engine call only with the sessions whose edge has asked, and batches those. `waiting_server` is its
process, which speaks a replica's own frames over gRPC; `waiting_edge` asks it in either of two
ways: stop-and-wait (SpecEdge without its proactive branch, arXiv 2505.17052), k drafts, then
nothing until their verdict; or an asynchronous chain (PicoSpec, arXiv 2603.19133), drafting goes on
while earlier drafts are verified, and only a wrong draft costs the round trip.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields

import numpy as np

from outrider.engines.base import EngineInfo, Ids, LogitsRows, SequenceSlice
from outrider.errors import OverloadedError
from outrider.sampling.params import SamplingParams
from outrider.sampling.reply import ReplyText
from outrider.sampling.sampler import Sampler
from outrider.speculation.verification import verify
from services.inference.scheduler.draft_sources import EdgeChain
from services.inference.scheduler.types import Drafts

MAX_DRAFTS = 8
"""Drafts of one session in one call; the same as a replica verifies."""
MAX_LEAD = 64
_CHUNK_TOKENS = 256
"""Prompt tokens of one call."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a session committed: the first `accepted` drafts of `epoch` behind `base`, then
    `ids`."""

    session: int
    epoch: int
    base: int
    accepted: int
    ids: tuple[int, ...]
    finished: bool

    @property
    def upto(self) -> int:
        """Number of tokens now final."""
        return self.base + self.accepted + len(self.ids)


@dataclass(slots=True)
class VerifierSession:
    """One reply. Invariant: KV exists for exactly ids[:computed]."""

    number: int
    ids: list[int]
    num_prompt: int
    max_tokens: int
    sampler: Sampler
    reply: ReplyText
    blocks: list[int]
    chain: EdgeChain = field(default_factory=lambda: EdgeChain(0, MAX_LEAD))
    computed: int = 0
    asked: bool = True
    """Whether the edge has asked for a call. Opening asks for the first."""
    num_drafts: int = 0
    num_accepted: int = 0

    @property
    def num_reply(self) -> int:
        """Committed tokens."""
        return len(self.ids) - self.num_prompt

    def push(self, token: int) -> bool:
        """Commit a token; whether the reply is over."""
        self.ids.append(token)
        self.reply.push(token)
        return self.reply.finished is not None


@dataclass(frozen=True, slots=True)
class ScheduledSession:
    """One session in an engine call."""

    session: VerifierSession
    num_tokens: int
    """Committed tokens to compute; drafts and padding follow them."""
    drafts: tuple[int, ...]
    slice: SequenceSlice


class Verifier:
    """Sessions and the calls they need. `decide`, compute the slices, `apply`: in turn."""

    def __init__(self, info: EngineInfo, new_reply: Callable[[SamplingParams], ReplyText]) -> None:
        self._info = info
        self._new_reply = new_reply
        self._sessions: dict[int, VerifierSession] = {}
        self._free = list(range(info.num_blocks))

    def open(self, number: int, prompt: Sequence[int], sampling: SamplingParams) -> Ids:
        """Take a session in; the ids to announce to the engine. Raises OverloadedError."""
        info = self._info
        most = len(prompt) + sampling.max_tokens + MAX_DRAFTS + info.min_rows + info.scratch_tokens
        needed = -(-most // info.block_tokens)
        if needed > len(self._free):
            raise OverloadedError("the waiting verifier has no KV left; give it more")
        blocks = [self._free.pop() for _ in range(needed)]
        self._sessions[number] = VerifierSession(
            number,
            list(prompt),
            len(prompt),
            sampling.max_tokens,
            Sampler(sampling, info.vocabulary_size, prompt),
            self._new_reply(sampling),
            blocks,
        )
        return np.array(prompt, np.int32)

    def draft(self, number: int, drafts: Drafts) -> None:
        """A frame of the edge: what to verify next, or, without ids, that it wants a token."""
        session = self._sessions.get(number)
        if session is None:
            return  # it ended while the frame was on its way
        chain = session.chain
        own = session.ids[session.num_prompt :]
        chain.receive(drafts, own)
        if chain.epoch == drafts.epoch and not chain.dead and (chain.ids or not drafts.ids):
            session.asked = True

    def close(self, number: int) -> VerifierSession | None:
        """Forget a session; None if there is none of this number."""
        session = self._sessions.pop(number, None)
        if session is not None:
            self._free += session.blocks
        return session

    def decide(self) -> list[ScheduledSession]:
        """The next call: everyone who has asked; empty while nobody has."""
        return list(self._parts())

    def _parts(self) -> Iterator[ScheduledSession]:
        room = _CHUNK_TOKENS
        for session in self._sessions.values():
            if not session.asked:
                continue
            missing = len(session.ids) - session.computed
            if missing <= 1 + MAX_DRAFTS:
                yield self._verification(session)
            elif room >= self._info.min_rows:
                taken = min(missing, room)
                room -= taken
                whole = taken == missing
                yield self._verification(session) if whole else self._prefill(session, taken)

    def _prefill(self, session: VerifierSession, count: int) -> ScheduledSession:
        tokens = session.ids[session.computed : session.computed + count]
        return ScheduledSession(session, count, (), self._slice(session, tokens, 0))

    def _verification(self, session: VerifierSession) -> ScheduledSession:
        left = session.max_tokens - session.num_reply
        drafts = tuple(session.chain.ids[: min(MAX_DRAFTS, left - 1)])
        own = session.ids[session.computed :]
        tokens = [*own, *drafts]
        padding = max(0, self._info.min_rows - len(tokens))
        tokens += [tokens[-1]] * padding
        slice_ = self._slice(session, tokens, 1 + len(drafts) + padding)
        return ScheduledSession(session, len(own), drafts, slice_)

    def _slice(
        self, session: VerifierSession, tokens: Sequence[int], num_rows: int
    ) -> SequenceSlice:
        end = session.computed + len(tokens) + self._info.scratch_tokens
        blocks = session.blocks[: -(-end // self._info.block_tokens)]
        return SequenceSlice(
            session.number,
            np.array(tokens, np.int32),
            session.computed,
            np.array(blocks, np.int32),
            num_rows,
        )

    def apply(self, parts: Sequence[ScheduledSession], rows: Sequence[LogitsRows]) -> list[Verdict]:
        """What the call decided. Sessions closed meanwhile are passed over."""
        answered = zip(parts, rows, strict=True)
        return [
            verdict
            for part, row in answered
            if self._sessions.get(part.session.number) is part.session
            and (verdict := self._take(part, row)) is not None
        ]

    def _take(self, part: ScheduledSession, rows: LogitsRows) -> Verdict | None:
        session, chain = part.session, part.session.chain
        if not part.slice.num_rows:
            session.computed += part.num_tokens
            return None
        base, position, count = session.num_reply, len(session.ids), len(part.drafts) + 1
        columns = None if rows.ids is None else rows.ids[:count]
        verdict = verify(
            session.sampler, rows.logits[:count], columns, part.drafts, position, session.push
        )
        session.computed = min(position + verdict.accepted, len(session.ids) - 1)
        session.num_drafts += len(part.drafts)
        session.num_accepted += verdict.accepted
        accepted = chain.advance(verdict.ids)
        session.asked = bool(chain.ids)
        finished = session.reply.finished is not None
        ids = verdict.ids[accepted:]
        return Verdict(session.number, chain.epoch, base, accepted, ids, finished)


@dataclass(slots=True)
class Costs:
    """Sums over calls, for the line of least squares: seconds = fixed_s + row_s * rows."""

    calls: int = 0
    rows: int = 0
    rows_squared: int = 0
    busy_s: float = 0.0
    rows_busy_s: float = 0.0

    def add(self, rows: int, seconds: float) -> None:
        """A call of so many rows took so long."""
        self.calls += 1
        self.rows += rows
        self.rows_squared += rows * rows
        self.busy_s += seconds
        self.rows_busy_s += rows * seconds

    def plus(self, other: Costs) -> Costs:
        """Both together."""
        return Costs(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def since(self, before: Costs) -> Costs:
        """What was added to `before`."""
        return Costs(*(getattr(self, f.name) - getattr(before, f.name) for f in fields(self)))

    def line_s(self) -> tuple[float, float]:
        """fixed_s and row_s; the mean and 0 where all calls were of one size."""
        if not self.calls:
            return 0.0, 0.0
        spread = self.calls * self.rows_squared - self.rows**2
        if spread <= 0:
            return self.busy_s / self.calls, 0.0
        row_s = (self.calls * self.rows_busy_s - self.rows * self.busy_s) / spread
        return (self.busy_s - row_s * self.rows) / self.calls, row_s

    def to_json(self) -> dict[str, float]:
        """The inverse of Costs(**...)."""
        return asdict(self)
