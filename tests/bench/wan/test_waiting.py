"""The published schemes' edges and their region: exact text, and waiting where they must."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.harness.region_client import RegionClient, opening_frame
from bench.relay.lane import Conditions
from bench.relay.tcp import TcpLink
from bench.wan.draft_source import Source, SuffixSource
from bench.wan.waiting_edge import (
    CHAIN,
    STOP_AND_WAIT,
    WaitingChain,
    WaitingPolicy,
    WaitingReply,
    converse,
)
from bench.wan.waiting_server import VerifierLoop, serving
from bench.wan.waiting_verifier import ScheduledSession, Verdict, Verifier
from outrider.codec.tokens import TokenCoder
from outrider.engines.fake import FakeEngine, FakeOptions
from outrider.errors import OverloadedError
from outrider.sampling.params import SamplingParams
from outrider.testing import leak_check
from services.inference.reference import generate
from services.inference.scheduler.types import Drafts
from tests.inference.letters import DIGEST, VOCABULARY_SIZE, new_reply

CODER = TokenCoder(DIGEST, VOCABULARY_SIZE)
PROMPT = (5, 6, 7, 8, 5, 6, 7)
GREEDY = SamplingParams(max_tokens=24, ignore_eos=True)
SAMPLED = SamplingParams(temperature=0.8, seed=3, max_tokens=24, ignore_eos=True)


def truth(prompt: Sequence[int], sampling: SamplingParams) -> tuple[int, ...]:
    return generate(FakeEngine(), prompt, sampling, new_reply).ids


class Region:
    """A verifier and its engine, call by call."""

    def __init__(self, options: FakeOptions | None = None) -> None:
        self.engine = FakeEngine(options)
        self.verifier = Verifier(self.engine.info, new_reply)

    def open(self, number: int, prompt: Sequence[int], sampling: SamplingParams) -> None:
        self.engine.open(number, self.verifier.open(number, prompt, sampling))

    def call(self) -> list[Verdict]:
        """The next call, if somebody asked."""
        parts: list[ScheduledSession] = self.verifier.decide()
        rows = self.engine.step([part.slice for part in parts]) if parts else []
        return self.verifier.apply(parts, rows)


def test_a_region_that_is_not_asked_does_nothing() -> None:
    region = Region()
    region.open(1, PROMPT, GREEDY)
    (first,) = region.call()
    assert (first.base, first.upto) == (0, 1)
    assert region.verifier.decide() == []
    region.verifier.draft(1, Drafts(1, 1, ()))
    assert region.call()[0].ids == truth(PROMPT, GREEDY)[1:2]
    assert region.verifier.decide() == []


def test_right_drafts_are_counted_and_a_wrong_one_ends_the_chain() -> None:
    region, right = Region(), truth(PROMPT, GREEDY)
    region.open(1, PROMPT, GREEDY)
    region.call()
    wrong = (right[3] + 1) % VOCABULARY_SIZE
    region.verifier.draft(1, Drafts(1, 1, (*right[1:3], wrong, right[4])))
    (verdict,) = region.call()
    assert (verdict.accepted, verdict.ids, verdict.upto) == (2, right[3:4], 4)
    assert region.verifier.decide() == []
    region.verifier.draft(1, Drafts(1, 5, right[5:6], continues=True))
    assert region.verifier.decide() == [], "the rest of a dead chain asks for nothing"
    region.verifier.draft(1, Drafts(2, 4, right[4:6]))
    assert region.call()[0].upto == 7


def test_a_long_prompt_is_read_in_parts_and_others_go_on() -> None:
    region = Region(FakeOptions(num_blocks=512))
    long = tuple(n % VOCABULARY_SIZE for n in range(700))
    region.open(1, long, GREEDY)
    region.open(2, PROMPT, GREEDY)
    assert [verdict.session for verdict in region.call()] == [2]
    while not (verdicts := region.call()):
        pass
    assert (verdicts[0].session, verdicts[0].ids) == (1, truth(long, GREEDY)[:1])


def test_blocks_come_back_and_are_refused_when_gone() -> None:
    region = Region(FakeOptions(num_blocks=4))
    for number in range(1, 5):
        region.open(number, PROMPT, GREEDY)
        with pytest.raises(OverloadedError):
            region.open(9, PROMPT, GREEDY)
        assert region.verifier.close(number) is not None
    assert region.verifier.close(9) is None


@given(
    policy=st.sampled_from((STOP_AND_WAIT, CHAIN, WaitingPolicy(3, 2, streams=True))),
    drafts=st.lists(st.lists(st.integers(0, 3), max_size=5), min_size=1, max_size=30),
    tokens=st.lists(st.integers(0, 3), min_size=30, max_size=30),
)
def test_an_edge_never_stands_still_and_joins_every_commit(
    policy: WaitingPolicy, drafts: list[list[int]], tokens: list[int]
) -> None:
    """The region here commits drafts as long as they are right, then a token of its own."""
    chain, told, owed = WaitingChain(policy), list[int](), True
    for number in range(1000):
        if chain.committed == len(tokens):
            break
        wanted = chain.wanted()
        if wanted is not None:
            least, most = wanted
            ids = drafts[number % len(drafts)][:most]
            assert 1 <= least <= most <= policy.frame_drafts
            assert policy.streams or least == most
            where = chain.frame(ids)
            if where is not None:
                owed = True
                assert where[1] + len(ids) <= chain.committed + policy.max_lead
            continue
        assert owed, "the edge waits for a region that was not asked"
        right = tokens[chain.committed :]
        agreed = num_agreeing(chain.pending, right)
        told += chain.commit(agreed, right[agreed : agreed + 1])
        owed = bool(chain.pending)
    assert told == tokens


def num_agreeing(one: Sequence[int], other: Sequence[int]) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))


async def reply(
    client: RegionClient, sampling: SamplingParams, policy: WaitingPolicy, source: Source
) -> WaitingReply:
    opening = opening_frame(CODER, PROMPT, sampling, DIGEST)
    async with client.open(opening) as talk:
        return await converse(talk, source, policy, CODER)


def verifier_loop() -> VerifierLoop:
    engine = FakeEngine()
    return VerifierLoop(engine, Verifier(engine.info, new_reply), CODER)


@asynccontextmanager
async def asking(delay_ms: float = 0.0) -> AsyncIterator[RegionClient]:
    """A client of a verifier behind a link with this delay each way."""
    async with leak_check(), serving(verifier_loop()) as (port, _):
        link = TcpLink(("127.0.0.1", port), seed=1)
        front = await link.start()
        slow = Conditions(delay_ms=delay_ms)
        link.set(slow, slow)
        async with RegionClient(CODER, f"127.0.0.1:{front}", via_router=False) as client:
            yield client
        await link.stop()


@pytest.mark.parametrize("policy", [STOP_AND_WAIT, CHAIN])
@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED])
async def test_replies_are_exact(policy: WaitingPolicy, sampling: SamplingParams) -> None:
    async with asking() as client:
        got = await reply(client, sampling, policy, SuffixSource(PROMPT))
    assert tuple(got.ids) == truth(PROMPT, sampling)
    assert got.commits[-1][1] == len(got.ids)
    assert 0 < got.num_accepted <= got.num_drafts
    assert got.num_restarts <= len(got.commits)


async def test_stop_and_wait_pays_the_round_trip_every_exchange() -> None:
    async with asking(delay_ms=10) as client:
        got = await reply(client, GREEDY, STOP_AND_WAIT, SuffixSource(PROMPT))
    assert tuple(got.ids) == truth(PROMPT, GREEDY)
    passed = got.commits[-1][0] - got.commits[0][0]
    assert passed >= 0.020 * (len(got.commits) - 1)
