"""A real nginx with the file of docs/guides/nginx.md before a real edge."""

from __future__ import annotations

import asyncio
import json
import ssl
import tomllib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from httpx2 import AsyncClient, AsyncHTTPTransport, Response

from outrider.models.vocabulary import Vocabulary
from outrider.testing import eventually
from services.edge.http.config import HttpConfig
from tests.api_keys import text_of
from tests.edge.integration.http_client import CHAT, KEY, serving_http
from tests.edge.integration.running import Running
from tests.nginx import guide_block, nginx

REPLY = "streamed one by one"
PATH = "/v1/chat/completions"
STREAMED = CHAT | {"stream": True, "speculation": "off"}


@dataclass(frozen=True, slots=True)
class Proxied:
    """An edge, and nginx before it."""

    mesh: Running
    port: int

    @asynccontextmanager
    async def client(
        self, http2: bool = False, key: str = KEY, address: str = "127.0.0.2"
    ) -> AsyncIterator[AsyncClient]:
        """A client of nginx, at this address."""
        trusted = ssl.create_default_context(cafile=str(self.mesh.ca))
        transport = AsyncHTTPTransport(
            verify=trusted, http1=not http2, http2=http2, local_address=address
        )
        headers = {"authorization": f"Bearer {key}"} if key else {}
        url = f"https://localhost:{self.port}"
        async with AsyncClient(
            base_url=url, headers=headers, transport=transport, timeout=30
        ) as client:
            yield client


@asynccontextmanager
async def proxied(words: Vocabulary, folder: Path, **config: Any) -> AsyncIterator[Proxied]:
    """The edge's settings are the guide's, too."""
    table = tomllib.loads(guide_block("toml"))["edge"]["http"]
    told = HttpConfig(**table | {"trusted_proxies": tuple(table["trusted_proxies"])})
    http = replace(told, port=0)
    async with serving_http(words, folder, REPLY, http=http, **config) as mesh:
        key = mesh.ca.with_name("key.pem")
        with nginx(folder / "nginx", mesh.ports.http, mesh.ca, key) as port:
            yield Proxied(mesh, port)


@pytest.mark.parametrize("http2", [False, True], ids=["HTTP/1.1", "HTTP/2"])
async def test_each_event_arrives_before_the_next_one_is_made(
    words: Vocabulary, tmp_path: Path, http2: bool
) -> None:
    async with proxied(words, tmp_path) as found, found.client(http2) as client:
        region = found.mesh.region
        region.block_tokens = region.hold_at = 1  # the first token is made at once
        region.gate.clear()
        async with client.stream("POST", PATH, json=STREAMED) as answer:
            lines = answer.aiter_lines()
            assert answer.http_version == ("HTTP/2" if http2 else "HTTP/1.1")
            for character in REPLY:
                assert await next_content(lines) == character
                pass_one(found.mesh)
            rest = [line async for line in lines]
        assert rest[-2:] == ["data: [DONE]", ""]
        await found.mesh.settled()


def pass_one(mesh: Running) -> None:
    """The region makes one more token, and then waits again."""
    mesh.region.gate.set()
    mesh.region.gate.clear()


async def next_content(lines: AsyncIterator[str]) -> str:
    """The text of the next event that has some."""
    async with asyncio.timeout(30):
        async for line in lines:
            if line.startswith("data: {"):
                content = json.loads(line[6:])["choices"][0]["delta"].get("content")
                if content:
                    return str(content)
    raise AssertionError("the stream ended")


@pytest.mark.parametrize("http2", [False, True], ids=["HTTP/1.1", "HTTP/2"])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_closes_its_connection_cancels_its_chat(
    words: Vocabulary, tmp_path: Path, http2: bool, stream: bool
) -> None:
    async with proxied(words, tmp_path) as found, found.client(http2) as client:
        found.mesh.region.stop_after = 4
        asked = asyncio.create_task(client.post(PATH, json=CHAT | {"stream": stream}))
        await eventually(lambda: len(found.mesh.region.live) == 1)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        await client.aclose()
        await eventually(lambda: found.mesh.region.cancelled == ["the client is gone"])
        await found.mesh.settled()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_resets_its_stream_cancels_its_chat(
    words: Vocabulary, tmp_path: Path, stream: bool
) -> None:
    """HTTP/2; the connection stays, and serves on."""
    async with proxied(words, tmp_path) as found:
        region = found.mesh.region
        region.stop_after = 4
        trusted = ssl.create_default_context(cafile=str(found.mesh.ca))
        trusted.set_alpn_protocols(["h2"])
        _, writer = await asyncio.open_connection("localhost", found.port, ssl=trusted)
        wire = H2Connection()
        wire.initiate_connection()

        def ask() -> int:
            stream_id = wire.get_next_available_stream_id()
            head = {
                ":method": "POST",
                ":scheme": "https",
                ":authority": "localhost",
                ":path": PATH,
                "authorization": f"Bearer {KEY}",
                "content-type": "application/json",
            }
            wire.send_headers(stream_id, list(head.items()))
            body = json.dumps(CHAT | {"stream": stream}).encode()
            wire.send_data(stream_id, body, end_stream=True)
            writer.write(wire.data_to_send())
            return stream_id

        first, _ = ask(), ask()
        await eventually(lambda: len(region.live) == 2)
        wire.reset_stream(first, ErrorCodes.CANCEL)
        writer.write(wire.data_to_send())
        await eventually(lambda: region.cancelled == ["the client is gone"])
        assert len(region.live) == 1, "the other one goes on"
        writer.transport.abort()
        await eventually(lambda: len(region.cancelled) == 2)
        await found.mesh.settled()


async def test_what_is_too_large_is_refused_in_the_apis_words(
    words: Vocabulary, tmp_path: Path
) -> None:
    async with proxied(words, tmp_path) as found, found.client() as client:
        largest = found.mesh.edge._config.http.max_body_bytes
        assert (await client.post(PATH, json=padded(largest))).status_code == 200
        error = await client.post(PATH, json=padded(largest + 1))
        assert error.status_code == 413 and "larger than" in error.json()["error"]["message"]
        assert error.headers["x-request-id"] and "alt-svc" not in error.headers
        by_nginx = await client.post(PATH, json=padded(5 << 20))
        assert by_nginx.status_code == 413 and b"nginx" in by_nginx.content
        token = {"authorization": "Bearer " + "x" * 2700 + "." + "y" * 2700 + "." + "z" * 2700}
        refused = await client.post(PATH, json=CHAT, headers=token)
        assert refused.status_code == 401 and refused.json()["error"]["code"] == "invalid_api_key"
        assert len(found.mesh.region.opened) == 1
        await found.mesh.settled()


def padded(num_bytes: int) -> dict[str, Any]:
    """A chat whose body has so many bytes, most of them in a field that nobody reads."""
    body = CHAT | {"padding": ""}
    bare = len(json.dumps(body, separators=(",", ":"), ensure_ascii=False))
    return body | {"padding": "x" * (num_bytes - bare)}


async def test_limits_of_an_address_are_of_the_clients(words: Vocabulary, tmp_path: Path) -> None:
    """Not of nginx, nor of what the client says of itself."""
    limits = {"max_chats_per_address": 1, "max_connections_per_address": 1}
    async with proxied(words, tmp_path, **limits) as found:
        region = found.mesh.region
        region.gate.clear()
        async with (
            found.client(address="127.0.0.2") as one,
            found.client(address="127.0.0.3") as other,
        ):
            chats = [asyncio.create_task(it.post(PATH, json=CHAT)) for it in (one, other)]
            await eventually(lambda: len(region.live) == 2)
            for headers in ({}, {"x-forwarded-for": "198.51.100.7"}, {"forwarded": "for=1.2.3.4"}):
                more: Response = await one.post(PATH, json=CHAT, headers=headers)
                assert more.status_code == 429
                assert more.json()["error"]["code"] == "rate_limit_exceeded"
            region.gate.set()
            assert [(await it).status_code for it in chats] == [200, 200]
        await found.mesh.settled()


async def test_clients_without_a_key_share_nothing_for_being_behind_one_proxy(
    words: Vocabulary, tmp_path: Path
) -> None:
    async with proxied(words, tmp_path) as found:
        for address in ("127.0.0.2", "127.0.0.3", "127.0.0.2"):
            async with found.client(key="", address=address) as client:
                answer = await client.post(PATH, json=CHAT, headers={"idempotency-key": "k"})
                assert answer.status_code == 200
        assert found.mesh.http.num_connections == 1, "it is the same connection"
        opened = found.mesh.region.opened
        assert len(opened) == len({it.cache_salt for it in opened}) == 3
        assert len({it.address_hash for it in opened}) == 2
        secret = {"idempotency-key": "k", "x-outrider-client": "5e" * 16}
        for _ in range(2):
            async with found.client(key="") as client:
                assert (await client.post(PATH, json=CHAT, headers=secret)).status_code == 200
        assert len(opened) == 4, "a client with a secret finds its reply"
        async with found.client(key=text_of("nobody's")) as client:
            assert (await client.get("/v1/models")).status_code == 401
        await found.mesh.settled()
