"""The bench of a target as fast as a datacenter's: its tables, and the whole of it on processes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bench.harness import TOO_FEW, Run
from bench.harness.prompts import load_prompts
from bench.harness.readme import regenerated
from bench.harness.recorded_engine import write_replies
from bench.relay.lane import Traffic
from bench.wan.datacenter import FULL, NETWORKS, Condition, Measured, Size, measure, report
from bench.wan.measure import WARM_UP
from bench.wan.plan import OURS, PLAIN
from bench.wan.samples import Sample, Word, messages_of
from outrider.models.vocabulary import Vocabulary

IDS = (5, 6, 7)
ROUGH = Condition(40, 10, "jitter 50 ms, reordering, loss 1 %")


def sample(word_ms: float, whole_ms: float, ids: tuple[int, ...] = IDS) -> Sample:
    word = Word(word_ms - 1, word_ms, word_ms, is_early=True, is_right=True)
    return Sample(ids, word_ms, ((word_ms, 1), (whole_ms, len(ids))), word)


def measured(*ours: Sample) -> Measured:
    plain = [sample(220.0, 500.0) for _ in ours]
    seen = Traffic(packets=10, lost=1)
    return Measured({(ROUGH, PLAIN): plain, (ROUGH, OURS): list(ours)}, {ROUGH.network: seen})


def test_the_tables_say_what_was_measured(tmp_path: Path) -> None:
    run = Run("wan_datacenter", False, "python -m bench.wan.datacenter")
    ours = [sample(110.0, 400.0)] * 3 + [sample(220.0, 400.0)]
    assert report(run, measured(*ours), [IDS] * 4) == 0
    run.finish(tmp_path)
    page = regenerated("<!-- bench:wan_datacenter -->\n<!-- /bench:wan_datacenter -->\n", tmp_path)
    row = f"| 40 | 10 | {ROUGH.network} | 4 |"
    assert f"{row} 220 (220 to 220) | {TOO_FEW} | 109 (109 to 219) | {TOO_FEW} | 110 (110" in page
    assert "0.625" in page, "the first word that stays, over plain streaming's"
    assert f"{row} 0 (0 to 0.490) | 0.750 (0.301 to 0.954) | 0.750" in page, "within 200 ms"
    assert "| 0.800 (0.800 to 0.800) | 8 of 8 |" in page, "whole replies"
    assert f"| {ROUGH.network} | 10 | 1 |" in page


def test_a_reply_that_differs_is_counted() -> None:
    run = Run("wan_datacenter", True, "")
    wrong = sample(110.0, 400.0, ids=(5, 6, 8))
    assert report(run, measured(sample(110.0, 400.0), wrong), [IDS, IDS]) == 1
    assert run.tables[2].rows[0][-1] == "3 of 4"


def test_every_network_and_pace_is_asked() -> None:
    assert {it.network for it in FULL.conditions} == set(NETWORKS)
    assert {it.token_ms for it in FULL.conditions} == {10, 20, 30}
    assert {it.rtt_ms for it in FULL.conditions} == {80, 150, 250}
    assert len(set(FULL.conditions)) == len(FULL.conditions)
    assert FULL.num_prompts <= len(load_prompts(split="test"))


@pytest.mark.e2e
@pytest.mark.model
async def test_recorded_replies_come_whole_over_a_rough_network(
    vocabulary: Vocabulary, tmp_path: Path
) -> None:
    def ids_of(text: str) -> tuple[int, ...]:
        return tuple(vocabulary.encode(text))

    prompts = load_prompts("chat_short", split="test")[:2]
    said = ["The cat sat on the mat, the cat sat on the mat.", "One, two, three, one, two, three."]
    replies = {
        tuple(vocabulary.encode_chat(messages_of(prompt))): ids_of(text)
        for prompt, text in zip((*prompts, WARM_UP), (*said, "It is warm."), strict=True)
    }
    write_replies(tmp_path / "replies.json", replies)
    size = Size(2, 8, (ROUGH,))
    cores = os.sched_getaffinity(0)
    try:
        found = await measure(size, prompts, tmp_path / "replies.json", ["drafter.model=none"])
    finally:
        os.sched_setaffinity(0, cores)
    right = [ids_of(text)[: size.max_tokens] for text in said]
    for scheme in (PLAIN, OURS):
        samples = found.chats[ROUGH, scheme]
        assert [sample.ids for sample in samples] == right
        assert all(sample.committed_ms >= 50 + ROUGH.token_ms for sample in samples)
    assert found.traffic[ROUGH.network].packets > 0
