"""The student: a Llama model of a few layers with a trimmed head, in torch."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tools.train_draft.draft_file import BLOCK, MOST
from tools.train_draft.target import (
    OUTPUT,
    OUTPUT_NORM,
    Floats,
    Geometry,
    Tensors,
    layer_name,
)


class Layer(nn.Module):
    """One block; products of the same input are one matrix."""

    def __init__(self, geometry: Geometry, layer: int, tensors: Tensors) -> None:
        super().__init__()
        self._geometry = geometry
        self.attn_norm = _parameter(tensors[layer_name(layer, "attn_norm")])
        self.qkv = _stacked(tensors, layer, "attn_q", "attn_k", "attn_v")
        self.attn_output = _parameter(tensors[layer_name(layer, "attn_output")])
        self.ffn_norm = _parameter(tensors[layer_name(layer, "ffn_norm")])
        self.gate_up = _stacked(tensors, layer, "ffn_gate", "ffn_up")
        self.ffn_down = _parameter(tensors[layer_name(layer, "ffn_down")])
        self.quantised = False
        """Whether it computes with its matrices as they will be shipped."""

    def forward(self, hidden: Tensor, layout: Layout) -> Tensor:
        """[P + B * T, width] in and out."""
        hidden = hidden + self._attention(self._norm(hidden, self.attn_norm), layout)
        gate, up = self._product(self._norm(hidden, self.ffn_norm), self.gate_up).chunk(2, -1)
        return hidden + self._product(F.silu(gate) * up, self.ffn_down)

    def tensors(self, layer: int) -> dict[str, Tensor]:
        """The weights by GGUF name."""
        geometry = self._geometry
        head = geometry.rope_dimension_count
        sizes = [head * geometry.head_count, *[head * geometry.head_count_kv] * 2]
        query, key, value = self.qkv.split(sizes)
        gate, up = self.gate_up.chunk(2)
        named = {
            "attn_norm": self.attn_norm,
            "attn_q": query,
            "attn_k": key,
            "attn_v": value,
            "attn_output": self.attn_output,
            "ffn_norm": self.ffn_norm,
            "ffn_gate": gate,
            "ffn_up": up,
            "ffn_down": self.ffn_down,
        }
        return {layer_name(layer, name): tensor for name, tensor in named.items()}

    def _product(self, rows: Tensor, weight: Tensor) -> Tensor:
        return F.linear(rows, as_shipped(weight) if self.quantised else weight)

    def _norm(self, hidden: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(hidden, weight.shape, weight, self._geometry.rms_epsilon)

    def _attention(self, hidden: Tensor, layout: Layout) -> Tensor:
        geometry = self._geometry
        queries, keys = geometry.head_count, geometry.head_count_kv
        heads = self._product(hidden, self.qkv).view(len(hidden), -1, geometry.rope_dimension_count)
        turned = _rotated(heads[:, : queries + keys], layout.cosines, layout.sines)
        query = layout.split(turned[:, :queries])
        key = layout.split(turned[:, queries:].repeat_interleave(queries // keys, 1))
        value = layout.split(heads[:, queries + keys :].repeat_interleave(queries // keys, 1))
        own = _attended(
            query[1], layout.behind_prefix(key), layout.behind_prefix(value), layout.mask
        )
        mixed = own.transpose(1, 2).reshape(-1, queries * geometry.rope_dimension_count)
        if layout.num_prefix:
            prefix = _attended(query[0], key[0], value[0], layout.prefix_mask)
            mixed = torch.cat((prefix[0].transpose(0, 1).flatten(1), mixed))
        return self._product(mixed, self.attn_output)


class Layout:
    """Positions of a batch's tokens: a prefix of P tokens that all B sequences begin with, then T
    of each. The prefix is computed once; most chats begin with the same system prompt."""

    def __init__(
        self,
        geometry: Geometry,
        num_prefix: int,
        batch: int,
        length: int,
        device: torch.device,
    ) -> None:
        self.num_prefix = num_prefix
        self._shape = (batch, length)
        own = torch.arange(num_prefix, num_prefix + length, device=device)
        before = torch.arange(num_prefix, device=device)
        positions = torch.cat((before, own.repeat(batch)))
        size = geometry.rope_dimension_count
        exponents = torch.arange(0, size, 2, dtype=torch.float32, device=device) / size
        angles = positions[:, None].float() * geometry.rope_freq_base**-exponents
        self.cosines = angles.cos()[:, None]
        self.sines = angles.sin()[:, None]
        """[P + B * T, 1, head size / 2]."""
        # Padding stands behind every sequence, so a causal mask is all that is needed.
        self.mask = _causal(length, num_prefix, device)
        self.prefix_mask = _causal(num_prefix, 0, device)

    def split(self, heads: Tensor) -> tuple[Tensor, Tensor]:
        """[P + B * T, H, size] as [1, H, P, size] and [B, H, T, size]."""
        prefix, own = heads[: self.num_prefix], heads[self.num_prefix :]
        return prefix.transpose(0, 1)[None], own.unflatten(0, self._shape).transpose(1, 2)

    def behind_prefix(self, parts: tuple[Tensor, Tensor]) -> Tensor:
        """[B, H, P + T, size] the parts that `split` gave, joined again with the prefix before each
        sequence."""
        prefix, own = parts
        return torch.cat((prefix.expand(len(own), -1, -1, -1), own), 2)


class Student(nn.Module):
    """Embedding (frozen), layers, norm and head."""

    def __init__(self, geometry: Geometry, tensors: Tensors, embedding: Floats) -> None:
        """`geometry` is the student's own; `embedding` [V, width] the target's."""
        super().__init__()
        self._geometry = geometry
        self.register_buffer("embedding", torch.from_numpy(embedding), persistent=False)
        self.layers = nn.ModuleList(
            Layer(geometry, layer, tensors) for layer in range(geometry.block_count)
        )
        self.output_norm = _parameter(tensors[OUTPUT_NORM])
        self.output = _parameter(tensors[OUTPUT])

    def forward(self, prefix: Tensor, tokens: Tensor, rows: Tensor) -> Tensor:
        """Logits [N, head rows] at `rows` [N] of prefix [P] and tokens [B, T], flattened and
        joined."""
        batch, length = tokens.shape
        layout = Layout(self._geometry, len(prefix), batch, length, tokens.device)
        hidden = F.embedding(torch.cat((prefix, tokens.flatten())), self.embedding)
        for layer in self.layers:
            hidden = layer(hidden, layout)
        epsilon = self._geometry.rms_epsilon
        normed = F.rms_norm(hidden[rows], self.output_norm.shape, self.output_norm, epsilon)
        return F.linear(normed, self.output)

    def quantise(self) -> None:
        """From now on, compute with the layers' matrices as they will be shipped."""
        for layer in self.layers:
            layer.quantised = True

    def tensors(self) -> Tensors:
        """All weights but the embedding, by GGUF name."""
        named = {OUTPUT_NORM: self.output_norm, OUTPUT: self.output}
        for at, layer in enumerate(self.layers):
            assert isinstance(layer, Layer)
            named |= layer.tensors(at)
        return {
            name: np.ascontiguousarray(tensor.detach().float().cpu().numpy())
            for name, tensor in named.items()
        }


def _attended(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    """Softmax attention. Written out: on a CPU, the fused kernel's gradient is slower for
    sequences as short as these."""
    scores = (query * query.shape[-1] ** -0.5) @ key.transpose(-1, -2)
    return F.softmax(scores + mask, -1, dtype=torch.float32).to(value.dtype) @ value


def _causal(length: int, num_before: int, device: torch.device) -> Tensor:
    """[length, num_before + length], to be added to scores."""
    mask = torch.full((length, num_before + length), -1e9, device=device)
    return mask.triu(num_before + 1)


def _parameter(values: Floats) -> nn.Parameter:
    return nn.Parameter(torch.from_numpy(values.copy()))


def _stacked(tensors: Tensors, layer: int, *names: str) -> nn.Parameter:
    return _parameter(np.concatenate([tensors[layer_name(layer, name)] for name in names]))


def _rotated(heads: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Rotate [tokens, H, head size]; in GGUF's order a pair's halves are neighbours."""
    first, second = heads[..., 0::2], heads[..., 1::2]
    turned = (first * cosines - second * sines, first * sines + second * cosines)
    return torch.stack(turned, -1).flatten(-2).to(heads.dtype)


def as_shipped(weight: Tensor) -> Tensor:
    """The values of `artifact.blocks.pack`; gradients pass as if nothing had been rounded (the
    straight-through estimator, arXiv 1308.3432)."""
    with torch.no_grad():
        blocks = weight.view(-1, BLOCK)
        least = blocks.amin(1, keepdim=True).clamp(max=0)
        most = blocks.amax(1, keepdim=True).clamp(min=0)
        scale = ((most - least) / MOST).half().float().clamp(min=1e-8)
        zero = (-least / scale).round().clamp(0, MOST)
        values = (blocks / scale).round_().add_(zero).clamp_(0, MOST)
        change = values.sub_(zero).mul_(scale).view_as(weight).sub_(weight)
    return weight + change
