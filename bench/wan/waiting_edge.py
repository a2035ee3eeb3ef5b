"""The edges of the published schemes: one chain of drafts, sent some at a time or as a stream."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from bench.harness.region_client import Conversation
from bench.wan.draft_source import Source
from bench.wan.waiting_verifier import MAX_DRAFTS
from outrider.codec.tokens import TokenCoder
from outrider.v1 import inference_pb2
from outrider.wire import ids_of, put_ids


@dataclass(frozen=True, slots=True)
class WaitingPolicy:
    """How far an edge drafts."""

    max_lead: int
    """Most drafts ahead of the commits."""
    frame_drafts: int
    """Most drafts made and sent in one go."""
    streams: bool
    """Whether it drafts on while drafts are under way, and sends what it has; otherwise a frame
    is whole or ends the reply."""


STOP_AND_WAIT = WaitingPolicy(max_lead=4, frame_drafts=4, streams=False)
"""k = 4, the best in PicoSpec's own ablation."""
CHAIN = WaitingPolicy(max_lead=4 * MAX_DRAFTS, frame_drafts=4, streams=True)


@dataclass(slots=True)
class WaitingReply:
    """A reply as its edge saw it. Times in seconds on `time.perf_counter`."""

    ids: list[int] = field(default_factory=list)
    opened_at: float = 0.0
    commits: list[tuple[float, int]] = field(default_factory=list)
    """When how many tokens were final."""
    num_drafts: int = 0
    """Drafts that the region verified."""
    num_accepted: int = 0
    num_restarts: int = 0
    """How often a chain began anew, because of a wrong draft or for want of one."""

    def add(self, ids: Sequence[int], at: float) -> None:
        """These became final."""
        self.ids.extend(ids)
        self.commits.append((at, len(self.ids)))

    def count(self, num_drafts: int, num_accepted: int) -> None:
        """What the region says of the drafts."""
        self.num_drafts = num_drafts
        self.num_accepted = num_accepted


class WaitingChain:
    """What was committed, what was sent ahead of it, and whether the region owes an answer
    (pure). Without an answer owed, the edge has to ask: nothing else will come."""

    def __init__(self, policy: WaitingPolicy) -> None:
        self._policy = policy
        self._exhausted = False
        """The source knows nothing further before the next commit."""
        self._owed_plain = True
        """A token without drafts was asked for; opening is one."""
        self._sent_to: int | None = 0
        self.committed = 0
        self.num_restarts = 0
        """Chains begun behind a commit that left nothing of the one before; they are epochs, of
        which 0 is the chain that begins with the reply."""
        self.pending: list[int] = []
        """Drafts sent, behind the committed tokens."""

    def wanted(self) -> tuple[int, int] | None:
        """How many drafts to make now, at least and at most; None: wait for the region. What is
        made, also if it is nothing, goes to `frame`."""
        owed = bool(self.pending) or self._owed_plain
        if owed and (not self._policy.streams or self._exhausted):
            return None
        room = min(self._policy.frame_drafts, self._policy.max_lead - len(self.pending))
        if owed and room <= 0:
            return None
        return 1 if self._policy.streams else room, room

    def frame(self, ids: Sequence[int]) -> tuple[int, int, bool] | None:
        """Epoch, base and continuation of the frame that carries these drafts; None if nothing is
        to be sent."""
        if not ids:
            self._exhausted = True
            if self.pending or self._owed_plain:
                return None
            self._owed_plain = True
        start = self.committed + len(self.pending)
        joins = self._sent_to == start and bool(ids)
        if not joins:
            self.num_restarts += 1
        self._sent_to = start + len(ids)
        self.pending.extend(ids)
        return self.num_restarts, start, joins and start > 0

    def commit(self, accepted: int, ids: Sequence[int]) -> tuple[int, ...]:
        """The tokens that became final: `accepted` of the pending drafts, then `ids`."""
        final = (*self.pending[:accepted], *ids)
        agreed = tuple(self.pending[: len(final)]) == final[: len(self.pending)]
        self.committed += len(final)
        if agreed:
            del self.pending[: len(final)]
        else:
            self.pending.clear()
            self._sent_to = None
        self._exhausted = self._owed_plain = False
        return final


async def converse(
    talk: Conversation, source: Source, policy: WaitingPolicy, coder: TokenCoder
) -> WaitingReply:
    """One reply, from the opened session to its end."""
    chain, reply = WaitingChain(policy), WaitingReply(opened_at=talk.opened_at)
    while True:
        ids = None if talk.waiting else _drafts(chain, source)
        if ids is not None:
            _send(talk, chain.frame(ids), ids, coder)
            continue
        frame = await _next(talk, None if chain.wanted() is None else source)
        if frame is None:
            continue
        match frame.WhichOneof("kind"):
            case "commit":
                final = _apply(chain, frame.commit, coder)
                reply.add(final, time.perf_counter())
                source.commit(final)
            case "done":
                reply.count(frame.done.usage.draft_tokens, frame.done.usage.accepted_tokens)
                reply.num_restarts = chain.num_restarts
                return reply


def _drafts(chain: WaitingChain, source: Source) -> Sequence[int] | None:
    """What to hand to `WaitingChain.frame`; None: nothing now."""
    wanted = chain.wanted()
    return None if wanted is None else source.draft_after(chain.pending, *wanted)


async def _next(talk: Conversation, source: Source | None) -> inference_pb2.SessionDown | None:
    """The region's next frame, or None once the source, if it is waited for, has news."""
    if source is None or talk.waiting:
        return await talk.receive()
    frame, news = (asyncio.ensure_future(c) for c in (talk.receive(), source.changed()))
    try:
        await asyncio.wait((frame, news), return_when=asyncio.FIRST_COMPLETED)
        return frame.result() if frame.done() else None
    finally:
        frame.cancel()
        news.cancel()


def _send(
    talk: Conversation, where: tuple[int, int, bool] | None, ids: Sequence[int], coder: TokenCoder
) -> None:
    if where is not None:
        epoch, base, continues = where
        draft = inference_pb2.Draft(epoch=epoch, base=base, continues=continues)
        put_ids(draft, coder, ids, coder.supported[0])
        talk.draft(draft)


def _apply(chain: WaitingChain, commit: inference_pb2.Commit, coder: TokenCoder) -> tuple[int, ...]:
    if commit.base != chain.committed:
        raise RuntimeError(f"a commit from token {commit.base}, not from {chain.committed}")
    ids = ids_of(commit, coder, max_count=1 << 12)
    return chain.commit(commit.accepted, ids)
