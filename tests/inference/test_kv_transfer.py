"""What may wait in the model thread's part of transfers, filled."""

from __future__ import annotations

import pytest

from outrider.codec.block_hashes import block_hashes
from outrider.engines.fake import FakeEngine, FakeOptions
from outrider.sampling.params import SamplingParams
from services.inference import kv_transfer
from services.inference.kv_transfer import (
    MAX_EXPORTS,
    ExportBlocks,
    ExportedBlock,
    KeepBlocks,
    KvTransfer,
    LoadBlocks,
)
from services.inference.scheduler.limits import SchedulerLimits
from services.inference.scheduler.scheduler import Scheduler
from services.inference.scheduler.types import OpenRequest
from tests.inference.letters import new_reply
from tests.inference.scheduler.driver import Driver

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
            transfer.execute(LoadBlocks(session, ((index, bytes(300)),), "redis"))
    assert transfer._waiting_bytes == 900
    assert {session: len(held) for session, held in transfer.waiting.items()} == {1: 3}
    # A session that ends gives its room back.
    scheduler.cancel(1, 0.0)
    transfer.load_waiting()
    assert transfer._waiting_bytes == 0 and not transfer.waiting
    transfer.execute(LoadBlocks(2, ((0, bytes(300)),), "redis"))
    assert transfer._waiting_bytes == 300


def test_prefixes_that_wait_to_be_copied_out_are_bounded() -> None:
    driver = Driver()
    scheduler, transfer = driver.scheduler, KvTransfer(driver.engine, driver.scheduler)
    driver.open(OpenRequest(1, PROMPT, SamplingParams(max_tokens=1), cache_salt=b"salt"))
    driver.finish()
    cached = [*block_hashes(PROMPT, driver.engine.info.block_tokens, b"salt")][::-1]
    answers: list[list[ExportedBlock]] = []
    transfer.execute(ExportBlocks((b"unknown",), False, answers.append))
    for _ in range(MAX_EXPORTS + 3):
        transfer.execute(ExportBlocks((b"unknown", *cached), False, answers.append))
    assert answers == [[]] * 4, "those beyond are told at once that there is nothing"
    while transfer.exports:
        transfer.export_some()
    assert len(answers) == MAX_EXPORTS + 4
    assert all([it.named.name for it in answer] == cached != [] for answer in answers[4:])
    scheduler.check_invariants()


def test_blocks_are_kept_ahead_while_there_is_room_and_nobody_waits() -> None:
    engine = FakeEngine(FakeOptions(num_blocks=16))
    scheduler = Scheduler(engine.info, SchedulerLimits(), new_reply)
    transfer, size = KvTransfer(engine, scheduler), engine.info.block_tokens
    data = engine.export_blocks([0])
    ids = tuple(n % 25 + 1 for n in range(15 * size + 1))
    answers: list[list[int]] = []

    def keep(first: int, count: int, ids: tuple[int, ...] = ids) -> list[int]:
        blocks = tuple((index, data) for index in range(first, first + count))
        transfer.execute(KeepBlocks(b"salt", ids, blocks, answers.append))
        return answers.pop()

    assert keep(0, 0) == [0]
    assert keep(0, 4) == [4]
    assert keep(4, 2) == [6]
    assert keep(8, 1) == [6], "what is before it is missing"
    assert keep(6, 13) == [], "a quarter of the pool stays free"
    assert keep(0, 1, (engine.info.vocabulary_size, *ids)) == []
    scheduler.check_invariants()
    scheduler.open(OpenRequest(1, ids, SamplingParams(max_tokens=1)), 0.0)
    assert keep(6, 1) == [], "a session waits"
