"""The same long random load on an engine whose calls fail now and then, at any point."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from outrider.engines.base import Ids, SequenceSlice
from outrider.errors import EngineError
from outrider.session.types import FinishReason
from services.inference.scheduler.batch import Batch
from tests.engines.hooked import HookedEngine
from tests.inference.scheduler.driver import Driver
from tests.inference.scheduler.test_soak import LIMITS, OPTIONS, Soak

_WHOLE = (FinishReason.STOP, FinishReason.LENGTH)
_CHANCE = 0.01
"""Of a failure after each part of a call."""


class FailingEngine(HookedEngine):
    """Breaks off between any two parts of a call."""

    def __init__(self, rng: Random) -> None:
        super().__init__(OPTIONS)
        self._rng = rng

    def open(self, sequence: int, prompt: Ids, salt: bytes = b"", num_candidates: int = 0) -> None:
        super().open(sequence, prompt, salt, num_candidates)
        self._maybe_fail()

    def copy_block(self, source: int, target: int) -> None:
        super().copy_block(source, target)
        self._maybe_fail()

    def before(self, slices: Sequence[SequenceSlice]) -> None:
        self._maybe_fail()

    def after(self, slices: Sequence[SequenceSlice]) -> None:
        self._maybe_fail()

    def _maybe_fail(self) -> None:
        if self._rng.random() < _CHANCE:
            raise EngineError("out of order")


class FailingDriver(Driver):
    """On such an engine."""

    def __init__(self, rng: Random) -> None:
        super().__init__(OPTIONS, LIMITS, engine=FailingEngine(rng))
        self.num_failures = 0

    def run(self, batch: Batch) -> None:
        try:
            rows = batch.run(self.engine, self.scheduler.overlapped_work)
        except EngineError as error:
            self.num_failures += 1
            self.take(self.scheduler.fail(batch, error))
            return
        self.now += self.engine.step_ms / 1e3 if batch.slices else 0.0
        self.take(self.scheduler.postprocess(batch, rows, self.now))


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
