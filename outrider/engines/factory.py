"""Makes the engine a configuration asks for."""

from __future__ import annotations

from outrider.engines.base import Engine
from outrider.engines.config import EngineConfig
from outrider.engines.fake import FakeEngine
from outrider.models.catalog import lookup
from outrider.models.store import ModelStore, default_root


def create_engine(config: EngineConfig) -> Engine:
    """Load the engine; blocks for seconds, and longer if the model has to be fetched.

    Raises UnknownModelError, ModelStoreError, EngineError, and ConfigError where the engine's
    packages are not installed.
    """
    if config.engine == "fake":
        return FakeEngine(config.fake)
    # Imported here: a router or an edge has no OpenVINO, and neither needs a GPU replica.
    if config.engine == "tensorrt-llm":
        from outrider.engines.tensorrt_llm import loading as tensorrt_llm

        return tensorrt_llm.load_engine(config)
    from outrider.engines.openvino.loading import load_engine

    store = ModelStore(config.model_store or default_root())
    return load_engine(lookup(config.model), store, config)
