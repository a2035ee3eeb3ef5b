"""Requests that ask for another host than the edge, as those of a page do whose name was made to
lead to this machine (DNS rebinding)."""

import json
from pathlib import Path

import pytest

from outrider.models.vocabulary import Vocabulary
from services.edge.access.config import AccessConfig
from services.edge.http.config import HttpConfig
from tests.edge.http3.client import Headers, h3_client, request_headers
from tests.edge.integration.http_client import RawRequest, plain, serving_http
from tests.edge.integration.running import Running

pytestmark = pytest.mark.edge(http=HttpConfig(port=0))
PATHS = ("/v1/models", "/openapi.json", "/")
PAGE = "evil.example"


def misdirected(method: str, path: str) -> Headers:
    headers = request_headers(method, path)
    return [(k, PAGE.encode() if k == b":authority" else v) for k, v in headers]


async def test_a_loopback_address_is_for_this_machine_over_every_http(mesh: Running) -> None:
    async with (
        plain(mesh, key="") as http1,
        plain(mesh, key="", http1=False, http2=True) as http2,
        h3_client(mesh.ports.main, mesh.ca) as http3,
    ):
        for path in PATHS:
            for client in (http1, http2):
                assert (await client.get(path)).status_code == 200
                refused = await client.get(path, headers={"host": PAGE})
                assert refused.status_code == 421, client
                assert "allowed_hosts" in refused.text
            assert (await http3.ask("GET", path).whole()).status == 200
            asked = http3.open()
            http3.h3.send_headers(asked.stream_id, misdirected("GET", path), end_stream=True)
            http3.transmit()
            over_quic = await asked.whole()
            assert over_quic.status == 421
            assert "allowed_hosts" in json.loads(over_quic.body)["error"]["message"]
        chat = {"model": "small", "messages": [{"role": "user", "content": "hello"}]}
        posted = await http1.post("/v1/chat/completions", json=chat, headers={"host": PAGE})
        assert posted.status_code == 421
    assert mesh.region.opened == []


@pytest.mark.parametrize("fields", [(), ("Host: localhost", "Host: localhost")])
async def test_a_request_of_http_1_1_has_one_host(fields: tuple[str, ...], mesh: Running) -> None:
    request = await RawRequest.connected(mesh)
    lines = ("GET /v1/models HTTP/1.1", *fields, "Connection: close", "", "")
    request.writer.write("\r\n".join(lines).encode())
    assert (await request.rest()).startswith(b"HTTP/1.1 400 ")


async def test_named_hosts_are_answered_and_with_keys_any(
    words: Vocabulary, tmp_path: Path
) -> None:
    named = HttpConfig(port=0, allowed_hosts=("chat.example",))
    asked = {"chat.example": 200, "chat.example:81": 200, "localhost": 200, PAGE: 421}
    async with serving_http(words, tmp_path / "named", http=named) as mesh, plain(mesh) as client:
        for host, status in asked.items():
            told = await client.get("/v1/models", headers={"host": host})
            assert told.status_code == status, host
    closed = AccessConfig(http_anonymous=False)
    async with (
        serving_http(words, tmp_path / "keys", access=closed) as mesh,
        plain(mesh) as client,
    ):
        assert (await client.get("/v1/models", headers={"host": PAGE})).status_code == 200
