"""The target itself in torch: a Llama model with a cache of keys and values, to generate with on a
GPU."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from tools.train_draft.target import (
    OUTPUT,
    OUTPUT_NORM,
    Floats,
    Geometry,
    Tensors,
    layer_name,
)

_BACKENDS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


class TargetNetwork:
    """All layers of a target. Computes in `kind`; the residual stream is f32, and so are logits."""

    def __init__(
        self,
        geometry: Geometry,
        tensors: Tensors,
        embedding: Floats,
        device: torch.device,
        kind: torch.dtype,
    ) -> None:
        """`tensors` has every layer and the whole head, `embedding` is [V, width]."""
        self.geometry = geometry
        self.device = device
        self.kind = kind

        def there(values: Floats, dtype: torch.dtype = kind) -> Tensor:
            return torch.from_numpy(values).to(device, dtype)

        def matrix(layer: int, *names: str) -> Tensor:
            parts = [there(tensors[layer_name(layer, name)]) for name in names]
            return torch.cat(parts)

        self._layers = []
        size = geometry.rope_dimension_count
        for layer in range(geometry.block_count):
            turned = [
                _halved(there(tensors[layer_name(layer, n)]), size) for n in ("attn_q", "attn_k")
            ]
            self._layers.append(
                (
                    there(tensors[layer_name(layer, "attn_norm")], torch.float32),
                    torch.cat((*turned, matrix(layer, "attn_v"))),
                    matrix(layer, "attn_output"),
                    there(tensors[layer_name(layer, "ffn_norm")], torch.float32),
                    matrix(layer, "ffn_gate", "ffn_up"),
                    matrix(layer, "ffn_down"),
                )
            )
        self._embedding = there(embedding)
        self._norm = there(tensors[OUTPUT_NORM], torch.float32)
        self.head = there(tensors[OUTPUT], torch.float32)
        """[V, width]"""
        exponents = torch.arange(0, size, 2, dtype=torch.float32, device=device) / size
        angles = torch.arange(geometry.context_length, device=device)[:, None].float()
        angles = angles * geometry.rope_freq_base**-exponents
        self._cosines, self._sines = angles.cos(), angles.sin()

    def new_cache(self, num_slots: int, num_positions: int) -> Tensor:
        """[layers, 2, slots, key heads, positions, head size]"""
        geometry = self.geometry
        shape = (geometry.block_count, 2, num_slots, geometry.head_count_kv, num_positions)
        return torch.zeros(
            *shape, geometry.rope_dimension_count, dtype=self.kind, device=self.device
        )

    def step(self, tokens: Tensor, positions: Tensor, cache: Tensor) -> Tensor:
        """Normed hidden rows [B, width] (f32) behind one token [B] of every slot, at `positions`
        [B]; writes its keys and values."""
        geometry = self.geometry
        batch, span = len(tokens), cache.shape[-2]
        size, kv = geometry.rope_dimension_count, geometry.head_count_kv
        group = geometry.head_count // kv
        slots = torch.arange(batch, device=self.device)
        cosines = self._cosines[positions][:, None]
        sines = self._sines[positions][:, None]
        unseen = torch.arange(span, device=self.device) > positions[:, None]
        mask = torch.zeros(batch, span, dtype=self.kind, device=self.device)
        mask = mask.masked_fill(unseen, float("-inf"))[:, None, None].expand(batch, kv, group, span)
        hidden = F.embedding(tokens, self._embedding).float()
        for layer, weights in enumerate(self._layers):
            query, key, value = self._projected(hidden, weights, cosines, sines)
            cache[layer, 0, slots, :, positions] = key
            cache[layer, 1, slots, :, positions] = value
            with sdpa_kernel(_BACKENDS[1:]):
                mixed = F.scaled_dot_product_attention(
                    query.view(batch, kv, group, size), cache[layer, 0], cache[layer, 1], mask
                )
            hidden = self._rest(hidden, mixed.reshape(batch, -1), weights)
        return F.rms_norm(hidden, self._norm.shape, self._norm, geometry.rms_epsilon)

    def read(
        self, tokens: Tensor, cache: Tensor | None = None, slots: Tensor | None = None
    ) -> Tensor:
        """Normed hidden rows [B, T, width] (f32) of whole texts [B, T] from position 0 on, padded
        behind; writes the keys and values of these `slots` [B]."""
        geometry = self.geometry
        batch, length = tokens.shape
        size, kv = geometry.rope_dimension_count, geometry.head_count_kv
        group = geometry.head_count // kv
        cosines = self._cosines[:length].repeat(batch, 1)[:, None]
        sines = self._sines[:length].repeat(batch, 1)[:, None]
        hidden = F.embedding(tokens.flatten(), self._embedding).float()
        for layer, weights in enumerate(self._layers):
            query, key, value = (
                part.view(batch, length, -1, size).transpose(1, 2)
                for part in self._projected(hidden, weights, cosines, sines)
            )
            if cache is not None and slots is not None:
                cache[layer, 0, slots, :, :length] = key
                cache[layer, 1, slots, :, :length] = value
            with sdpa_kernel(_BACKENDS):
                mixed = F.scaled_dot_product_attention(
                    query,
                    key.repeat_interleave(group, 1),
                    value.repeat_interleave(group, 1),
                    is_causal=True,
                )
            mixed = mixed.transpose(1, 2).reshape(batch * length, -1)
            hidden = self._rest(hidden, mixed, weights)
        hidden = F.rms_norm(hidden, self._norm.shape, self._norm, geometry.rms_epsilon)
        return hidden.unflatten(0, (batch, length))

    def logits(self, hidden: Tensor) -> Tensor:
        """[..., V] in f32."""
        return F.linear(hidden, self.head)

    def _projected(
        self, hidden: Tensor, weights: Sequence[Tensor], cosines: Tensor, sines: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values [N, heads, head size]."""
        geometry = self.geometry
        norm, qkv = weights[:2]
        normed = F.rms_norm(hidden, norm.shape, norm, geometry.rms_epsilon).to(self.kind)
        heads = F.linear(normed, qkv).view(len(hidden), -1, geometry.rope_dimension_count)
        queries, keys = geometry.head_count, geometry.head_count_kv
        turned = heads[:, : queries + keys]
        first, second = turned.float().chunk(2, -1)
        turned = torch.cat(
            (first * cosines - second * sines, first * sines + second * cosines), -1
        ).to(self.kind)
        return turned[:, :queries], turned[:, queries:], heads[:, queries + keys :]

    def _rest(self, hidden: Tensor, mixed: Tensor, weights: Sequence[Tensor]) -> Tensor:
        """What comes after a layer's attention."""
        output, norm, gate_up, down = weights[2:]
        hidden = hidden + F.linear(mixed, output)
        normed = F.rms_norm(hidden, norm.shape, norm, self.geometry.rms_epsilon).to(self.kind)
        gate, up = F.linear(normed, gate_up).chunk(2, -1)
        return hidden + F.linear(F.silu(gate) * up, down)


def _halved(rows: Tensor, size: int) -> Tensor:
    """Rows of queries or keys whose rotary pairs are side by side, with the pairs `size / 2`
    apart: faster to turn. Products of queries and keys stay the same."""
    return rows.view(-1, size // 2, 2, rows.shape[1]).transpose(1, 2).reshape(rows.shape)
