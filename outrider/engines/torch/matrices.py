"""Weights that rows are multiplied with: as numbers of one type, or as 8 bits in groups that share
a scale, which is what GGUF's Q8_0 stores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import torch
from torch import Tensor

GROUP_VALUES: Final = 32
"""Values of a matrix's row, one behind the other, that share a scale."""
_MOST: Final = 127


@dataclass(frozen=True, slots=True)
class GroupedMatrix:
    """A matrix whose numbers are values times the scale of their group, which f32 holds exactly."""

    values: Tensor
    """[..., out, in] int8"""
    scales: Tensor
    """[..., out, in / GROUP_VALUES] f16"""
    dtype: torch.dtype
    """Rows are rounded to this before they are multiplied."""

    def dense(self) -> Tensor:
        """[..., out, in] in f32."""
        groups = self.values.unflatten(-1, (-1, GROUP_VALUES)).float()
        return (groups * self.scales[..., None].float()).flatten(-2)

    def __getitem__(self, index: int | slice | Tensor) -> GroupedMatrix:
        """A part along the first axis."""
        return GroupedMatrix(self.values[index], self.scales[index], self.dtype)


Matrix: TypeAlias = Tensor | GroupedMatrix
"""[out, in], or [experts, out, in]."""


@dataclass(frozen=True, slots=True)
class Product:
    """A matrix, and what is added to its products."""

    matrix: Matrix
    bias: Tensor | None = None
    """[out], or [experts, out], f32."""


def rounded_to_groups(numbers: Tensor) -> tuple[Tensor, Tensor]:
    """Values and scales of a GroupedMatrix, of [..., out, in] numbers, `in` a multiple of
    GROUP_VALUES: as Q8_0 rounds, the largest number of a group is 127 times its scale."""
    groups = numbers.unflatten(-1, (-1, GROUP_VALUES))
    scales = (groups.abs().amax(-1) / _MOST).half()
    divisors = scales.float().masked_fill(scales == 0, 1.0)[..., None]
    values = (groups / divisors).round().clamp(-_MOST, _MOST)
    return values.to(torch.int8).flatten(-2), scales


def joined(parts: Sequence[Matrix]) -> Matrix:
    """Matrices of the same rows as one, one below the other."""
    if len(parts) == 1:
        return parts[0]
    grouped = [part for part in parts if isinstance(part, GroupedMatrix)]
    if not grouped:
        return torch.cat([part for part in parts if isinstance(part, Tensor)], -2)
    values = torch.cat([part.values for part in grouped], -2)
    return GroupedMatrix(values, torch.cat([it.scales for it in grouped], -2), grouped[0].dtype)


def rows_of(matrix: Matrix, indices: Tensor) -> Tensor:
    """[n, in] rows of an [out, in] matrix, in f32."""
    if isinstance(matrix, GroupedMatrix):
        return matrix[indices].dense()
    return matrix[indices].float()
