"""Weights of a trained student, without torch, for the export."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tools.train_draft.target import Geometry, Tensors

STUDENT_FILE = "student.npz"
"""In a run's folder."""
_FACTS = "facts"
_HEAD_IDS = "head_ids"


@dataclass(frozen=True, slots=True)
class StudentWeights:
    """Weights by GGUF name, and how they came about."""

    geometry: Geometry
    tensors: Tensors
    head_ids: npt.NDArray[np.uint32]
    history: dict[str, Any]
    """Layers, steps, tokens, seconds: for the card."""

    def save(self, path: Path) -> None:
        """Write `path` in one step."""
        partial = path.with_suffix(".partial.npz")
        facts = json.dumps({"geometry": asdict(self.geometry), "history": self.history})
        arrays: dict[str, Any] = {_FACTS: np.array(facts), _HEAD_IDS: self.head_ids, **self.tensors}
        np.savez(partial, **arrays)
        partial.replace(path)

    @classmethod
    def load(cls, path: Path) -> StudentWeights:
        """Read the file that `save` wrote."""
        with np.load(path) as saved:
            arrays = dict(saved)
        facts = json.loads(str(arrays.pop(_FACTS)))
        head_ids = arrays.pop(_HEAD_IDS)
        return cls(Geometry(**facts["geometry"]), arrays, head_ids, facts["history"])
