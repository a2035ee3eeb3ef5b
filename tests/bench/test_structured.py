"""The schemas of `bench.structured`: distinct, the same in every run, and grammars all of them."""

from __future__ import annotations

import json

import jsonschema
import pytest

from bench.structured.chats import Said, is_valid
from bench.structured.schemas import NUM_SCHEMAS, Task, tasks
from outrider.sampling.grammar import json_schema
from services.inference.grammars.compiler import compile_grammar
from tests.inference.grammars.test_compiler import BYTES


def test_the_same_in_every_run_and_no_two_alike() -> None:
    first, second = tasks(), tasks()
    assert first == second and len(first) == NUM_SCHEMAS
    assert tasks(20) == first[:20]
    texts = {json.dumps(task.schema) for task in first}
    assert len(texts) == NUM_SCHEMAS


def test_schemas_are_schemas_and_compile() -> None:
    for task in tasks():
        jsonschema.Draft202012Validator.check_schema(task.schema)
        compile_grammar(BYTES, json_schema(task.schema))


@pytest.mark.parametrize(
    ("text", "whole", "valid"),
    [
        ('{"a": 1}', True, True),
        ('{"a": 1}', False, False),
        ('{"a": ', True, False),
        ("{}", True, False),
    ],
)
def test_what_counts_as_valid(text: str, whole: bool, valid: bool) -> None:
    (task,) = tasks(1)
    task = type(task)("", "", {"type": "object", "required": ["a"]})
    assert is_valid(task, Said((), text, whole)) is valid


@pytest.mark.parametrize(
    ("kind", "right", "wrong"),
    [
        ("date", "2024-02-29", "2023-02-29"),
        ("time", "23:59:60Z", "25:00:00Z"),
        ("date-time", "2024-02-29T01:02:03.5+01:00", "2024-02-29T01:02:03"),
        ("duration", "P1DT2H", "P"),
        ("email", "a@b.example", "ab"),
        ("ipv4", "10.0.0.1", "10.0.0.256"),
        ("uuid", "123e4567-e89b-12d3-a456-426614174000", "123e4567"),
    ],
)
def test_formats_are_judged_too(kind: str, right: str, wrong: str) -> None:
    task = Task("", "", {"type": "string", "format": kind})
    assert is_valid(task, Said((), f'"{right}"', True))
    assert not is_valid(task, Said((), f'"{wrong}"', True))
