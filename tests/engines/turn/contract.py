"""What every turn engine promises (outrider/engines/turn/base.py), as tests to inherit.

A subclass provides the fixture `engine` (may be shared by all tests of the class; they leave it
idle). Where an engine can be lost, it overrides `lost_engine`. An engine that takes long to load
has a fixture of its module instead, and `pytest.mark.asyncio(loop_scope="module")`.
"""

from __future__ import annotations

import asyncio
import itertools
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import Any

import pytest

from outrider.engines.turn.base import (
    Ability,
    BlocksStored,
    TurnEngine,
    TurnPiece,
    TurnRequest,
)
from outrider.engines.turn.refusals import check_sampling
from outrider.errors import InvalidSamplingError, ReplicaLostError
from outrider.sampling.grammar import Grammar, GrammarKind
from outrider.sampling.params import SamplingParams
from outrider.session.types import FinishReason

_NUMBERS = itertools.count(1)
LIMIT_S = 120.0
"""For whatever an engine does on a slow, busy machine."""
_GRAMMARS = {
    Ability.JSON_SCHEMA: Grammar(GrammarKind.JSON_SCHEMA, '{"type": "object"}'),
    Ability.JSON_OBJECT: Grammar(GrammarKind.JSON_OBJECT),
    Ability.REGEX: Grammar(GrammarKind.REGEX, "[a-z]+"),
    Ability.LARK: Grammar(GrammarKind.LARK, 'start: "yes" | "no"'),
}
_FIELDS: dict[Ability, dict[str, Any]] = {
    Ability.TOP_K: {"top_k": 4, "temperature": 1.0},
    Ability.MIN_P: {"min_p": 0.1, "temperature": 1.0},
    Ability.REPETITION_PENALTY: {"repetition_penalty": 1.2},
    Ability.PRESENCE_PENALTY: {"presence_penalty": 0.5},
    Ability.FREQUENCY_PENALTY: {"frequency_penalty": 0.5},
    Ability.LOGIT_BIAS: {"logit_bias": {5: 1.0}},
    Ability.LOGPROBS: {"num_logprobs": 2},
}
"""A request that needs the ability."""


def turn(length: int = 40, *, first: int = 3, max_tokens: int = 8, **fields: Any) -> TurnRequest:
    """A request with a prompt of `length` small ids, which depend on `first`."""
    salt = fields.pop("salt", b"one")
    committed, end_ids = fields.pop("committed", ()), fields.pop("end_ids", ())
    ids = tuple(1 + (first * (n + 1) + n * n) % 40 for n in range(length))
    return TurnRequest(
        number=next(_NUMBERS),
        ids=(*ids, *committed),
        sampling=SamplingParams(**fields),
        max_tokens=max_tokens,
        end_ids=end_ids,
        seed=fields.get("seed", 0),
        salt=salt,
    )


async def pieces_of(engine: TurnEngine, request: TurnRequest) -> list[TurnPiece]:
    """A whole reply."""
    async with asyncio.timeout(LIMIT_S), aclosing(engine.reply(request)) as reply:
        return [piece async for piece in reply]


async def ids_of(engine: TurnEngine, request: TurnRequest) -> tuple[int, ...]:
    """The ids of a whole reply."""
    return tuple(it for piece in await pieces_of(engine, request) for it in piece.ids)


async def idle(engine: TurnEngine) -> None:
    """Wait until nothing runs in the engine, where it says so."""
    async with asyncio.timeout(LIMIT_S):
        while (load := await engine.load()) is not None and load.running + load.waiting:
            await asyncio.sleep(0.05)


class TurnEngineContract:
    """Inherit as a test class."""

    deterministic = True
    """Whether a greedy reply is the same whatever runs beside it, and however it is cut: not
    promised, but so on the engines and prompts of these tests."""

    @pytest.fixture
    def lost_engine(self) -> TurnEngine:
        """An engine that has lost what computes."""
        pytest.fail("override lost_engine")

    async def test_info_describes_a_usable_engine(self, engine: TurnEngine) -> None:
        info = engine.info
        assert info.name
        assert info.max_sessions >= 1
        assert info.max_context_tokens > info.block_tokens >= 1
        assert not info.tells_prefixes or Ability.SALT in info.abilities

    @pytest.mark.parametrize("max_tokens", [1, 2, 9])
    async def test_a_reply_has_as_many_ids_as_asked_and_says_why_it_ends(
        self, engine: TurnEngine, max_tokens: int
    ) -> None:
        pieces = await pieces_of(engine, turn(max_tokens=max_tokens))
        assert sum(len(piece.ids) for piece in pieces) == max_tokens
        assert all(piece.ids and piece.finish is None for piece in pieces[:-1])
        assert pieces[-1].finish is FinishReason.LENGTH
        assert all(min(piece.ids, default=0) >= 0 for piece in pieces)

    async def test_pieces_come_while_the_reply_is_written(self, engine: TurnEngine) -> None:
        assert len(await pieces_of(engine, turn(max_tokens=24))) > 1

    async def test_a_reply_is_continued_where_it_was(self, engine: TurnEngine) -> None:
        whole = await ids_of(engine, turn(max_tokens=12))
        rest = await ids_of(engine, turn(committed=whole[:5], max_tokens=7))
        assert len(rest) == 7
        assert not self.deterministic or rest == whole[5:]

    async def test_an_id_that_ends_the_reply_belongs_to_it(self, engine: TurnEngine) -> None:
        whole = await ids_of(engine, turn(max_tokens=12))
        last = whole.index(whole[6])
        pieces = await pieces_of(engine, turn(max_tokens=12, end_ids=(whole[6],)))
        if self.deterministic:
            assert tuple(it for piece in pieces for it in piece.ids) == whole[: last + 1]
            assert pieces[-1].finish is FinishReason.STOP

    async def test_replies_beside_each_other_are_kept_apart(self, engine: TurnEngine) -> None:
        count = min(6, engine.info.max_sessions)
        turns = [turn(first=2 + n, max_tokens=6 + n) for n in range(count)]
        alone = [await ids_of(engine, it) for it in turns]
        again = [replace(it, number=next(_NUMBERS)) for it in turns]
        together = await asyncio.gather(*(ids_of(engine, it) for it in again))
        assert [len(it) for it in together] == [6 + n for n in range(count)]
        assert not self.deterministic or together == alone

    async def test_a_closed_reply_ends_in_the_engine(self, engine: TurnEngine) -> None:
        async with asyncio.timeout(LIMIT_S), aclosing(engine.reply(turn(max_tokens=400))) as reply:
            assert (await anext(reply)).ids
        await idle(engine)

    async def test_a_cancelled_reply_ends_in_the_engine(self, engine: TurnEngine) -> None:
        begun = asyncio.Event()

        async def read() -> None:
            async with aclosing(engine.reply(turn(max_tokens=400))) as reply:
                async for _ in reply:
                    begun.set()
                    await asyncio.sleep(0)

        task = asyncio.create_task(read())
        async with asyncio.timeout(LIMIT_S):
            await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await idle(engine)

    async def test_log_probabilities_come_with_every_id(self, engine: TurnEngine) -> None:
        if Ability.LOGPROBS not in engine.info.abilities:
            with pytest.raises(InvalidSamplingError, match="logprobs"):
                check_sampling(engine.info, turn(num_logprobs=2).sampling, 0)
            return
        for piece in await pieces_of(engine, turn(num_logprobs=2)):
            assert len(piece.logprobs) == len(piece.ids)
            for id, place in zip(piece.ids, piece.logprobs, strict=True):
                assert place.chosen.id == id
                assert place.chosen.logprob <= 0
                assert len(place.top) <= 2
                assert list(place.top) == sorted(place.top, key=lambda it: -it.logprob)

    async def test_a_seed_draws_the_same_reply_again(self, engine: TurnEngine) -> None:
        one = await ids_of(engine, turn(temperature=1.0, seed=7))
        again = await ids_of(engine, turn(temperature=1.0, seed=7))
        has_seeds = Ability.SEED in engine.info.abilities
        assert len(one) == len(again) == 8
        assert not (self.deterministic and has_seeds) or one == again

    async def test_seeds_may_have_64_bits(self, engine: TurnEngine) -> None:
        assert len(await ids_of(engine, turn(temperature=1.0, seed=2**64 - 1))) == 8

    async def test_trust_groups_share_no_cached_prefix(self, engine: TurnEngine) -> None:
        length = 3 * engine.info.block_tokens + 2
        first = 17
        await ids_of(engine, turn(length, first=first, salt=b"mine"))
        other = await pieces_of(engine, turn(length, first=first, salt=b"theirs"))
        assert not sum(piece.cached_tokens or 0 for piece in other)

    @pytest.mark.parametrize("ability", list(_FIELDS))
    async def test_what_it_does_not_know_is_refused_by_name(
        self, engine: TurnEngine, ability: Ability
    ) -> None:
        request = turn(**_FIELDS[ability])
        if ability in engine.info.abilities:
            check_sampling(engine.info, request.sampling, 0)
            assert len(await ids_of(engine, request)) == 8
        else:
            with pytest.raises(InvalidSamplingError, match=ability.value) as refused:
                check_sampling(engine.info, request.sampling, 0)
            assert engine.info.name in refused.value.message

    @pytest.mark.parametrize("ability", list(_GRAMMARS))
    async def test_grammars_it_lacks_are_refused_by_name(
        self, engine: TurnEngine, ability: Ability
    ) -> None:
        sampling = turn(grammar=_GRAMMARS[ability]).sampling
        if ability in engine.info.abilities:
            check_sampling(engine.info, sampling, 0)
        else:
            with pytest.raises(InvalidSamplingError, match=ability.value):
                check_sampling(engine.info, sampling, 0)

    async def test_stored_blocks_are_told(self, engine: TurnEngine) -> None:
        if not engine.info.tells_prefixes:
            return
        told: list[BlocksStored] = []
        size, request = engine.info.block_tokens, turn(200, first=23, salt=b"told")

        async def watch() -> None:
            async for event in engine.prefix_events():
                told.extend([event] if isinstance(event, BlocksStored) else [])

        watching = asyncio.create_task(watch())
        try:
            await asyncio.sleep(0.1)
            await ids_of(engine, request)
            async with asyncio.timeout(LIMIT_S):
                while not any(it.ids[:size] == request.ids[:size] for it in told):
                    await asyncio.sleep(0.05)
        finally:
            watching.cancel()
            with suppress(asyncio.CancelledError):
                await watching
        assert all(len(it.ids) == size * len(it.names) for it in told)
        assert all(it.salt == b"told" for it in told if it.ids[:size] == request.ids[:size])

    async def test_a_lost_engine_says_so(self, lost_engine: TurnEngine) -> None:
        with pytest.raises(ReplicaLostError):
            await ids_of(lost_engine, turn())
        with pytest.raises(ReplicaLostError):
            await lost_engine.load()
        await lost_engine.close()
        await lost_engine.close()
