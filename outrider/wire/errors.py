"""Errors as `ErrorDetail`, in frames and in the `outrider-error-bin` trailer."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum

from outrider.errors import OutriderError, by_reason
from outrider.v1 import common_pb2

MAX_MESSAGE_CHARS = 1024
"""Longer messages are cut: a trailer has to fit gRPC's 8 KiB of metadata."""
MAX_METADATA = 16
MAX_METADATA_CHARS = 128
MAX_RETRY_DELAY_MS = 600_000


class GrpcCode(IntEnum):
    """google.rpc.Code, those that the error tree uses."""

    CANCELLED = 1
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


def to_detail(error: OutriderError) -> common_pb2.ErrorDetail:
    """The wire form; long messages and metadata are cut."""
    return common_pb2.ErrorDetail(
        reason=error.reason,
        message=error.message[:MAX_MESSAGE_CHARS],
        grpc_code=GrpcCode[error.grpc_code],
        retry_delay_ms=min(max(error.retry_delay_ms, 0), MAX_RETRY_DELAY_MS),
        metadata=_bounded(error.metadata),
    )


def from_detail(detail: common_pb2.ErrorDetail) -> OutriderError:
    """The error a peer reported; an unknown reason gives the root class, reason in metadata."""
    metadata = _bounded(detail.metadata)
    cls = by_reason(detail.reason)
    if cls.reason != detail.reason:
        metadata["reason"] = detail.reason[:MAX_METADATA_CHARS]
    return cls(
        detail.message[:MAX_MESSAGE_CHARS] or "the peer gave no message",
        retry_delay_ms=min(detail.retry_delay_ms, MAX_RETRY_DELAY_MS),
        metadata=metadata,
    )


def _bounded(metadata: Mapping[str, str]) -> dict[str, str]:
    return {
        key[:MAX_METADATA_CHARS]: value[:MAX_METADATA_CHARS]
        for key, value in list(metadata.items())[:MAX_METADATA]
    }
