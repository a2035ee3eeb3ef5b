"""The shared prompts are what the benches say they are."""

from __future__ import annotations

import ast
import hashlib
import itertools
import json
from collections import Counter

import pytest

from bench.harness.prompts import (
    KINDS,
    PromptSupply,
    Split,
    as_prompt_file,
    interleaved,
    load_prompts,
    written_texts,
)
from bench.harness.provenance import ROOT
from outrider.models.vocabulary import Vocabulary

WRITTEN_KINDS = {"chat_short", "chat_long", "code", "languages", "structured", "math", "document"}


SPLITS: tuple[Split, ...] = ("held_out", "tuning", "test")
TUNING_PROGRAMS = ("bench/tuning.py", "bench/wan/frontier.py", "tools/train_draft/*.py")
FROZEN = "1dfc13ca0a2fed6b171dea1e9637cde07f7cdf1a3bcf007649f6c3f2657ddc60"
"""Of the texts of `bench/data/test`, in their order."""


@pytest.mark.parametrize("split", SPLITS)
def test_each_folder_has_enough_of_every_kind(split: Split) -> None:
    counts = Counter(prompt.kind for prompt in load_prompts(split=split))
    assert set(counts) == WRITTEN_KINDS - ({"document"} if split == "test" else set())
    assert counts.total() >= 60
    assert min(counts.values()) >= 6


def test_ids_and_texts_are_unique_in_all_folders() -> None:
    prompts = load_prompts(split="all")
    assert len({prompt.id for prompt in prompts}) == len(prompts)
    assert len({prompt.text for prompt in prompts}) == len(prompts)
    assert all(prompt.id.startswith(prompt.kind) for prompt in prompts)


def test_all_is_every_folder_and_they_are_disjoint() -> None:
    folders = [load_prompts(split=split) for split in SPLITS]
    assert load_prompts() == folders[0], "unless one says which"
    assert load_prompts(split="all") == tuple(itertools.chain(*folders))
    assert len(written_texts()) == sum(map(len, folders))


def test_the_test_split_is_frozen() -> None:
    texts = [prompt.text for prompt in load_prompts(split="test")]
    assert hashlib.sha256("\0".join(texts).encode()).hexdigest() == FROZEN


def test_nothing_that_tunes_or_trains_reads_the_test_split() -> None:
    programs = [path for pattern in TUNING_PROGRAMS for path in ROOT.glob(pattern)]
    assert len(programs) > len(TUNING_PROGRAMS)
    for path in programs:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.keyword) and node.arg == "split":
                value = getattr(node.value, "value", None)
                assert value not in ("test", "all"), f"{path} reads it"
    unseen = {prompt.text for prompt in load_prompts(split="test")}
    assert unseen.isdisjoint(text for kind in KINDS for text in PromptSupply(kind).take(700))


def test_no_prompt_shares_its_wording_with_one_of_another_folder() -> None:
    def runs(text: str) -> set[tuple[str, ...]]:
        words = text.lower().split()
        return {tuple(words[at : at + 8]) for at in range(len(words) - 7)}

    worded = [
        (prompt, runs(prompt.text), split)
        for split in SPLITS
        for prompt in load_prompts(split=split)
    ]
    pairs = itertools.combinations(worded, 2)
    assert [(a.id, b.id) for (a, one, x), (b, other, y) in pairs if x != y and one & other] == []


def test_scripts_of_the_world_are_there() -> None:
    text = "".join(prompt.text for prompt in load_prompts("languages", split="all"))
    for sample in (
        "长城",
        "海水",
        "四季",
        "القراءة",
        "зимой",
        "भारत",
        "한국",
        "für",
        "télétravail",
    ):
        assert sample in text


def test_documents_are_long(vocabulary: Vocabulary) -> None:
    prompts = load_prompts("document", split="all")
    lengths = [len(vocabulary.encode(prompt.text)) for prompt in prompts]
    assert len(lengths) >= 14
    assert all(1000 <= length <= 1700 for length in lengths)


def test_interleaving_keeps_all_and_begins_with_every_kind() -> None:
    prompts = load_prompts()
    mixed = interleaved(prompts)
    assert sorted(prompt.id for prompt in mixed) == sorted(prompt.id for prompt in prompts)
    assert {prompt.kind for prompt in mixed[: len(WRITTEN_KINDS)]} == WRITTEN_KINDS


def test_a_prompt_file_has_one_json_string_per_line() -> None:
    prompts = load_prompts("code", "document")
    lines = as_prompt_file(prompts).splitlines()
    assert [json.loads(line) for line in lines] == [prompt.text for prompt in prompts]


@pytest.mark.parametrize("kind", KINDS)
def test_no_prompt_comes_twice_and_there_are_enough_for_a_run(kind: str) -> None:
    taken = PromptSupply(kind).take(700)
    assert len(set(taken)) == 700
    assert taken[:50] == PromptSupply(kind).take(50)


def test_taking_goes_on_where_it_stopped() -> None:
    supply, whole = PromptSupply("chat"), PromptSupply("chat").take(9)
    assert [*supply.take(4), *supply.take(5)] == whole
    assert supply.num_given == 9


def test_written_prompts_come_first() -> None:
    written = {prompt.text for prompt in load_prompts("code")}
    assert set(PromptSupply("code").take(len(written))) == written


def test_an_empty_supply_says_so() -> None:
    supply = PromptSupply("chat")
    with pytest.raises(RuntimeError, match="different chat prompts"):
        supply.take(100_000)


def test_no_part_is_left_unfilled() -> None:
    assert not [text for text in PromptSupply("chat").take(1300) if "{topic}" in text]
    assert not [text for text in PromptSupply("code").take(1400) if "{task}" in text]


@pytest.mark.parametrize(
    ("kind", "least", "most"), [("document", 200, 700), ("long_document", 900, 2600)]
)
def test_documents_are_as_long_as_they_say(
    kind: str, least: int, most: int, vocabulary: Vocabulary
) -> None:
    lengths = sorted(len(vocabulary.encode(text)) for text in PromptSupply(kind).take(80))
    assert least <= lengths[0]
    assert lengths[-1] <= most
