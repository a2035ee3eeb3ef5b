"""Models of real shapes with random weights, made where they are used: none is fetched."""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from outrider.engines.torch.decoder_shape import DecoderShape, LayerRule


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of a model of Llama's architecture."""

    vocabulary: int
    width: int
    inner: int
    heads: int
    kv_heads: int
    layers: int
    base: float
    context: int = 8192 + 512
    is_tied: bool = False
    experts: int = 0
    """As gpt-oss has them, with sinks and windows; 0: as Llama."""
    chosen: int = 0

    @property
    def head_size(self) -> int:
        return self.width // self.heads

    @property
    def num_weights(self) -> int:
        """Of all matrices that a step reads: of the embedding, a row a token."""
        kv = self.kv_heads * self.head_size
        layer = self.width * (2 * self.width + 2 * kv + 3 * self.inner * max(1, self.experts))
        return self.layers * layer + self.vocabulary * self.width


MODELS = {
    "tiny": Sizes(512, 128, 256, 4, 2, 2, 10_000.0, context=1024),
    "experts": Sizes(512, 128, 128, 4, 2, 2, 10_000.0, context=1024, experts=8, chosen=2),
    "135M": Sizes(49_152, 576, 1536, 9, 3, 30, 100_000.0, is_tied=True),
    "1B": Sizes(128_256, 2048, 8192, 32, 8, 16, 500_000.0, is_tied=True),
    "8B": Sizes(128_256, 4096, 14_336, 32, 8, 32, 500_000.0),
}
"""`tiny` for machines without a GPU, `experts` for the contract of these; the others as SmolLM2,
Llama 3.2 and Llama 3.1 have them."""


_WINDOW = 40


class RandomWeights:
    """Implements decoder.Weights: a tensor depends on its name and size alone, on one kind of
    device."""

    def __init__(self, sizes: Sizes, device: torch.device) -> None:
        self._sizes, self._device = sizes, device
        self.shape = DecoderShape(
            vocabulary_size=sizes.vocabulary,
            max_context_tokens=sizes.context,
            width=sizes.width,
            num_heads=sizes.heads,
            num_kv_heads=sizes.kv_heads,
            head_size=sizes.head_size,
            epsilon=1e-5,
            embedding_scale=1.0,
            attention_scale=sizes.head_size**-0.5,
            has_gelu=False,
            is_interleaved=True,
            layers=tuple(
                LayerRule(_WINDOW if sizes.experts and not n % 2 else 0, sizes.base, 1.0)
                for n in range(sizes.layers)
            ),
            num_chosen_experts=sizes.chosen,
        )

    def __contains__(self, name: str) -> bool:
        if self._sizes.experts and name.endswith(("attn_sinks.weight", "exps.bias")):
            return True
        return name == "output.weight" and not self._sizes.is_tied

    def tensor(self, name: str) -> Tensor:
        sizes = self._sizes
        if name.endswith("norm.weight"):
            return torch.ones(sizes.width, device=self._device)
        kv = sizes.kv_heads * sizes.head_size
        shape: tuple[int, ...] = {
            "token_embd": (sizes.vocabulary, sizes.width),
            "output": (sizes.vocabulary, sizes.width),
            "attn_q": (sizes.width, sizes.width),
            "attn_k": (kv, sizes.width),
            "attn_v": (kv, sizes.width),
            "attn_output": (sizes.width, sizes.width),
            "ffn_gate": (sizes.inner, sizes.width),
            "ffn_up": (sizes.inner, sizes.width),
            "ffn_down": (sizes.width, sizes.inner),
            "attn_sinks": (sizes.heads,),
            "ffn_gate_inp": (sizes.experts, sizes.width),
            "ffn_gate_exps": (sizes.experts, sizes.inner, sizes.width),
            "ffn_up_exps": (sizes.experts, sizes.inner, sizes.width),
            "ffn_down_exps": (sizes.experts, sizes.width, sizes.inner),
        }[name.split(".")[-2]]
        shape = shape[:-1] if name.endswith(".bias") else shape
        generator = torch.Generator(self._device).manual_seed(zlib.crc32(name.encode()))
        values = torch.randn(shape, generator=generator, device=self._device)
        return values * (1 / math.sqrt(shape[-1]))

    def grouped(self, name: str) -> None:
        """Numbers are rounded to groups where they are loaded."""

    def frequencies(self, rule: LayerRule) -> npt.NDArray[np.float64]:
        size = self._sizes.head_size
        return np.asarray(rule.base ** -(np.arange(0, size, 2) / size), np.float64)
