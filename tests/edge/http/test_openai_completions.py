"""Completions: prompts as they are."""

from __future__ import annotations

import json
from typing import Any

import pytest

from outrider.errors import EmptyPromptError, InvalidRequestError
from services.edge.http.openai_completions import API
from tests.edge.http.asking import chat_of, events_of, objects_of, planned, told


def body(prompt: object = "once", **fields: Any) -> dict[str, Any]:
    return {"model": "small", "prompt": prompt, **fields}


@pytest.mark.parametrize(
    ("prompt", "read"),
    [
        ("once", ["once"]),
        (["once", "twice"], ["once", "twice"]),
        ([1, 2], [(1, 2)]),
        ([[1, 2], [3]], [(1, 2), (3,)]),
    ],
)
def test_prompts_are_text_or_ids_one_or_several(prompt: object, read: list[object]) -> None:
    chats = planned(API, body(prompt)).chats
    assert [chat.raw_prompt for chat in chats] == read
    assert all(chat.has_prompt and not chat.messages for chat in chats)
    assert {chat.sampling.max_tokens for chat in chats} == {16}


def test_too_many_prompts_are_refused_before_any_is_looked_at() -> None:
    with pytest.raises(InvalidRequestError, match="at most 8 prompts"):
        planned(API, body([""] * 9))


def test_a_prompt_of_more_ids_than_any_text_has_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="at most 1048576 token ids"):
        planned(API, body([1] * (1 << 20) + [1]))


@pytest.mark.parametrize("prompt", ["", [], [[]], ["a", ""]])
def test_empty_prompts_are_refused(prompt: object) -> None:
    with pytest.raises(EmptyPromptError):
        planned(API, body(prompt))


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": [1, "a"]},
        {"prompt": ["a", 1]},
        {"prompt": [-1]},
        {"prompt": [2**40]},
        {"prompt": None},
        {"prompt": {"a": 1}},
        {"prompt": "\ud800"},
        {"prompt": ["a"] * 9},
        {"prompt": ["a"] * 3, "n": 3},
        {"logprobs": 21},
        {"suffix": "x"},
        {"best_of": 2},
        {"echo": True, "prompt": [1]},
        {"echo": True, "logprobs": 0},
    ],
)
def test_what_cannot_be_heeded_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError):
        planned(API, body() | fields)


def test_each_prompt_has_its_choices_and_they_the_same_seeds() -> None:
    chats = planned(API, body(["a", "b"], n=2)).chats
    assert [chat.raw_prompt for chat in chats] == ["a", "a", "b", "b"]
    seeds = [chat.sampling.seed for chat in chats]
    assert seeds[:2] == seeds[2:] and seeds[0] != seeds[1]


def test_the_tokens_of_every_prompt_count_once() -> None:
    reply = planned(API, body(["a", "b"], n=2))
    whole = json.loads(told(reply, *[chat_of("x", "y")] * 4))
    assert whole["object"] == "text_completion"
    assert [it["text"] for it in whole["choices"]] == ["xy"] * 4
    assert whole["usage"]["prompt_tokens"] == 10
    assert whole["usage"]["completion_tokens"] == 8


def test_an_echo_comes_before_the_text() -> None:
    whole = json.loads(told(planned(API, body(echo=True)), chat_of("!")))
    assert whole["choices"][0]["text"] == "once!"
    stream = told(planned(API, body(echo=True, stream=True)), chat_of("!"))
    assert [it["choices"][0]["text"] for it in objects_of(stream)] == ["once!", ""]
    assert objects_of(stream)[-1]["choices"][0]["finish_reason"] == "stop"
    empty = told(planned(API, body(echo=True, stream=True)), chat_of())
    assert [it["choices"][0]["text"] for it in objects_of(empty)] == ["once"]


def test_an_echo_is_told_once_however_often_its_client_comes_back() -> None:
    asked = {"idempotency_key": "k"}
    first = told(planned(API, body(echo=True, stream=True), **asked), chat_of("", "a", "b"))
    blocks = [it for it in events_of(first) if it["data"] != "[DONE]"]
    for at, block in enumerate(blocks[:-1]):
        again = planned(API, body(echo=True, stream=True), **asked, last_event_id=block["id"])
        (chat,) = again.chats
        rest = chat_of("", "a", "b")
        del rest[1 : 1 + chat.resume.upto]  # as the edge leaves out what the client has
        had = [json.loads(it["data"]) for it in blocks[: at + 1]]
        texts = [it["choices"][0]["text"] for it in [*had, *objects_of(told(again, rest))]]
        assert "".join(texts) == "onceab"
