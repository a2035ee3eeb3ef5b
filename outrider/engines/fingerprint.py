"""The fingerprint of an engine: a digest of the numbers that it computes for fixed tokens. Pure."""

from __future__ import annotations

import hashlib

import numpy as np

from outrider.engines.base import Ids, Logits


def probe_ids(vocabulary_size: int, num_tokens: int) -> Ids:
    """[n] tokens spread over the whole vocabulary, the same for every engine of that size."""
    return (np.arange(num_tokens, dtype=np.int64) * 7919 % vocabulary_size).astype(np.int32)


def fingerprint_of(reference: Logits, arithmetic: bytes = b"") -> bytes:
    """SHA-256 of the logits' bits: engines that differ in a weight, in precision or in kernels
    differ in it. `arithmetic` names a way to compute that may give the same bits for these tokens
    and others for more."""
    return hashlib.sha256(reference.tobytes() + arithmetic).digest()
