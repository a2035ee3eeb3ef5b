"""Turns of a coding agent whose system prompt begins with a line that differs in every request: how
much of a prompt is found in the cache, before a real mesh, and what the region is sent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from httpx2 import AsyncClient

from outrider.models.vocabulary import Vocabulary
from services.edge.access.config import AccessConfig
from services.edge.http.config import HttpConfig
from tests.edge.integration.running import Running
from tests.mesh import running_mesh
from tests.models import tool_templates

INSTRUCTIONS = "\n".join(
    f"{number}. Before you change file {number}, read it, and say what you found there."
    for number in range(11)
)
ENVIRONMENT = "Working directory: /home/ann/app\nToday's date: 2026-11-29"
QUESTION = "Where is the port read?"
CALL = {"path": "app/config.py"}
RESULT = "PORT = int(os.environ['PORT'])\n" * 3
SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
CLIENT = {"x-outrider-client": "ab" * 16}
"""Who it is, since nobody has a key here."""


def billing(number: int) -> str:
    """The line, as the request with this number has it."""
    return (
        f"x-anthropic-billing-header: cc_version=2.1.177.{number:03x}; cc_entrypoint=cli; "
        f"cch={number * 7919:05x};"
    )


@dataclass(frozen=True, slots=True)
class Agent:
    """How an agent asks by one API."""

    path: str
    count_path: str
    asked: Callable[[str], Mapping[str, Any]]
    """The first request, with this line at its head; empty: without a line."""
    more: Mapping[str, Any]
    """What the second request has behind it."""
    usage: Callable[[Any], tuple[int, int]]
    """Tokens of the prompt, and those of them that were cached."""

    def __str__(self) -> str:
        return self.path

    def body(self, turn: int, head: str) -> dict[str, Any]:
        """The first or second request."""
        first = dict(self.asked(head))
        name = "input" if "input" in first else "messages"
        return first | {name: [*first[name], *self.more[name]]} if turn else first


def _message_usage(answer: Any) -> tuple[int, int]:
    usage = answer["usage"]
    cached = usage["cache_read_input_tokens"]
    return usage["input_tokens"] + cached, cached


MESSAGES = Agent(
    "/v1/messages",
    "/v1/messages/count_tokens",
    lambda head: {
        "model": "small",
        "max_tokens": 30,
        "system": [
            *([{"type": "text", "text": head}] if head else []),
            {"type": "text", "text": "You are a coding agent."},
            {
                "type": "text",
                "text": f"{INSTRUCTIONS}\n{ENVIRONMENT}",
                "cache_control": {"type": "ephemeral"},
            },
        ],
        "messages": [{"role": "user", "content": [{"type": "text", "text": QUESTION}]}],
        "tools": [{"name": "read", "description": "Reads a file.", "input_schema": SCHEMA}],
    },
    {
        "messages": [
            {
                "role": "assistant",
                "content": [{"type": "tool_use", "id": "t1", "name": "read", "input": CALL}],
            },
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": "t1", "content": RESULT}],
            },
        ]
    },
    _message_usage,
)
CHAT = Agent(
    "/v1/chat/completions",
    "",
    lambda head: {
        "model": "small",
        "max_tokens": 30,
        "messages": [
            {"role": "system", "content": f"{head}\n{INSTRUCTIONS}" if head else INSTRUCTIONS},
            {"role": "user", "content": QUESTION},
        ],
    },
    {
        "messages": [
            {"role": "assistant", "content": "In a file."},
            {"role": "user", "content": "?"},
        ]
    },
    lambda answer: (
        answer["usage"]["prompt_tokens"],
        answer["usage"]["prompt_tokens_details"]["cached_tokens"],
    ),
)
RESPONSES = Agent(
    "/v1/responses",
    "/v1/responses/input_tokens",
    lambda head: {
        "model": "small",
        "max_output_tokens": 30,
        "instructions": f"{head}\n{INSTRUCTIONS}" if head else INSTRUCTIONS,
        "input": [{"role": "user", "content": QUESTION}],
    },
    {"input": [{"role": "assistant", "content": "In a file."}, {"role": "user", "content": "?"}]},
    lambda answer: (
        answer["usage"]["input_tokens"],
        answer["usage"]["input_tokens_details"]["cached_tokens"],
    ),
)
over_agents = pytest.mark.parametrize("agent", [MESSAGES, CHAT, RESPONSES], ids=str)


def settings(**http: Any) -> dict[str, Any]:
    return {"http": HttpConfig(port=0, **http), "access": AccessConfig(http_anonymous=True)}


served = pytest.mark.edge(http=HttpConfig(port=0), access=AccessConfig(http_anonymous=True))


async def two_turns(
    agent: Agent, folder: Path, **http: Any
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Tokens and cached tokens of the prompts of two turns."""
    vocabulary = tool_templates.vocabulary_of(tool_templates.HERMES)
    async with running_mesh(vocabulary, folder, edge=settings(**http)) as mesh:
        where = f"http://127.0.0.1:{mesh.edges[0].ports.http}"
        async with AsyncClient(base_url=where, headers=CLIENT, timeout=30) as client:
            found = []
            for turn in (0, 1):
                answer = await client.post(agent.path, json=agent.body(turn, billing(turn + 1)))
                assert answer.status_code == 200, answer.text
                found.append(agent.usage(answer.json()))
    return found[0], found[1]


@over_agents
async def test_the_second_turn_finds_the_first_in_the_cache(agent: Agent, tmp_path: Path) -> None:
    (shared, first_cached), (whole, cached) = await two_turns(agent, tmp_path)
    assert first_cached == 0 and 700 < shared < whole
    assert cached >= 0.9 * shared


@over_agents
async def test_with_the_line_it_would_not(agent: Agent, tmp_path: Path) -> None:
    (shared, _), (_, cached) = await two_turns(agent, tmp_path, left_out_lines=())
    assert cached < 0.1 * shared


@over_agents
@served
async def test_the_region_is_sent_the_prompt_without_the_line(
    agent: Agent, mesh: Running, caller: AsyncClient
) -> None:
    counts = []
    for head in ("", billing(1)):
        body = agent.body(0, head) | {"tools": []}
        answer = await caller.post(agent.path, json=body)
        assert answer.status_code == 200
        told = answer.headers.get("x-outrider-passed-over", "")
        assert ("system:x-anthropic-billing-header:" in told) is bool(head)
        if agent.count_path:
            counts.append((await caller.post(agent.count_path, json=body)).json())
    bare, headed = map(mesh.region.prompt, mesh.region.opened)
    assert bare == headed and len(bare) > 700
    assert counts == [] or counts[0] == counts[1]


@served
async def test_tokenize_shows_the_same_prompt(
    words: Vocabulary, mesh: Running, caller: AsyncClient
) -> None:
    bodies = [{"messages": CHAT.body(0, head)["messages"]} for head in ("", billing(1))]
    bare, headed = [(await caller.post("/tokenize", json=it)).json() for it in bodies]
    assert bare["tokens"] == headed["tokens"]
    text = "x-anthropic-billing-header: 1"
    as_it_is = (await caller.post("/tokenize", json={"prompt": text})).json()
    assert as_it_is["tokens"] == list(words.encode(text))
