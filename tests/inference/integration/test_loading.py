"""Engines of a replica that does not come up are closed again."""

from __future__ import annotations

import asyncio
import socket
import threading

import pytest

from outrider.engines.config import EngineConfig
from outrider.engines.fake import FakeEngine, FakeOptions
from outrider.errors import ConfigError, EngineError
from outrider.models.catalog import DEFAULT_MODEL
from outrider.process import Ports
from outrider.testing import eventually, leak_check
from services.inference import app
from services.inference.config import InferenceConfig
from tests.inference.harness import loaded


def _is_closed(engine: FakeEngine) -> bool:
    try:
        engine.close_sequence(1)
    except EngineError:
        return True
    return False


async def test_a_taken_port_closes_the_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    engines = FakeEngine(), FakeEngine()
    monkeypatch.setattr(app, "load_model", lambda config: loaded(*engines))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        config = InferenceConfig(engine="fake", port=taken.getsockname()[1])
        async with leak_check():
            with pytest.raises(ConfigError, match="taken"):
                await app.serve(config)
    assert all(_is_closed(engine) for engine in engines)


async def test_a_replica_stopped_while_it_loads_never_serves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine, loading, go_on = FakeEngine(), threading.Event(), threading.Event()

    def load(config: InferenceConfig) -> app.LoadedModel:
        loading.set()
        assert go_on.wait(10)
        return loaded(engine)

    monkeypatch.setattr(app, "load_model", load)
    stop, came_up = asyncio.Event(), list[Ports]()
    async with leak_check():
        config = InferenceConfig(engine="fake", port=0)
        serving = asyncio.create_task(app.serve(config, ready=came_up.append, stop=stop))
        await eventually(loading.is_set)
        stop.set()
        go_on.set()
        await serving
    assert not came_up
    assert _is_closed(engine)


def test_an_instance_that_does_not_load_closes_those_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = [FakeEngine(), FakeEngine(FakeOptions(fail_on_step=1))]
    waiting = iter(made)
    twins: list[FakeEngine | None] = []

    def create(config: EngineConfig, twin: FakeEngine | None) -> FakeEngine:
        twins.append(twin)
        return next(waiting)

    monkeypatch.setattr(app, "create_engine", create)
    with pytest.raises(EngineError, match="as configured"):
        app._load_engines(
            InferenceConfig(engine="fake", instances=2, warm_up_rows=4), 64, DEFAULT_MODEL
        )
    assert twins == [None, made[0]]
    assert all(_is_closed(engine) for engine in made)
