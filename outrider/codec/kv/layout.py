"""How the bytes of one KV block are arranged: planes of keys and values, one pair per layer."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from math import prod
from typing import Final

from outrider.errors import MalformedFrameError

MAX_PLANES: Final = 1 << 12
MAX_BLOCK_BYTES: Final = 1 << 28
"""Largest block over all layers: more than any model here has, less than what a false header could
use to exhaust memory."""


class KvDtype(IntEnum):
    """Types of a plane's numbers, by their values on the wire."""

    BF16 = 0
    F32 = 1
    F16 = 2

    @property
    def num_bytes(self) -> int:
        """Bytes of one number."""
        return 4 if self is KvDtype.F32 else 2


@dataclass(frozen=True, slots=True)
class PlaneGroup:
    """Consecutive planes of one shape. A plane is the keys or the values of one layer's block,
    [num_heads, block_tokens, head_size] in C order."""

    num_planes: int
    num_heads: int
    head_size: int

    def plane_values(self, block_tokens: int) -> int:
        """Numbers in one plane."""
        return self.num_heads * block_tokens * self.head_size


@dataclass(frozen=True, slots=True)
class KvLayout:
    """A block's bytes: layer 0's keys, its values, layer 1's keys, its values, and so on."""

    dtype: KvDtype
    block_tokens: int
    groups: tuple[PlaneGroup, ...]

    @property
    def num_planes(self) -> int:
        """Keys and values count apart: twice the number of layers."""
        return sum(group.num_planes for group in self.groups)

    @property
    def block_values(self) -> int:
        """Numbers in one block over all layers."""
        return sum(
            group.num_planes * group.plane_values(self.block_tokens) for group in self.groups
        )

    @property
    def block_bytes(self) -> int:
        """Bytes of one block over all layers, not compressed."""
        return self.block_values * self.dtype.num_bytes

    def check(self) -> None:
        """Raises MalformedFrameError for a layout that no engine has, before anything is sized by
        it."""
        sizes = [self.block_tokens]
        for group in self.groups:
            sizes += [group.num_planes, group.num_heads, group.head_size]
        if not self.groups or min(sizes) < 1 or max(sizes) > 1 << 16:
            raise MalformedFrameError("a KV layout has a size of nothing, or an absurd one")
        # Python's integers do not overflow: the product of hostile sizes is compared as it is.
        total = sum(
            prod((group.num_planes, group.num_heads, group.head_size, self.block_tokens))
            for group in self.groups
        )
        if self.num_planes > MAX_PLANES or total * self.dtype.num_bytes > MAX_BLOCK_BYTES:
            raise MalformedFrameError(
                f"a KV layout of {self.num_planes} planes and {total} numbers a block is beyond "
                f"the limits of {MAX_PLANES} planes and {MAX_BLOCK_BYTES} bytes"
            )
        if any(group.num_planes % 2 for group in self.groups):
            raise MalformedFrameError("a KV layout has keys without values")


def uniform_layout(
    dtype: KvDtype, *, num_layers: int, num_heads: int, block_tokens: int, head_size: int
) -> KvLayout:
    """The layout of a model whose layers are all equal."""
    return KvLayout(dtype, block_tokens, (PlaneGroup(2 * num_layers, num_heads, head_size),))
