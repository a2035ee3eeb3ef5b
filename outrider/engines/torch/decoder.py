"""The forward pass of a decoder over a paged KV pool.

Products, norms and attention are those of `kernels`, whose bits do not depend on the size of a
call. Everything else here works number by number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from outrider.engines.torch.call_plan import CallPlan, Numbers
from outrider.engines.torch.decoder_shape import DecoderShape, LayerRule
from outrider.engines.torch.experts import Experts
from outrider.engines.torch.kernels import AttentionTiles, Kernels
from outrider.engines.torch.matrices import (
    GroupedMatrix,
    Matrix,
    Product,
    joined,
    rounded_to_groups,
    rows_of,
)


@dataclass(frozen=True, slots=True)
class _GatedUnit:
    """A feed-forward part that all rows go through."""

    gate_and_up: Product
    down: Product


@dataclass(frozen=True, slots=True)
class _Layer:
    """Weights of one layer; gains of norms are None where the file has none."""

    rule: LayerRule
    attention_gain: Tensor
    queries_keys_values: Product
    query_gain: Tensor | None
    key_gain: Tensor | None
    sinks: Tensor | None
    """[heads] scores of attention that belong to no token."""
    output: Product
    output_gain: Tensor | None
    inner_gain: Tensor
    inner: _GatedUnit | Experts
    down_gain: Tensor | None


@dataclass(frozen=True, slots=True)
class CallInputs:
    """A CallPlan on the device."""

    tokens: Tensor
    positions: Tensor
    write_blocks: Tensor
    write_slots: Tensor
    tiles: AttentionTiles
    logits_rows: Tensor

    @classmethod
    def of(cls, plan: CallPlan, device: torch.device) -> CallInputs:
        """Copied to the device."""

        def moved(numbers: Numbers) -> Tensor:
            return torch.from_numpy(numbers).to(device)

        return cls(
            moved(plan.tokens),
            moved(plan.positions),
            moved(plan.write_blocks),
            moved(plan.write_slots),
            AttentionTiles(
                moved(plan.query_rows),
                moved(plan.query_positions),
                moved(plan.num_blocks),
                moved(plan.tables),
            ),
            moved(plan.logits_rows),
        )

    def tensors(self) -> tuple[Tensor, ...]:
        """All of them, in one order."""
        tiles = self.tiles
        return (
            *(self.tokens, self.positions, self.write_blocks, self.write_slots),
            *(tiles.rows, tiles.positions, tiles.num_blocks, tiles.tables, self.logits_rows),
        )


class Weights(Protocol):
    """Where a decoder's tensors come from."""

    @property
    def shape(self) -> DecoderShape: ...

    def __contains__(self, name: str) -> bool: ...

    def tensor(self, name: str) -> Tensor:
        """[rows, columns] of a matrix, [experts, rows, columns] of several, [n] of a vector, in
        f32, by its name in a GGUF file."""
        ...

    def grouped(self, name: str) -> tuple[Tensor, Tensor] | None:
        """Values and scales of a GroupedMatrix, where the file's numbers are exactly these."""
        ...

    def frequencies(self, rule: LayerRule) -> npt.NDArray[np.float64]:
        """[pairs] radians a position by which each pair of a head's values turns."""
        ...


class Decoder:
    """The weights of a model on one device."""

    def __init__(
        self,
        weights: Weights,
        kernels: Kernels,
        dtype: torch.dtype,
        device: torch.device,
        *,
        in_groups: bool = False,
    ) -> None:
        """Matrices are held in `dtype`, or as GroupedMatrix, everything else in f32. Raises
        UnsupportedModelError for tensors that cannot be read."""
        self.shape: DecoderShape = weights.shape
        self._kernels = kernels
        self._weights = weights
        self._dtype, self._device = dtype, device
        self._in_groups = in_groups
        self._embedding = self._matrices("token_embd")
        self._layers = [self._layer(index, rule) for index, rule in enumerate(self.shape.layers)]
        self._final_gain = self._vector("output_norm.weight")
        is_tied = "output.weight" not in weights
        self._head = Product(self._embedding if is_tied else self._matrices("output"))
        self._rotations = {rule: self._rotation(rule) for rule in set(self.shape.layers)}

    def logits(self, inputs: CallInputs, pool: Tensor) -> Tensor:
        """[r, V] of the plan's logits_rows, filling too, in f32. `pool` is KvPool.numbers; keys and
        values of the call's tokens are written there."""
        shape = self.shape
        blocks, slots = inputs.write_blocks, inputs.write_slots
        turned = {rule: table[:, inputs.positions] for rule, table in self._rotations.items()}
        is_filling = blocks == len(pool) - 1  # they write to SpareBlocks.waste, the pool's last
        state = rows_of(self._embedding, inputs.tokens) * shape.embedding_scale
        for index, layer in enumerate(self._layers):
            normed = self._normed(state, layer.attention_gain)
            queries, keys, values = self._heads(layer, normed, turned[layer.rule])
            pool[blocks, index, 0, :, slots] = keys.to(pool.dtype)
            pool[blocks, index, 1, :, slots] = values.to(pool.dtype)
            window = layer.rule.window
            held = pool[:, index]
            mixed = self._kernels.attended(queries, held, inputs.tiles, window, layer.sinks)
            output = self._product(mixed.reshape(len(mixed), -1), layer.output)
            state = state + self._normed(output, layer.output_gain)
            normed = self._normed(state, layer.inner_gain)
            if isinstance(layer.inner, Experts):
                down = layer.inner.mixed(normed, is_filling, self._kernels)
            else:
                down = self._gated(normed, layer.inner)
            state = state + self._normed(down, layer.down_gain)
        if not len(inputs.logits_rows):
            return state.new_empty((0, shape.vocabulary_size))
        return self._product(self._normed(state[inputs.logits_rows], self._final_gain), self._head)

    def _heads(
        self, layer: _Layer, normed: Tensor, rotation: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Scaled queries, keys and values of rows, [n, heads, head size] each."""
        shape = self.shape
        counts = [shape.num_heads, shape.num_kv_heads, shape.num_kv_heads]
        rows = self._product(normed, layer.queries_keys_values)
        heads = rows.reshape(len(rows), sum(counts), shape.head_size)
        queries, keys, values = heads.split(counts, dim=1)
        queries = self._turned(self._normed(queries, layer.query_gain), rotation)
        keys = self._turned(self._normed(keys, layer.key_gain), rotation)
        return queries * shape.attention_scale, keys, values

    def _gated(self, normed: Tensor, inner: _GatedUnit) -> Tensor:
        gate, up = self._product(normed, inner.gate_and_up).chunk(2, dim=1)
        opened = _gelu(gate) if self.shape.has_gelu else functional.silu(gate)
        return self._product(opened * up, inner.down)

    def _turned(self, heads: Tensor, rotation: Tensor) -> Tensor:
        """[n, heads, size] with each pair of values turned by its position's angle; `rotation` is
        [2, n, pairs]."""
        cosine, sine = rotation[:, :, None]
        if self.shape.is_interleaved:
            first, second = heads[..., 0::2], heads[..., 1::2]
        else:
            first, second = heads.chunk(2, dim=-1)
        pairs = first * cosine - second * sine, first * sine + second * cosine
        if self.shape.is_interleaved:
            return torch.stack(pairs, dim=-1).reshape(heads.shape)
        return torch.cat(pairs, dim=-1)

    def _normed(self, rows: Tensor, gain: Tensor | None) -> Tensor:
        """As they are without a gain."""
        if gain is None:
            return rows
        return self._kernels.normed(rows, gain, self.shape.epsilon)

    def _product(self, rows: Tensor, factor: Product) -> Tensor:
        product = self._kernels.product(rows, factor.matrix)
        return product if factor.bias is None else product + factor.bias

    def _rotation(self, rule: LayerRule) -> Tensor:
        """[2, context, pairs]: cosine and sine of each position's angles."""
        angles = np.arange(self.shape.max_context_tokens)[:, None] * self._weights.frequencies(rule)
        table = np.stack([np.cos(angles), np.sin(angles)]) * self.shape.rotary_amplitude
        return torch.from_numpy(table.astype(np.float32)).to(self._device)

    def _layer(self, index: int, rule: LayerRule) -> _Layer:
        def name(part: str) -> str:
            return f"blk.{index}.{part}"

        def gain(part: str) -> Tensor | None:
            full = name(f"{part}.weight")
            return self._vector(full) if full in self._weights else None

        has_experts = self.shape.num_chosen_experts > 0
        # gpt-oss calls the norm in front of its experts so, Gemma the one behind attention.
        inner_norm = "post_attention_norm" if has_experts else "ffn_norm"
        sinks = name("attn_sinks.weight")
        return _Layer(
            rule=rule,
            attention_gain=self._vector(name("attn_norm.weight")),
            queries_keys_values=self._factor(*map(name, ("attn_q", "attn_k", "attn_v"))),
            query_gain=gain("attn_q_norm"),
            key_gain=gain("attn_k_norm"),
            sinks=self._vector(sinks) if sinks in self._weights else None,
            output=self._factor(name("attn_output")),
            output_gain=None if has_experts else gain("post_attention_norm"),
            inner_gain=self._vector(name(f"{inner_norm}.weight")),
            inner=self._experts(name("ffn_")) if has_experts else self._gated_unit(name("ffn_")),
            down_gain=gain("post_ffw_norm"),
        )

    def _gated_unit(self, prefix: str) -> _GatedUnit:
        return _GatedUnit(
            self._factor(f"{prefix}gate", f"{prefix}up"), self._factor(f"{prefix}down")
        )

    def _experts(self, prefix: str) -> Experts:
        router = f"{prefix}gate_inp"
        return Experts(
            Product(self._vector(f"{router}.weight"), self._vector(f"{router}.bias")),
            self._factor(f"{prefix}gate_exps", f"{prefix}up_exps"),
            self._factor(f"{prefix}down_exps"),
            self.shape.num_chosen_experts,
        )

    def _factor(self, *names: str) -> Product:
        """Matrices that the same rows are multiplied with, as one."""
        biases = [f"{name}.bias" for name in names if f"{name}.bias" in self._weights]
        bias = torch.cat([self._vector(name) for name in biases], -1) if biases else None
        return Product(self._matrices(*names), bias)

    def _matrices(self, *names: str) -> Matrix:
        """[..., rows of all, columns]"""
        return joined([self._matrix(f"{name}.weight") for name in names])

    def _matrix(self, name: str) -> Matrix:
        if not self._in_groups:
            return self._weights.tensor(name).to(self._device).to(self._dtype)
        stored = self._weights.grouped(name)
        if stored is None:
            stored = rounded_to_groups(self._weights.tensor(name).to(self._device))
        values, scales = (part.to(self._device) for part in stored)
        return GroupedMatrix(values, scales, self._dtype)

    def _vector(self, name: str) -> Tensor:
        return self._weights.tensor(name).to(self._device)


def _gelu(gate: Tensor) -> Tensor:
    return functional.gelu(gate, approximate="tanh")
