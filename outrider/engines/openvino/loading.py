"""Loads the OpenVINO engine through the model store."""

from __future__ import annotations

from outrider.engines.config import EngineConfig
from outrider.engines.openvino.engine import OpenVinoEngine
from outrider.engines.openvino.graph.convert import converted
from outrider.models.catalog import ModelSpec
from outrider.models.store import ModelStore


def load_engine(spec: ModelSpec, store: ModelStore, config: EngineConfig) -> OpenVinoEngine:
    """Fetch and convert what is missing, then compile. Blocks for seconds."""
    return OpenVinoEngine(converted(spec, store), config)
