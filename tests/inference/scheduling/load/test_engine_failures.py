"""The same long random load on an engine whose calls fail now and then, at any point."""

from __future__ import annotations

from random import Random

from outrider.engines.base import Rows
from outrider.errors import EngineError
from services.inference.scheduling.events import FinishReason
from services.inference.scheduling.planning import Plan
from tests.inference.scheduling.driver import Driver
from tests.inference.scheduling.load.test_soak import LIMITS, OPTIONS, Soak

_WHOLE = (FinishReason.STOP, FinishReason.LENGTH)
_CHANCE = 0.01
"""Of a failure, before each of the four parts of a call and after it."""


class FailingDriver(Driver):
    """Its engine breaks off between any two parts of a call."""

    def __init__(self, rng: Random) -> None:
        super().__init__(OPTIONS, LIMITS)
        self._rng = rng
        self.num_failures = 0

    def run(self, plan: Plan) -> None:
        try:
            rows = self._call(plan)
        except EngineError as error:
            self.num_failures += 1
            self.take(self.scheduler.fail(plan, error))
            return
        self.take(self.scheduler.apply(plan, rows, self.now))

    def _call(self, plan: Plan) -> list[Rows]:
        for sequence in plan.closed:
            self.engine.close_sequence(sequence)
        self._maybe_fail()
        for new in plan.opened:
            self.engine.open(new.sequence, new.ids, new.salt, new.num_candidates)
            self._maybe_fail()
        for copy in plan.copies:
            self.engine.copy_block(copy.source, copy.target)
            self._maybe_fail()
        rows = self.engine.step(plan.rounds) if plan.rounds else []
        self.now += self.engine.step_ms / 1e3 if plan.rounds else 0.0
        self._maybe_fail()
        return rows

    def _maybe_fail(self) -> None:
        if self._rng.random() < _CHANCE:
            raise EngineError("out of order")


def test_calls_that_fail_leave_nothing_behind_and_spoil_no_other_text() -> None:
    soak = Soak(1)
    soak.driver = driver = FailingDriver(soak.rng)
    soak.run()
    num_failed = 0
    for number, kind in soak.kinds.items():
        peer, text = driver.peers[number], soak.texts[kind]
        assert (peer.failed is None) != (peer.finished is None), "one end, and only one"
        num_failed += peer.failed is not None
        assert tuple(peer.reply) == text[: len(peer.reply)]
        if peer.finished is not None and peer.finished.reason in _WHOLE:
            assert tuple(peer.reply) == text
    assert driver.num_failures > 10
    assert 10 < num_failed < len(soak.kinds) / 2
