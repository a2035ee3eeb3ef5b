"""Who comes in over real QUIC: nobody without a good credential, and nothing is computed for who
does not."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outrider.client import Client, Message, connect
from outrider.errors import (
    OutriderError,
    PermissionDeniedError,
    RateLimitedError,
    UnauthenticatedError,
    UnknownModelError,
)
from outrider.models.vocabulary import Vocabulary
from outrider.session.types import Priority
from outrider.testing import eventually
from services.edge.access.config import JwtConfig, SharedLimitsConfig
from services.edge.access.identity import Credential, TenantConfig
from services.edge.access.limiter import Limiter
from services.edge.access.limits import Limited
from tests.api_keys import key_of, text_of, write_keys
from tests.edge.access.issuer import AUDIENCE, ISSUER, jwk, key_set, token
from tests.edge.integration.running import REPLY, Running, running
from tests.edge.integration.trouble import cut, said, start, whole
from tests.redis_server import RedisServer, redis_server

ASK = [Message("user", "Who may come in?")]
FOREVER = 4e9
"""Seconds since 1970: no test outlives it."""


async def told(client: Client, **options: Any) -> str:
    return await said(client.chat(ASK, **options))


async def refused(mesh: Running, key: str, **options: Any) -> OutriderError:
    async with mesh.client(key=key) as client:
        with pytest.raises(OutriderError) as error:
            await told(client, **options)
    return error.value


@pytest.mark.edge(anonymous=False)
async def test_a_key_counts_as_soon_as_it_is_made_and_no_longer_than_it_is_good(
    tmp_path: Path, mesh: Running
) -> None:
    file = tmp_path / "keys.json"
    async with mesh.client(key=text_of("new")) as client:
        with pytest.raises(UnauthenticatedError, match="not known"):
            await told(client)
        write_keys(file, key_of("new"), revision=2)
        await eventually(lambda: mesh.sample("outrider_edge_keys_revision") == 2)
        assert await told(client)
        mesh.region.hold(2)
        chat = await start(client)
        write_keys(file, key_of("new", revoked=1.0), revision=3)
        with pytest.raises(UnauthenticatedError, match="was revoked"):
            await whole(chat)
        await mesh.settled()
        mesh.region.gate.set()
        with pytest.raises(UnauthenticatedError, match="was revoked"):
            await told(client)
        async with client.resume(chat.resume_token) as again:
            with pytest.raises(UnauthenticatedError):
                await again.result()


@pytest.mark.edge(
    anonymous=False,
    keys=(
        key_of("low", "acme", max_priority=Priority.LOW),
        key_of("eu", "eu"),
        key_of("nowhere", "nowhere"),
    ),
    tenants=(
        TenantConfig("acme", max_priority="high"),
        TenantConfig("eu", regions=("eu-west", "eu-north")),
        TenantConfig("nowhere", regions=()),
    ),
)
async def test_a_key_is_good_for_what_it_was_made_for(mesh: Running) -> None:
    error = await refused(mesh, text_of("low"), priority="medium")
    assert isinstance(error, PermissionDeniedError) and "up to priority low" in error.message
    assert isinstance(await refused(mesh, text_of("nowhere")), PermissionDeniedError)
    error = await refused(mesh, text_of("eu"), residency=("us-east",))
    assert isinstance(error, PermissionDeniedError) and "eu-west, eu-north" in error.message
    assert not mesh.region.opened
    async with mesh.client(key=text_of("eu")) as client:
        await told(client)
        await told(client, residency=("us-east", "eu-north"))
        typing = client.typing()
        for number in range(1, 6):
            typing.update("Which trains leave first, and which are the fastest? " * number)
        await eventually(lambda: len(mesh.region.opened) > 2)
        asked = [list(it.residency) for it in mesh.region.opened]
        assert asked[:2] == [["eu-west", "eu-north"], ["eu-north"]]
        assert all(it == ["eu-west", "eu-north"] for it in asked[2:]), "typed text too"


@pytest.mark.edge(anonymous=False, keys=(key_of("acme"),))
async def test_the_key_of_a_mesh_here_goes_to_its_only_edge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mesh: Running
) -> None:
    state = tmp_path / "state"
    state.mkdir()
    monkeypatch.setenv("OUTRIDER_STATE_DIR", str(state))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "none"))
    monkeypatch.delenv("OUTRIDER_API_KEY", raising=False)
    port = mesh.ports.main
    services = [{"name": "edge", "port": port}]
    (state / "mesh.json").write_text(json.dumps({"services": services}))
    (state / "development.key").write_text(text_of("acme"))
    async with connect("127.0.0.1", port, ca=mesh.ca) as client:
        assert await told(client)
    elsewhere = ("quic://127.0.0.1:9",)
    async with connect("127.0.0.1", port, ca=mesh.ca, others=elsewhere) as client:
        with pytest.raises(UnauthenticatedError, match="send one"):
            await told(client)


@pytest.mark.edge(
    anonymous=False, keys=(key_of("acme"), key_of("narrow", "acme", models=("elsewhere",)))
)
async def test_a_key_resumes_no_chat_with_a_model_that_it_is_not_for(mesh: Running) -> None:
    async with (
        mesh.client(key=text_of("acme")) as wide,
        mesh.client(key=text_of("narrow")) as narrow,
    ):
        chat = await start(wide)
        await whole(chat)
        async with narrow.resume(chat.resume_token) as again:
            with pytest.raises(UnknownModelError):
                await again.result()
        assert await said(wide.resume(chat.resume_token)), "its token is still good"


@pytest.mark.edge(
    anonymous=False,
    tenants=(TenantConfig("acme", input_tokens_per_minute=10_000),),
    cache_salt_key="key",
    keys=(key_of("acme"),),
)
async def test_what_a_client_brings_of_a_reply_counts_as_input(
    monkeypatch: pytest.MonkeyPatch, mesh: Running
) -> None:
    def num_used() -> int:
        identity = mesh.edge._identities.of(Credential(text_of("acme")), b"c" * 16, b"d" * 16)
        return 10_000 - mesh.edge._limiter.states(identity)[Limited.INPUT].remaining

    async with mesh.client(key=text_of("acme")) as client:
        mesh.region.hold(6)
        chat = await start(client)
        num_prompt = mesh.region.opened[0].ids.tail.count
        # Nothing fills again, however long this takes.
        now = time.monotonic()
        monkeypatch.setattr("services.edge.app.Limiter", lambda clock: Limiter(lambda: now))
        await mesh.restart()
        mesh.region.gate.set()
        cut(client)
        await whole(chat)
        num_brought = mesh.region.opened[1].resume.count
        assert num_brought > 0
        assert num_used() == num_prompt + num_brought


async def test_a_token_of_an_issuer_is_a_credential(words: Vocabulary, tmp_path: Path) -> None:
    file = tmp_path / "jwks.json"
    file.write_bytes(key_set(jwk("ES256", "k")))
    config = JwtConfig(ISSUER, AUDIENCE, jwks_file=file)
    tenants = (TenantConfig("acme", trust="user"),)
    async with running(
        words, tmp_path, REPLY, anonymous=False, jwt=config, tenants=tenants
    ) as mesh:
        issuer = mesh.edge._issuer
        assert issuer is not None
        await eventually(lambda: issuer.num_fetched > 0)
        good = token(exp=FOREVER)

        async def is_in() -> bool:
            async with mesh.client(key=good) as client:
                try:
                    return bool(await told(client))
                except UnauthenticatedError:
                    return False

        while not await is_in():
            await asyncio.sleep(0.02)
        async with mesh.client(key=good) as client:
            for _ in range(5):
                await told(client)
        assert issuer.verifier.num_verified == 1, "one signature, however many chats"
        assert mesh.region.opened[0].tenant == "acme"


async def test_a_chat_outlives_the_token_that_began_it(words: Vocabulary, tmp_path: Path) -> None:
    file = tmp_path / "jwks.json"
    file.write_bytes(key_set(jwk("ES256", "k")))
    options = {
        "jwt": JwtConfig(ISSUER, AUDIENCE, jwks_file=file),
        "tenants": (TenantConfig("acme"),),
    }
    async with running(words, tmp_path, REPLY, anonymous=False, **options) as mesh:
        issuer, identities = mesh.edge._issuer, mesh.edge.listener.context.identities
        assert issuer is not None
        await eventually(lambda: issuer.num_fetched > 0)
        mesh.region.hold(2)
        async with mesh.client(key=token(exp=FOREVER)) as client:
            chat = await start(client)
            identities._clock = lambda: FOREVER + 3600
            mesh.edge._keyed_chats.check()
            with pytest.raises(UnauthenticatedError):
                await told(client)
            mesh.region.gate.set()
            await whole(chat)


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with redis_server() as found:
        yield found


async def test_two_edges_hold_one_limit(
    server: RedisServer, words: Vocabulary, tmp_path: Path
) -> None:
    options = {
        "anonymous": False,
        "tenants": (TenantConfig("few", requests_per_minute=4),),
        "keys": (key_of("few"),),
        "shared_limits": SharedLimitsConfig(server.url, timeout_ms=5000.0),
    }
    async with (
        running(words, tmp_path / "one", REPLY, **options) as one,
        running(words, tmp_path / "two", REPLY, **options) as two,
        one.client(key=text_of("few")) as first,
        two.client(key=text_of("few")) as second,
    ):
        chats = [told(client) for client in (first, second) for _ in range(4)]
        found = await asyncio.gather(*chats, return_exceptions=True)
        refusals = [it for it in found if isinstance(it, RateLimitedError)]
        assert len(refusals) in (3, 4), "one more may have filled meanwhile"
        assert sum(it == REPLY for it in found) == 8 - len(refusals)
        assert len(one.region.opened) + len(two.region.opened) == 8 - len(refusals)
        await one.settled()
        await two.settled()


@pytest.mark.parametrize("is_shared", [False, True])
@pytest.mark.parametrize("thin", [False, True])
async def test_limits_are_held(
    is_shared: bool, thin: bool, server: RedisServer, words: Vocabulary, tmp_path: Path
) -> None:
    shared = SharedLimitsConfig(server.url if is_shared else "", timeout_ms=5000.0)
    tenants = (
        TenantConfig("few", requests_per_minute=2),
        TenantConfig("short", input_tokens_per_minute=30),
        TenantConfig("terse", output_tokens_per_minute=5),
        TenantConfig("one", max_sessions=1),
    )
    keys = tuple(key_of(tenant.name) for tenant in tenants)
    options = {"tenants": tenants, "keys": keys, "shared_limits": shared}
    async with running(words, tmp_path, REPLY, anonymous=False, **options) as mesh:
        async with mesh.client(key=text_of("few")) as client:
            assert await told(client, thin=thin) and await told(client, thin=thin)
        error = await refused(mesh, text_of("few"), thin=thin)
        assert isinstance(error, RateLimitedError) and error.retry_delay_ms > 0
        assert error.metadata["limited"] == "requests" and error.metadata["limit"] == "2"
        assert mesh.sample("outrider_edge_refused_total", reason="RATE_LIMITED") == 1

        async with mesh.client(key=text_of("terse")) as client:
            assert await told(client, thin=thin), "a reply goes on"
        error = await refused(mesh, text_of("terse"), thin=thin)
        assert error.metadata["limited"] == "output_tokens"

        ran = len(mesh.region.opened)
        if not thin:
            async with mesh.client(key=text_of("short")) as client:
                long = [Message("user", "far too long for it " * 50)]
                with pytest.raises(RateLimitedError, match="shorten it"):
                    await said(client.chat(long))
            assert len(mesh.region.opened) == ran, "no region has computed anything"

        async with mesh.client(key=text_of("one")) as client:
            mesh.region.hold(2)
            chat = await start(client, thin=thin)
            error = await refused(mesh, text_of("one"), thin=thin)
            assert error.metadata["limited"] == "sessions"
            mesh.region.gate.set()
            await whole(chat)

            async def is_in() -> bool:
                try:
                    return bool(await told(client, thin=thin))
                except RateLimitedError:
                    return False

            while not await is_in():
                await asyncio.sleep(0.02)
