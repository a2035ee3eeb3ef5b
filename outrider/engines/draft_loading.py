"""From a configured name to a draft model that is ready to run."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Final

from outrider.engines.base import Engine
from outrider.engines.config import EngineConfig
from outrider.engines.draft_calibration import DraftCalibration
from outrider.engines.draft_file import read_card
from outrider.errors import ArtifactMissingError, ConfigError, VocabularyMismatchError
from outrider.extras import install_command
from outrider.models.catalog import ModelSpec, lookup
from outrider.models.disk.files import file_sha256
from outrider.models.store import ModelStore
from outrider.models.vocabulary import load_digest, load_vocabulary

SHIPPED: Final = ""
"""The draft in this package that was made for the target."""
DRAFT_WEIGHT_BITS: Final = 4
"""Bits per weight of draft models, unless their definition sets another number: their guesses are
verified, and time per guess matters more than the few guesses that rounding costs (decision
0008)."""
_PACKAGES: Final = ("openvino", "openvino_genai")


@dataclass(frozen=True, slots=True)
class DraftModel:
    """A draft that runs."""

    name: str
    engine: Engine
    """Rows name their ids if the head is trimmed."""
    calibration: DraftCalibration = field(default_factory=DraftCalibration)


def shipped_draft(target: ModelSpec) -> Path | None:
    """The draft in this package for a target; None without one."""
    path = Path(str(resources.files("outrider.engines"))) / "data" / f"{target.name}.draft.gguf"
    return path if path.is_file() else None


def load_draft(
    choice: str, target: ModelSpec, store: ModelStore, config: EngineConfig
) -> DraftModel:
    """Load the draft: SHIPPED, a GGUF file's path, or a model's name, whose definition overrides
    the engine settings in `config`. Blocks for seconds.

    Raises ArtifactMissingError if no draft is shipped, VocabularyMismatchError, ConfigError without
    the engine's packages, and what ModelStore.ensure and the engine raise.
    """
    check_packages()
    path = draft_path(choice, target)
    card = read_card(path) if path is not None else None
    # Imported here: it takes long, and what cannot be loaded should be refused soon.
    from outrider.engines.openvino import loading

    config = replace(config, exact=False)
    if path is not None and card is not None:
        _check_digest(path.name, card.vocabulary_digest, target, store)
        engine = loading.load_trained_draft(path, card, target, store, config)
        return DraftModel(path.name, engine, card.calibration)
    spec = lookup(choice) if path is None else _file_spec(path)
    _check_ids(spec, target, store)
    config = replace(config, weight_bits=DRAFT_WEIGHT_BITS)
    config = replace(config, **spec.engine.given())
    return DraftModel(spec.name, loading.load_engine(spec, store, config))


def check_packages() -> None:
    """Raises ConfigError if what draft models run on is not installed."""
    missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"{' and '.join(missing)} cannot be imported; run {install_command('draft')}, or set "
            "draft_model to none"
        )


def draft_path(choice: str, target: ModelSpec) -> Path | None:
    """The file that is meant; None for a model's name. Raises ArtifactMissingError."""
    if choice == SHIPPED:
        path = shipped_draft(target)
        if path is None:
            raise ArtifactMissingError(
                f"no draft model is shipped for {target.name}; name a GGUF file of the same "
                "vocabulary as draft_model, or set it to none"
            )
        return path
    if "/" not in choice and not choice.endswith(".gguf"):
        return None
    path = Path(choice).expanduser()
    if not path.is_file():
        raise ArtifactMissingError(f"the draft model {choice} is not there; check draft_model")
    return path


def _file_spec(path: Path) -> ModelSpec:
    return ModelSpec(path.name, f"file:{path.absolute()}", file_sha256(path))


def _check_ids(spec: ModelSpec, target: ModelSpec, store: ModelStore) -> None:
    """Drafts are ids: chat templates and stop tokens may differ, and how many ids of padding there
    are behind the tokens (models of one family are padded to different sizes)."""
    drafts, wanted = (load_vocabulary(one.as_in_file(), store) for one in (spec, target))
    if difference := drafts.difference_of_ids(wanted):
        raise VocabularyMismatchError(
            f"the draft model {spec.name} has other tokens ({drafts.digest.hex()}) than its target "
            f"{target.name} ({wanted.digest.hex()}): {difference}; use a draft with the target's "
            "tokenizer"
        )


def _check_digest(name: str, digest: bytes, target: ModelSpec, store: ModelStore) -> None:
    wanted = load_digest(target.as_in_file(), store)
    if digest != wanted:
        raise VocabularyMismatchError(
            f"the draft model {name} has the vocabulary {digest.hex()}, its target {target.name} "
            f"has {wanted.hex()}; use a draft that was made for this target"
        )
