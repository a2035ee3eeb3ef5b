"""Opens GGUF files of unknown origin: their headers are checked before the library reads them.

The library (`gguf`) trusts a file's own numbers: an array of 2^60 numbers in a file of a hundred
bytes keeps it busy until the memory is full; text that is not UTF-8 ends in UnicodeDecodeError. So
the header is walked first (ggml's docs/gguf.md, "File Structure"), in one pass over the file: every
count, length and offset is inside the file, names are unique, arrays are flat.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from gguf import (
    GGML_QUANT_SIZES,
    GGUF_DEFAULT_ALIGNMENT,
    GGUF_MAGIC,
    GGMLQuantizationType,
    GGUFReader,
    GGUFValueType,
)

from outrider.errors import ArtifactCorruptError, UnsupportedModelError

MAX_ITEMS: Final = 1 << 21
"""Most items of all arrays of a header together. Each takes about 200 bytes of memory in the
library; the largest vocabularies have a million tokens and merges."""
MAX_FIELDS: Final = 1 << 14
MAX_TENSORS: Final = 1 << 16
_MAX_DIMENSIONS: Final = 8
_VERSIONS: Final = (2, 3)
_NUM_PARTS: Final = "split.count"
_ALIGNMENT: Final = b"general.alignment"
_TENSOR_TYPES: Final = frozenset(map(int, GGMLQuantizationType))
_SIZES: Final = {
    GGUFValueType.UINT8: 1,
    GGUFValueType.INT8: 1,
    GGUFValueType.BOOL: 1,
    GGUFValueType.UINT16: 2,
    GGUFValueType.INT16: 2,
    GGUFValueType.UINT32: 4,
    GGUFValueType.INT32: 4,
    GGUFValueType.FLOAT32: 4,
    GGUFValueType.UINT64: 8,
    GGUFValueType.INT64: 8,
    GGUFValueType.FLOAT64: 8,
}

_BROKEN: Final = (
    *(ValueError, TypeError, LookupError, ArithmeticError, AttributeError),
    *(RecursionError, MemoryError, struct.error),
)
"""Exceptions that the library may still raise."""


def open_gguf(path: Path) -> GGUFReader:
    """A reader of the file, mapped, not read. Raises ArtifactCorruptError for a file that is no
    whole GGUF, UnsupportedModelError for a part of a split one and for types of tensors that are
    not known, OSError for one that cannot be opened."""
    try:
        layout_of(path)
        reader = _QuickReader(path)
    except _BROKEN as error:
        raise ArtifactCorruptError(
            f"{path.name} is not a whole GGUF file ({_described(error)}); fetch it again"
        ) from error
    if content_of(reader, _NUM_PARTS) not in (None, 1):
        raise UnsupportedModelError(
            f"{path.name} is one of the {content_of(reader, _NUM_PARTS)!r:.20} parts of a split "
            "GGUF file; name the first, NAME-00001-of-....gguf, by file:, hf: or https:, with the "
            "others beside it: they are joined"
        )
    return reader


class _QuickReader(GGUFReader):  # type: ignore[misc]  # the library has no types
    """The library's reader takes each item of an array out of the mapped file by itself: seconds
    for the tokens and merges of a vocabulary. Here the same parts are cut out of a plain array.
    Only for files that `layout_of` has passed: little-endian, and arrays are flat."""

    def _get_field_parts(
        self, orig_offs: int, raw_type: int
    ) -> tuple[int, list[np.ndarray[Any, Any]], list[int], list[GGUFValueType]]:
        if raw_type != GGUFValueType.ARRAY:
            parts_of_one: tuple[int, list[np.ndarray[Any, Any]], list[int], list[GGUFValueType]]
            parts_of_one = super()._get_field_parts(orig_offs, raw_type)
            return parts_of_one
        data: np.ndarray[Any, Any] = self.data.view(np.ndarray)
        at = orig_offs + 12
        parts = [data[orig_offs : orig_offs + 4].view("<u4"), data[orig_offs + 4 : at].view("<u8")]
        inner, count = GGUFValueType(int(parts[0][0])), int(parts[1][0])
        types = [GGUFValueType.ARRAY, inner] if count else [GGUFValueType.ARRAY]
        if inner is not GGUFValueType.STRING:
            end = at + count * _SIZES[inner]
            items = data[at:end].view(np.dtype(self.gguf_scalar_to_np[inner]).newbyteorder("<"))
            parts += [items[i : i + 1] for i in range(count)]
            return end - orig_offs, parts, list(range(2, 2 + count)), types
        lengths = struct.Struct("<Q")
        for _ in range(count):
            begin = at + 8
            at = begin + lengths.unpack_from(data.data, begin - 8)[0]
            parts += (data[begin - 8 : begin].view("<u8"), data[begin:at])
        return at - orig_offs, parts, list(range(3, 3 + 2 * count, 2)), types


def content_of(reader: GGUFReader, name: str) -> Any:
    """The value of a metadata field; None without the field. Raises ArtifactCorruptError for a
    value that cannot be read."""
    field = reader.fields.get(name)
    if field is None:
        return None
    try:
        return field.contents()
    except _BROKEN as error:
        raise ArtifactCorruptError(
            f"the field {name} of a GGUF file cannot be read ({_described(error)}); fetch it again"
        ) from error


def _described(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:200]


class Extent(NamedTuple):
    """Bytes of a file."""

    begin: int
    end: int


class TensorPlace(NamedTuple):
    """Where a file has a tensor."""

    description: Extent
    """Its name, dimensions and type, before its offset."""
    data: Extent


@dataclass(frozen=True, slots=True)
class GgufLayout:
    """Where a file has its parts."""

    version: int
    alignment: int
    """Tensors begin at multiples of it."""
    fields: Mapping[bytes, Extent]
    """Names and values, by name."""
    tensors: Sequence[TensorPlace]


def layout_of(path: Path) -> GgufLayout:
    """Raises ValueError, struct.error for a file that is no whole GGUF, OSError."""
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
    ):
        return _Header(data).layout()


class _Header:
    """One walk over the header of a file. Reading past the file's end raises struct.error."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._at = 0
        self._num_items = 0

    def layout(self) -> GgufLayout:
        magic, version, num_tensors, num_fields = self._read("<IIQQ")
        if magic != GGUF_MAGIC:
            raise ValueError("it does not begin like one")
        if version not in _VERSIONS:
            raise ValueError(f"version {version}, byte order included, is not read here")
        if num_fields > MAX_FIELDS or num_tensors > MAX_TENSORS:
            raise ValueError(f"{num_fields} fields and {num_tensors} tensors are too many")
        names: set[bytes] = set()
        fields: dict[bytes, Extent] = {}
        alignment = GGUF_DEFAULT_ALIGNMENT
        for _ in range(num_fields):
            begin = self._at
            name = self._name(names)
            value = self._at
            self._value()
            fields[name] = Extent(begin, self._at)
            if name == _ALIGNMENT:
                kind, alignment = struct.unpack_from("<II", self._data, value)
                if kind != GGUFValueType.UINT32 or alignment.bit_count() != 1:
                    raise ValueError("its alignment is no power of two")
        names.clear()
        described = [self._tensor(names) for _ in range(num_tensors)]
        begin = -(-self._at // alignment) * alignment
        tensors = [
            TensorPlace(description, Extent(begin + offset, begin + offset + num_bytes))
            for description, offset, num_bytes in described
        ]
        if any(tensor.data.end > len(self._data) for tensor in tensors):
            raise ValueError("a tensor does not end inside it")
        return GgufLayout(version, alignment, fields, tensors)

    def _read(self, form: str) -> tuple[int, ...]:
        found = struct.unpack_from(form, self._data, self._at)
        self._at += struct.calcsize(form)
        return found

    def _skip(self, num_bytes: int) -> int:
        """Skip this many bytes; returns the offset at which they begin."""
        begin = self._at
        if num_bytes > len(self._data) - begin:
            raise ValueError("it ends too soon")
        self._at += num_bytes
        return begin

    def _name(self, known: set[bytes]) -> bytes:
        (length,) = self._read("<Q")
        begin = self._skip(length)
        name = self._data[begin : self._at]
        name.decode()
        if name in known:
            raise ValueError(f"{name[:64]!r} occurs twice")
        known.add(name)
        return name

    def _value(self) -> None:
        (number,) = self._read("<I")
        kind = GGUFValueType(number)
        if kind is not GGUFValueType.ARRAY:
            self._values(kind, 1)
            return
        inner, count = self._read("<IQ")
        if inner == GGUFValueType.ARRAY:
            raise ValueError("an array of arrays is not read here")
        self._num_items += count
        if self._num_items > MAX_ITEMS:
            raise ValueError(f"its arrays have more than {MAX_ITEMS} items")
        self._values(GGUFValueType(inner), count)

    def _values(self, kind: GGUFValueType, count: int) -> None:
        if kind is not GGUFValueType.STRING:
            self._skip(_SIZES[kind] * count)
            return
        for _ in range(count):
            (length,) = self._read("<Q")
            self._skip(length)

    def _tensor(self, known: set[bytes]) -> tuple[Extent, int, int]:
        """Where it is described, its offset and its length in bytes."""
        begin = self._at
        self._name(known)
        (num_dimensions,) = self._read("<I")
        if num_dimensions > _MAX_DIMENSIONS:
            raise ValueError(f"a tensor has {num_dimensions} dimensions")
        shape = self._read(f"<{num_dimensions}Q")
        (number,) = self._read("<I")
        description = Extent(begin, self._at)
        (offset,) = self._read("<Q")
        if number not in _TENSOR_TYPES:
            raise UnsupportedModelError(
                f"the GGUF file has a tensor of type {number}, which is not known here: it may be "
                "newer; choose a file of another quantisation"
            )
        block_items, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType(number)]
        if shape and shape[0] % block_items:
            raise UnsupportedModelError(
                f"the GGUF file has a tensor of type {GGMLQuantizationType(number).name} with rows "
                f"of {shape[0]} values, which are no whole blocks of {block_items}; choose another"
            )
        return description, offset, math.prod(shape) // block_items * block_bytes
