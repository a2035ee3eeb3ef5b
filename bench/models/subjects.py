"""The models that are measured, in a store of their own."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.harness.larger_models import CODER_05B, CODER_15B, LargerModel, have_all
from bench.harness.model_folder import sizes_of, write_folder
from outrider.engines.openvino.convert import converted
from outrider.models import catalog, definitions
from outrider.models.catalog import DEFAULT_MODEL, ModelSpec
from outrider.models.disk.files import file_sha256
from outrider.models.sources.folder import FolderSource
from outrider.models.store import ModelStore, default_root
from outrider.models.vocabulary import load_vocabulary

FOLDER: Final = f"{DEFAULT_MODEL.name}-folder"


@dataclass(frozen=True, slots=True)
class Subject:
    """One model."""

    spec: ModelSpec
    what: str
    """Its format, for a table."""


@dataclass(frozen=True, slots=True)
class Subjects:
    """All of a run, in one store."""

    store: ModelStore
    models: tuple[Subject, ...]
    missing: dict[str, str]
    """Names, and why they could not be had."""


def gather(work: Path, *, quick: bool) -> Subjects:
    """Have all models in a store below `work`, not converted, and have this process and its
    children know them by name and use that store."""
    store = ModelStore(work / "store")
    larger, missing = have_all([CODER_05B] if quick else [CODER_05B, CODER_15B])
    models = (
        *_default_model(work),
        *(_larger(known, larger[known.name]) for known in (CODER_05B, CODER_15B)
          if known.name in larger),
    )  # fmt: skip
    know([subject.spec for subject in models], work, store)
    for subject in models:
        store.ensure(subject.spec.source, sha256=subject.spec.sha256)
    return Subjects(store, models, missing)


def know(specs: Sequence[ModelSpec], work: Path, store: ModelStore) -> None:
    """Define models for this process and the children it starts, which use `store`."""
    tables = {spec.name: definitions.as_table(spec) for spec in specs}
    file = work / "models.toml"
    file.write_text(definitions.to_toml(tables), encoding="utf-8")
    os.environ["OUTRIDER_MODELS"] = str(file)
    os.environ["OUTRIDER_MODEL_STORE"] = str(store.root)
    catalog.use(None)


def file_spec(name: str, path: Path) -> ModelSpec:
    """Of a model's file."""
    return ModelSpec(name, f"file:{path}", file_sha256(path))


def _default_model(work: Path) -> tuple[Subject, ...]:
    """Its GGUF file, and a folder as OpenVINO's organisation publishes models, made from it."""
    machine = ModelStore(default_root())
    path = machine.ensure(DEFAULT_MODEL.source, sha256=DEFAULT_MODEL.sha256).path
    vocabulary = load_vocabulary(DEFAULT_MODEL, machine)
    model = converted(DEFAULT_MODEL, machine)
    folder = write_folder(work / FOLDER, model, vocabulary, sizes_of(path))
    from_folder = ModelSpec(FOLDER, f"dir:{folder}", FolderSource(folder).sha256())
    return (
        Subject(file_spec(f"{DEFAULT_MODEL.name}-file", path), "GGUF, Q4_1"),
        Subject(from_folder, "OpenVINO folder, 8 bits"),
    )


def _larger(known: LargerModel, path: Path) -> Subject:
    return Subject(ModelSpec(known.name, f"file:{path}", known.sha256), "GGUF, Q4_K_M")
