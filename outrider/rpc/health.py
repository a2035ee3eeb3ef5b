"""The gRPC health checking protocol (grpc.health.v1), switched by one synchronous verb."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

SERVING: Final[int] = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING: Final[int] = health_pb2.HealthCheckResponse.NOT_SERVING
UNKNOWN_SERVICE: Final[int] = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


class HealthControl:
    """Says whether a server's services serve; starts as not serving."""

    def __init__(self, services: frozenset[str]) -> None:
        self._services = services
        self._serving = False
        self._closed = False
        self._changed = asyncio.Event()

    @property
    def serving(self) -> bool:
        """What is being answered."""
        return self._serving

    def set_serving(self, serving: bool) -> None:
        """Answer SERVING or NOT_SERVING from now on, to watchers at once."""
        self._serving = serving
        self._wake()

    def close(self) -> None:
        """Not serving, and every Watch stream ends: a stopping server need not wait for them."""
        self._closed = True
        self.set_serving(False)

    def status(self, service: str) -> int:
        """The protocol's answer for one service name; the empty name is the whole server."""
        if service and service not in self._services:
            return UNKNOWN_SERVICE
        return SERVING if self._serving else NOT_SERVING

    async def changes(self, service: str) -> AsyncIterator[health_pb2.HealthCheckResponse]:
        """The status now and after each change, until `close`."""
        last = None
        while True:
            changed, closed, status = self._changed, self._closed, self.status(service)
            if status != last:
                last = status
                yield health_pb2.HealthCheckResponse(status=status)
            if closed:
                return
            await changed.wait()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


class _HealthServicer(health_pb2_grpc.HealthServicer):  # type: ignore[misc]
    def __init__(self, control: HealthControl) -> None:
        self._control = control

    async def Check(
        self, request: health_pb2.HealthCheckRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> health_pb2.HealthCheckResponse:
        status = self._control.status(request.service)
        if status == UNKNOWN_SERVICE:
            await context.abort(grpc.StatusCode.NOT_FOUND, "unknown service")
        return health_pb2.HealthCheckResponse(status=status)

    async def Watch(
        self, request: health_pb2.HealthCheckRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[health_pb2.HealthCheckResponse]:
        async for change in self._control.changes(request.service):
            yield change


def add_health(server: grpc.aio.Server, *service_names: str) -> HealthControl:
    """Serve grpc.health.v1 for these full service names; not serving until told so."""
    control = HealthControl(frozenset(service_names))
    health_pb2_grpc.add_HealthServicer_to_server(_HealthServicer(control), server)
    return control
