"""The first layers of a real model in one file that can be brought to a machine without a network:

    python -m bench.gpu.truncated_model FILE [--layers 2]

writes those of the default model, its matrices as 8 bits in groups, 40 MB. What such a model says
makes no sense, but its numbers are those of a real one.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from outrider.engines.torch.decoder_shape import DecoderShape, LayerRule
from outrider.engines.torch.matrices import GroupedMatrix, rounded_to_groups

_SHAPE, _FREQUENCIES = "shape", "frequencies"
_VALUES, _SCALES = ".values", ".scales"


class TruncatedModel:
    """Implements decoder.Weights from a file that `write_truncated` wrote."""

    def __init__(self, path: Path) -> None:
        with np.load(path, allow_pickle=False) as arrays:
            self._arrays = dict(arrays)
        fields: dict[str, Any] = json.loads(str(self._arrays[_SHAPE]))
        layers = tuple(LayerRule(**layer) for layer in fields.pop("layers"))
        self.shape = DecoderShape(**fields, layers=layers)

    def __contains__(self, name: str) -> bool:
        return name in self._arrays or f"{name}{_VALUES}" in self._arrays

    def tensor(self, name: str) -> Tensor:
        stored = self.grouped(name)
        if stored is not None:
            return GroupedMatrix(*stored, torch.float32).dense()
        return torch.from_numpy(self._arrays[name])

    def grouped(self, name: str) -> tuple[Tensor, Tensor] | None:
        if f"{name}{_VALUES}" not in self._arrays:
            return None
        values, scales = (self._arrays[f"{name}{part}"] for part in (_VALUES, _SCALES))
        return torch.from_numpy(values), torch.from_numpy(scales)

    def frequencies(self, rule: LayerRule) -> npt.NDArray[np.float64]:
        found: npt.NDArray[np.float64] = self._arrays[_FREQUENCIES]
        row: npt.NDArray[np.float64] = found[self.shape.layers.index(rule)]
        return row


def write_truncated(source: Path, num_layers: int, out: Path) -> None:
    """The first layers of a GGUF file's model. Raises what DecoderFile raises."""
    # Imported here: where the model is read, the package of GGUF files is not needed.
    from outrider.engines.torch.decoder_file import DecoderFile

    file = DecoderFile(source)
    layers = file.shape.layers[:num_layers]
    shape = dataclasses.replace(file.shape, layers=layers)
    arrays: dict[str, npt.NDArray[Any]] = {
        _SHAPE: np.array(json.dumps(dataclasses.asdict(shape))),
        _FREQUENCIES: np.stack([file.frequencies(rule) for rule in layers]),
    }
    for name in file.num_values:
        if name.startswith("blk.") and int(name.split(".")[1]) >= num_layers:
            continue
        tensor = file.tensor(name)
        if tensor.dim() == 1 or name.endswith(".bias"):
            arrays[name] = tensor.numpy()
            continue
        values, scales = file.grouped(name) or rounded_to_groups(tensor)
        arrays[f"{name}{_VALUES}"] = values.numpy()
        arrays[f"{name}{_SCALES}"] = scales.numpy()
    with out.open("wb") as stream:
        np.savez(stream, **arrays)  # type: ignore[arg-type]  # names are arguments


def main() -> int:
    from outrider.models.catalog import DEFAULT_MODEL
    from outrider.models.store import ModelStore, default_root

    flags = argparse.ArgumentParser("bench.gpu.truncated_model", description=__doc__)
    flags.add_argument("file", type=Path)
    flags.add_argument("--layers", type=int, default=2)
    arguments = flags.parse_args()
    source = ModelStore(default_root()).ensure(DEFAULT_MODEL.source, sha256=DEFAULT_MODEL.sha256)
    write_truncated(source.path, arguments.layers, arguments.file)
    return 0


if __name__ == "__main__":
    sys.exit(main())
