"""The fake turn engine keeps the contract, and can be lost in the middle of a reply."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from outrider.engines.turn.base import TurnEngine
from outrider.engines.turn.fake import FakeTurnEngine, FakeTurnOptions
from outrider.errors import OverloadedError, ReplicaLostError
from tests.engines.turn.contract import TurnEngineContract, ids_of, pieces_of, turn


class TestFakeTurnEngine(TurnEngineContract):
    @pytest.fixture(params=[FakeTurnOptions(), FakeTurnOptions(piece_tokens=3, num_blocks=8)])
    async def engine(self, request: pytest.FixtureRequest) -> AsyncIterator[TurnEngine]:
        engine = FakeTurnEngine(request.param)
        yield engine
        assert not engine.running
        await engine.close()

    @pytest.fixture
    def lost_engine(self) -> TurnEngine:
        engine = FakeTurnEngine()
        engine.lose()
        return engine


async def test_a_reply_is_lost_with_its_engine() -> None:
    engine = FakeTurnEngine(FakeTurnOptions(token_ms=5))
    reply = asyncio.create_task(pieces_of(engine, turn(max_tokens=1000)))
    await asyncio.sleep(0.02)
    engine.lose()
    with pytest.raises(ReplicaLostError):
        await reply
    assert not engine.running


async def test_no_more_replies_than_it_has_room_for() -> None:
    engine = FakeTurnEngine(FakeTurnOptions(max_sessions=1, token_ms=1000))
    reply = engine.reply(turn())
    waiting = asyncio.create_task(anext(reply))
    await asyncio.sleep(0)
    with pytest.raises(OverloadedError):
        await ids_of(engine, turn())
    engine.lose()
    with pytest.raises(ReplicaLostError):
        await waiting
