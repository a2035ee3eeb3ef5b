"""The edges of the published schemes: one chain of drafts, sent in rounds or as a stream."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from bench.harness.region_client import Conversation
from bench.wan.waiting.verifier import MAX_DRAFTS
from outrider.codec.tokens import TokenCoder
from outrider.speculation.suffix import SuffixDrafter
from outrider.v1 import inference_pb2
from outrider.wire import tokens as token_wire


@dataclass(frozen=True, slots=True)
class WaitingPolicy:
    """How far an edge drafts."""

    max_lead: int
    """Most drafts ahead of the commits."""
    frame_drafts: int
    """Most drafts made and sent in one go."""
    streams: bool
    """Whether it drafts on while drafts are under way."""


STOP_AND_WAIT = WaitingPolicy(max_lead=4, frame_drafts=4, streams=False)
"""k = 4, the best in PicoSpec's own ablation."""
CHAIN = WaitingPolicy(max_lead=4 * MAX_DRAFTS, frame_drafts=4, streams=True)


class Source(Protocol):
    """Where drafts come from."""

    async def extend(self, ids: Sequence[int]) -> None:
        """Learn ids that are final: the prompt, then the reply."""
        ...

    async def draft_after(self, tentative: Sequence[int], max_tokens: int) -> Sequence[int]:
        """At most so many guesses after the final ids and these."""
        ...


class SuffixSource:
    """The suffix automaton that our edges draft with."""

    def __init__(self, min_survival: float = 0.2) -> None:
        self._drafter = SuffixDrafter()
        self._min_survival = min_survival

    async def extend(self, ids: Sequence[int]) -> None:
        self._drafter.extend(ids)

    async def draft_after(self, tentative: Sequence[int], max_tokens: int) -> Sequence[int]:
        return self._drafter.draft_after(tentative, max_tokens, self._min_survival).ids


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

    def add(self, ids: Sequence[int], at: float) -> None:
        """These became final."""
        self.ids.extend(ids)
        self.commits.append((at, len(self.ids)))

    def count(self, num_drafts: int, num_accepted: int) -> None:
        """What the region says of the drafts."""
        self.num_drafts, self.num_accepted = num_drafts, num_accepted


class WaitingChain:
    """What was committed, what was sent ahead of it, and whether the region owes an answer
    (pure). Without an answer owed, the edge has to ask: nothing else will come."""

    def __init__(self, policy: WaitingPolicy) -> None:
        self._policy = policy
        self._exhausted = False
        """The source knows nothing further before the next commit."""
        self._owed_plain = True
        """A round without drafts was asked for; opening is one."""
        self._sent_to: int | None = 0
        self._epoch = 0
        self.committed = 0
        self.pending: list[int] = []
        """Drafts sent, behind the committed tokens."""

    def wanted(self) -> int | None:
        """How many drafts to make now; None: wait for the region. What is made, also if it is
        nothing, goes to `frame`."""
        owed = bool(self.pending) or self._owed_plain
        if owed and (not self._policy.streams or self._exhausted):
            return None
        room = min(self._policy.frame_drafts, self._policy.max_lead - len(self.pending))
        return None if owed and room <= 0 else room

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
            self._epoch += 1
        self._sent_to = start + len(ids)
        self.pending.extend(ids)
        return self._epoch, start, joins and start > 0

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
    talk: Conversation,
    prompt: Sequence[int],
    source: Source,
    policy: WaitingPolicy,
    coder: TokenCoder,
) -> WaitingReply:
    """One reply, from the opened session to its end."""
    chain, reply = WaitingChain(policy), WaitingReply(opened_at=talk.opened_at)
    await source.extend(prompt)
    while True:
        if not talk.waiting and (wanted := chain.wanted()) is not None:
            ids = await source.draft_after(chain.pending, wanted)
            _send(talk, chain.frame(ids), ids, coder)
            continue
        frame = await talk.receive()
        match frame.WhichOneof("kind"):
            case "commit":
                final = _apply(chain, frame.commit, coder)
                reply.add(final, time.perf_counter())
                await source.extend(final)
            case "done":
                reply.count(frame.done.usage.draft_tokens, frame.done.usage.accepted_tokens)
                return reply


def _send(
    talk: Conversation, where: tuple[int, int, bool] | None, ids: Sequence[int], coder: TokenCoder
) -> None:
    if where is not None:
        epoch, base, continues = where
        block = token_wire.to_proto(coder.encode(ids))
        talk.draft(inference_pb2.Draft(epoch=epoch, base=base, ids=block, continues=continues))


def _apply(chain: WaitingChain, commit: inference_pb2.Commit, coder: TokenCoder) -> tuple[int, ...]:
    if commit.base != chain.committed:
        raise RuntimeError(f"a commit from token {commit.base}, not from {chain.committed}")
    ids = coder.decode(token_wire.from_proto(commit.ids), max_count=1 << 12)
    return chain.commit(commit.accepted, ids)
