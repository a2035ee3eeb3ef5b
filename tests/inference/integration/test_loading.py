"""The engine of a replica that does not come up is closed again."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from outrider.engines.config import EngineConfig
from outrider.engines.fake import FakeEngine, FakeOptions
from outrider.engines.load_stage import LoadStage, ReportStage, ignore_stage
from outrider.errors import ConfigError, EngineError
from outrider.models.disk.fetch import PullProgress
from outrider.models.store import Artifact, ModelStore
from outrider.process import Ports
from outrider.telemetry.config import AdminConfig
from outrider.testing import eventually, free_tcp_port, leak_check
from services.inference import app, model
from services.inference.config import InferenceConfig
from tests.inference.harness import loaded


def _is_closed(engine: FakeEngine) -> bool:
    try:
        engine.close_sequence(1)
    except EngineError:
        return True
    return False


async def test_a_taken_port_closes_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = FakeEngine()
    monkeypatch.setattr(app, "load_model", lambda *_: loaded(engine))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        config = InferenceConfig(engine="fake", port=taken.getsockname()[1])
        async with leak_check():
            with pytest.raises(ConfigError, match="taken"):
                await app.serve(config)
    assert _is_closed(engine)


async def test_a_replica_stopped_while_it_loads_never_serves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine, loading, go_on = FakeEngine(), threading.Event(), threading.Event()

    def load(*_: object) -> model.LoadedModel:
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


async def test_a_replica_stopped_while_it_fetches_ends_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The rest of the file would come for ever."""
    fetching = threading.Event()

    def fetch(self: ModelStore, source: str, **given: Any) -> Artifact:
        while True:
            fetching.set()
            given["progress"](PullProgress("fetching", 40, 100))

    monkeypatch.setattr(ModelStore, "intact", lambda *_, **__: None)
    monkeypatch.setattr(ModelStore, "ensure", fetch)
    stop, came_up, admin = asyncio.Event(), list[Ports](), free_tcp_port()
    async with leak_check():
        config = InferenceConfig(engine="fake", port=0, admin=AdminConfig(port=admin))
        serving = asyncio.create_task(app.serve(config, ready=came_up.append, stop=stop))
        await eventually(fetching.is_set)
        said = await asyncio.to_thread(_ready, admin)
        stop.set()
        await serving
    assert said == {"ready": False, "reason": "fetching the model 40 %"}
    assert not came_up


@pytest.mark.model
async def test_a_replica_says_what_it_loads_and_begins_no_stage_once_it_is_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine, compiling, go_on = FakeEngine(), threading.Event(), threading.Event()

    def create(config: EngineConfig, report: ReportStage) -> FakeEngine:
        report(LoadStage.COMPILE)
        compiling.set()
        assert go_on.wait(10)
        return engine

    monkeypatch.setattr(model, "create_engine", create)
    stop, came_up, admin = asyncio.Event(), list[Ports](), free_tcp_port()
    async with leak_check():
        config = InferenceConfig(engine="fake", port=0, admin=AdminConfig(port=admin))
        serving = asyncio.create_task(app.serve(config, ready=came_up.append, stop=stop))
        await eventually(compiling.is_set)
        said = await asyncio.to_thread(_ready, admin)
        stop.set()
        await asyncio.sleep(0)  # what passes it on has run then
        go_on.set()
        await serving
    assert said == {"ready": False, "reason": "compiling the model"}
    assert not came_up
    assert _is_closed(engine)


def _ready(port: int) -> Any:
    try:
        with urlopen(f"http://127.0.0.1:{port}/ready", timeout=30) as answer:
            return json.loads(answer.read())
    except HTTPError as error:
        with error:
            return json.loads(error.read())


def test_an_engine_that_cannot_be_warmed_up_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = FakeEngine(FakeOptions(fail_on_step=1))
    monkeypatch.setattr(model, "create_engine", lambda *_: engine)
    with pytest.raises(EngineError, match="as configured"):
        model._load_engine(EngineConfig(engine="fake"), 4, ignore_stage)
    assert _is_closed(engine)
