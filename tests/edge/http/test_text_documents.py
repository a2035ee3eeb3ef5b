"""Documents whose contents are text are shown to the model; others are refused by their place."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, Final

import pytest

from services.edge.http import anthropic_messages, openai_chat, responses
from services.edge.http.api import ChatApi
from tests.edge.http.asking import planned, refusal

NOTES: Final = "prices in \N{EURO SIGN}\n1, 2"
BASE64: Final = base64.b64encode(NOTES.encode()).decode()
LATIN: Final = base64.b64encode("\N{POUND SIGN}".encode("latin-1")).decode()
PDF: Final = base64.b64encode(b"%PDF-1.4\n1 0 obj").decode()


def chat(part: Mapping[str, Any]) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [part, {"type": "text", "text": "why?"}]}]}


def message(part: Mapping[str, Any]) -> dict[str, Any]:
    return {"model": "m", "max_tokens": 9, **chat(part)}


def response(part: Mapping[str, Any]) -> dict[str, Any]:
    text = {"type": "input_text", "text": "why?"}
    return {"model": "m", "input": [{"role": "user", "content": [part, text]}]}


def document(**source: Any) -> dict[str, Any]:
    return message({"type": "document", "source": source})


def file(**given: Any) -> dict[str, Any]:
    return chat({"type": "file", "file": given})


TITLED: Final = {
    "type": "document",
    "title": "notes.txt",
    "context": "of today",
    "source": {"type": "text", "media_type": "text/plain", "data": NOTES},
}
BLOCKS: Final = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]


@pytest.mark.parametrize(
    ("api", "body", "shown"),
    [
        (anthropic_messages.API, message(TITLED), f"notes.txt\nof today\n{NOTES}"),
        (anthropic_messages.API, document(type="text", data=NOTES), NOTES),
        (anthropic_messages.API, document(type="content", content=NOTES), NOTES),
        (anthropic_messages.API, document(type="content", content=BLOCKS), "one\ntwo"),
        (
            anthropic_messages.API,
            document(type="base64", media_type="text/markdown", data=BASE64),
            NOTES,
        ),
        (openai_chat.API, file(file_data=f"data:text/plain;base64,{BASE64}"), NOTES),
        (
            openai_chat.API,
            file(file_data=f"data:text/csv;charset=utf-8;base64,{BASE64}", filename="a.csv"),
            f"a.csv\n{NOTES}",
        ),
        (openai_chat.API, file(file_data="data:application/json,%7B%7D"), "{}"),
        (openai_chat.API, file(file_data=BASE64, filename="notes.md"), f"notes.md\n{NOTES}"),
        (
            responses.API,
            response({"type": "input_file", "file_data": BASE64, "filename": "a.txt"}),
            f"a.txt\n{NOTES}",
        ),
    ],
)
def test_a_document_of_text_is_shown_as_text(
    api: ChatApi, body: dict[str, Any], shown: str
) -> None:
    (request,) = planned(api, body).chats
    assert request.messages[0].content == f"{shown}\nwhy?"


def test_so_is_one_that_a_tool_found() -> None:
    call = {"type": "tool_use", "id": "t1", "name": "look", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": [TITLED]}
    body = message(TITLED)
    body["messages"] += [
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [result]},
    ]
    (request,) = planned(anthropic_messages.API, body).chats
    assert request.messages[-1].content == f"notes.txt\nof today\n{NOTES}"


@pytest.mark.parametrize(
    ("api", "body"),
    [
        (anthropic_messages.API, document(type="url", url="https://a.example/a.pdf")),
        (anthropic_messages.API, document(type="file", file_id="f")),
        (
            anthropic_messages.API,
            document(type="base64", media_type="application/pdf", data=BASE64),
        ),
        (anthropic_messages.API, message({"type": "document"})),
        (
            anthropic_messages.API,
            message({"type": "search_result", "source": "https://a.example", "title": "t"}),
        ),
        (openai_chat.API, file(file_id="f")),
        (openai_chat.API, file(file_data="AA==", filename="a.txt")),
        (openai_chat.API, file(file_data=PDF)),
        (openai_chat.API, file(file_data=LATIN)),
        (openai_chat.API, file(file_data="%%%")),
        (openai_chat.API, file(file_data=f"data:image/png;base64,{BASE64}", filename="a.txt")),
        (openai_chat.API, chat({"type": "file"})),
        (responses.API, response({"type": "input_file", "file_url": "https://a.example/a.txt"})),
    ],
)
def test_a_document_of_anything_else_is_refused(api: ChatApi, body: dict[str, Any]) -> None:
    error = refusal(api, body)
    assert "models here read only text" in error.message
    assert error.metadata["param"].endswith(("content.0", "content[0]"))


@pytest.mark.parametrize("data", ["%%%", LATIN])
def test_text_that_cannot_be_read_is_refused(data: str) -> None:
    error = refusal(openai_chat.API, file(file_data=f"data:text/plain;base64,{data}"))
    assert error.message.startswith("messages[0].content[0]: the file is no UTF-8 text")


@pytest.mark.parametrize("depth", [2, 250])
def test_a_document_in_a_document_is_refused_by_its_place(depth: int) -> None:
    body = document(type="text", data=NOTES)
    (inner, _) = body["messages"][0]["content"]
    for _ in range(depth - 1):
        inner = {"type": "document", "source": {"type": "content", "content": [inner]}}
    error = refusal(anthropic_messages.API, message(inner))
    assert error.metadata["param"] == "messages.0.content.0.source.content.0"
