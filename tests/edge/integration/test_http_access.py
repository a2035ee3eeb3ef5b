"""What bad requests over HTTP get, and tenants who may not have all. Who may call what is in
test_access_matrix.py."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from httpx2 import AsyncClient
from structlog.testing import capture_logs

from outrider.models.vocabulary import Vocabulary
from outrider.testing import eventually
from services.edge.access.config import SharedLimitsConfig
from services.edge.access.identity import TenantConfig
from services.edge.http.config import HttpConfig
from tests.api_keys import key_of, text_of
from tests.edge.integration.http_client import (
    CHAT,
    KEY,
    TENANTS,
    RawRequest,
    plain,
    serving_http,
)
from tests.edge.integration.running import Running
from tests.models import tool_templates
from tests.redis_server import RedisServer, redis_server

pytestmark = pytest.mark.edge(http=HttpConfig(port=0))


_ANSWERS = "outrider_edge_http_answers_total"


@pytest.mark.edge(http=HttpConfig(port=0, max_body_bytes=1000))
async def test_every_error_is_in_that_apis_shape(mesh: Running, caller: AsyncClient) -> None:
    cases = [
        (404, caller.get("/nothing")),
        (404, caller.get("/v1/models/nothing")),
        (405, caller.get("/v1/chat/completions")),
        (405, caller.delete("/v1/models")),
        (400, caller.post("/v1/chat/completions", json={})),
        (415, caller.post("/v1/chat/completions", content=b"{}")),
        (415, caller.post("/tokenize", data={"a": "b"})),
        (413, caller.post("/v1/chat/completions", json=CHAT | {"user": "x" * 2000})),
    ]
    for status, request in cases:
        answer = await request
        assert answer.status_code == status
        error = answer.json()["error"]
        assert error["message"] and error["type"] and error["code"]
        assert answer.headers["x-request-id"]
        assert answer.headers["cache-control"] == "no-store"
    allowed = await caller.get("/v1/chat/completions")
    assert allowed.headers["allow"] == "POST, DELETE"
    allowed = await caller.delete("/v1/models/small")
    assert allowed.headers["allow"] == "GET, HEAD"
    assert (await caller.head("/v1/models/small")).status_code == 200
    named = await caller.get("/v1/models", headers={"x-request-id": "mine"})
    assert named.headers["x-request-id"] == "mine"
    for route, code in (
        ("none", "404"),
        ("/v1/models/{model:path}", "404"),
        ("/v1/models", "200"),
        ("/v1/chat/completions", "413"),
    ):
        counted = partial(mesh.sample, _ANSWERS, route=route, status=code)
        await eventually(lambda counted=counted: counted() == 1)  # type: ignore[misc]
    assert mesh.region.opened == []


async def test_a_target_may_have_an_origin_and_more_slashes_than_it_needs(mesh: Running) -> None:
    head = {"Host": "localhost", "Authorization": f"Bearer {KEY}", "Connection": "close"}
    for target in (
        "/v1/models/",
        "//v1//models",
        "http://edge/v1/models",
        "HTTPS://other:1//v1/models/?limit=1",
        "http://edge/v1/models/small/",
    ):
        request = await RawRequest.connected(mesh)
        request.send(f"GET {target} HTTP/1.1", head)
        assert (await request.rest()).startswith(b"HTTP/1.1 200"), target
    hidden = await RawRequest.connected(mesh)
    hidden.send("GET http://edge//v1/models HTTP/1.1", head | {"Authorization": "Bearer none"})
    assert (await hidden.rest()).startswith(b"HTTP/1.1 401")


@pytest.mark.edge(
    http=HttpConfig(port=0, body_timeout_s=0.2, max_body_bytes=1000, max_header_bytes=2000)
)
async def test_a_body_may_take_only_so_long_and_be_only_so_large(mesh: Running) -> None:
    head = {
        "Host": "localhost",
        "Authorization": f"Bearer {KEY}",
        "Content-Type": "application/json",
    }
    slow = await RawRequest.connected(mesh)
    slow.send("POST /tokenize HTTP/1.1", head | {"Content-Length": "10"}, b"{")
    assert (await slow.until(b"\r\n")).startswith(b"HTTP/1.1 408")
    chunked = await RawRequest.connected(mesh)
    body = b"400\r\n" + b"x" * 1024 + b"\r\n"
    chunked.send("POST /tokenize HTTP/1.1", head | {"Transfer-Encoding": "chunked"}, body)
    assert (await chunked.until(b"\r\n")).startswith(b"HTTP/1.1 413")
    headers = await RawRequest.connected(mesh)
    headers.send("GET /v1/models HTTP/1.1", head | {"X-Long": "x" * 5000})
    assert (await headers.until(b"\r\n")).startswith(b"HTTP/1.1 431")
    for request in (slow, chunked, headers):
        request.close()
    await eventually(lambda: not mesh.http.num_connections)


@pytest.mark.edge(http=HttpConfig(port=0, idle_timeout_s=0.2))
async def test_a_head_may_take_only_so_long(mesh: Running) -> None:
    slow = await RawRequest.connected(mesh)
    slow.writer.write(b"GET /v1/models HTTP/1.1\r\nHost: localhost")
    assert await slow.rest() == b""
    slow.close()


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"\x00\x01\x02\x03",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /tokenize HTTP/1.1\r\nHost: [::1]\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
        b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        b"GET /v1/models\x00 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /v1/models HTTP/1.1\r\nHost : e\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 100,
    ],
)
async def test_what_is_no_http_ends_its_connection_alone(
    request_bytes: bytes, mesh: Running, caller: AsyncClient
) -> None:
    odd = await RawRequest.connected(mesh)
    odd.writer.write(request_bytes)
    answer = await odd.some()
    assert b"HTTP/1.1 500" not in answer
    odd.close()
    assert (await caller.get("/v1/models")).status_code == 200


async def test_a_defect_is_answered_and_harms_nobody_else(
    monkeypatch: pytest.MonkeyPatch, caller: AsyncClient
) -> None:
    with monkeypatch.context() as patch, capture_logs() as logs:
        patch.setattr("services.edge.http.openai_models._listed", lambda exchange: 1 // 0)
        answer = await caller.get("/v1/models")
        named = await caller.get("/v1/models", headers={"x-request-id": "Miriam"})
    assert answer.status_code == named.status_code == 500
    assert "ZeroDivisionError" in answer.json()["error"]["message"]
    assert named.headers["x-request-id"] == "Miriam", "a client gets its own back"
    told = [it["request_id"] for it in logs if it["event"] == "request_failed"]
    assert told == [answer.headers["x-request-id"], ""], "which no log has"
    assert (await caller.get("/v1/models")).status_code == 200


async def test_tokens_and_texts(mesh: Running, caller: AsyncClient) -> None:
    text = "<|im_start|>user\nhällo<|im_end|>"
    answer = await caller.post("/tokenize", json={"prompt": text, "return_token_strs": True})
    found = answer.json()
    assert found["count"] == len(found["tokens"]) == len(found["token_strs"])
    assert found["token_strs"][0] == "<|im_start|>"
    assert found["max_model_len"] == mesh.model.limits.max_context_tokens
    back = await caller.post("/detokenize", json={"tokens": found["tokens"]})
    assert back.json() == {"prompt": text}
    chat = await caller.post("/tokenize", json={"messages": CHAT["messages"]})
    rendered = await caller.post("/detokenize", json={"tokens": chat.json()["tokens"]})
    assert rendered.json()["prompt"].endswith("<|im_start|>assistant\n")
    for bad in ({}, {"prompt": "a", "messages": []}, {"prompt": "x" * 100_000}):
        assert (await caller.post("/tokenize", json=bad)).status_code == 400
    for tokens in ([10**6], [-1], "x"):
        assert (await caller.post("/detokenize", json={"tokens": tokens})).status_code == 400


async def test_tokens_of_a_chat_with_tools(tmp_path: Path) -> None:
    """The template shows them; what would give other ids than a chat has is refused."""
    messages = CHAT["messages"]
    vocabulary = tool_templates.vocabulary_of(tool_templates.HERMES)
    tool = {"type": "function", "function": {"name": "weather", "parameters": {}}}
    async with serving_http(vocabulary, tmp_path) as mesh, plain(mesh) as client:
        asked = {"messages": messages, "tools": [tool]}
        shown = (await client.post("/tokenize", json=asked)).json()
        text = await client.post("/detokenize", json={"tokens": shown["tokens"]})
        assert "weather" in text.json()["prompt"]
        bare = (await client.post("/tokenize", json={"messages": messages})).json()
        assert bare["count"] < shown["count"]
        same = asked | {"chat_template_kwargs": {}, "chat_template": None}
        assert (await client.post("/tokenize", json=same)).json() == shown
        passing = await client.post("/tokenize", json=asked | {"tools": [{"type": "web"}]})
        assert passing.headers["x-outrider-passed-over"] == "tools[0]:web"
        assert passing.json() == bare
        for field, value in (
            ("tools", [tool, tool]),
            ("chat_template", "{{ messages }}"),
            ("chat_template_kwargs", {"enable_thinking": False}),
        ):
            answer = await client.post("/tokenize", json=asked | {field: value})
            assert answer.status_code == 400, field
        answer = await client.post("/tokenize", json={"prompt": "a", "tools": [tool]})
        assert answer.json()["error"]["param"] == "tools"
        await mesh.settled()


_COUNTED = {
    "/tokenize": {"prompt": "hello"},
    "/detokenize": {"tokens": [1]},
    "/v1/messages/count_tokens": {
        "model": "small",
        "messages": [*CHAT["messages"], {"role": "assistant", "content": "So"}],
    },
    "/v1/responses/input_tokens": {"model": "small", "input": "hello"},
}


@pytest.mark.parametrize(
    ("path", "is_shared"), [*((path, False) for path in _COUNTED), ("/tokenize", True)]
)
async def test_requests_for_tokens_count_too(
    words: Vocabulary, tmp_path: Path, path: str, is_shared: bool, redis: RedisServer
) -> None:
    config: dict[str, Any] = {
        "tenants": (*TENANTS, TenantConfig("few", requests_per_minute=2, max_sessions=1)),
        "keys": (key_of("few"),),
        "shared_limits": SharedLimitsConfig(redis.url if is_shared else "", timeout_ms=5000.0),
    }
    async with (
        serving_http(words, tmp_path, **config) as mesh,
        plain(mesh, text_of("few")) as client,
    ):
        left = []
        for _ in range(2):
            answer = await client.post(path, json=_COUNTED[path])
            assert answer.status_code == 200
            headers = answer.headers
            (name,) = [it for it in headers if "requests" in it and "remaining" in it]
            left.append(headers[name])
        assert left == ["1", "0"]
        refused = await client.post(path, json=_COUNTED[path])
        assert refused.status_code == 429 and int(refused.headers["retry-after"]) > 0
        chat = await client.post("/v1/chat/completions", json=CHAT)
        assert chat.status_code == 429, "of the same limit"
        assert mesh.sample("outrider_edge_refused_total", reason="RATE_LIMITED") == 2
        assert mesh.region.opened == []
        await mesh.settled()


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    with redis_server() as found:
        yield found
