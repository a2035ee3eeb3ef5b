"""OutriderError to gRPC status and trailer, and back."""

from __future__ import annotations

from typing import Any, NoReturn

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from outrider import errors
from outrider.errors import OutriderError
from outrider.v1 import common_pb2
from outrider.wire import MAX_MESSAGE_CHARS, error_from_proto, error_to_proto

TRAILER = "outrider-error-bin"

_BY_CODE: dict[grpc.StatusCode, type[OutriderError]] = {
    grpc.StatusCode.CANCELLED: errors.CancelledError,
    grpc.StatusCode.INVALID_ARGUMENT: errors.InvalidRequestError,
    grpc.StatusCode.DEADLINE_EXCEEDED: errors.DeadlineError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: errors.OverloadedError,
    grpc.StatusCode.UNAUTHENTICATED: errors.UnauthenticatedError,
    grpc.StatusCode.PERMISSION_DENIED: errors.PermissionDeniedError,
    grpc.StatusCode.UNAVAILABLE: errors.UnavailableError,
}
"""Statuses that gRPC itself makes, without our trailer."""


def status_code(error: OutriderError) -> grpc.StatusCode:
    """The gRPC status of an error."""
    return grpc.StatusCode[error.grpc_code]


async def abort(context: grpc.aio.ServicerContext[Any, Any], error: OutriderError) -> NoReturn:
    """End a call with the error's status and its ErrorDetail in the trailer."""
    detail = error_to_proto(error)
    await context.abort(
        status_code(error), detail.message, ((TRAILER, detail.SerializeToString()),)
    )


def from_rpc_error(error: grpc.aio.AioRpcError) -> OutriderError:
    """The error a failed call stands for: from its trailer, or from its status."""
    for key, value in error.trailing_metadata() or ():
        if key == TRAILER and isinstance(value, bytes):
            try:
                return error_from_proto(common_pb2.ErrorDetail.FromString(value))
            except DecodeError:
                break
    message = (error.details() or error.code().name)[:MAX_MESSAGE_CHARS]
    if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in message:
        return errors.FrameTooLargeError(message)
    return _BY_CODE.get(error.code(), OutriderError)(message)
