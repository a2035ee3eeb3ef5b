"""Loads the PyTorch engine through the model store."""

from __future__ import annotations

from pathlib import Path

import torch

from outrider.engines.config import EngineConfig
from outrider.engines.footprint import footprint
from outrider.engines.free_memory import known_free_memory
from outrider.engines.load_stage import LoadStage, ReportStage, ignore_stage
from outrider.engines.page_collapse import collapse_pages
from outrider.engines.torch.decoder_file import DecoderFile
from outrider.engines.torch.engine import TorchEngine, device_of, free_memory_of, precision_of
from outrider.engines.torch.matrices import GROUP_VALUES
from outrider.errors import UnsupportedModelError
from outrider.models import checkpoint_gguf
from outrider.models.catalog import ModelSpec
from outrider.models.checkpoint_gguf import Checkpoint
from outrider.models.folder import holds_checkpoint, is_archive, unpacked
from outrider.models.store import ModelStore


def load_engine(
    spec: ModelSpec,
    store: ModelStore,
    config: EngineConfig,
    report: ReportStage = ignore_stage,
) -> TorchEngine:
    """Fetch the model if necessary and load it. Blocks for seconds; `report` is called where
    weights are converted.

    Raises what ModelStore.ensure raises, UnsupportedModelError for a folder of OpenVINO's or a file
    with parts that are not known, ConfigError, EngineError, and InsufficientMemoryError.
    """
    report(LoadStage.CONVERT)
    file = DecoderFile(_gguf_of(spec, store))
    device = device_of(config.device)
    num_bytes = round(sum(file.num_values.values()) * _bytes_each(config, device))
    needed = footprint(num_bytes, file.shape.vocabulary_size, config.kv_bytes)
    needed.check(known_free_memory() if device.type == "cpu" else free_memory_of(device))
    engine = TorchEngine(file, config)
    collapse_pages()
    return engine


def _bytes_each(config: EngineConfig, device: torch.device) -> float:
    """Of a weight."""
    if config.weight_bits == 8:
        return 1 + 2 / GROUP_VALUES
    return 2.0 if precision_of(config, device) == "bf16" else 4.0


def _gguf_of(spec: ModelSpec, store: ModelStore) -> Path:
    """The model's GGUF file; a checkpoint is written as one, once."""
    artifact = store.ensure(spec.source, sha256=spec.sha256)
    if not is_archive(artifact.path):
        return artifact.path
    files = unpacked(artifact, store)
    if not holds_checkpoint(files):
        raise UnsupportedModelError(
            f"{spec.name} is a folder of OpenVINO's, whose graph PyTorch cannot run; use a GGUF "
            "file or safetensors of it, or the engine openvino"
        )

    def build(folder: Path) -> None:
        Checkpoint(files, artifact.path).write_gguf(folder / _NAME)

    return store.derived(artifact, f"gguf-checkpoint-{checkpoint_gguf.VERSION}", build) / _NAME


_NAME = "model.gguf"
