"""Engines of a replica that does not come up are closed again."""

from __future__ import annotations

import socket

import pytest

from outrider.errors import ConfigError, EngineError
from outrider.testing import leak_check
from services.inference import app
from services.inference.config import InferenceConfig
from services.inference.engines.config import EngineConfig
from services.inference.engines.fake import FakeEngine, FakeOptions
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


def test_an_instance_that_does_not_load_closes_those_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = [FakeEngine(), FakeEngine(FakeOptions(fail_on_step=1))]
    waiting = iter(made)

    def create(config: EngineConfig) -> FakeEngine:
        return next(waiting)

    monkeypatch.setattr(app, "create_engine", create)
    with pytest.raises(EngineError, match="as configured"):
        app._load_engines(InferenceConfig(engine="fake", instances=2, warm_up_rows=4), 64)
    assert all(_is_closed(engine) for engine in made)
