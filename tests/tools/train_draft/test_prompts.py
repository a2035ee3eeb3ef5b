"""The grammar and the chats drawn from it."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.harness.prompts import Folder, load_prompts, written_texts
from tools.train_draft import prompts
from tools.train_draft.prompts import SPLITS, Split, draw_chat, parse, roughened, shipped_grammar


def test_names_and_ranges_are_replaced() -> None:
    grammar = parse(["[animal]", "cat", "# a comment", "", "[kind:ask*3]", "{5-5} {animal}s\\n?"])
    assert grammar.draw("kind:ask", random.Random(0)) == "5 cats\n?"
    assert grammar.kinds == {"kind:ask": 3}
    assert grammar.held_out == {}


def test_braces_that_name_nothing_stay() -> None:
    grammar = parse(["[code]", 'x = {"a": {}}; {'])
    assert grammar.draw("code", random.Random(0)) == 'x = {"a": {}}; {'


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["cat"], "before the first section"),
        (["[a]", "x", "[a]", "y"], "twice"),
        (["[a]", "[b]", "x"], "without alternatives"),
    ],
)
def test_broken_grammars_are_refused(lines: list[str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse(lines)


def test_sections_that_need_each_other_are_refused() -> None:
    grammar = parse(["[a]", "{b}", "[b]", "{a}"])
    with pytest.raises(RecursionError, match="does not end"):
        grammar.draw("a", random.Random(0))


def test_every_alternative_of_the_shipped_grammar_expands() -> None:
    grammar = shipped_grammar()
    rng = random.Random(1)
    for alternatives in grammar.sections.values():
        for text in alternatives:
            assert grammar.expand(text, rng).strip()


def test_there_are_many_kinds_and_held_out_ones_are_others() -> None:
    grammar = shipped_grammar()
    assert len(grammar.kinds) >= 35
    assert len(grammar.held_out) >= 8
    drawn = {draw_chat("train", n).kind for n in range(2000)}
    assert drawn.isdisjoint(name.partition(":")[2] for name in grammar.held_out)


@pytest.mark.parametrize("split", SPLITS)
def test_a_chat_is_a_function_of_split_and_number(split: Split) -> None:
    assert [draw_chat(split, n) for n in range(50)] == [draw_chat(split, n) for n in range(50)]


def test_most_training_prompts_are_distinct() -> None:
    chats = [draw_chat("train", n).messages for n in range(4000)]
    assert len(set(chats)) > 0.9 * len(chats)


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


def test_half_of_the_training_replies_are_greedy_and_most_are_short() -> None:
    plans = [draw_chat("train", n).plan for n in range(2000)]
    assert 0.45 < sum(plan.temperature == 0 for plan in plans) / 2000 < 0.55
    assert sum(plan.max_tokens <= 32 for plan in plans) > 1200
    assert len({plan.seed for plan in plans}) > 1990


@pytest.mark.parametrize("folder", ["held_out", "tuning"])
def test_the_benchmarks_prompts_are_all_there_greedy_and_sampled(folder: Folder) -> None:
    prompts = load_prompts(split=folder)
    split: Split = "bench_held_out" if folder == "held_out" else "bench_tuning"
    chats = [draw_chat(split, n) for n in range(2 * len(prompts))]
    assert {chat.messages[0].content for chat in chats} == {prompt.text for prompt in prompts}
    assert sum(chat.plan.temperature == 0 for chat in chats) == len(prompts)


def test_calibration_takes_from_both_kinds_of_held_out_chats() -> None:
    kinds = {draw_chat("calibration", n).kind for n in range(400)}
    grammar = shipped_grammar()
    names = {name.partition(":")[2] for name in (*grammar.held_out, *grammar.kinds)}
    assert kinds <= names
    assert kinds & {name.partition(":")[2] for name in grammar.held_out}


@given(text=st.text(min_size=1, max_size=200), seed=st.integers(0, 10**6))
def test_roughened_text_is_text(text: str, seed: int) -> None:
    rough = roughened(text, shipped_grammar(), random.Random(seed))
    assert isinstance(rough, str)
    if len(text) > 160:
        assert rough == text
