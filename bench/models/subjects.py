"""The models that are measured, in a store of their own."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Kind

from bench.harness.larger_models import CODER_05B, CODER_15B, LargerModel, have_all
from bench.harness.model_folder import sizes_of, write_folder
from outrider.engines.openvino.architectures import ARCHITECTURES
from outrider.engines.openvino.convert import converted
from outrider.models import catalog, definitions
from outrider.models.catalog import DEFAULT_MODEL, ModelSpec
from outrider.models.disk.files import file_sha256
from outrider.models.sources.folder import FolderSource
from outrider.models.store import ModelStore, default_root
from outrider.models.vocabulary import load_vocabulary
from tests.fidelity.models import Shape, weights, write

FOLDER: Final = f"{DEFAULT_MODEL.name}-folder"
TYPE_CLASSES: Final = {
    "floats": ("F32", "F16", "BF16"),
    "blocks-of-32": ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL", "MXFP4"),
    "k-blocks": ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"),
    "i-blocks": (*("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_XS"),),
    "ternary": ("TQ1_0", "TQ2_0"),
}
"""ggml's types by how they are laid out; every one that is served is in one of them."""
_SHAPE: Final = Shape(vocabulary=96, width=256, heads=4, kv_heads=2, inner=256, base=10_000.0)
_SCALE: Final = 0.06
"""RMS of matrices: products neither grow nor vanish."""
_TOKENS: Final = ["a", "b", "ab", *(chr(0x103 + n) for n in range(_SHAPE.vocabulary - 3))]


@dataclass(frozen=True, slots=True)
class Subject:
    """One model."""

    spec: ModelSpec
    what: str
    """Its format, for a table."""
    is_tiny: bool = False
    """Random weights."""


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
        *tiny_models(work, quick=quick),
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


def tiny_models(work: Path, *, quick: bool) -> list[Subject]:
    """Every architecture, and every class of ggml types in turn; the architectures alone, each
    with a class of its own, if `quick`."""
    classes = list(TYPE_CLASSES)
    pairs = list(zip(ARCHITECTURES, classes, strict=False))
    if not quick:
        pairs += [
            (ARCHITECTURES[0], name) for name in classes if (ARCHITECTURES[0], name) not in pairs
        ]
    return [_tiny(work, architecture, name) for architecture, name in pairs]


def _tiny(work: Path, architecture: str, class_name: str) -> Subject:
    """A model whose matrices are of all types of the class, one after the other."""
    name = f"tiny-{architecture}-{class_name}"
    path = write_tiny(work / f"{name}.gguf", architecture, TYPE_CLASSES[class_name])
    types = ", ".join(TYPE_CLASSES[class_name])
    return Subject(file_spec(name, path), f"GGUF, {architecture}: {types}", is_tiny=True)


def write_tiny(path: Path, architecture: str, types: Sequence[str]) -> Path:
    """A file of random weights."""
    shape = replace(_SHAPE, architecture=architecture)
    tensors = weights(shape, biased=architecture == "qwen2", scale=_SCALE)
    matrices = [name for name, tensor in tensors.items() if tensor.ndim == 2]
    kinds = {name: Kind[types[at % len(types)]] for at, name in enumerate(matrices)}
    kinds = {name: kind for name, kind in kinds.items() if kind is not Kind.F32}

    def add_tokenizer(writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("gpt-2")
        writer.add_token_list(_TOKENS)
        writer.add_token_types([gguf.TokenType.NORMAL] * len(_TOKENS))
        writer.add_token_merges(["a b"])

    return write(path, shape, tensors, kinds=kinds, add_tokenizer=add_tokenizer)


def tiny_prompt(seed: int, count: int = 24) -> list[int]:
    """Ids of a tiny model's vocabulary."""
    return [int(i) for i in np.random.default_rng(seed).integers(0, _SHAPE.vocabulary, count)]
