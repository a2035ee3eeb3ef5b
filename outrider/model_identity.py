"""The model identity of a replica: replicas of equal identity continue each other's replies. Pure.

Two replicas generate the same text if weights, vocabulary, engine, precision and rounding are the
same. The model identity is the digest of all of these. All other code only compares it.
"""

from __future__ import annotations

import hashlib
from typing import Final

from outrider.errors import MalformedFrameError

MAX_BYTES: Final = 64
"""Longer ones are refused: sessions, chats and clients keep them."""
_SHORT_CHARS: Final = 8


def model_identity(
    *,
    weights_sha256: str,
    vocabulary_digest: bytes,
    engine: str,
    precision: str,
    exact: bool,
    fingerprint: bytes,
) -> bytes:
    """SHA-256 of everything besides the request that the text of a replica depends on.

    `weights_sha256` is of the model file, hexadecimal. `fingerprint` is of numbers computed with
    the model (EngineInfo); it covers what the other arguments do not: the CPU's kernels, and a
    converted model that was changed on disk.
    """
    digest = hashlib.sha256()
    parts = (
        bytes.fromhex(weights_sha256),
        vocabulary_digest,
        engine.encode(),
        precision.encode(),
        bytes([exact]),
        fingerprint,
    )
    for part in parts:
        digest.update(len(part).to_bytes(4, "little") + part)
    return digest.digest()


def inexact_identity(identity: bytes) -> bytes:
    """The identity by which replicas of one model identity share inexact KV: no replica computes
    as it, so what goes by it is never taken for exact KV."""
    return hashlib.sha256(b"inexact KV" + identity).digest()


def same_model(one: bytes, other: bytes) -> bool:
    """Whether two identities are known and equal: an unknown one (b"") equals none."""
    return bool(one) and one == other


def short_form(identity: bytes) -> str:
    """For people: the first 8 hexadecimal digits."""
    return identity.hex()[:_SHORT_CHARS] or "unknown"


def check_model_identity(identity: bytes) -> bytes:
    """An identity that a peer names. Raises MalformedFrameError if it is too long to be kept."""
    if len(identity) > MAX_BYTES:
        raise MalformedFrameError(
            f"a model identity has {len(identity)} bytes; it has at most {MAX_BYTES}"
        )
    return identity
