"""What `outrider embed` asks an endpoint, and shows. The mesh's own answers: tests/e2e."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from outrider.errors import OutriderError, UnavailableError
from tests.cli.invoking import invoke


class _Handler(BaseHTTPRequestHandler):
    asked: list[tuple[str, str, dict[str, Any]]]

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.asked.append((self.path, self.headers.get("authorization", ""), body))
        status, told = 200, {"data": [{"index": i, "embedding": [0.5, i]} for i in (0, 1)]}
        if body.get("model") == "none":
            status, told = 404, {"error": {"message": "there is no such model"}}  # type: ignore[dict-item]
        data = json.dumps(told).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""


@pytest.fixture
def endpoint() -> Iterator[tuple[str, list[tuple[str, str, dict[str, Any]]]]]:
    _Handler.asked = []
    with HTTPServer(("127.0.0.1", 0), _Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/v1", _Handler.asked
        server.shutdown()
        thread.join()


def test_what_it_asks_and_shows(endpoint: tuple[str, list[Any]]) -> None:
    url, asked = endpoint
    flags = ["--model", "e", "--dimensions", "2", "--truncate", "--api-key", "or_k", "--url", url]
    done = invoke(["embed", "one", "two", "--json", *flags])
    assert [json.loads(line) for line in done.stdout.splitlines()] == [
        {"index": 0, "embedding": [0.5, 0]},
        {"index": 1, "embedding": [0.5, 1]},
    ]
    wanted = {"model": "e", "dimensions": 2, "truncate_prompt_tokens": -1, "input": ["one", "two"]}
    assert asked == [("/v1/embeddings", "Bearer or_k", {**wanted, "encoding_format": "float"})]


def test_lines_of_standard_input(
    endpoint: tuple[str, list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The key of the environment goes to nobody's endpoint."""
    monkeypatch.setenv("OUTRIDER_API_KEY", "or_secret")
    url, asked = endpoint
    done = invoke(["embed", "--url", url], input="one\ntwo\n")
    assert "2 values  'two'" in done.stdout
    assert asked == [("/v1/embeddings", "", {"input": ["one", "two"], "encoding_format": "float"})]


def test_what_goes_wrong_is_said(endpoint: tuple[str, list[Any]]) -> None:
    url, _ = endpoint
    refused = invoke(["embed", "a", "--model", "none", "--url", url])
    assert isinstance(refused.exception, OutriderError)
    assert refused.exception.message == "there is no such model"
    nobody = invoke(["embed", "a", "--url", "http://127.0.0.1:1/v1"])
    assert isinstance(nobody.exception, UnavailableError)
    empty = invoke(["embed"], input="")
    assert isinstance(empty.exception, OutriderError)
    other = invoke(["embed", "a", "--url", "file:///etc/passwd"])
    assert isinstance(other.exception, OutriderError)
