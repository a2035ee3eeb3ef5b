"""OutriderError to gRPC status and trailer, and back."""

from __future__ import annotations

from typing import Any, Final, NoReturn

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from outrider import errors
from outrider.errors import OutriderError
from outrider.v1 import common_pb2
from outrider.wire import MAX_MESSAGE_CHARS, error_from_proto, error_to_proto

TRAILER = "outrider-error-bin"
_MAX_PACKAGE_CHARS: Final = 40
"""Characters of an unknown one."""

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

PROTOCOL: Final = common_pb2.DESCRIPTOR.package
"""Name and version of the protocol between services, "outrider.v1". Within a version messages only
gain fields, which a peer that does not know them passes over; anything else is a new one."""
_NO_METHOD: Final = ("Method not found!", "")
"""How gRPC libraries say that a server has no such method."""


def not_served(method: str) -> str:
    """For callers of a method, "/PACKAGE.SERVICE/METHOD", that a server does not have: why."""
    package = method.lstrip("/").rpartition("/")[0].rpartition(".")[0]
    if package != PROTOCOL and package.startswith("outrider."):
        return (
            f"this server speaks {PROTOCOL}, not {package[:_MAX_PACKAGE_CHARS]}: caller and server "
            "are versions of Outrider that cannot work together"
        )
    return (
        f"this server does not have this method of {PROTOCOL}: check the address, or upgrade "
        "the server to the caller's version of Outrider"
    )


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
    if error.code() is grpc.StatusCode.UNIMPLEMENTED and error.details() in _NO_METHOD:
        message = (
            f"the server does not speak {PROTOCOL}: check the address, and that its version of "
            "Outrider can work with this one"
        )
    return _BY_CODE.get(error.code(), OutriderError)(message)
