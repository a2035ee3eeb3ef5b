"""`outrider models serve`: whom it answers, with what, and what it does with everybody else."""

from __future__ import annotations

import asyncio
import http.client
import shutil
from contextlib import closing
from pathlib import Path

import pytest

from outrider.errors import ConfigError, SourceError
from outrider.mirrors import server as server_module
from outrider.mirrors.fetch import Mirrors
from outrider.mirrors.manifest import manifest_name, read_manifest, shard_name
from outrider.mirrors.server import MAX_HEAD_BYTES, ModelServer, ServerConfig
from outrider.mirrors.web import PeerMirror
from outrider.models.store import ModelStore
from outrider.testing import leak_check
from outrider.tls import Role, Tls, TlsConfig
from outrider.tls.access import MODELS
from tests.mirrors.models import SHARD_BYTES, SmallModel, flipped, peer, small_model
from tests.tls.issuing import Issuer


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> SmallModel:
    return small_model(tmp_path_factory.mktemp("model"))


def get(port: int, path: str, method: str = "GET", **headers: str) -> tuple[int, bytes, str]:
    """Status, body and Content-Range."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    with closing(connection):
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read(), answer.getheader("Content-Range", "")


async def asked(
    port: int, path: str, method: str = "GET", **headers: str
) -> tuple[int, bytes, str]:
    return await asyncio.to_thread(get, port, path, method, **headers)


async def fetched(model: SmallModel, port: int, tls: Tls, path: Path) -> bytes:
    mirrors = Mirrors([PeerMirror("127.0.0.1", port, tls)])
    return await asyncio.to_thread(model.fetch, mirrors, path)


@pytest.mark.parametrize("role", Role)
async def test_certificates_of_the_named_roles_are_served(
    model: SmallModel, tmp_path: Path, role: Role
) -> None:
    issuer = Issuer(tmp_path)
    async with leak_check(), peer(model.store, issuer.tls(Role.MODELS)) as port:
        tls = issuer.tls(role, "us-east")
        if role in MODELS:
            assert await fetched(model, port, tls, tmp_path / "got") == model.data
        else:
            with pytest.raises(SourceError, match="answers 403"):
                await fetched(model, port, tls, tmp_path / "got")


async def test_nobody_without_a_certificate_of_the_mesh_is_served(
    model: SmallModel, tmp_path: Path
) -> None:
    ours, theirs = Issuer(tmp_path / "ours"), Issuer(tmp_path / "theirs")
    async with peer(model.store, ours.tls(Role.MODELS)) as port:
        with pytest.raises(SourceError, match="bad certificate"):
            await fetched(model, port, theirs.tls(Role.INFERENCE), tmp_path / "got")
        # A client that trusts the server, with a certificate of another CA.
        config = theirs.config(Role.INFERENCE)
        mixed = TlsConfig(config.certificate, config.private_key, ours.config(Role.EDGE).ca)
        with pytest.raises(SourceError, match="cannot be reached"):
            await fetched(model, port, Tls.open(mixed), tmp_path / "got")
        with pytest.raises((OSError, http.client.HTTPException)):
            await asked(port, f"/{manifest_name(model.sha256)}")
        # Whoever has only another role's certificate is no server of models.
    async with peer(model.store, ours.tls(Role.EDGE)) as port:
        with pytest.raises(SourceError, match="bad certificate"):
            await fetched(model, port, ours.tls(Role.INFERENCE), tmp_path / "got")


async def test_a_new_certificate_is_shown_without_a_restart(
    model: SmallModel, tmp_path: Path
) -> None:
    old, new = Issuer(tmp_path / "tls"), Issuer(tmp_path / "new")
    tls = old.tls(Role.MODELS)
    async with peer(model.store, tls) as port:
        config, renewed = tls.config, new.config(Role.MODELS)
        for name in ("certificate", "private_key", "ca"):
            shutil.copyfile(getattr(renewed, name), getattr(config, name))
        client = new.tls(Role.EDGE)
        async with asyncio.timeout(30):
            while True:
                try:
                    assert await fetched(model, port, client, tmp_path / "got") == model.data
                    break
                except SourceError:
                    await asyncio.sleep(0.1)
        with pytest.raises(SourceError, match="bad certificate"):
            await fetched(model, port, Issuer(tmp_path / "x").tls(Role.EDGE), tmp_path / "x")


async def test_without_certificates_only_this_machine_is_served(model: SmallModel) -> None:
    for host in ("0.0.0.0", "192.0.2.1"):
        server = ModelServer(model.store, ServerConfig(host=host, port=0), Tls(TlsConfig()))
        with pytest.raises(ConfigError, match="cannot serve models"):
            await server.start()
    with pytest.raises(ConfigError, match="cannot fetch models from"):
        PeerMirror("192.0.2.1", 7400, Tls(TlsConfig()))


async def test_files_and_ranges_of_them(model: SmallModel) -> None:
    async with leak_check(), peer(model.store) as port:
        status, body, _ = await asked(port, f"/{manifest_name(model.sha256)}")
        assert status == 200
        assert read_manifest(body, model.sha256) == model.manifest
        shard = f"/{shard_name(model.sha256, 8)}"
        data = model.data[8 * SHARD_BYTES :]
        size = len(data)
        assert await asked(port, shard) == (200, data, "")
        whole = f"bytes 5-{size - 1}/{size}"
        assert await asked(port, shard, Range="bytes=5-") == (206, data[5:], whole)
        assert await asked(port, shard, Range="bytes=5-999999999") == (206, data[5:], whole)
        assert await asked(port, shard, Range="bytes=2-3") == (206, data[2:4], f"bytes 2-3/{size}")
        assert await asked(port, shard, Range=f"bytes={size}-") == (416, b"", f"bytes */{size}")
        assert await asked(port, shard, Range="bytes=-5") == (200, data, "")
        assert await asked(port, shard, "HEAD") == (200, b"", "")
        for path in (
            f"/{shard_name(model.sha256, 9)}",
            f"/{manifest_name('0' * 64)}",
            f"/{model.sha256}/../../index",
            "/",
            "/%2e%2e/etc/passwd",
        ):
            assert (await asked(port, path))[0] == 404, path
        assert (await asked(port, shard, "PUT"))[0] == 405


async def test_a_damaged_model_is_not_offered_and_a_new_one_is(
    model: SmallModel, tmp_path: Path
) -> None:
    store = ModelStore(tmp_path / "store")
    (tmp_path / "weights").write_bytes(model.data)
    artifact = store.pull(f"file:{tmp_path / 'weights'}")
    artifact.path.chmod(0o644)
    artifact.path.write_bytes(flipped(model.data))
    async with peer(store) as port:
        path = f"/{manifest_name(model.sha256)}"
        assert (await asked(port, path))[0] == 503
        await asyncio.to_thread(store.pull, f"file:{tmp_path / 'weights'}")
        assert (await asked(port, path))[0] == 200, "mended while it serves"
        store.remove(f"file:{tmp_path / 'weights'}")
        assert (await asked(port, path))[0] == 404, "removed while it serves"


async def test_handshakes_under_way_count_as_connections(model: SmallModel, tmp_path: Path) -> None:
    issuer = Issuer(tmp_path)
    tls = issuer.tls(Role.EDGE)
    async with (
        leak_check(),
        peer(model.store, issuer.tls(Role.MODELS), max_connections=2) as port,
        asyncio.timeout(20),
    ):
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await reader.read() == b"", "the third one is closed at once"
        assert not any(one.at_eof() for one, _ in silent)
        for one in (writer, *(it for _, it in silent)):
            one.close()
            await one.wait_closed()
        while True:
            try:
                assert await fetched(model, port, tls, tmp_path / "got") == model.data
                break
            except SourceError:  # they are counted until the server hears of their end
                await asyncio.sleep(0.01)


async def test_a_handshake_that_does_not_come_is_not_waited_for(
    model: SmallModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "HANDSHAKE_S", 0.05)
    async with (
        leak_check(),
        peer(model.store, Issuer(tmp_path).tls(Role.MODELS)) as port,
        asyncio.timeout(20),
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()


async def test_connections_and_heads_are_bounded(model: SmallModel) -> None:
    path = f"/{manifest_name(model.sha256)}"
    async with leak_check(), peer(model.store, max_connections=2) as port:
        idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        _, first = idle[0]
        first.write(b"G")  # both are taken up before a third one comes
        with pytest.raises((OSError, http.client.HTTPException)):
            while (await asked(port, path))[0] == 200:
                await asyncio.sleep(0.02)
        for _, writer in idle:
            writer.close()
            await writer.wait_closed()
        async with asyncio.timeout(30):
            while True:
                try:
                    assert (await asked(port, path))[0] == 200
                    break
                except (OSError, http.client.HTTPException):
                    await asyncio.sleep(0.01)
        for head in (b"x" * (2 * MAX_HEAD_BYTES), b"\xff\r\n\r\n", b"GET / HTTP/1.0\r\n\r\n"):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(head)
            try:
                assert (await reader.read()).split(b"\r\n")[0] in (b"", b"HTTP/1.1 400 Bad Request")
            except ConnectionError:
                pass  # closed with some of it unread
            writer.close()
