"""The KV pool's memory: one key and one value tensor per layer, as the kernel lays them out."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt
import openvino as ov

from outrider.codec.kv.layout import KvDtype, KvLayout, PlaneGroup
from outrider.errors import EngineError

Bits = npt.NDArray[np.unsignedinteger[Any]]

_DTYPES = {"bf16": KvDtype.BF16, "f16": KvDtype.F16, "f32": KvDtype.F32}
_WORDS: dict[int, type[np.unsignedinteger[Any]]] = {1: np.uint8, 2: np.uint16, 4: np.uint32}


class KvTensors:
    """Every layer's keys and values for `num_blocks` blocks; zero, and committed when touched.

    Kept as unsigned words: numpy has no bfloat16, and blocks are only ever moved.
    """

    def __init__(self, compiled: Any, num_blocks: int) -> None:
        self._tensors: dict[str, Any] = {}
        self._words: list[Bits] = []
        for port in _cache_ports(compiled):
            kind = port.get_element_type()
            shape = [num_blocks, *_block_shape(port)]
            words = np.zeros(shape, _WORDS[kind.size])
            self._words.append(words)
            self._tensors[port.get_any_name()] = ov.Tensor(words, ov.Shape(shape), kind)

    @staticmethod
    def block_bytes(compiled: Any) -> int:
        """Bytes of one block over all layers."""
        return sum(
            int(np.prod(_block_shape(port))) * int(port.get_element_type().size)
            for port in _cache_ports(compiled)
        )

    @staticmethod
    def block_tokens(compiled: Any) -> int:
        """Tokens per block: the kernel's choice, by precision."""
        return _block_shape(_cache_ports(compiled)[0])[1]

    @staticmethod
    def layout(compiled: Any) -> KvLayout | None:
        """How export() arranges a block; None for numbers of a kind that frames do not know."""
        ports = _cache_ports(compiled)
        dtype = _DTYPES.get(ports[0].get_element_type().get_type_name())
        if dtype is None or len({port.get_element_type() for port in ports}) > 1:
            return None
        shapes = [tuple(_block_shape(port)) for port in ports]
        alike = [(shape, len(list(same))) for shape, same in groupby(shapes)]
        groups = tuple(PlaneGroup(count, shape[0], shape[2]) for shape, count in alike)
        layout = KvLayout(dtype, shapes[0][1], groups)
        # Keys and values of one shape, and blocks of as many tokens in each layer.
        is_known = all(count % 2 == 0 for _, count in alike) and len({s[1] for s in shapes}) == 1
        return layout if is_known else None

    def bind(self, request: Any) -> None:
        """Make the request compute on this memory."""
        for name, tensor in self._tensors.items():
            request.set_tensor(name, tensor)

    def mark(self, slot: tuple[int, int]) -> None:
        """Put a NaN where the last layer writes the values of a token: (block, slot in block)."""
        block, token = slot
        last = self._words[-1]
        last[block, 0, token, 0] = np.iinfo(last.dtype).max

    def is_marked(self, slot: tuple[int, int]) -> bool:
        """Whether the mark is still there."""
        block, token = slot
        last = self._words[-1]
        return bool(last[block, 0, token, 0] == np.iinfo(last.dtype).max)

    def release(self) -> None:
        """Give the memory back."""
        self._tensors.clear()
        self._words.clear()

    def copy(self, source: int, target: int) -> None:
        """Copy one block."""
        for words in self._words:
            words[target] = words[source]

    def export(self, blocks: Sequence[int]) -> bytes:
        """Block by block: layer 0's keys, its values, layer 1's keys, ..."""
        index = np.asarray(blocks, np.intp)
        parts = [
            words[index].view(np.uint8).reshape(len(index), words[0].nbytes)
            for words in self._words
        ]
        return np.concatenate(parts, axis=1).tobytes()

    def load(self, blocks: Sequence[int], data: bytes) -> None:
        """Write what `export` gave. Raises EngineError on a size mismatch."""
        index = np.asarray(blocks, np.intp)
        expected = len(index) * sum(words[0].nbytes for words in self._words)
        if len(data) != expected:
            raise EngineError(
                f"{len(data)} bytes do not fill {len(blocks)} blocks, which take {expected}; "
                "export and import equal engines"
            )
        rows = np.frombuffer(data, np.uint8).reshape(len(index), expected // max(1, len(index)))
        begin = 0
        for words in self._words:
            end = begin + words[0].nbytes
            part = np.ascontiguousarray(rows[:, begin:end]).view(words.dtype)
            words[index] = part.reshape(len(index), *words.shape[1:])
            begin = end


def _cache_ports(compiled: Any) -> list[Any]:
    """Key and value inputs, in the graph's order: key 0, value 0, key 1, ..."""
    return [port for port in compiled.inputs if "_cache." in port.get_any_name()]


def _block_shape(port: Any) -> list[int]:
    """[heads, tokens, head size]."""
    return [dimension.get_length() for dimension in list(port.get_partial_shape())[1:]]
