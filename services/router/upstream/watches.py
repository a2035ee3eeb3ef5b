"""What a replica is asked besides sessions: load, health, round trip."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from outrider.v1 import inference_pb2, inference_pb2_grpc
from services.router.fleet.replica import ClassLoad, PrefillLimits, ReplicaLoad

_SERVING = health_pb2.HealthCheckResponse.SERVING


_MAX_COST_MS = 1e6
"""No engine is that slow. Infinity would make a sum of predicted waits no number."""


async def probe(channel: grpc.aio.Channel) -> tuple[float, bool]:
    """Round trip in milliseconds and whether the replica serves. Raises AioRpcError."""
    stub = health_pb2_grpc.HealthStub(channel)
    sent_s = time.monotonic()
    answer = await stub.Check(health_pb2.HealthCheckRequest())
    return (time.monotonic() - sent_s) * 1000.0, answer.status == _SERVING


async def health(channel: grpc.aio.Channel) -> AsyncIterator[bool]:
    """Whether the replica serves, now and after each change."""
    stub = health_pb2_grpc.HealthStub(channel)
    async for answer in stub.Watch(health_pb2.HealthCheckRequest()):
        yield answer.status == _SERVING


async def loads(
    channel: grpc.aio.Channel, *, min_interval_ms: int, max_interval_ms: int
) -> AsyncIterator[ReplicaLoad]:
    """The replica's load, now, after each change, and at least every `max_interval_ms`."""
    stub: inference_pb2_grpc.InferenceServiceAsyncStub
    stub = inference_pb2_grpc.InferenceServiceStub(channel)
    request = inference_pb2.WatchLoadRequest(
        min_interval_ms=min_interval_ms, max_interval_ms=max_interval_ms
    )
    async for report in stub.WatchLoad(request):
        yield ReplicaLoad(
            running_sessions=report.running_sessions,
            queued_sessions=report.queued_sessions,
            queued_prompt_tokens=report.queued_prompt_tokens,
            fixed_ms=_cost_ms(report.fixed_ms),
            row_ms=_cost_ms(report.row_ms),
            max_sessions=report.max_sessions,
            draining=report.draining,
            num_instances=max(1, report.num_instances),
            overload_level=report.overload_level,
            low=_class_load(report.low),
            medium=_class_load(report.medium),
            stay_ms=_cost_ms(report.stay_ms),
            queues_low=report.queues_low,
            refuses_sessions=report.refuses_sessions,
        )


def prefill_limits(told: inference_pb2.GetModelResponse) -> PrefillLimits | None:
    """How many prompt tokens a call takes; None if the replica does not report it."""
    if not told.HasField("prefill_limits"):
        return None
    limits = told.prefill_limits
    return PrefillLimits(
        max_chunk_tokens=max(1, limits.max_chunk_tokens),
        min_chunk_tokens=max(1, limits.min_chunk_tokens),
        max_call_ms=_cost_ms(limits.max_call_ms),
        max_stretch=_cost_ms(limits.max_stretch),
        min_stretch=_cost_ms(limits.min_stretch),
    )


def _class_load(told: inference_pb2.ClassLoad) -> ClassLoad:
    return ClassLoad(told.sessions, told.queued_prompt_tokens)


def _cost_ms(reported: float) -> float:
    """What placement may reckon with; what is no number counts as nothing."""
    return min(max(0.0, reported), _MAX_COST_MS)
