"""Asks one scheme for a batch of chats."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from bench.harness.prompts import Prompt
from bench.harness.region_client import RegionClient, opening_frame
from bench.wan.draft_source import Sources
from bench.wan.plan import Cell, Scheme, seed_of
from bench.wan.samples import Reader, Sample
from bench.wan.waiting_edge import WaitingPolicy, converse
from outrider.client import Client, Committed
from outrider.codec.tokens import TokenCoder
from outrider.models.chat import Message
from outrider.models.vocabulary import Vocabulary
from outrider.sampling.params import SamplingParams


@dataclass(frozen=True, slots=True)
class Connections:
    """The ways to ask, all of them up."""

    gateways: Mapping[str, Client]
    """By the schemes' names for them."""
    waiting: RegionClient | None
    """None: no scheme waits."""
    sources: Sources
    """Of the bench's drafts, where it is the edge."""


@dataclass(frozen=True, slots=True)
class Asker:
    """Asks prompts and times what comes."""

    connections: Connections
    vocabulary: Vocabulary
    coder: TokenCoder
    max_tokens: int
    client_rtt_ms: float = 0.0
    """Of the last mile. Where the bench is client and edge in one, nothing travels it: a chat's
    request and its answers would take half of it each, so all its times are later by all of it."""

    async def ask_all(
        self, scheme: Scheme, cell: Cell, prompts: Sequence[Prompt], turn: int = 0, first: int = 0
    ) -> tuple[Sample, ...]:
        """All prompts at once, the first of which has this number in its round; in their order."""
        way = self._way(scheme)

        async def one(number: int, prompt: Prompt) -> Sample:
            seed = seed_of(turn, number)
            return await way(prompt, sampling_of(cell.temperature, seed, self.max_tokens))

        return tuple(await asyncio.gather(*(one(n, p) for n, p in enumerate(prompts, first))))

    def _way(self, scheme: Scheme) -> Callable[[Prompt, SamplingParams], Awaitable[Sample]]:
        policy = scheme.policy
        if policy is not None:
            return lambda prompt, sampling: self._as_edge(policy, prompt, sampling)
        return lambda prompt, sampling: self._as_client(scheme, prompt, sampling)

    async def _as_client(self, scheme: Scheme, prompt: Prompt, sampling: SamplingParams) -> Sample:
        assert scheme.gateway is not None
        return await ask_client(
            self.connections.gateways[scheme.gateway],
            messages_of(prompt),
            sampling,
            provisional=scheme.provisional,
            speculation=scheme.speculation,
        )

    async def _as_edge(
        self, policy: WaitingPolicy, prompt: Prompt, sampling: SamplingParams
    ) -> Sample:
        assert self.connections.waiting is not None
        began = time.perf_counter()
        ids = self.vocabulary.encode_chat(messages_of(prompt))
        opening = opening_frame(self.coder, ids, sampling, self.vocabulary.digest)
        source = self.connections.sources.open(ids, sampling, policy.max_lead)
        with contextlib.closing(source):
            async with self.connections.waiting.open(opening) as talk:
                reply = await converse(talk, source, policy, self.coder)
        reader, detokenizer, upto = Reader(), self.vocabulary.detokenizer(), 0
        for at, count in reply.commits:
            final = tuple(reply.ids[upto:count])
            upto = count
            at_ms = (at - began) * 1000 + self.client_rtt_ms
            reader.take(Committed(detokenizer.push_all(final), final, upto), at_ms)
        return reader.sample(reply.num_drafts, reply.num_accepted, reply.num_restarts)


async def ask_client(
    client: Client,
    messages: list[Message],
    sampling: SamplingParams,
    *,
    provisional: bool,
    speculation: Literal["on", "off", "region_only"] = "on",
) -> Sample:
    """One chat as its reader sees it."""
    reader = Reader()
    began = time.perf_counter()
    async with client.chat(
        messages, sampling=sampling, provisional=provisional, speculation=speculation
    ) as chat:
        async for event in chat:
            reader.take(event, (time.perf_counter() - began) * 1000)
        result = await chat.result()
    usage, edge = result.usage, result.speculation_stats
    return reader.sample(usage.draft_tokens, usage.accepted_tokens, edge=edge)


def messages_of(prompt: Prompt) -> list[Message]:
    """The chat of a prompt."""
    return [Message("user", prompt.text)]


def sampling_of(temperature: float, seed: int, max_tokens: int) -> SamplingParams:
    """How a chat is answered, by whatever scheme."""
    return SamplingParams(temperature=temperature, seed=seed, max_tokens=max_tokens)
