"""What requests for vectors ask for, and how they are answered."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
import pytest

from outrider.cost import Cost
from outrider.errors import InvalidRequestError
from services.edge.http.openai_embeddings import MAX_INPUTS, AskedEmbeddings, answer_of, asked_of


def asked(**body: Any) -> AskedEmbeddings:
    return asked_of(json.dumps({"model": "e", **body}).encode())


def ids(*numbers: int) -> bytes:
    return np.array(numbers, "<u4").tobytes()


@pytest.mark.parametrize(
    ("given", "inputs"),
    [
        ("a text", ("a text",)),
        (["one", "two"], ("one", "two")),
        ([1, 2, 70_000], (ids(1, 2, 70_000),)),
        ([[1], [2, 3]], (ids(1), ids(2, 3))),
    ],
)
def test_inputs_of_every_kind(given: Any, inputs: tuple[str | bytes, ...]) -> None:
    assert asked(input=given).inputs == inputs


def test_how_it_is_to_be_done() -> None:
    plain = asked(input="a", model=None)
    assert plain == AskedEmbeddings(("a",), "", "", 0, False, False, ())
    full = asked(
        input="a",
        encoding_format="base64",
        dimensions=8,
        truncate_prompt_tokens=-1,
        user="u",
        residency=["eu"],
        unknown=1,
    )
    assert full == AskedEmbeddings(("a",), "e", "u", 8, True, True, ("eu",))


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"),
        ({"input": []}, "input"),
        ({"input": ""}, "input"),
        ({"input": ["a", ""]}, "input"),
        ({"input": ["a", 1]}, "input"),
        ({"input": [[]]}, "input"),
        ({"input": [[1], 2]}, "input"),
        ({"input": [-1]}, "input"),
        ({"input": [1 << 32]}, "input"),
        ({"input": ["a"] * (MAX_INPUTS + 1)}, "input"),
        ({"input": "\ud800"}, None),
        ({"input": "a", "dimensions": 0}, "dimensions"),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format"),
        ({"input": "a", "truncate_prompt_tokens": 3}, "truncate_prompt_tokens"),
        ({"input": "a", "residency": ["eu"] * 65}, None),
        ({"input": "a", "residency": ["e" * 129]}, None),
    ],
)
def test_what_is_no_request_is_refused_by_field(body: dict[str, Any], param: str | None) -> None:
    with pytest.raises(InvalidRequestError) as raised:
        asked_of(json.dumps(body).encode())
    assert raised.value.metadata.get("param") in (param, "")


def test_the_most_inputs_are_taken() -> None:
    assert len(asked(input=["a"] * MAX_INPUTS).inputs) == MAX_INPUTS


def test_answers() -> None:
    vectors = np.array([[0.5, -1.0], [0.25, 3.0]], np.float32)
    plain = json.loads(answer_of(vectors, "e", 7, None, is_base64=False))
    assert plain == {
        "object": "list",
        "model": "e",
        "data": [
            {"object": "embedding", "index": 0, "embedding": [0.5, -1.0]},
            {"object": "embedding", "index": 1, "embedding": [0.25, 3.0]},
        ],
        "usage": {"prompt_tokens": 7, "total_tokens": 7},
    }
    priced = json.loads(answer_of(vectors, "e", 7, Cost(1_500_000, "USD"), is_base64=True))
    assert (priced["usage"]["cost"], priced["usage"]["currency"]) == ("0.001500000", "USD")
    data = base64.b64decode(priced["data"][1]["embedding"])
    assert np.frombuffer(data, "<f4").tolist() == [0.25, 3.0]
