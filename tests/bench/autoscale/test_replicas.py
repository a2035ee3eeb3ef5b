"""The fluid beside the model that makes every engine call."""

from __future__ import annotations

import random
from statistics import fmean
from typing import Protocol

import pytest

from bench.autoscale.replicas import FluidReplica
from bench.harness import quantile
from bench.oracle.replicas import MAX_SESSIONS, ModelReplica, Speed
from bench.scale.calls import CallTimes
from bench.scale.clock import Clock
from bench.scale.demand import Ask
from bench.scale.replicas import Hooks

TIMES = CallTimes({rows: [8.0 + 0.8 * rows] * 10 for rows in (2, 256)}, 0.05)
SPEED = Speed(TIMES)
PROMPT_TOKENS, REPLY_TOKENS = 200, 300


class Served(Protocol):
    """Either of the two."""

    def open(self, ask: Ask) -> None: ...


def asks(rate: float, count: int) -> list[Ask]:
    """Chats at this many a second. Their first blocks differ, so nothing is shared."""
    chance, now, found = random.Random(3), 0.0, []
    for number in range(1, count + 1):
        now += chance.expovariate(rate)
        hashes = (number.to_bytes(32, "big"),)
        prompt = (0,) * (PROMPT_TOKENS + 32)
        reply = 1 + int(chance.expovariate(1 / REPLY_TOKENS))
        found.append(Ask(number, now, 0, prompt, hashes, reply))
    return found


class Bench:
    """One replica and its clients."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.hooks = Hooks(self._committed, self._finished, lambda ask, why: None)

    def _committed(self, ask: Ask, count: int) -> None:
        ask.committed += count
        ask.first_at = ask.first_at or self.clock.now

    def _finished(self, ask: Ask) -> None:
        ask.ended_at = self.clock.now

    def run(self, replica: Served, chats: list[Ask]) -> list[Ask]:
        for ask in chats:
            self.clock.at(ask.at, replica.open, ask)
        self.clock.run(chats[-1].at + 3600.0)
        assert all(ask.committed == ask.reply_tokens for ask in chats)
        return chats


@pytest.mark.parametrize("share", [0.4, 0.8])
def test_it_takes_as_long_as_the_calls_do(share: float) -> None:
    """Within a tenth on average, and a quarter at p95, where a last call's size counts."""
    rate = share * 1.4
    fluid, calls = Bench(), Bench()
    ours = fluid.run(FluidReplica(fluid.clock, SPEED, fluid.hooks), asks(rate, 1500))
    model = ModelReplica(calls.clock, TIMES, SPEED, calls.hooks, 1)
    theirs = calls.run(model, asks(rate, 1500))
    for value, tolerance in ((fmean, 0.1), (lambda it: quantile(it, 0.95), 0.25)):
        took = [value([it.ended_at - it.at for it in found]) for found in (ours, theirs)]
        first = [value([it.ttft_ms for it in found]) for found in (ours, theirs)]
        assert took[0] == pytest.approx(took[1], rel=tolerance)
        assert first[0] == pytest.approx(first[1], rel=2 * tolerance)


def test_a_stopped_one_gives_back_what_it_had_with_its_tokens() -> None:
    bench = Bench()
    replica = FluidReplica(bench.clock, SPEED, bench.hooks)
    chats = asks(100.0, MAX_SESSIONS + 4)
    for ask in chats:
        replica.open(ask)
    load = replica.load()
    assert (load.running_sessions, load.queued_sessions) == (MAX_SESSIONS, 4)
    bench.clock.run(2.0)
    left = replica.stop()
    open_chats = [ask for ask in chats if not ask.ended_at]
    assert {ask.number for ask in left} == {ask.number for ask in open_chats}
    had = {ask.number: ask.committed for ask in left}
    assert 0 < sum(had.values()) and min(had.values()) == 0
    other = FluidReplica(bench.clock, SPEED, bench.hooks)
    for ask in left:
        other.open(ask)
    bench.clock.run(3600.0)
    assert all(ask.committed == ask.reply_tokens for ask in chats)
