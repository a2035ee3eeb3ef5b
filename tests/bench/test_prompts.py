"""The shared prompts are what the benches say they are."""

import json

from bench.harness.prompts import as_prompt_file, interleaved, load_prompts
from outrider.models.vocabulary import Vocabulary

KINDS = {"chat_short", "chat_long", "code", "languages", "structured", "math", "document"}


def test_there_are_enough_and_ids_are_unique() -> None:
    prompts = load_prompts()
    assert len(prompts) >= 60
    assert len({prompt.id for prompt in prompts}) == len(prompts)
    assert {prompt.kind for prompt in prompts} == KINDS
    assert all(prompt.id.startswith(prompt.kind) for prompt in prompts)


def test_scripts_of_the_world_are_there() -> None:
    text = "".join(prompt.text for prompt in load_prompts("languages"))
    for sample in ("长城", "四季", "القراءة", "зимой", "भारत", "한국", "für", "télétravail"):
        assert sample in text


def test_documents_are_long(vocabulary: Vocabulary) -> None:
    lengths = [len(vocabulary.encode(prompt.text)) for prompt in load_prompts("document")]
    assert len(lengths) >= 8
    assert all(1000 <= length <= 1700 for length in lengths)


def test_interleaving_keeps_all_and_begins_with_every_kind() -> None:
    prompts = load_prompts()
    mixed = interleaved(prompts)
    assert sorted(prompt.id for prompt in mixed) == sorted(prompt.id for prompt in prompts)
    assert {prompt.kind for prompt in mixed[: len(KINDS)]} == KINDS


def test_a_prompt_file_has_one_json_string_per_line() -> None:
    prompts = load_prompts("code", "document")
    lines = as_prompt_file(prompts).splitlines()
    assert [json.loads(line) for line in lines] == [prompt.text for prompt in prompts]
