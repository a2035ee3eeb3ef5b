"""What may wait in the model thread's part of transfers, filled."""

from __future__ import annotations

import pytest

from outrider.engines.fake import FakeEngine
from outrider.sampling.params import SamplingParams
from services.inference import kv_transfer
from services.inference.kv_transfer import (
    MAX_EXPORTS,
    ExportBlocks,
    KvTransfer,
    LoadBlocks,
)
from services.inference.scheduler.limits import SchedulerLimits
from services.inference.scheduler.scheduler import Scheduler
from services.inference.scheduler.types import OpenRequest
from tests.inference.letters import new_reply

PROMPT = tuple(n % 25 + 1 for n in range(100))


def parts() -> tuple[Scheduler, KvTransfer]:
    engine = FakeEngine()
    scheduler = Scheduler(engine.info, SchedulerLimits(), new_reply)
    return scheduler, KvTransfer(engine, scheduler)


def test_kv_that_waits_for_sessions_in_the_queue_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kv_transfer, "MAX_LOADED_BYTES", 1000)
    scheduler, transfer = parts()
    for session in (1, 2):
        scheduler.open(OpenRequest(session, PROMPT, SamplingParams(max_tokens=1)), 0.0)
        for index in range(4):
            transfer.load(LoadBlocks(session, ((index, bytes(300)),)))
    assert transfer._waiting_bytes == 900
    assert {session: len(held) for session, held in transfer._waiting.items()} == {1: 3}
    # A session that ends gives its room back.
    scheduler.cancel(1, 0.0)
    transfer.load_waiting()
    assert transfer._waiting_bytes == 0 and not transfer._waiting
    transfer.load(LoadBlocks(2, ((0, bytes(300)),)))
    assert transfer._waiting_bytes == 300


def test_prefixes_that_wait_to_be_copied_out_are_bounded() -> None:
    scheduler, transfer = parts()
    answers: list[list[tuple[int, bytes]]] = []
    for _ in range(MAX_EXPORTS + 3):
        transfer.export(ExportBlocks(PROMPT, b"salt", (0,), answers.append))
    assert answers == [[]] * 3, "those beyond are told at once that there is nothing"
    while transfer.is_exporting:
        transfer.export_some()
    assert len(answers) == MAX_EXPORTS + 3
    scheduler.check_invariants()
