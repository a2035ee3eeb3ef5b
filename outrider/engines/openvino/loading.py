"""Loads the OpenVINO engine through the model store."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from outrider.engines.config import EngineConfig
from outrider.engines.draft_file import DraftCard, compose
from outrider.engines.load_stage import ReportStage, ignore_stage
from outrider.engines.openvino.convert import (
    convert,
    converted,
    derived_name,
    read_converted,
)
from outrider.engines.openvino.engine import OpenVinoEngine
from outrider.engines.openvino.layouts import AS_CONVERTED, DEFAULT_BITS, LAYOUT_OF_BITS
from outrider.models.catalog import ModelSpec
from outrider.models.disk.files import file_sha256
from outrider.models.folder import is_archive
from outrider.models.store import ModelStore

_COMPOSER_VERSION: Final = 2
"""Raised whenever a composed draft or its meaning changes."""


def load_engine(
    spec: ModelSpec,
    store: ModelStore,
    config: EngineConfig,
    report: ReportStage = ignore_stage,
) -> OpenVinoEngine:
    """Fetch and convert the model if necessary, then compile it. Blocks for seconds; `report` is
    called with each stage."""
    layout = LAYOUT_OF_BITS[config.weight_bits or DEFAULT_BITS]
    model = converted(spec, store, layout, kv_bytes=config.kv_bytes, report=report)
    return OpenVinoEngine(model, config, report)


def load_trained_draft(
    draft: Path, card: DraftCard, target: ModelSpec, store: ModelStore, config: EngineConfig
) -> OpenVinoEngine:
    """The draft on its target's embedding and tokenizer, or on its own where the target is a
    folder. Blocks for seconds.

    Raises what ModelStore.ensure raises, ArtifactCorruptError if the two do not fit each other, and
    EngineError.
    """
    artifact = store.ensure(target.source, sha256=target.sha256)
    lender = None if is_archive(artifact.path) else artifact.path

    def build(folder: Path) -> None:
        whole = folder / "whole.gguf"
        compose(draft, lender, card.head_order, whole)
        convert(whole, folder, AS_CONVERTED)
        whole.unlink()

    name = f"draft-v{_COMPOSER_VERSION}-{file_sha256(draft)[:16]}-{derived_name(AS_CONVERTED)}"
    return OpenVinoEngine(
        read_converted(store.derived(artifact, name, build), card.head_ids), config
    )
