"""Reads safetensors files of unknown origin: the header is checked whole before any tensor is read.

A file is a length of eight bytes, a JSON object of that many bytes, and the tensors' bytes
(huggingface/safetensors, "Format"). Checked are: a header no longer than the file or than the most
tensors can need, no more values than they have, no duplicate keys, known types, as many bytes as
type and shape require, and tensors that follow each other from the first byte to the last without
gap or overlap.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from outrider.errors import ArtifactCorruptError
from outrider.models.strict_json import read_object

MAX_TENSORS: Final = 1 << 16
_MAX_ENTRY_BYTES: Final = 256
"""Average length of a tensor's entry in the header:
`"model.layers.60.mlp.experts.255.down_proj.weight":` with type, a shape of two numbers and two
offsets of 12 digits takes 130."""
MAX_HEADER_BYTES: Final = MAX_TENSORS * _MAX_ENTRY_BYTES
"""16 MiB, where the format allows 100 MB (huggingface/safetensors, `MAX_HEADER_SIZE`). Models of
hundreds of billions of weights come in shards of some gigabytes with a few thousand tensors each,
in headers below 1 MB; 128 experts in each of 48 layers, all in one file, are 18,867 tensors and
2.5 MB."""
_MAX_COMMAS: Final = MAX_TENSORS * 16
"""Most commas of a header: between tensors, fields, dimensions and offsets. They bound the number
of its values, which are counted before parsing because each takes up to a hundred bytes
afterwards."""
_MAX_DIMENSIONS: Final = 8
_LENGTH_BYTES: Final = 8
_METADATA: Final = "__metadata__"
_SIZES: Final = {
    **{"BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1},
    **{"U16": 2, "I16": 2, "F16": 2, "BF16": 2},
    **{"U32": 4, "I32": 4, "F32": 4},
    **{"U64": 8, "I64": 8, "F64": 8, "C64": 8},
}
"""Bytes of one value."""

Bytes: TypeAlias = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor of a file."""

    dtype: str
    """Type in the format's own names, such as F32 and BF16."""
    shape: tuple[int, ...]
    begin: int
    """First byte, counted from the file's first."""
    end: int
    """Behind its last byte."""


@dataclass(frozen=True, slots=True)
class Extent:
    """Position of a safetensors file: a file of its own, or a member of an uncompressed archive."""

    name: str
    """For people."""
    path: Path
    """The file that contains it."""
    offset: int
    """Offset of its first byte in `path`."""
    num_bytes: int

    @classmethod
    def of_file(cls, path: Path) -> Extent:
        """A whole file. Raises OSError."""
        return cls(path.name, path, 0, path.stat().st_size)


class SafetensorsFile:
    """The tensors of one file, mapped, not read."""

    def __init__(self, extent: Extent) -> None:
        """Raises ArtifactCorruptError, naming file and reason, OSError."""
        self._extent = extent
        self.tensors = read_header(extent)
        """By name, in the file's order."""

    def bytes_of(self, name: str) -> Bytes:
        """[n] the bytes of a tensor; pages come from the disk as they are read."""
        entry, extent = self.tensors[name], self._extent
        if entry.begin == entry.end:
            return np.empty(0, np.uint8)
        first, count = extent.offset + entry.begin, entry.end - entry.begin
        return np.memmap(extent.path, np.uint8, mode="r", offset=first, shape=(count,))


def read_header(extent: Extent) -> dict[str, TensorEntry]:
    """The tensors by name, in the order of their bytes. Raises ArtifactCorruptError, OSError."""
    with extent.path.open("rb") as file:
        file.seek(extent.offset)
        head = file.read(min(_LENGTH_BYTES, extent.num_bytes))
        length = int.from_bytes(head, "little")
        room = extent.num_bytes - _LENGTH_BYTES
        if len(head) < _LENGTH_BYTES or not 2 <= length <= min(room, MAX_HEADER_BYTES):
            most = f"at most {MAX_HEADER_BYTES} are read" if length <= room else f"there are {room}"
            raise _broken(extent, f"its header is to have {length} bytes, and {most}")
        text = file.read(length)
    if len(text) < length:
        raise _broken(extent, "it ends in its header")
    if text.count(b",") > _MAX_COMMAS:
        raise _broken(extent, f"its header has more values than {MAX_TENSORS} tensors have")
    begin = _LENGTH_BYTES + length
    try:
        found = read_object(text)
        found.pop(_METADATA, None)
        if len(found) > MAX_TENSORS:
            raise ValueError(f"it has more than {MAX_TENSORS} tensors")
        entries = {name: _entry(name, value, begin) for name, value in found.items()}
        return _in_order(entries, begin, extent.num_bytes)
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise _broken(extent, str(error) or type(error).__name__) from error


def _broken(extent: Extent, why: str) -> ArtifactCorruptError:
    return ArtifactCorruptError(
        f"{extent.name} is not a whole safetensors file: {why[:300]}; fetch it again"
    )


def _entry(name: str, value: dict[str, Any], begin: int) -> TensorEntry:
    if value.keys() != {"dtype", "shape", "data_offsets"}:
        raise ValueError(f"{name[:100]!r} has other fields than type, shape and offsets")
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _SIZES:
        raise ValueError(f"{name[:100]!r} is of type {str(dtype)[:32]!r}, which is not known")
    if not _are_counts(shape) or len(shape) > _MAX_DIMENSIONS:
        raise ValueError(f"{name[:100]!r} has no shape")
    if not _are_counts(offsets) or len(offsets) != 2:
        raise ValueError(f"{name[:100]!r} has no two offsets")
    first, last = offsets
    num_bytes = math.prod(shape) * _SIZES[dtype]
    if last - first != num_bytes:
        raise ValueError(f"{name[:100]!r} has {last - first} bytes, its shape takes {num_bytes}")
    return TensorEntry(dtype, tuple(shape), begin + first, begin + last)


def _are_counts(values: object) -> bool:
    if not isinstance(values, list):
        return False
    return all(type(value) is int and 0 <= value < 1 << 62 for value in values)


def _in_order(entries: dict[str, TensorEntry], begin: int, end: int) -> dict[str, TensorEntry]:
    """By their bytes, which have to be all of the file's from `begin` to `end`, each once."""
    ordered = dict(sorted(entries.items(), key=lambda item: (item[1].begin, item[1].end)))
    at = begin
    for name, entry in ordered.items():
        if entry.begin != at:
            what = "overlaps the one before" if entry.begin < at else "leaves a gap before it"
            raise ValueError(f"{name[:100]!r} {what}")
        at = entry.end
    if at != end:
        raise ValueError(f"its tensors end at byte {at}, it has {end}")
    return ordered
