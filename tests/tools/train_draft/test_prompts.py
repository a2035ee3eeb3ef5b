"""The grammar and the chats drawn from it."""

from __future__ import annotations

import random

import pytest

from bench.harness.prompts import Folder, load_prompts, written_texts
from tools.train_draft import prompts
from tools.train_draft.prompts import SPLITS, Split, draw_chat, parse, shipped_grammar


def test_names_and_ranges_are_replaced() -> None:
    grammar = parse(["[animal]", "cat", "# a comment", "", "[kind:ask*3]", "{5-5} {animal}s\\n?"])
    assert grammar.draw("kind:ask", random.Random(0)) == "5 cats\n?"
    assert grammar.kinds == {"kind:ask": 3}
    assert grammar.held_out == {}


def test_every_alternative_of_the_shipped_grammar_expands() -> None:
    grammar = shipped_grammar()
    rng = random.Random(1)
    for alternatives in grammar.sections.values():
        for text in alternatives:
            assert grammar.expand(text, rng).strip()


@pytest.mark.parametrize("split", SPLITS)
def test_a_chat_is_a_function_of_split_and_number(split: Split) -> None:
    assert [draw_chat(split, n) for n in range(50)] == [draw_chat(split, n) for n in range(50)]


def test_no_training_prompt_is_held_out_or_a_benchmark_s() -> None:
    train = {draw_chat("train", n).messages[-1].content for n in range(4000)}
    held_out = {draw_chat("held_out", n).messages[-1].content for n in range(400)}
    # Roughened prompts may meet: the hash speaks of the prompt before its typos.
    assert len(train & held_out) < 4
    assert train.isdisjoint(prompt.text for prompt in load_prompts(split="all"))


def test_a_draw_that_is_a_benchmark_s_prompt_is_drawn_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written = iter(load_prompts(split="test")[:3])
    monkeypatch.setattr(
        prompts,
        "roughened",
        lambda text, *_: next((prompt.text for prompt in written), text),
    )
    assert draw_chat("train", 0).messages[-1].content not in written_texts()


@pytest.mark.parametrize("folder", ["held_out", "tuning"])
def test_the_benchmarks_prompts_are_all_there_greedy_and_sampled(folder: Folder) -> None:
    prompts = load_prompts(split=folder)
    split: Split = "bench_held_out" if folder == "held_out" else "bench_tuning"
    chats = [draw_chat(split, n) for n in range(2 * len(prompts))]
    assert {chat.messages[0].content for chat in chats} == {prompt.text for prompt in prompts}
    assert sum(chat.plan.temperature == 0 for chat in chats) == len(prompts)
