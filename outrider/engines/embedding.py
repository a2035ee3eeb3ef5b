"""The interface of models that compute vectors of texts. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from outrider.models.embedding import Pooling

Ids: TypeAlias = npt.NDArray[np.int32]
Vectors: TypeAlias = npt.NDArray[np.float32]

BUCKET_TOKENS: Final = 4
"""Texts are padded to a multiple of so many tokens; above 128 of twice as many, above 256 of four
times as many, and so on."""
_BUCKETS: Final = 16
"""Lengths between a power of two and the next: at most a seventeenth of a long text's row is
padding, and texts of nearly the same length share a call."""
LEAST_TOKENS: Final = 8
"""Shorter texts are padded to this length: on some CPUs, products of very few rows use other
kernels (decision 0002), and a single text is such a product."""


def padded_tokens(num_tokens: int) -> int:
    """The padded length at which a text of this length is computed. It depends only on the text's
    own length, not on its batch: a softmax over a longer row adds in another order, so another
    length could give another result (decision 0025)."""
    octave = 1 << max(0, num_tokens - 1).bit_length() >> 1
    step = max(BUCKET_TOKENS, octave // _BUCKETS)
    return max(LEAST_TOKENS, -(-num_tokens // step) * step)


@dataclass(frozen=True, slots=True)
class EmbedderInfo:
    """An embedder's properties."""

    name: str
    """Name of the engine."""
    precision: str
    dimensions: int
    max_tokens: int
    vocabulary_size: int
    fingerprint: bytes
    """SHA-256 of numbers computed at start-up; embedders with equal fingerprints compute the
    same."""


class Embedder(Protocol):
    """One engine. Used by one thread at a time."""

    @property
    def info(self) -> EmbedderInfo:
        """The embedder's properties."""
        ...

    def embed(self, texts: Sequence[Ids]) -> Vectors:
        """[n, dimensions] the vectors of texts of one padded length. A vector is bit for bit a
        function of its text's ids. Raises EngineError."""
        ...

    def close(self) -> None:
        """Give memory and threads back."""
        ...


def pool(states: Vectors, lengths: Sequence[int], pooling: Pooling, *, normalizes: bool) -> Vectors:
    """One vector per text, [n, width], from its tokens' states [n, padded tokens, width].

    Each text is pooled by itself over its own tokens; padding is part of no sum.
    """
    made = np.empty((len(lengths), states.shape[2]), np.float32)
    for row, (tokens, length) in enumerate(zip(states, lengths, strict=True)):
        if pooling is Pooling.MEAN:
            made[row] = tokens[:length].sum(axis=0) / np.float32(length)
        else:
            made[row] = tokens[0 if pooling is Pooling.FIRST else length - 1]
    if normalizes:
        for vector in made:
            vector /= max(np.float32(np.sqrt(np.dot(vector, vector))), np.float32(1e-12))
    return made


def shortened(vectors: Vectors, dimensions: int, *, normalizes: bool) -> Vectors:
    """[n, dimensions] their first values, of length 1 again where the model's are: what models
    trained for it mean by fewer dimensions (Matryoshka representation learning, arXiv 2205.13147).
    """
    if dimensions >= vectors.shape[1]:
        return vectors
    cut = vectors[:, :dimensions].copy()
    if normalizes:
        for row in cut:
            row /= max(np.float32(np.sqrt(np.dot(row, row))), np.float32(1e-12))
    return cut
