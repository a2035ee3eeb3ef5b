"""What the shell around a turn engine reports, and when."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial

import pytest

from outrider.engines.turn.base import TurnPiece, TurnRequest
from outrider.engines.turn.fake import FakeTurnEngine
from outrider.sampling.params import SamplingParams
from outrider.testing import eventually
from services.inference.model_thread import ModelTick
from services.inference.scheduler.types import Finished, OpenRequest, SessionCommit
from services.inference.turns import sessions
from services.inference.turns.prefixes import CachedPrefixes
from services.inference.turns.runner import TurnRunner
from services.inference.turns.sessions import TurnLimits, TurnSessions
from tests.inference.letters import VOCABULARY_SIZE, new_reply


class Stepped(FakeTurnEngine):
    """Writes a piece of a reply for each `step` of it."""

    def __init__(self) -> None:
        super().__init__()
        self._steps: defaultdict[int, asyncio.Queue[None]] = defaultdict(asyncio.Queue)
        self.num_taken: defaultdict[int, int] = defaultdict(int)
        """Pieces that were dealt with, by reply."""

    async def reply(self, request: TurnRequest) -> AsyncGenerator[TurnPiece, None]:
        async with aclosing(super().reply(request)) as pieces:
            async for piece in pieces:
                await self._steps[request.number].get()
                yield piece
                self.num_taken[request.number] += 1

    def step(self, number: int) -> None:
        self._steps[number].put_nowait(None)


def tokens(ticks: list[ModelTick], number: int) -> int:
    """Tokens that were reported of a session."""
    events = [event for tick in ticks for event in tick.events]
    commits = [it for it in events if isinstance(it, SessionCommit) and it.session_id == number]
    return sum(len(it.commit.ids) for it in commits)


def has_token(ticks: list[ModelTick], number: int) -> bool:
    return tokens(ticks, number) > 0


async def test_a_token_waits_for_those_of_others_and_no_first_one_or_end_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sessions, "_MAX_GATHER_S", 3600.0)
    monkeypatch.setattr(sessions, "_GATHERED_SHARE", 1e9)
    engine, ticks = Stepped(), list[ModelTick]()
    info = engine.info
    limits = TurnLimits(info.max_sessions, 4, info.max_context_tokens, VOCABULARY_SIZE)
    table = TurnSessions(info, limits, new_reply, frozenset())
    prefixes = CachedPrefixes(info.block_tokens)
    # Its question for the engine's load would be followed by a report.
    runner = TurnRunner(engine, table, prefixes, ticks.append, load_interval_s=3600.0)
    runner.start()
    try:
        for number, length in ((1, 9), (2, 2)):
            sampling = SamplingParams(max_tokens=length, ignore_eos=True)
            runner.open(OpenRequest(number, tuple(range(3, 13)), sampling))
            engine.step(number)
            await eventually(partial(has_token, ticks, number))
        engine.step(1)
        await eventually(lambda: engine.num_taken[1] == 2)
        assert tokens(ticks, 1) == 1, "it waits"
        engine.step(2)
        await eventually(lambda: tokens(ticks, 1) == tokens(ticks, 2) == 2)
        (last,) = [tick for tick in ticks if any(isinstance(it, Finished) for it in tick.events)]
        assert {it.session_id for it in last.events} == {1, 2}, "they travelled together"
        engine.step(1)
        await eventually(lambda: tokens(ticks, 1) == 3)
    finally:
        await runner.stop()
