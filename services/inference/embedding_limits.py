"""Bounds of a replica that embeds (pure)."""

from __future__ import annotations

from dataclasses import dataclass

from outrider.bounds import NonNegativeFloat, PositiveInt


@dataclass(frozen=True, slots=True)
class EmbeddingLimits:
    """Limits of an embedding replica: table `[inference.embedding]`."""

    max_inputs: PositiveInt = 32_768
    """Inputs that the replica has at once, over all requests; further ones are refused as
    OVERLOADED."""
    max_text_bytes: PositiveInt = 256 << 20
    """Bytes of them, in UTF-8, or four for each token id; further ones are refused alike."""
    max_input_bytes: PositiveInt = 1 << 20
    """Longest single input."""
    tokenizer_threads: PositiveInt = 2
    """They fill the token buffer, so that an engine does not wait for a tokenizer."""
    max_buffered_tokens: PositiveInt = 65_536
    """Most tokens that wait for an engine; at this number no further text is tokenized. Each
    tokenizer thread may exceed it by one text."""
    max_batch_tokens: PositiveInt = 1024
    """Most tokens of one engine call, padding included; a longer text is computed in a call of its
    own. The next inputs wait for a whole call."""
    max_batch_texts: PositiveInt = 64
    """Texts of one engine call."""
    max_wait_ms: NonNegativeFloat = 20.0
    """Longer texts go first, until one has waited for so long: then it is its turn."""
    starvation_ms: NonNegativeFloat = 1000.0
    """Inputs that have waited for so long go before higher classes, in one call of four."""
