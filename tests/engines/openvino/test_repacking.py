"""The copy that the converter reads, and the file's own values for what it made of them."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt
import pytest
from gguf import GGMLQuantizationType as Kind
from gguf import GGUFReader, dequantize, quantize

from outrider.engines.openvino.repacking import RepackedModel
from outrider.errors import UnsupportedModelError
from tests.models.gguf_files import write_out

COLUMNS = 64
ROWS = 6
KINDS = (Kind.Q4_1, Kind.Q5_0, Kind.Q8_0, Kind.F16)
Values = npt.NDArray[np.uint8]
Scales = npt.NDArray[np.float16]


def _write(path: Path) -> Path:
    """A matrix of each kind, a vector, a matrix whose rows no block fits, some metadata."""
    rng = np.random.default_rng(1)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(77)
    writer.add_token_list(["a", "b"])
    for kind in KINDS:
        matrix = rng.standard_normal((ROWS, COLUMNS)).astype(np.float32)
        if kind == Kind.Q8_0:
            matrix[3] = 2 * matrix[0]  # the same bytes in Q8_0 but for the scale
        writer.add_tensor(f"{kind.name}.weight", quantize(matrix, kind), raw_dtype=kind)
    writer.add_tensor("norm.weight", np.arange(COLUMNS, dtype=np.float32))
    writer.add_tensor("odd.weight", np.ones((4, 5), np.float32))
    write_out(writer)
    return path


def _as_graph(tensor: gguf.ReaderTensor) -> tuple[Values, Scales]:
    """Q8_0 as the converter writes it: u8 around 128 and scales, by group."""
    blocks = np.asarray(tensor.data).reshape(ROWS, -1, 34)
    scales = blocks[:, :, :2].copy().view(np.float16)
    return blocks[:, :, 2:] ^ np.uint8(128), scales


def test_the_copy_is_in_q8_0_and_keeps_all_else(tmp_path: Path) -> None:
    source = _write(tmp_path / "a.gguf")
    RepackedModel(source, tmp_path / "b.gguf")
    copy = GGUFReader(tmp_path / "b.gguf")
    kinds = {tensor.name: tensor.tensor_type for tensor in copy.tensors}
    assert {kinds[f"{kind.name}.weight"] for kind in KINDS} == {Kind.Q8_0}
    assert (kinds["norm.weight"], kinds["odd.weight"]) == (Kind.F32, Kind.F32)
    assert copy.fields["llama.context_length"].contents() == 77
    assert copy.fields["tokenizer.ggml.tokens"].contents() == ["a", "b"]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_rows_are_found_in_whatever_order_they_stand(tmp_path: Path, kind: Kind) -> None:
    source = _write(tmp_path / "a.gguf")
    model = RepackedModel(source, tmp_path / "b.gguf")
    originals = {tensor.name: tensor for tensor in GGUFReader(source).tensors}
    copies = {tensor.name: tensor for tensor in GGUFReader(tmp_path / "b.gguf").tensors}
    name, order = f"{kind.name}.weight", np.random.default_rng(2).permutation(ROWS)
    values, scales = _as_graph(copies[name])
    found = model.matrix_of(values[order], scales[order])
    expected = dequantize(originals[name].data, kind)[order]
    assert found.name == name
    np.testing.assert_array_equal(found.values, expected)


def test_a_matrix_that_the_file_lacks_is_refused(tmp_path: Path) -> None:
    model = RepackedModel(_write(tmp_path / "a.gguf"), tmp_path / "b.gguf")
    tensor = next(t for t in GGUFReader(tmp_path / "b.gguf").tensors if t.name == "Q4_1.weight")
    values, scales = _as_graph(tensor)
    changed = values.copy()
    changed[ROWS - 1, 0, 0] ^= 1
    with pytest.raises(UnsupportedModelError, match="6 rows and 64 columns"):
        model.matrix_of(changed, scales)
    with pytest.raises(UnsupportedModelError, match="6 rows and 64 columns"):
        model.matrix_of(values, scales * np.float16(2))
