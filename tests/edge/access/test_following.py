"""Keys that change while an edge runs: from a real file and a real server."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from outrider.access.api_keys import KeyTable
from outrider.errors import ConfigError, UnauthenticatedError, UnavailableError
from outrider.testing import eventually
from services.edge.access import following
from services.edge.access.config import JwtConfig
from services.edge.access.following import IssuerKeys, fetch, keys_followed
from tests.api_keys import key_of, text_of, write_keys
from tests.edge.access.issuer import AUDIENCE, ISSUER, NOW, jwk, key_set, token


class Server:
    """Publishes an issuer's keys."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}/keys"
        self.body = b""
        self.status = 200
        self.headers: dict[str, str] = {}
        self.num_asked = 0


@contextmanager
def publishing() -> Iterator[Server]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            server.num_asked += 1
            self.send_response(server.status)
            for name, value in server.headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(server.body)

        def log_message(self, *args: Any) -> None:
            """Nothing."""

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server = Server(http.server_address[1])
    thread = threading.Thread(target=http.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server
    finally:
        http.shutdown()
        thread.join()
        http.server_close()


def config(**settings: Any) -> JwtConfig:
    return JwtConfig(ISSUER, AUDIENCE, **settings)


def is_good(keys: IssuerKeys, text: str) -> bool:
    try:
        keys.verifier.check(text, NOW)
    except UnauthenticatedError:
        return False
    return True


async def test_an_unknown_key_is_fetched_at_once_and_no_more_than_once_in_a_while() -> None:
    with publishing() as server:
        server.body = key_set(jwk("ES256", "old"))
        keys = IssuerKeys(config(jwks_url=server.url, min_refetch_s=0.2, refresh_s=1000))
        keys.start()
        await eventually(lambda: is_good(keys, token(kid="old")))
        server.body = key_set(jwk("ES256", "old"), jwk("ES256", "new", 1))
        loop = asyncio.get_running_loop()
        begun = loop.time()
        await eventually(lambda: is_good(keys, token(kid="new", number=1)))
        for number in range(200):
            assert not is_good(keys, token(kid=f"never-{number}"))
            await asyncio.sleep(0)
        took_s = loop.time() - begun
        assert server.num_asked <= 2 + took_s / 0.2, "however many tokens name unknown keys"
        assert is_good(keys, token(kid="old"))
        await keys.stop()


async def test_a_server_that_fails_leaves_the_keys_as_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(following, "_RETRY_S", 0.01)
    with publishing() as server:
        server.body = key_set(jwk("ES256", "k"))
        keys = IssuerKeys(config(jwks_url=server.url, min_refetch_s=0.01, refresh_s=0.01))
        keys.start()
        await eventually(lambda: is_good(keys, token()))
        for status, body in (
            (500, b""),
            (200, b"{"),
            (200, b'{"keys": []}'),
            (200, b" " * 400_000),
        ):
            server.status, server.body = status, body
            asked = server.num_asked
            await eventually(lambda asked=asked: server.num_asked > asked + 2)  # type: ignore[misc]
            assert is_good(keys, token())
        await keys.stop()


async def test_an_edge_starts_without_its_issuer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "_RETRY_S", 0.01)
    with publishing() as server:
        server.status = 503
        keys = IssuerKeys(config(jwks_url=server.url, min_refetch_s=0.01))
        keys.start()
        await eventually(lambda: server.num_asked > 1)
        assert not is_good(keys, token())
        server.body, server.status = key_set(jwk("ES256", "k")), 200
        await eventually(lambda: is_good(keys, token()))
        await keys.stop()


async def test_keys_of_a_file_are_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "_FILE_REFRESH_S", 0.01)
    file = tmp_path / "jwks.json"
    file.write_bytes(key_set(jwk("ES256", "k")))
    keys = IssuerKeys(config(jwks_file=file))
    keys.start()
    await eventually(lambda: is_good(keys, token()))
    file.write_bytes(key_set(jwk("ES256", "k", 1)))
    await eventually(lambda: is_good(keys, token(number=1)))
    assert not is_good(keys, token())
    await keys.stop()


def test_a_redirect_is_not_followed() -> None:
    with publishing() as server, publishing() as other:
        other.body = key_set(jwk("ES256", "k"))
        server.status, server.headers = 302, {"Location": other.url}
        with pytest.raises(UnavailableError, match="cannot read"):
            fetch(config(jwks_url=server.url))
        assert other.num_asked == 0


def test_what_is_fetched_is_bounded() -> None:
    with publishing() as server:
        server.body = b" " * (1 << 20)
        assert len(fetch(config(jwks_url=server.url))) < 300 << 10


def test_a_server_that_says_nothing_is_left() -> None:
    """What dribbles is left too: test_bounded_http.py."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/keys"
        with pytest.raises(UnavailableError, match="took too long"):
            fetch(config(jwks_url=url, timeout_s=0.05))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"audience": ""}, "audience is empty"),
        ({}, "one of jwks_file and jwks_url"),
        ({"jwks_url": "https://a", "jwks_file": Path("b")}, "one of"),
        ({"jwks_url": "http://login.example/keys"}, "over http anybody"),
        ({"jwks_url": "file:///etc/passwd"}, "over http anybody"),
        ({"jwks_url": "https://user:secret@a"}, "would be logged"),
        ({"jwks_url": "https://[a"}, "no URL"),
        ({"jwks_url": "https://a", "algorithms": ()}, "algorithms is empty"),
        ({"jwks_url": "https://a", "required": ("aud",)}, "'aud' is none of"),
        ({"jwks_url": "https://a", "scopes": ("root",)}, "unknown scope 'root'"),
    ],
)
def test_settings_that_cannot_be(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        JwtConfig(**{"issuer": ISSUER, "audience": AUDIENCE, **settings})


@pytest.mark.parametrize("name", ["none", "HS256", "HS512"])
async def test_no_algorithm_of_shared_secrets_can_be_allowed(name: str) -> None:
    with pytest.raises(ConfigError, match=f"'{name}' is none of"):
        IssuerKeys(config(jwks_url="https://a", algorithms=(name,)))


async def test_api_keys_are_followed(tmp_path: Path) -> None:
    file, told = tmp_path / "keys.json", list[tuple[KeyTable, int]]()

    def found(name: str) -> Callable[[], bool]:
        def look() -> bool:
            try:
                told[-1][0].find(text_of(name), 0.0)
            except UnauthenticatedError:
                return False
            return True

        return look

    def set_keys(keys: KeyTable, revision: int) -> None:
        told.append((keys, revision))

    async with keys_followed(file, set_keys, poll_s=0.01):
        assert len(told[0][0]) == 0, "a file may come later"
        write_keys(file, key_of("a"), revision=7)
        await eventually(found("a"))
        assert told[-1][1] == 7
        write_keys(file, key_of("a", revoked=1.0), key_of("b"), revision=8)
        await eventually(found("b"))
        assert not found("a")()
        file.write_text("{")
        write_keys(file, key_of("c"), revision=9)
        await eventually(found("c"))
        file.unlink()
        await eventually(lambda: len(told[-1][0]) == 0)


async def test_a_damaged_file_is_no_start(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    file.write_text("{")
    with pytest.raises(ConfigError, match=r"keys\.json"):
        async with keys_followed(file, lambda keys, revision: None):
            pass
