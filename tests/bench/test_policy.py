"""Recorded chats, served again in virtual time."""

from __future__ import annotations

import pytest

from bench.policy import CHOICE_MS, Chat, VirtualReplica
from outrider.engines.base import EngineInfo, SizingRule

DURATIONS = {1: 10.0, 4: 11.0, 8: 14.0, 16: 20.0}


def chats(temperature: float) -> list[Chat]:
    reply = [5, 6, 7, 8] * 10
    return [Chat(tuple(range(10 + n, 40 + n)), (*reply, n, n, n), temperature) for n in range(12)]


CHATS = chats(0.0)


def replica(reading_ms: float = 0.0) -> VirtualReplica:
    info = EngineInfo(
        name="recorded",
        vocabulary_size=64,
        block_tokens=16,
        num_blocks=64,
        block_bytes=1,
        max_context_tokens=1024,
        sizing=SizingRule(tuple(DURATIONS), 16),
    )
    return VirtualReplica(info, DURATIONS, None, reading_ms)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("drafts", [False, True])
def test_all_chats_get_their_replies_in_the_same_time_every_time(
    drafts: bool, temperature: float
) -> None:
    served = [replica().serve(chats(temperature), drafts=drafts, sessions=4) for _ in range(2)]
    assert served[0] == served[1]
    assert served[0].wrong == 0
    assert served[0].num_tokens == sum(len(chat.reply) for chat in CHATS)
    assert len(served[0].ttft_ms) == len(CHATS)
    chosen_ms = served[0].num_tokens * CHOICE_MS[temperature > 0.0]
    assert served[0].seconds == pytest.approx((sum(served[0].call_ms) + chosen_ms) / 1e3)


def test_replies_that_repeat_themselves_come_faster_with_drafts() -> None:
    off, on = (replica().serve(CHATS, drafts=d, sessions=1) for d in (False, True))
    assert on.seconds < off.seconds / 1.5


def test_contexts_longer_than_those_of_the_durations_add_what_reading_them_takes() -> None:
    chat = [Chat(tuple(3 + n % 50 for n in range(620)), tuple(range(10, 20)), 0.0)]
    short, long = (replica(ms).serve(chat, drafts=False, sessions=1) for ms in (0.0, 8.0))
    assert long.call_ms[-1] - short.call_ms[-1] == pytest.approx(8.0 * (620 + 8 - 120) / 1e3)


def test_chats_that_arrive_find_the_replica_idle_or_busy() -> None:
    seldom = replica().serve(CHATS, drafts=False, rate=0.1)
    often = replica().serve(CHATS, drafts=False, rate=50.0)
    assert seldom.wrong == often.wrong == 0
    assert seldom.seconds > 10 * often.seconds
    assert max(seldom.ttft_ms) <= max(often.ttft_ms)
