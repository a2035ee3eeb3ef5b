"""Log probabilities in bodies: kept as they will be written, and the same JSON as in a stream."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from outrider.session.client import Committed
from outrider.session.types import ScoredToken, TokenLogprobs
from services.edge.http import openai_chat, openai_completions, responses
from services.edge.http.api import ChatApi
from services.edge.http.openai_logprobs import chat_logprobs, written_logprobs
from services.edge.session.events import ClientEvent
from tests.edge.http.asking import USER, chat_of, done, objects_of, planned, told

SCORED = [
    TokenLogprobs(
        ScoredToken(number, -0.1 * number, text),
        (ScoredToken(number, -0.1 * number, text), ScoredToken(7, -1e-9, b'"\\\n\xff')),
    )
    for number, text in enumerate([b"a", b"\xe2\x82", b"\xac", b'"', b""])
]
"""A character in two tokens, what JSON escapes, and no text."""
TEXTS = ["a", "", "\N{EURO SIGN}", '"', ""]


def reply() -> list[ClientEvent]:
    commits = [
        Committed(text, (number,), number + 1, logprobs=(scored,))
        for number, (text, scored) in enumerate(zip(TEXTS, SCORED, strict=True))
    ]
    return [chat_of()[0], *commits, done(len(commits))]


CHATS = {"messages": [USER], "logprobs": True, "top_logprobs": 2}
COMPLETIONS = {"prompt": "hi", "logprobs": 2}


@pytest.mark.parametrize(
    ("api", "asked"), [(openai_chat.API, CHATS), (openai_completions.API, COMPLETIONS)]
)
def test_a_body_says_of_each_token_what_a_stream_says(api: ChatApi, asked: dict[str, Any]) -> None:
    streamed = objects_of(told(planned(api, asked | {"stream": True}), reply()))
    pieces = [it["choices"][0]["logprobs"] for it in streamed if it["choices"][0]["logprobs"]]
    (choice,) = json.loads(told(planned(api, asked), reply()))["choices"]
    whole = choice["logprobs"]
    for name in whole:
        parts = [it[name] for it in pieces]
        assert whole[name] == (None if parts[0] is None else [it for part in parts for it in part])
    assert whole.get("text_offset") in (None, [0, 1, 1, 2, 3])


def test_without_likely_ones_and_without_tokens() -> None:
    only = reply()
    asked_for: list[tuple[int, dict[str, Any]]] = [(0, {}), (1, {"top_logprobs": []})]
    for count, top in asked_for:
        asked = planned(openai_completions.API, COMPLETIONS | {"logprobs": count})
        (choice,) = json.loads(told(asked, [only[0], only[-1]]))["choices"]
        nothing: dict[str, Any] = {"tokens": [], "token_logprobs": [], "text_offset": []}
        assert choice["logprobs"] == nothing | top
    (choice,) = json.loads(told(planned(openai_chat.API, CHATS), [only[0], only[-1]]))["choices"]
    assert choice["logprobs"] is None


def test_what_is_kept_for_the_end_is_written_already() -> None:
    assert msgspec.json.encode(written_logprobs(SCORED)) == msgspec.json.encode(
        chat_logprobs(SCORED).content
    )
    include = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    asked = ((openai_chat.API, CHATS), (openai_completions.API, COMPLETIONS))
    writers: list[Any] = [planned(api, body).writer for api, body in asked]
    writers.append(planned(responses.API, include | {"model": "m", "input": "hi"}).writer)
    for writer in writers:
        for event in reply():
            writer.take(0, event)
    chat, completion, response = writers
    for kept in (
        chat._choices[0].logprobs,
        completion._choices[0].offsets.kept.top_logprobs,
        response._shape._logprobs,
    ):
        assert len(kept) == len(SCORED) and all(isinstance(it, msgspec.Raw) for it in kept)
