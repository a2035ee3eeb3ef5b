"""Sessions with a grammar: as all others, once it is compiled."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from outrider import errors
from outrider.codec.tokens import TokenCodec
from outrider.fair_work.turns import Requester
from outrider.sampling.constraint import Constraint
from outrider.sampling.grammar import Grammar, GrammarKind
from outrider.sampling.params import SamplingParams
from outrider.session.types import FinishReason
from outrider.testing import eventually
from outrider.v1 import common_pb2, inference_pb2
from outrider.wire import finish_reason_to_proto, token_block_to_proto
from services.inference.streaming.sessions import ConstraintSource
from tests.inference.harness import CODER, SALT, Running, opening, reference, running

PROMPT = tuple(range(3, 30))
GRAMMAR = Grammar(GrammarKind.REGEX, "(begin[A-F]{3}end ){2,4}Z")
SAMPLING = SamplingParams(max_tokens=90, grammar=GRAMMAR)
STOP = finish_reason_to_proto(FinishReason.STOP)


class Slow:
    """Compiles when it is told to."""

    def __init__(self, it: Running) -> None:
        assert it.replica.table._grammars is not None
        self._real: ConstraintSource = it.replica.table._grammars
        self.may_go_on = asyncio.Event()
        self.num_asked = 0
        it.replica.table._grammars = self

    def kept(
        self, group: bytes, sampling: SamplingParams, prompt: Sequence[int]
    ) -> Constraint | None:
        return None

    async def constraint(
        self,
        group: bytes,
        sampling: SamplingParams,
        prompt: Sequence[int],
        requester: Requester,
    ) -> Constraint:
        self.num_asked += 1
        await self.may_go_on.wait()
        return await self._real.constraint(group, sampling, prompt, requester)


@pytest.mark.parametrize("temperature", [0.0, 0.9])
async def test_the_reply_is_the_references_and_follows_the_grammar(temperature: float) -> None:
    sampling = SamplingParams(max_tokens=90, temperature=temperature, seed=3, grammar=GRAMMAR)
    truth = reference(PROMPT, sampling)
    assert truth.finish_reason is FinishReason.STOP and truth.text.endswith("end Z")
    async with running() as it:
        peer = it.peer()
        for number, speculation in enumerate(common_pb2.Speculation.values(), start=1):
            await peer.open(number, PROMPT, sampling, speculation=speculation)
        for number in range(1, 5):
            reply = await peer.finish(number)
            assert tuple(reply.ids) == truth.ids
            assert reply.done is not None and reply.done.finish_reason == STOP


async def test_a_reply_goes_on_where_another_replica_left_it() -> None:
    truth = reference(PROMPT, SAMPLING).ids
    async with running() as it:
        peer = it.peer()
        for number, begun in enumerate((1, 7, len(truth) - 1, len(truth)), start=1):
            peer.replies[number].ids.extend(truth[:begun])
            resume = token_block_to_proto(CODER.encode(truth[:begun], TokenCodec.VARINT))
            await peer.open(number, PROMPT, SAMPLING, resume=resume)
            assert tuple((await peer.finish(number)).ids) == truth


@pytest.mark.parametrize(
    ("grammar", "says"),
    [
        (common_pb2.Grammar(kind=common_pb2.GRAMMAR_KIND_REGEX, text="(secret"), "expression"),
        (common_pb2.Grammar(kind=common_pb2.GRAMMAR_KIND_JSON_OBJECT), "vocabulary"),
        (common_pb2.Grammar(kind=common_pb2.GRAMMAR_KIND_JSON_SCHEMA, text="[1"), "JSON"),
        (common_pb2.Grammar(kind=common_pb2.GRAMMAR_KIND_UNSPECIFIED, text="a"), "kind 0"),
    ],
)
async def test_grammars_that_are_none(grammar: common_pb2.Grammar, says: str) -> None:
    sampling = common_pb2.Sampling(max_tokens=9, grammar=grammar)
    async with running() as it:
        peer = it.peer()
        for number in (1, 2):  # the second finds nothing left of the first
            frame = inference_pb2.SessionUp(session=number, open=opening(PROMPT, sampling))
            await peer.send(frame)
            refused = (await peer.finish(number)).error
            assert type(refused) is errors.InvalidSamplingError
            assert says in refused.message and "secret" not in refused.message


async def test_others_are_served_while_a_grammar_is_compiled() -> None:
    async with running() as it:
        slow, peer = Slow(it), it.peer()
        await peer.open(1, PROMPT, SAMPLING)
        await eventually(lambda: slow.num_asked == 1)
        await peer.open(2, PROMPT, SamplingParams(max_tokens=5))
        assert (await peer.finish(2)).done is not None
        truth = reference(PROMPT, SAMPLING).ids
        await peer.draft(1, 0, 0, truth[:3])
        await peer.draft(1, 0, 3, truth[3:6])
        await eventually(lambda: len(_early_drafts(it)) == 2)
        slow.may_go_on.set()
        reply = await peer.finish(1)
        assert tuple(reply.ids) == truth
        assert reply.num_accepted >= 6, "what came before the session began was not lost"


def _early_drafts(it: Running) -> list[Any]:
    (session,) = it.replica.table._live.values()
    return session.early_drafts or []


async def test_drafts_before_the_grammar_is_compiled_are_bounded() -> None:
    async with running() as it:
        slow, peer = Slow(it), it.peer()
        await peer.open(1, PROMPT, SAMPLING)
        for _ in range(70):
            await peer.draft(1, 0, 0, [4])
        await eventually(lambda: it.value("outrider_draft_dropped_frames_total") == 6)
        assert len(_early_drafts(it)) == 64
        slow.may_go_on.set()
        assert tuple((await peer.finish(1)).ids) == reference(PROMPT, SAMPLING).ids


async def test_a_session_that_is_cancelled_before_its_grammar_is_compiled() -> None:
    async with running() as it:
        slow, peer = Slow(it), it.peer()
        await peer.open(1, PROMPT, SAMPLING)
        await eventually(lambda: slow.num_asked == 1)
        await peer.cancel(1)
        done = (await peer.finish(1)).done  # though nothing is compiled
        assert done is not None
        assert done.finish_reason == finish_reason_to_proto(FinishReason.CANCELLED)


async def test_a_grammar_that_fails_ends_its_session_alone() -> None:
    class Failing(Slow):
        async def constraint(
            self,
            group: bytes,
            sampling: SamplingParams,
            prompt: Sequence[int],
            requester: Requester,
        ) -> Constraint:
            raise RuntimeError("a defect, with text of the grammar")

    async with running() as it:
        Failing(it)
        peer = it.peer()
        await peer.open(1, PROMPT, SAMPLING)
        error = (await peer.finish(1)).error
        assert type(error) is errors.EngineError and "text of" not in error.message
        await peer.open(2, PROMPT, SamplingParams(max_tokens=5))
        assert (await peer.finish(2)).done is not None
        assert not it.replica.table._awaiting_usage


async def test_a_peer_that_is_gone_before_its_grammar_is_compiled_leaves_nothing() -> None:
    async with running() as it:
        slow, peer = Slow(it), it.peer()
        await peer.open(1, PROMPT, SAMPLING)
        await eventually(lambda: slow.num_asked == 1)
        peer.call.cancel()
        await eventually(lambda: not len(it.replica.table))
        assert not it.replica.table._compiling, "nothing is compiled for who is gone"
        assert not it.replica.table._awaiting_usage
        assert not it.replica.scheduler.has_work


async def test_groups_share_no_compiled_grammar() -> None:
    async with running() as it:
        peer = it.peer()
        for number, salt in enumerate((SALT, SALT, b"another"), start=1):
            await peer.open(number, PROMPT, SAMPLING, cache_salt=salt)
            await peer.finish(number)
        grammars = it.replica._grammars
        assert grammars is not None
        assert len(grammars._kept) == 2, "one of each group"
