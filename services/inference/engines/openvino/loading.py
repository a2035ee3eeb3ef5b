"""Loads the OpenVINO engine through the model store."""

from __future__ import annotations

from outrider.models.catalog import ModelSpec
from outrider.models.store import ModelStore
from services.inference.engines.config import EngineConfig
from services.inference.engines.openvino.engine import OpenVinoEngine
from services.inference.engines.openvino.graph.convert import converted


def load_engine(spec: ModelSpec, store: ModelStore, config: EngineConfig) -> OpenVinoEngine:
    """Fetch and convert what is missing, then compile. Blocks for seconds."""
    return OpenVinoEngine(converted(spec, store), config)
