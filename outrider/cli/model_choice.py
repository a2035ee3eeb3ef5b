"""The meaning of `--model`: a defined name, a model file of this machine, or a source.

A file or a source gets a definition of its own, for this process or the mesh that it starts.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from outrider.errors import ArtifactMissingError, ConfigError, UnknownModelError
from outrider.models.catalog import (
    SHIPPED,
    ModelCatalog,
    ModelSpec,
    load_catalog,
    read_config_file,
    use,
)
from outrider.models.definitions import free_name
from outrider.models.sources import parse_source
from outrider.models.sources.folder import FolderSource
from outrider.models.sources.local import FileSource
from outrider.models.sources.members import POOLING

MODEL_HELP: Final = (
    "A model's name, a GGUF file, a model's folder (write its path with a slash), or a source: "
    "hf:REPO, hf:REPO@REVISION#file, file:PATH, dir:PATH."
)
_MADE_FOR: Final = "--model"
"""Shown as the origin of such a definition."""


@dataclass(frozen=True, slots=True)
class ChosenModel:
    """A model, and all definitions besides the shipped ones."""

    spec: ModelSpec
    definitions: tuple[ModelSpec, ...]


@dataclass(frozen=True, slots=True)
class ChosenModels:
    """Several models, without duplicates, in the order given."""

    specs: tuple[ModelSpec, ...]
    definitions: tuple[ModelSpec, ...]


def choose(model: str, config: Path | None = None) -> ChosenModel:
    """The model that is meant, which this process then knows by its name; "" is the default.
    `config`: a configuration file that may define models. Raises UnknownModelError,
    ArtifactMissingError for a file that is not there, SourceError and UnsupportedModelError for a
    folder that cannot be served, ConfigError."""
    chosen = choose_all([model], config)
    return ChosenModel(chosen.specs[0], chosen.definitions)


def choose_all(models: Sequence[str], config: Path | None = None) -> ChosenModels:
    """The same for several. Raises ConfigError also for a model that is named twice."""
    catalog = load_catalog(config)
    specs: list[ModelSpec] = []
    for model in models:
        spec = _meant(model, catalog)
        for other in specs:
            if other.name == spec.name or (_is_made(spec) and other.source == spec.source):
                raise ConfigError(f"{other.name} is named twice; name each model once")
        specs.append(spec)
        if spec.name not in catalog.names:
            catalog = catalog.extended([spec])
    use(catalog, config)
    own = tuple(it for it in catalog if it is not _shipped(it.name))
    return ChosenModels(tuple(specs), own)


def _meant(model: str, catalog: ModelCatalog) -> ModelSpec:
    if is_name(model):
        return catalog.lookup(model)
    source = source_of(model)
    name = free_name(model, source, catalog)
    embeds = _embeds(source)
    return ModelSpec(name, source, _digest_now(source), embeds=embeds, defined_in=_MADE_FOR)


def _embeds(source: str) -> bool:
    """Whether a folder of this machine is an embedding model's: it has a pooling configuration."""
    scheme, _, rest = source.partition(":")
    return scheme == "dir" and (Path(rest) / POOLING).exists()


def _is_made(spec: ModelSpec) -> bool:
    """Whether it was defined for a file or a source that was given in place of a name."""
    return spec.defined_in == _MADE_FOR


def is_name(model: str) -> bool:
    """Whether it is a name, by its form: files have a slash or end with .gguf, sources a colon."""
    return ":" not in model and not _is_path(model)


def source_of(model: str) -> str:
    """The canonical source of a file or a source. Raises ArtifactMissingError, ConfigError."""
    if not _is_path(model):
        return parse_source(model, {}).text
    path = Path(model).expanduser()
    if not path.exists():
        raise ArtifactMissingError(f"the model file {model} does not exist; check its path")
    return parse_source(f"{'dir' if path.is_dir() else 'file'}:{path}", {}).text


def served_name(model: str, edge_config: Path) -> str:
    """The name by which a mesh, whose edge has this configuration file, serves `model`: a mesh
    knows only names; "" is its default. Raises UnknownModelError, which lists what it serves, if
    it does not serve this model, file or source."""
    if not model:
        return model
    try:
        served = tomllib.loads(edge_config.read_text("utf-8"))["edge"]["models"]
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, LookupError) as error:
        raise ConfigError(f"{edge_config} does not say what the mesh serves: {error}") from error
    if model in served:
        return model
    if not is_name(model):
        wanted = source_of(model)
        known = SHIPPED.extended(read_config_file(edge_config))
        for name in served:
            if known.lookup(name).source == wanted:
                return str(name)
    raise UnknownModelError(
        f"the mesh here serves {', '.join(served)}, not {model}; to serve it too, stop the mesh "
        f"(outrider down) and start it with --model {model} beside the others"
    )


def _is_path(model: str) -> bool:
    scheme = model.partition(":")[0]
    is_source = scheme != model and "/" not in scheme
    return not is_source and (os.sep in model or model.endswith(".gguf"))


def _digest_now(source: str) -> str:
    """Digest of a file or folder at this moment, so that the store pulls it again after a change;
    "" if it does not exist: the store may still hold it."""
    scheme, _, rest = source.partition(":")
    path = Path(rest)
    if scheme == "dir" and path.is_dir():
        return FolderSource(path).sha256()
    return FileSource(path).sha256() if scheme == "file" and path.is_file() else ""


def _shipped(name: str) -> ModelSpec | None:
    return SHIPPED.lookup(name) if name in SHIPPED.names else None
