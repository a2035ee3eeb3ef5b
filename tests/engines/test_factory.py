"""Engines from configurations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from outrider.engines.config import EngineConfig
from outrider.engines.factory import create_engine
from outrider.engines.fake import FakeEngine, FakeOptions
from outrider.errors import ConfigError, UnknownModelError


def test_the_fake_engine_takes_its_options() -> None:
    engine = create_engine(EngineConfig(engine="fake", fake=FakeOptions(vocabulary_size=10)))
    assert isinstance(engine, FakeEngine)
    assert engine.info.vocabulary_size == 10


def test_an_unknown_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnknownModelError, match="no-such-model"):
        create_engine(EngineConfig(model="no-such-model", model_store=tmp_path))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("engine", "tpu"), ("precision", "int3"), ("threads", 0), ("num_blocks", 0)),
        *(("kv_bytes", -1), ("kv_share", 0.0), ("kv_share", 1.1), ("max_context_tokens", -1)),
    ],
)
def test_bad_values_are_refused(field: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=str(value)):
        EngineConfig(**{field: value})
