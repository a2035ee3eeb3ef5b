"""Model files as the converter reads them without loss, and their matrices as the file has them.

openvino_genai's GGUF reader rounds the offsets of Q4_1 to whole steps and refuses other types
altogether (decision 0013). Q8_0 it reads exactly, so a copy of the file in Q8_0 gives the graph,
and the values are then written into it from the file itself. Which product of the graph holds which
matrix is found by content: the converter names nothing, and reorders the rows of some.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
from gguf import (
    GGMLQuantizationType,
    GGUFWriter,
    LlamaFileType,
    dequantize,
    quantize,
)

from outrider.engines.draft_file import copy_fields
from outrider.errors import UnsupportedModelError
from outrider.models.gguf_file import content_of, open_gguf

Floats: TypeAlias = npt.NDArray[np.float32]
Bytes: TypeAlias = npt.NDArray[np.uint8]

_ROW_DIGEST_BYTES: Final = 16
_Q8_0_BLOCK_VALUES: Final = 32
"""Behind a scale of two bytes, as signed bytes."""
_CENTRE: Final = 128
_OF_THE_COPY: Final = ("GGUF.", "general.architecture", "general.file_type")
"""Metadata of a file's own form, which the copy has its own of."""


@dataclass(frozen=True, slots=True)
class _Matrix:
    """A matrix of the model file."""

    tensor: Any
    shape: tuple[int, int]
    """Rows and columns."""
    rows: dict[bytes, int]
    """By digest of a row in Q8_0: which row it is."""


class RepackedModel:
    """The matrices of a GGUF file, and where each is in a graph made of its copy in Q8_0."""

    def __init__(self, source: Path, target: Path) -> None:
        """Write `target`, the copy. Raises UnsupportedModelError for a matrix of a type unknown."""
        self._matrices: list[_Matrix] = []
        reader = open_gguf(source)
        writer = GGUFWriter(target, str(content_of(reader, "general.architecture")))
        copy_fields(reader, writer, lambda name: not name.startswith(_OF_THE_COPY))
        writer.add_file_type(LlamaFileType.MOSTLY_Q8_0)
        for tensor in reader.tensors:
            if not _is_matrix(tensor):
                writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
                continue
            packed = self._packed(tensor, source.name)
            writer.add_tensor(tensor.name, packed, raw_dtype=GGMLQuantizationType.Q8_0)
            shape = int(tensor.shape[1]), int(tensor.shape[0])
            self._matrices.append(_Matrix(tensor, shape, _row_numbers(packed)))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()

    def matrix_of(self, values: Bytes, scales: npt.NDArray[np.float16]) -> Floats:
        """[rows, columns] what the file has where the graph has `values` [rows, groups, 32], u8
        around 128, and `scales` [rows, groups, 1], in the graph's order of rows.

        Raises UnsupportedModelError if the converter changed them.
        """
        signed = values ^ _CENTRE
        rows = np.concatenate((scales.view(np.uint8), signed), -1)
        shape = signed.shape
        columns = shape[1] * shape[2]
        digests = [_digest(row) for row in rows]
        for matrix in self._matrices:
            if matrix.shape == (len(rows), columns) and digests[0] in matrix.rows:
                numbers = [matrix.rows.get(digest) for digest in digests]
                if None not in numbers:
                    whole = dequantize(matrix.tensor.data, matrix.tensor.tensor_type)
                    return np.asarray(whole[np.array(numbers)], np.float32)
        raise UnsupportedModelError(
            f"the converter changed a matrix of {len(rows)} rows and {columns} columns: what would "
            "be served is not what the file says; choose another model file"
        )

    def _packed(self, tensor: Any, name: str) -> Bytes:
        kind = tensor.tensor_type
        if kind == GGMLQuantizationType.Q8_0:
            return np.asarray(tensor.data)
        try:
            return np.asarray(quantize(dequantize(tensor.data, kind), GGMLQuantizationType.Q8_0))
        except NotImplementedError as error:
            raise UnsupportedModelError(
                f"{name} stores {tensor.name} as {kind.name}, which cannot be read; use a file of "
                "another quantisation"
            ) from error


def _is_matrix(tensor: Any) -> bool:
    return len(tensor.shape) == 2 and int(tensor.shape[0]) % _Q8_0_BLOCK_VALUES == 0


def _row_numbers(packed: Bytes) -> dict[bytes, int]:
    """Equal rows count as the first of them."""
    numbers: dict[bytes, int] = {}
    for number, row in enumerate(packed):
        numbers.setdefault(_digest(row), number)
    return numbers


def _digest(row: npt.NDArray[Any]) -> bytes:
    return blake2b(row.tobytes(), digest_size=_ROW_DIGEST_BYTES).digest()
