"""Model files as the converter reads them without loss, and their matrices as the file has them.

openvino_genai's GGUF reader rounds the offsets of Q4_1 to whole steps and refuses other types
altogether (decision 0013). It reads Q8_0 exactly, so the graph is made from a copy of the file in
Q8_0, and the values are then written into it from the file itself. The matrix of a product is found
by content: the converter names none, and reorders the rows of some.
"""

from __future__ import annotations

import math
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

from outrider.engines.draft_file import (
    add_placeholder_tokens,
    copy_fields,
    has_plain_tokenizer,
)
from outrider.engines.gguf_decoder.rotary import read_factors
from outrider.errors import UnsupportedModelError
from outrider.models.gguf_file import content_of, open_gguf

Floats: TypeAlias = npt.NDArray[np.float32]
Bytes: TypeAlias = npt.NDArray[np.uint8]

_ROW_DIGEST_BYTES: Final = 16
_Q8_0_BLOCK_VALUES: Final = 32
"""Behind a scale of two bytes, as signed bytes."""
_CENTRE: Final = 128
_KEPT: Final = (".bias", "ffn_gate_inp.weight")
"""Ends of tensors that stay in F32."""
_OF_EXPERTS: Final = 3
"""Dimensions of a tensor with a matrix for each expert."""
_ROWS_AT_A_TIME: Final = 4096
"""Rows of a matrix converted at a time, as four-byte numbers."""
READABLE: Final = (
    *("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"),
    *("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "TQ1_0", "TQ2_0", "MXFP4"),
    *("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_NL", "IQ4_XS"),
)
"""ggml's types of weights that can be served."""
_OF_THE_COPY: Final = ("GGUF.", "general.architecture", "general.file_type")
"""Metadata of a file's own form, which the copy has its own of."""


@dataclass(frozen=True, slots=True)
class WeightError:
    """How far the weights that are served lie from the file's."""

    squared: float
    """Sum of the squares of the differences."""
    total: float
    """Sum of the squares of the file's weights."""

    @property
    def relative(self) -> float:
        """RMS of the differences, divided by the RMS of the weights."""
        return math.sqrt(self.squared / self.total) if self.total else 0.0

    @classmethod
    def of(cls, original: Floats, stored: Floats) -> WeightError:
        """Error of `stored` against `original`, two matrices of one shape."""
        difference = (original - stored).ravel()
        flat = original.ravel()
        return cls(float(difference @ difference), float(flat @ flat))

    def __add__(self, other: WeightError) -> WeightError:
        return WeightError(self.squared + other.squared, self.total + other.total)


NO_ERROR: Final = WeightError(0.0, 0.0)


@dataclass(frozen=True, slots=True)
class FileMatrix:
    """A matrix as the model file has it."""

    name: str
    values: Floats
    """[rows, columns]"""


@dataclass(frozen=True, slots=True)
class _Matrix:
    """A matrix of the model file, or one expert's of those in a tensor."""

    name: str
    data: Any
    kind: GGMLQuantizationType
    shape: tuple[int, int]
    """Rows and columns."""
    rows: dict[bytes, int]
    """By digest of a row in Q8_0: which row it is."""


class RepackedModel:
    """The matrices of a GGUF file, and where each is in a graph made of its copy in Q8_0."""

    def __init__(self, source: Path, target: Path) -> None:
        """Write `target`, the copy, one tensor after the other: in memory are the largest one in
        Q8_0, and some rows of it. Raises UnsupportedModelError for a matrix of a type unknown."""
        self._matrices: list[_Matrix] = []
        self.errors: dict[str, WeightError] = {}
        """Error of each matrix in the copy, by name."""
        reader = open_gguf(source)
        self.rotary = read_factors(reader)
        """Factors of rotary frequencies, which the graph of the copy does not have."""
        writer = GGUFWriter(target, str(content_of(reader, "general.architecture")))
        self.has_tokenizer = has_plain_tokenizer(reader)
        """Whether the copy has the file's tokenizer. The converter fails with others, which it
        would have no use for: the copy then has one that stands for nothing."""
        copy_fields(reader, writer, self._is_copied)
        writer.add_file_type(LlamaFileType.MOSTLY_Q8_0)
        if not self.has_tokenizer:
            add_placeholder_tokens(writer, len(reader.fields["tokenizer.ggml.tokens"].data))
        for tensor in reader.tensors:
            _announce(writer, tensor)
        try:
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_ti_data_to_file()
            for tensor in reader.tensors:
                writer.write_tensor_data(self._converted(tensor, source.name))
        finally:
            writer.close()

    def matrix_of(self, values: Bytes, scales: npt.NDArray[np.float16]) -> FileMatrix:
        """The file's matrix for the graph's `values` [rows, groups, 32], u8 around 128, and
        `scales` [rows, groups, 1], in the graph's order of rows.

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
                    whole = dequantize(matrix.data[np.array(numbers)], matrix.kind)
                    return FileMatrix(matrix.name, np.asarray(whole, np.float32))
        raise UnsupportedModelError(
            f"the converter changed a matrix of {len(rows)} rows and {columns} columns: what would "
            "be served is not what the file says; choose another model file"
        )

    def _is_copied(self, field: str) -> bool:
        skipped = _OF_THE_COPY if self.has_tokenizer else (*_OF_THE_COPY, "tokenizer.")
        return not field.startswith(skipped)

    def _converted(self, tensor: Any, name: str) -> npt.NDArray[Any]:
        """A tensor as the copy stores it."""
        if not _is_matrix(tensor):
            # Vectors of other types are read wrongly or not at all.
            return np.asarray(_values(tensor, tensor.data, name), np.float32)
        if len(tensor.shape) == _OF_EXPERTS:
            return np.stack(
                [
                    self._packed(tensor, f"{tensor.name}[{number}]", data, name)
                    for number, data in enumerate(tensor.data)
                ]
            )
        return self._packed(tensor, str(tensor.name), tensor.data, name)

    def _packed(self, tensor: Any, name: str, data: npt.NDArray[Any], file: str) -> Bytes:
        """A matrix as the copy stores it."""
        packed, self.errors[name] = self._quantised(tensor, data, file)
        shape = int(tensor.shape[1]), int(tensor.shape[0])
        self._matrices.append(_Matrix(name, data, tensor.tensor_type, shape, _row_numbers(packed)))
        return packed

    def _quantised(
        self, tensor: Any, data: npt.NDArray[Any], name: str
    ) -> tuple[Bytes, WeightError]:
        kind = tensor.tensor_type
        if kind == GGMLQuantizationType.Q8_0:
            return np.asarray(data), NO_ERROR
        packed = np.empty(_packed_shape(tensor)[-2:], np.uint8)
        error = NO_ERROR
        for begin in range(0, len(packed), _ROWS_AT_A_TIME):
            some = slice(begin, begin + _ROWS_AT_A_TIME)
            values = _values(tensor, data[some], name)
            packed[some] = quantize(values, GGMLQuantizationType.Q8_0)
            stored = dequantize(packed[some], GGMLQuantizationType.Q8_0)
            error += WeightError.of(values, stored)
        return packed, error


def _values(tensor: Any, data: npt.NDArray[Any], name: str) -> Floats:
    """Some rows of a tensor. Raises UnsupportedModelError for a type that cannot be read, and for
    values that are no numbers."""
    kind = tensor.tensor_type
    try:
        values = np.asarray(dequantize(data, kind), np.float32)
    except NotImplementedError as error:
        raise UnsupportedModelError(
            f"{name} stores {tensor.name} as {kind.name}, which cannot be read; use a file of "
            f"another quantisation: {', '.join(READABLE)}"
        ) from error
    if not np.isfinite(values).all():
        raise UnsupportedModelError(
            f"{name} has weights in {tensor.name} that are no numbers; fetch it again"
        )
    return values


def _packed_shape(tensor: Any) -> tuple[int, ...]:
    num_blocks = int(tensor.shape[0]) // _Q8_0_BLOCK_VALUES
    outer = [int(length) for length in reversed(tensor.shape[1:])]
    return (*outer, num_blocks * (_Q8_0_BLOCK_VALUES + 2))


def _announce(writer: GGUFWriter, tensor: Any) -> None:
    if _is_matrix(tensor):
        shape, kind = _packed_shape(tensor), GGMLQuantizationType.Q8_0
        size = math.prod(shape)
        writer.add_tensor_info(tensor.name, shape, np.dtype(np.uint8), size, raw_dtype=kind)
    else:
        lengths = [int(length) for length in reversed(tensor.shape)]
        size = 4 * math.prod(lengths)
        writer.add_tensor_info(tensor.name, lengths, np.dtype(np.float32), size)


def _is_matrix(tensor: Any) -> bool:
    """Or one for each expert. Their biases are none, nor is what chooses them: by a small error
    others would be chosen."""
    has_rows = len(tensor.shape) in (2, _OF_EXPERTS) and not tensor.name.endswith(_KEPT)
    return has_rows and int(tensor.shape[0]) % _Q8_0_BLOCK_VALUES == 0


def _row_numbers(packed: Bytes) -> dict[bytes, int]:
    """Equal rows count as the first of them."""
    numbers: dict[bytes, int] = {}
    for number, row in enumerate(packed):
        numbers.setdefault(_digest(row), number)
    return numbers


def _digest(row: npt.NDArray[Any]) -> bytes:
    return blake2b(row.tobytes(), digest_size=_ROW_DIGEST_BYTES).digest()
