"""What `outrider embed` asks an endpoint, and shows. The mesh's own answers: tests/e2e."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from outrider.errors import OutriderError, UnavailableError
from tests.cli.invoking import invoke
from tests.embedding_endpoint import EmbeddingEndpoint, running_endpoint


@pytest.fixture
def endpoint() -> Iterator[EmbeddingEndpoint]:
    with running_endpoint() as endpoint:
        yield endpoint


def test_what_it_asks_and_shows(endpoint: EmbeddingEndpoint) -> None:
    flags = ["--model", "e", "--dimensions", "2", "--truncate", "--api-key", "or_k"]
    flags += ["--url", endpoint.url]
    done = invoke(["embed", "one", "two", "--json", *flags])
    assert [json.loads(line) for line in done.stdout.splitlines()] == [
        {"index": 0, "embedding": [3, ord("e")]},
        {"index": 1, "embedding": [3, ord("o")]},
    ]
    wanted = {"model": "e", "dimensions": 2, "truncate_prompt_tokens": -1, "input": ["one", "two"]}
    assert endpoint.asked == [
        ("/v1/embeddings", "Bearer or_k", {**wanted, "encoding_format": "float"})
    ]


def test_lines_of_standard_input(
    endpoint: EmbeddingEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The key of the environment goes to nobody's endpoint."""
    monkeypatch.setenv("OUTRIDER_API_KEY", "or_secret")
    done = invoke(["embed", "--url", endpoint.url], input="one\ntwo\n")
    assert "2 values  'two'" in done.stdout
    assert endpoint.asked == [
        ("/v1/embeddings", "", {"input": ["one", "two"], "encoding_format": "float"})
    ]


def test_what_goes_wrong_is_said(endpoint: EmbeddingEndpoint) -> None:
    refused = invoke(["embed", "a", "--model", "none", "--url", endpoint.url])
    assert isinstance(refused.exception, OutriderError)
    assert refused.exception.message == "there is no such model"
    nobody = invoke(["embed", "a", "--url", "http://127.0.0.1:1/v1"])
    assert isinstance(nobody.exception, UnavailableError)
    empty = invoke(["embed"], input="")
    assert isinstance(empty.exception, OutriderError)
    other = invoke(["embed", "a", "--url", "file:///etc/passwd"])
    assert isinstance(other.exception, OutriderError)
