"""The KV pool on a device: blocks of all layers, moved as bits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from torch import Tensor

from outrider.codec.kv.layout import KvDtype, KvLayout
from outrider.engines.torch.call_plan import SpareBlocks
from outrider.errors import EngineError

_TYPES: Final = {
    KvDtype.F32: (torch.float32, torch.int32, np.int32),
    KvDtype.BF16: (torch.bfloat16, torch.int16, np.int16),
}
"""The numbers, and words of their size: numpy has no bf16."""


class KvPool:
    """`num_blocks` blocks and two spare ones, zero at first."""

    def __init__(self, layout: KvLayout, num_blocks: int, device: torch.device) -> None:
        group = layout.groups[0]
        plane = (group.num_heads, layout.block_tokens, group.head_size)
        shape = (num_blocks + 2, group.num_planes // 2, 2, *plane)
        numbers, words, self._dtype = _TYPES[layout.dtype]
        if device.type == "cpu":
            # numpy's zeros take memory when they are written.
            self._words = torch.from_numpy(np.zeros(shape, self._dtype))
        else:
            self._words = torch.zeros(shape, dtype=words, device=device)
        self.numbers: Tensor = self._words.view(numbers)
        """[num_blocks + 2, layers, 2 (keys, values), kv heads, tokens, head size]"""
        self.spare = SpareBlocks(zero=num_blocks, waste=num_blocks + 1)
        self._block_bytes = layout.block_bytes

    def copy(self, source: int, target: int) -> None:
        """Copy one block."""
        self._words[target] = self._words[source]

    def export(self, blocks: Sequence[int]) -> bytes:
        """Block by block: layer 0's keys, its values, layer 1's keys, ..."""
        words = self._words[torch.tensor(blocks, dtype=torch.int64)].cpu().numpy()
        return bytes(words.tobytes())

    def load(self, blocks: Sequence[int], data: bytes) -> None:
        """Write what `export` gave. Raises EngineError on a size mismatch."""
        expected = len(blocks) * self._block_bytes
        if len(data) != expected:
            raise EngineError(
                f"{len(data)} bytes do not fill {len(blocks)} blocks, which take {expected}; "
                "export and import equal engines"
            )
        words = torch.from_numpy(np.frombuffer(data, self._dtype).copy())
        words = words.reshape(len(blocks), *self._words.shape[1:])
        self._words[torch.tensor(blocks, dtype=torch.int64)] = words.to(self._words.device)
