"""What clients look for in errors, to shorten a conversation or to come back later. They match
words: each row is one client's own expression, as its source had it in 2026."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Final

import pytest

from outrider.errors import (
    InvalidRequestError,
    NoReplicaError,
    OutriderError,
    OverloadedError,
    PromptTooLongError,
    RateLimitedError,
    UnknownModelError,
)
from outrider.wire import error_from_proto, error_to_proto
from services.edge.http import responses
from services.edge.http.exchange import _too_large
from services.edge.http.routes import error_answer
from tests.edge.http.asking import data_of, planned

OPENAI: Final = ("/v1/chat/completions", "/v1/completions", "/v1/responses")
MESSAGES: Final = ("/v1/messages", "/v1/messages/count_tokens")


@dataclass(frozen=True, slots=True)
class Seen:
    """An error as clients have it."""

    status: int
    body: dict[str, Any]

    @property
    def message(self) -> str:
        """The sentence alone, as clients of their own read it."""
        return str(self.body["error"]["message"])

    @property
    def python(self) -> str:
        """The exception of the official packages for Python, as text."""
        return f"Error code: {self.status} - {self.body}"

    @property
    def node(self) -> str:
        """The error of the official packages for Node: OpenAI's has the sentence, Anthropic's the
        body."""
        shown = json.dumps(self.body, separators=(",", ":"))
        return f"{self.status} {self.message if self.body.get('type') != 'error' else shown}"


def seen(path: str, error: OutriderError) -> Seen:
    """The answer to an error of a region, once it has come to the edge."""
    told = error_from_proto(error_to_proto(error))
    status, body = error_answer(path, told, "r1")
    return Seen(status, json.loads(body))


OVERFLOW: Final = (
    # OpenAI's API.
    ("langchain-openai", OPENAI, "python", "context_length_exceeded"),
    ("litellm", OPENAI, "python", "(?i)this model's maximum context length is"),
    ("litellm for others", OPENAI, "python", "(?i)maximum context length"),
    ("pi, opencode", OPENAI, "node", r"(?i)maximum context length is \d+ tokens"),
    ("pi, opencode (OpenAI)", OPENAI, "node", "(?i)exceeds the context window"),
    ("pi, opencode (Groq)", OPENAI, "node", "(?i)reduce the length of the messages"),
    ("Cline", OPENAI, "node", r"(?i)\bcontext\s*(?:length|window|limit)\b"),
    ("Cline, by code", OPENAI, "python", "'code': 'context_length_exceeded'"),
    (
        "both numbers",
        OPENAI,
        "message",
        r"(?is)maximum context length is (?P<most>\d+) tokens.*?(?:resulted in|requested) "
        r"(?P<had>\d+) tokens",
    ),
    # Anthropic's.
    ("langchain-anthropic, litellm", MESSAGES, "python", "prompt is too long"),
    ("pi, opencode", MESSAGES, "node", "(?i)prompt is too long"),
    ("Cline", MESSAGES, "node", r"(?i)\bprompt\s+is\s+too\s+long\b"),
    (
        "Claude Code",
        MESSAGES,
        "node",
        r"(?i)prompt is too long[^0-9]*(?P<had>\d+)\s*tokens?\s*>\s*(?P<most>\d+)",
    ),
    (
        "Zed",
        MESSAGES,
        "message",
        r"^prompt is too long: (?P<had>\d+) tokens > (?P<most>\d+) maximum$",
    ),
)
"""Client, routes, what of the error it reads, and the expression."""
RATE_LIMIT: Final = (
    ("litellm", (*OPENAI, *MESSAGES), "python", r"(?i)rate[\s_\-]*limit"),
    ("Cline", (*OPENAI, *MESSAGES), "python", r"(?i)rate[\s_-]?limit"),
    ("OpenAI's packages, Codex", OPENAI, "python", "'code': 'rate_limit_exceeded'"),
    (
        "Codex",
        OPENAI,
        "message",
        r"(?i)try again in\s*(?P<wait>\d+(?:\.\d+)?)\s*(?:s|ms|seconds?)",
    ),
    ("Anthropic's packages", MESSAGES, "python", "'type': 'rate_limit_error'"),
)
RETRIED: Final = (
    (
        "pi",
        (*OPENAI, *MESSAGES),
        "node",
        r"(?i)overloaded|rate.?limit|too many requests|429|50[0234]|service.?unavailable",
    ),
    ("Claude Code, Anthropic's packages", MESSAGES, "node", r'^529 |"type":"overloaded_error"'),
)
"""Expressions for no capacity, which is worth another try."""

TOO_LONG: Final = PromptTooLongError.of(2050, 2047)
LIMITED: Final = RateLimitedError(
    "tenant t has used its 9 requests of a minute; try again in 3.0s", retry_delay_ms=3000
)
BUSY: Final = OverloadedError("every replica of model m is full; try again later")
OTHERS: Final = (
    InvalidRequestError("messages[0].role 'x' is not served; use one of user, assistant"),
    InvalidRequestError("max_tokens must be at least 1 and at most 2147483647, not 0"),
    UnknownModelError("there is no model 'x' here; GET /v1/models lists all"),
)


def _cases(rows: tuple[tuple[str, tuple[str, ...], str, str], ...]) -> list[Any]:
    return [
        pytest.param(path, reads, expression, id=f"{client} {path}")
        for client, paths, reads, expression in rows
        for path in paths
    ]


@pytest.mark.parametrize(("path", "reads", "expression"), _cases(OVERFLOW))
def test_a_prompt_that_is_too_long_is_known_as_such(path: str, reads: str, expression: str) -> None:
    error = seen(path, TOO_LONG)
    assert error.status == 400
    found = re.search(expression, getattr(error, reads))
    assert found, getattr(error, reads)
    if numbers := found.groupdict():
        assert numbers["had"] == "2050"
        assert numbers["most"] in ("2047", "2048"), "of prompts, or of prompt and reply"
    for other in (LIMITED, BUSY, *OTHERS):
        assert not re.search(expression, getattr(seen(path, other), reads))


@pytest.mark.parametrize(
    ("client", "paths", "expression"),
    [
        ("langchain-openai", OPENAI, "context_length_exceeded"),
        ("litellm", OPENAI, "(?i)is longer than the model's context length"),
        ("pi, opencode", OPENAI, "(?i)reduce the length of the messages"),
        ("Cline", OPENAI, r"(?i)\bcontext\s*(?:length|window|limit)\b"),
        ("Claude Code, langchain-anthropic", MESSAGES, "prompt is too long"),
    ],
)
def test_so_is_a_text_that_is_too_long_to_be_counted(
    client: str, paths: tuple[str, ...], expression: str
) -> None:
    for path in paths:
        error = seen(path, PromptTooLongError.of_text("the chat", 1 << 21, 1 << 20))
        assert error.status == 400
        assert re.search(expression, error.python), client


@pytest.mark.parametrize("path", (*OPENAI, *MESSAGES))
def test_so_is_a_body_that_is_too_large(path: str) -> None:
    error = seen(path, _too_large(2 << 20))
    assert error.status == 413
    assert re.search(r"(?i)\bcontext\s*window\b", error.node), "Cline, and Claude Code for 413"
    assert re.search("(?i)exceeds the context window", error.node), "pi, opencode"


@pytest.mark.parametrize(("path", "reads", "expression"), _cases(RATE_LIMIT))
def test_a_limit_of_the_caller_is_known_as_such(path: str, reads: str, expression: str) -> None:
    error = seen(path, LIMITED)
    assert error.status == 429
    found = re.search(expression, getattr(error, reads))
    assert found and found.groupdict().get("wait", "3.0") == "3.0"
    for other in (TOO_LONG, *OTHERS):
        assert not re.search(expression, getattr(seen(path, other), reads))


@pytest.mark.parametrize(("path", "reads", "expression"), _cases(RETRIED))
def test_no_capacity_is_worth_another_try(path: str, reads: str, expression: str) -> None:
    for error in (BUSY, NoReplicaError("no replica serves model m")):
        found = seen(path, error)
        assert found.status in (429, 503, 529), "statuses that all packages try again"
        assert re.search(expression, getattr(found, reads)), getattr(found, reads)
    for other in (TOO_LONG, *OTHERS):
        assert not re.search(expression, getattr(seen(path, other), reads))


def test_codex_and_langchain_look_for_it_in_the_stream_of_a_response() -> None:
    reply = planned(responses.API, {"model": "m", "input": "hello", "stream": True})
    assert reply.streamed_errors == (PromptTooLongError,)
    *_, error, failed = data_of(reply.writer.failed(TOO_LONG))
    assert failed["type"] == "response.failed"
    assert failed["response"]["error"]["code"] == "context_length_exceeded"
    assert error["type"] == "error"
    assert "exceeds the context window" in error["message"]


def test_numbers_that_a_peer_did_not_send_are_not_invented() -> None:
    for stated in ({}, {"prompt_tokens": "9"}, {"prompt_tokens": "x", "max_prompt_tokens": "5"}):
        error = seen(MESSAGES[0], PromptTooLongError("too many ids", metadata=stated))
        assert error.message == "prompt is too long: too many ids"
