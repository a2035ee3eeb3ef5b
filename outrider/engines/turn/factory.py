"""Opens the turn engine that a configuration asks for."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from outrider.engines.config import EngineConfig
from outrider.engines.turn.base import TurnEngine
from outrider.engines.turn.fake import FakeTurnEngine
from outrider.errors import ConfigError

if TYPE_CHECKING:
    from outrider.models.vocabulary import Vocabulary


async def open_turn_engine(config: EngineConfig, vocabulary: Vocabulary) -> TurnEngine:
    """Load or reach the engine; what takes long runs in a thread. Cancelling it gives up. An
    engine that reads a vocabulary of its own compares it with `vocabulary`.

    Raises EngineError, UnavailableError if a server cannot be reached, and ConfigError for settings
    that do not fit, and where the engine's packages are not installed.
    """
    if config.engine == "fake-turns":
        size = config.vocabulary_size or config.fake_turns.vocabulary_size
        return FakeTurnEngine(replace(config.fake_turns, vocabulary_size=size))
    # Imported here: each engine's packages are installed where it is used.
    if config.engine == "vllm":
        from outrider.engines.turn.vllm import loading as vllm

        return await vllm.open_engine(config, vocabulary)
    if config.engine == "tensorrt-llm":
        from outrider.engines.turn.tensorrt_llm import loading as tensorrt_llm

        return await tensorrt_llm.open_engine(config, vocabulary)
    if config.engine == "openai-server":
        from outrider.engines.turn.openai_server.opening import open_server

        return await open_server(config.server, vocabulary)
    raise ConfigError(f"the engine {config.engine!r} is no turn engine")
