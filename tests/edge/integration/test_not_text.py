"""Images, recordings and documents: every route refuses them by their place in the request and by
their type, says what to send, and asks no region. The table has to have every route with a body."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from outrider.models.vocabulary import Vocabulary
from services.edge.http.routes import ALL_ROUTES
from tests.api_keys import text_of
from tests.edge.integration.access_matrix import DOORS, GOOD, as_bearer, closed_edge

_TEXT: Final = {"type": "text", "text": "what is this?"}
_URL: Final = "data:image/png;base64,AA=="
_PICTURE: Final = {"type": "image_url", "image_url": {"url": _URL}}
_SOUND: Final = {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}}
_FILE: Final = {"type": "file", "file": {"file_data": "AA==", "filename": "a.pdf"}}
_SPOKEN: Final = {"role": "assistant", "content": None, "audio": {"id": "audio_1"}}
_SOURCE: Final = {"type": "base64", "media_type": "image/png", "data": "AA=="}
_IMAGE: Final = {"type": "image", "source": _SOURCE}
_DOCUMENT: Final = {"type": "document", "source": _SOURCE | {"media_type": "application/pdf"}}
_INPUT_IMAGE: Final = {"type": "input_image", "image_url": _URL, "detail": "auto"}
_INPUT_FILE: Final = {"type": "input_file", "file_data": "AA==", "filename": "a.pdf"}
_CALL: Final = {"type": "tool_use", "id": "t1", "name": "look", "input": {}}


def _user(*parts: Mapping[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": list(parts)}


def _seen(*parts: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": "t1", "content": list(parts)}


_Case = tuple[dict[str, Any], str, str]
"""Fields of the request, where the part is, and its type."""
_OPENAI: Final[Sequence[_Case]] = (
    ({"messages": [_user(_TEXT, _PICTURE)]}, "messages[0].content[1]", "image_url"),
    ({"messages": [_user(_TEXT), _user(_SOUND)]}, "messages[1].content[0]", "input_audio"),
    ({"messages": [_user(_FILE, _TEXT)]}, "messages[0].content[0]", "file"),
    ({"messages": [_SPOKEN, _user(_TEXT)]}, "messages[0].audio", "audio"),
)
_ANTHROPIC: Final[Sequence[_Case]] = (
    ({"messages": [_user(_TEXT, _IMAGE)]}, "messages.0.content.1", "image"),
    ({"messages": [_user(_DOCUMENT)]}, "messages.0.content.0", "document"),
    ({"messages": [_user(_TEXT)], "system": [_TEXT, _IMAGE]}, "system.1", "image"),
    (
        {
            "messages": [
                _user(_TEXT),
                {"role": "assistant", "content": [_CALL]},
                _user(_TEXT, _seen(_TEXT, _IMAGE)),
            ]
        },
        "messages.2.content.1.content.1",
        "image",
    ),
)
_RESPONSES: Final[Sequence[_Case]] = (
    ({"input": [_user(_TEXT, _INPUT_IMAGE)]}, "input[0].content[1]", "input_image"),
    ({"input": [_user(_INPUT_FILE)]}, "input[0].content[0]", "input_file"),
    ({"input": [_user(_SOUND)]}, "input[0].content[0]", "input_audio"),
    (
        {
            "input": [
                {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c1", "output": [_INPUT_IMAGE]},
            ]
        },
        "input[1].output[0]",
        "input_image",
    ),
)
CASES: Final[Mapping[str, Sequence[_Case]]] = {
    "/v1/chat/completions": _OPENAI,
    "/tokenize": tuple(({"prompt": None} | it[0], *it[1:]) for it in _OPENAI),
    "/v1/messages": _ANTHROPIC,
    "/v1/messages/count_tokens": _ANTHROPIC,
    "/v1/responses": _RESPONSES,
    "/v1/responses/input_tokens": _RESPONSES,
    "/v1/embeddings": (
        ({"input": ["a text", _PICTURE]}, "input[1]", "image_url"),
        ({"input": [{"image": "AA=="}]}, "input[0]", "object"),
    ),
}
NO_PARTS: Final = {"/v1/completions", "/detokenize", "/v1/chat/typing"}
"""Routes whose APIs know no parts: a text, or token ids; or whose parts are those of chats."""


@pytest.mark.parametrize("path", CASES)
async def test_a_part_that_is_no_text_is_refused_by_its_place(
    path: str, words: Vocabulary, tmp_path: Path
) -> None:
    async with closed_edge(words, tmp_path) as mesh, DOORS["HTTP/1.1"](mesh) as ask:
        for fields, where, kind in CASES[path]:
            body = dict(GOOD["POST", path].body or {}) | fields
            answer = await ask("POST", path, body, as_bearer(text_of("good")))
            said = json.loads(answer.body)["error"]
            assert (answer.status, said["type"]) == (400, "invalid_request_error")
            assert said["message"].startswith(f"{where} is ")
            assert f"of type '{kind}', and models here read only text; send " in said["message"]
            assert said.get("param", where) == where
        assert not mesh.region.opened


def test_every_route_with_a_body_is_in_the_table() -> None:
    assert set(CASES) | NO_PARTS == {it.path for it in ALL_ROUTES if it.request is not None}
