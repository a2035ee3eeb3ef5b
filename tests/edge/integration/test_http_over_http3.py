"""What the edge's HTTP has of its own over HTTP/3: refusals, limits, an edge that stops. Chats are
in test_http_chats.py."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from outrider.models.vocabulary import Vocabulary
from outrider.testing import eventually
from services.edge.http.config import HttpConfig
from services.edge.http3.limits import Http3Limits
from tests.edge.http3.client import h3_client
from tests.edge.integration.http_client import CHAT, KEY, serving_http
from tests.edge.integration.running import REPLY, Running

pytestmark = pytest.mark.edge(http=HttpConfig(port=0))


H3_HEADERS = [
    (b"authorization", b"Bearer " + KEY.encode()),
    (b"content-type", b"application/json"),
]


async def test_an_edge_that_stops_tells_those_that_wait_over_http3(mesh: Running) -> None:
    mesh.region.stop_after = 4
    async with h3_client(mesh.ports.main, mesh.ca) as client:
        streamed, waiting = (
            client.ask("POST", "/v1/chat/completions", json.dumps(body).encode(), H3_HEADERS)
            for body in (CHAT | {"stream": True}, CHAT)
        )
        await streamed.until(lambda: b'"content":"a' in streamed.body)
        await eventually(lambda: len(mesh.region.live) == 2)
        await mesh.edge.stop()
        assert b"shutting down" in (await streamed.whole()).body
        assert streamed.reset_code is None
        refused = await waiting.whole()
        assert refused.status == 503
        assert json.loads(refused.body)["error"]["code"] == "draining"


async def test_what_http3_refuses_by_itself_looks_like_all_refusals(
    words: Vocabulary, tmp_path: Path
) -> None:
    http3 = Http3Limits(body_timeout_s=0.3, max_requests_per_connection=1)
    async with (
        serving_http(words, tmp_path, REPLY, http3=http3) as mesh,
        h3_client(mesh.ports.main, mesh.ca) as client,
    ):
        named = [*H3_HEADERS, (b"x-request-id", b"mine")]
        slow = client.ask("POST", "/v1/chat/completions", b"{", named, ends=False)
        full = await client.ask("POST", "/v1/messages", b"{}", H3_HEADERS).whole()
        late = await slow.whole()
    assert (late.status, late.headers[b"x-request-id"]) == (408, b"mine")
    assert json.loads(late.body)["error"]["code"] == "slow_request"
    assert (full.status, full.headers[b"retry-after"]) == (503, b"1")
    said = json.loads(full.body)
    assert said["type"] == "error" and said["request_id"] == full.headers[b"request-id"].decode()


@pytest.mark.edge(http=HttpConfig(port=0, max_body_bytes=1000))
async def test_a_body_has_the_same_limit_over_http3(mesh: Running) -> None:
    long = json.dumps(CHAT | {"user": "x" * 300_000}).encode()
    stated = (b"content-length", b"%d" % len(long))
    async with h3_client(mesh.ports.main, mesh.ca) as client:
        for more in ([], [stated]):
            headers = [*H3_HEADERS, *more]
            answer = await client.ask("POST", "/v1/chat/completions", long, headers).whole()
            assert answer.status == 413
            assert "larger than 1000 bytes" in json.loads(answer.body)["error"]["message"]
            assert answer.headers[b"x-request-id"]
    assert mesh.region.opened == []


async def test_what_http3_refuses_by_itself_may_be_read_by_allowed_pages(
    words: Vocabulary, tmp_path: Path
) -> None:
    page = (b"origin", b"https://chat.example")
    http = HttpConfig(port=0, allowed_origins=("https://chat.example",))
    async with (
        serving_http(
            words, tmp_path, http=http, http3=Http3Limits(max_requests_per_connection=1)
        ) as mesh,
        h3_client(mesh.ports.main, mesh.ca) as client,
    ):
        client.ask("POST", "/v1/chat/completions", b"{", H3_HEADERS, ends=False)
        for origin, is_told in ((page, True), ((b"origin", b"https://evil.example"), False)):
            headers = [*H3_HEADERS, origin]
            full = await client.ask("POST", "/v1/messages", b"{}", headers).whole()
            assert full.status == 503 and full.headers[b"vary"] == b"origin"
            told = full.headers.get(b"access-control-allow-origin")
            assert told == (page[1] if is_told else None)
            if is_told:
                assert b"retry-after" in full.headers[b"access-control-expose-headers"]
