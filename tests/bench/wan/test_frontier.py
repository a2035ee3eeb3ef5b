"""The bench that chooses thresholds: what is swept, and on which prompts."""

from __future__ import annotations

import os

import pytest

from bench.harness.prompts import load_prompts
from bench.wan import frontier
from bench.wan.testbed import RegionEngine


def test_all_combinations_of_the_values_are_settings() -> None:
    assert frontier.combinations(["display.threshold=0.4,0.5", "display.line_threshold=0.7"]) == {
        "display.threshold 0.4, display.line_threshold 0.7": {
            "display.threshold": 0.4,
            "display.line_threshold": 0.7,
        },
        "display.threshold 0.5, display.line_threshold 0.7": {
            "display.threshold": 0.5,
            "display.line_threshold": 0.7,
        },
    }


@pytest.mark.e2e
async def test_every_setting_is_asked_the_tuning_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: set[str] = set()

    def watched(*kinds: str, split: str) -> object:
        asked.add(split)
        return load_prompts(*kinds, split="tuning")

    monkeypatch.setattr(frontier, "load_prompts", watched)
    monkeypatch.setattr(frontier, "_MAX_TOKENS", 4)
    cores = os.sched_getaffinity(0)
    settings = frontier.combinations(["display.threshold=0.4,0.6"])
    try:
        chats = await frontier.ask_all(settings, 1, ["drafter.model=none"], RegionEngine("fake"))
    finally:
        os.sched_setaffinity(0, cores)
    assert asked == {"tuning"}
    assert len(chats) == 2 * (len(settings) + 1), "greedy and sampled, plain streaming too"
    for temperature in (0.0, 0.8):
        replies = {
            tuple(sample.ids for sample in samples)
            for (_, asked_at), samples in chats.items()
            if asked_at == temperature
        }
        assert len(replies) == 1, "however bold, the text is the same"
