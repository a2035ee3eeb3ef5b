"""Generates many replies at a time with the target in torch: slots that each run one chat after
the other, a token of every slot per step."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tools.train_draft.self_written import NGRAM, Seed, Template
from tools.train_draft.target_network import TargetNetwork

_WRITES, _REPLIES, _ENDED, _LOST = range(4)
"""What a slot is doing."""
_MIN_TURN = 2
"""Tokens of a user's turn at least."""


@dataclass(slots=True)
class Pool:
    """Chats that are over, with what the target thought before every token of their replies. All on
    the device; lists are of what was added at a time."""

    tokens: list[Tensor] = field(default_factory=list)
    """[sum of lengths]"""
    lengths: list[Tensor] = field(default_factory=list)
    """[n] of whole chats."""
    replies: list[Tensor] = field(default_factory=list)
    """[n] of replies, which end the chats."""
    greedy: list[Tensor] = field(default_factory=list)
    """[n] whether the reply is."""
    own: list[Tensor] = field(default_factory=list)
    """[n] whether the target wrote the prompt too."""
    hidden: list[Tensor] = field(default_factory=list)
    """[sum of replies, width] normed hidden rows, in 16 bits."""
    masses: list[Tensor] = field(default_factory=list)
    """[sum of replies] log of the sum of exp(logit)."""
    top: list[Tensor] = field(default_factory=list)
    """[sum of replies] the likeliest id."""
    num_rows: int = 0
    """Reply tokens in all."""


class Slots:
    """B slots of up to S tokens each. Seeds are taken in turn, again from the first after the last:
    those that write their prompt write another one each time."""

    def __init__(
        self,
        network: TargetNetwork,
        template: Template,
        stop_ids: Sequence[int],
        seeds: Sequence[Seed],
        num_slots: int,
        num_positions: int,
        *,
        reads: bool = False,
        graphs: bool = False,
    ) -> None:
        """`reads`: prompts are read in one go and not token by token, which pays for long ones.
        `graphs`: steps are captured as CUDA graphs. Seeds that are too long are left out."""
        self._network = network
        self._reads = reads
        self._graphs = graphs
        self._span = num_positions
        device = network.device
        self._answer = torch.tensor(template.answer[1:], device=device)
        self._turn_end = template.answer[0]
        self._begin = len(template.begin)
        room = num_positions - len(template.answer) - 1
        fitting = [
            seed
            for seed in seeds
            if len(seed.ids) + seed.max_tokens + (16 if seed.writes_prompt else 0) < room
        ]
        if not fitting:
            raise ValueError(f"no seed fits {num_positions} positions")
        self._queue = _queue(fitting, template, num_positions, device)
        self._num_seeds = len(fitting)
        self._next = 0
        self._stops = torch.tensor(sorted(stop_ids), device=device)
        width = network.geometry.embedding_length

        def full(value: int, kind: torch.dtype = torch.int64) -> Tensor:
            return torch.full((num_slots,), value, dtype=kind, device=device)

        self._slots = torch.arange(num_slots, device=device)
        self._tokens = torch.zeros(num_slots, num_positions, dtype=torch.int64, device=device)
        self._at, self._known, self._begins, self._most = full(0), full(1), full(0), full(0)
        self._phase = full(_LOST)
        self._temperature, self._reply_temperature = full(0, torch.float32), full(0, torch.float32)
        self._own, self._usual, self._has_begin = (full(0, torch.bool) for _ in range(3))
        self._hidden = torch.zeros(
            num_slots, num_positions, width, dtype=torch.float16, device=device
        )
        self._masses = torch.zeros(num_slots, num_positions, device=device)
        self._top = torch.zeros(num_slots, num_positions, dtype=torch.int64, device=device)
        self._cache = network.new_cache(num_slots, num_positions)
        self._choose = torch.compile(_choose) if graphs else _choose
        self._graph: torch.cuda.CUDAGraph | None = None
        self.num_steps = 0

    @torch.inference_mode()
    def run(self, pool: Pool, is_over: Callable[[], bool], *, steps_per_harvest: int = 8) -> None:
        """Generate into `pool` until `is_over`, which is asked at every harvest. Chats under way
        are lost."""
        while True:
            self._harvest(pool)
            if is_over():
                return
            self._refill()
            for _ in range(steps_per_harvest):
                self._advance()

    def _advance(self) -> None:
        self.num_steps += 1
        if not self._graphs:
            self._step()
            return
        if self._graph is None:
            self._graph = self._captured()
        self._graph.replay()

    def _captured(self) -> torch.cuda.CUDAGraph:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):
                self._step()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._step()
        return graph

    def _step(self) -> None:
        slots, at = self._slots, self._at
        hidden = self._network.step(self._tokens[slots, at], at, self._cache)
        logits = self._network.logits(hidden)
        top, masses, choice = self._choose(logits, self._temperature)
        self._hidden[slots, at] = hidden.to(self._hidden.dtype)
        self._top[slots, at] = top
        self._masses[slots, at] = masses
        behind = (at + 1).clamp(max=self._span - 1)
        is_given = behind < self._known
        token = torch.where(is_given, self._tokens[slots, behind], choice)
        active = self._phase < _ENDED
        self._tokens[slots, behind] = torch.where(active, token, self._tokens[slots, behind])
        self._turn(behind, token, is_given)
        self._at.copy_(torch.where(active, behind, at))

    def _turn(self, behind: Tensor, token: Tensor, is_given: Tensor) -> None:
        """What the token at `behind` ends."""
        slots, phase = self._slots, self._phase
        writes = (phase == _WRITES) & ~is_given
        ends_turn = writes & (token == self._turn_end)
        stops = (token[:, None] == self._stops).any(1)
        room = self._span - len(self._answer) - self._most - 1
        lost = writes & ~ends_turn & ((behind >= room) | stops)
        lost |= ends_turn & ((behind >= room) | (behind < self._known + _MIN_TURN - 1))
        ends_turn &= ~lost
        columns = (
            behind[:, None] + 1 + torch.arange(len(self._answer), device=slots.device)
        ).clamp(max=self._span - 1)
        there = self._tokens[slots[:, None], columns]
        self._tokens[slots[:, None], columns] = torch.where(ends_turn[:, None], self._answer, there)
        known = behind + 1 + len(self._answer)
        replies = (phase == _REPLIES) & ~is_given
        over = replies & (stops | (behind + 1 >= self._begins + self._most))
        self._known.copy_(torch.where(ends_turn, known, self._known))
        self._begins.copy_(torch.where(ends_turn, known, self._begins))
        self._temperature.copy_(torch.where(ends_turn, self._reply_temperature, self._temperature))
        phase.masked_fill_(ends_turn, _REPLIES)
        phase.masked_fill_(over, _ENDED)
        phase.masked_fill_(lost, _LOST)

    def _harvest(self, pool: Pool) -> None:
        ended = (self._phase == _ENDED).nonzero()[:, 0]
        if not len(ended):
            return
        lengths = self._at[ended] + 1
        begins = self._begins[ended]
        place = torch.arange(self._span, device=ended.device)
        whole = place < lengths[:, None]
        rows = (place >= begins[:, None] - 1) & (place < lengths[:, None] - 1)
        pool.tokens.append(self._tokens[ended][whole].int())
        pool.lengths.append(lengths)
        pool.replies.append(lengths - begins)
        pool.greedy.append(self._temperature[ended] == 0)
        pool.own.append(self._own[ended])
        where, column = rows.nonzero(as_tuple=True)
        where = ended[where]
        pool.hidden.append(self._hidden[where, column])
        pool.masses.append(self._masses[where, column])
        pool.top.append(self._top[where, column].int())
        pool.num_rows += len(where)

    def _refill(self) -> None:
        free = (self._phase >= _ENDED).nonzero()[:, 0]
        if not len(free):
            return
        which = (self._next + torch.arange(len(free), device=free.device)) % self._num_seeds
        self._next = (self._next + len(free)) % self._num_seeds
        queue = self._queue
        self._tokens[free] = queue.tokens[which].long()
        known, most = queue.known[which], queue.most[which]
        self._known[free] = known
        self._begins[free] = known
        self._most[free] = most
        own = queue.own[which]
        self._own[free] = own
        self._reply_temperature[free] = queue.temperature[which]
        self._temperature[free] = torch.where(own, 1.0, queue.temperature[which])
        self._phase[free] = torch.where(own, _WRITES, _REPLIES)
        usual = queue.usual[which]
        has_begin = usual & self._has_begin[free]
        self._has_begin[free] = usual
        if not self._reads:
            self._at[free] = torch.where(has_begin, self._begin - 1, 0)
            return
        self._at[free] = known - 1
        order = known.argsort()
        for part in order.split(64):
            longest = int(known[part].max())
            self._network.read(self._tokens[free[part], :longest], self._cache, free[part])


def _choose(logits: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of rows [B, V]: the likeliest ids, the log masses and what is chosen, each [B]."""
    top = logits.argmax(1)
    noise = -torch.log(-torch.log(torch.rand_like(logits).clamp(1e-20, 1 - 6e-8)))
    sampled = (logits / temperature.clamp(min=1e-3)[:, None] + noise).argmax(1)
    return top, logits.logsumexp(1), torch.where(temperature == 0, top, sampled)


@dataclass(frozen=True, slots=True)
class _Queue:
    tokens: Tensor
    """[n, S]"""
    known: Tensor
    """[n] ids given."""
    most: Tensor
    temperature: Tensor
    own: Tensor
    usual: Tensor
    """[n] whether the ids begin as most do, so that a slot has their keys and values."""


def _queue(seeds: Sequence[Seed], template: Template, span: int, device: torch.device) -> _Queue:
    tokens = torch.zeros(len(seeds), span, dtype=torch.int32)
    for at, seed in enumerate(seeds):
        tokens[at, : len(seed.ids)] = torch.tensor(seed.ids, dtype=torch.int32)
    begin = template.begin
    return _Queue(
        tokens.to(device),
        torch.tensor([len(seed.ids) for seed in seeds]).to(device),
        torch.tensor([seed.max_tokens for seed in seeds]).to(device),
        torch.tensor([seed.temperature for seed in seeds]).to(device),
        torch.tensor([seed.writes_prompt for seed in seeds]).to(device),
        torch.tensor([seed.ids[: len(begin)] == begin for seed in seeds]).to(device),
    )


@dataclass(frozen=True, slots=True)
class Chats:
    """A pool as one: n chats in no order. What a part is, Pool says."""

    tokens: Tensor
    offsets: Tensor
    """[n] of chats in `tokens`."""
    lengths: Tensor
    replies: Tensor
    rows: Tensor
    """[n] of the first reply token in `hidden` and what is beside it."""
    greedy: Tensor
    own: Tensor
    hidden: Tensor
    masses: Tensor
    top: Tensor

    def __len__(self) -> int:
        return len(self.lengths)


def joined(pool: Pool) -> Chats:
    """All chats so far. The pool's lists have one part each afterwards: nothing is there twice."""

    def whole(parts: list[Tensor]) -> Tensor:
        parts[:] = [torch.cat(parts)]
        return parts[0]

    lengths, replies = whole(pool.lengths), whole(pool.replies)
    return Chats(
        whole(pool.tokens),
        lengths.cumsum(0) - lengths,
        lengths,
        replies,
        replies.cumsum(0) - replies,
        whole(pool.greedy),
        whole(pool.own),
        whole(pool.hidden),
        whole(pool.masses),
        whole(pool.top),
    )


def wanted(chats: Chats, canonical_ids: Tensor, forbidden: Tensor) -> Tensor:
    """[m] the chats to learn from, as indices: each prompt once per way of choosing, and none that
    has NGRAM ids in a row of `forbidden` [n, NGRAM]."""
    device = chats.tokens.device
    generator = torch.Generator().manual_seed(1)
    factors = torch.randint(-(1 << 62), 1 << 62, (4096,), generator=generator).to(device) | 1
    ids = canonical_ids[chats.tokens.long()]
    bad = (forbidden * factors[:NGRAM]).sum(1)
    grams = torch.zeros_like(ids[NGRAM - 1 :])
    for at in range(NGRAM):
        grams += ids[at : len(ids) - NGRAM + 1 + at] * factors[at]
    owner = torch.repeat_interleave(torch.arange(len(chats), device=device), chats.lengths)
    copies = torch.zeros(len(chats), dtype=torch.bool, device=device)
    copies[owner[: len(grams)][torch.isin(grams, bad)]] = True
    place = torch.arange(len(ids), device=device) - chats.offsets[owner]
    in_prompt = place < (chats.lengths - chats.replies)[owner]
    terms = torch.where(in_prompt, (chats.tokens.long() + 1) * factors[place % len(factors)], 0)
    keys = torch.zeros(len(chats), dtype=torch.int64, device=device).index_add_(0, owner, terms)
    keys = keys * 2 + chats.greedy.long()
    order = torch.argsort(keys, stable=True)
    first = torch.ones_like(copies)
    first[order[1:]] = keys[order[1:]] != keys[order[:-1]]
    return (first & ~copies).nonzero()[:, 0]


def for_seconds(seconds: float) -> Callable[[], bool]:
    """Over after so many."""
    end = time.monotonic() + seconds
    return lambda: time.monotonic() > end
