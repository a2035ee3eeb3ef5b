"""RouterService over grpc.aio: the edges' session streams, and the replica list."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from hashlib import blake2b
from typing import Any, Final, TypeAlias

import grpc.aio

from outrider.errors import (
    InvalidRequestError,
    OutriderError,
    OverloadedError,
    PermissionDeniedError,
)
from outrider.rpc import Outbox, incoming, outgoing, received
from outrider.telemetry.refusals import RefusalLog
from outrider.v1 import inference_pb2, router_pb2, router_pb2_grpc
from services.router.autoscale.advisor import FleetKey, ScalingAdvice
from services.router.config import RouterConfig
from services.router.core import RouterCore
from services.router.explain import Explainer
from services.router.fleet.model_fleets import ModelFleet, PredictedLoad, RegionFleet, model_fleets
from services.router.fleet.replica import Replica, ReplicaLoad
from services.router.placement.types import ReplicaStatus
from services.router.recent_replies import WINDOW_S, Move, Recent
from services.router.relay.frames import Down

Context = grpc.aio.ServicerContext[Any, Any]
DrainReplica: TypeAlias = Callable[[Replica, inference_pb2.DrainRequest], Awaitable[None]]
"""Asks a replica to take no new sessions, or (True) to take them again. Raises UnavailableError."""
_NO_LOAD: Final = ReplicaLoad()
_MAX_NAMED: Final = 20
"""Names in an error."""
_MAX_NAME: Final = 100
"""Characters of an unknown one."""


class RouterService(router_pb2_grpc.RouterServiceServicer):
    """Feeds the switch from edge streams and drains its outboxes into them."""

    def __init__(
        self,
        core: RouterCore,
        config: RouterConfig,
        explainer: Explainer,
        advice: Callable[[], Mapping[FleetKey, ScalingAdvice]],
        drain_replica: DrainReplica,
        *,
        default_model: Callable[[], str],
        clock: Callable[[], float],
        serving: Callable[[], bool],
    ) -> None:
        self._core = core
        self._config = config
        self._explainer = explainer
        self._advice = advice
        self._drain_replica = drain_replica
        self._default_model = default_model
        self._clock = clock
        self._serving = serving
        self._refused = RefusalLog("streams")

    async def Route(
        self, request_iterator: AsyncIterator[router_pb2.RouteRequest], context: Context
    ) -> AsyncIterator[router_pb2.RouteResponse]:
        """One edge's stream; ends when the edge does, or with a status when it breaks the
        protocol (MalformedFrameError) or never reads (OverloadedError)."""
        config, switch = self._config, self._core.switch
        outbox: Outbox[Down] = Outbox(config.edge_buffer_frames, config.max_sessions_per_stream)
        edge = switch.attach_edge(outbox)
        reader = asyncio.create_task(self._read(edge, request_iterator, outbox))
        try:
            async for response in outgoing(outbox, router_pb2.RouteResponse.FromString):
                yield response
            if outbox.is_overrun:
                raise OverloadedError("this stream is not read; open another and read it")
            if reader.done():
                reader.result()
        except OutriderError as error:
            self._refused.note(error.reason)
            raise
        finally:
            reader.cancel()
            switch.detach_edge(edge, self._clock())

    async def _read(
        self, edge: int, requests: AsyncIterator[router_pb2.RouteRequest], outbox: Outbox[Down]
    ) -> None:
        switch = self._core.switch
        try:
            async for frames in received(incoming(requests)):
                switch.from_edge(edge, frames, self._clock())
        except BaseException:
            outbox.close()
            raise
        switch.half_close_edge(edge)

    async def GetRouter(
        self, request: router_pb2.GetRouterRequest, context: Context
    ) -> router_pb2.GetRouterResponse:
        """Region of this router, and whether it takes sessions."""
        return router_pb2.GetRouterResponse(region=self._config.region, serving=self._serving())

    async def ListModels(
        self, request: router_pb2.ListModelsRequest, context: Context
    ) -> router_pb2.ListModelsResponse:
        """The models that are served, each with its regions."""
        now = self._clock()
        statuses = self._core.placement.statuses(now)

        def load(name: str) -> PredictedLoad:
            return PredictedLoad(statuses[name].num_sessions, statuses[name].wait.total_ms)

        waiting = self._core.admission.num_waiting_by_model()
        return router_pb2.ListModelsResponse(
            default_model=self._default_model(),
            models=[
                self._fleet_to_proto(fleet, waiting.get(fleet.model, 0), now)
                for fleet in model_fleets(self._core.registry, load)
            ],
        )

    async def Explain(
        self, request: router_pb2.ExplainRequest, context: Context
    ) -> router_pb2.ExplainResponse:
        """Why sessions went where they went, or where one would go now."""
        return await self._explainer.explain(request)

    async def DrainReplica(
        self, request: router_pb2.DrainReplicaRequest, context: Context
    ) -> router_pb2.DrainReplicaResponse:
        """One replica takes no new sessions, or takes them again. Raises InvalidRequestError for
        a name that this router does not know, UnavailableError where it does not answer."""
        replica = self._core.registry.find(request.replica)
        if replica is None:
            known = ", ".join(sorted(it.name for it in self._core.registry)[:_MAX_NAMED])
            raise InvalidRequestError(
                f"this router knows no replica {request.replica[:_MAX_NAME]!r}; "
                f"it has {known or 'none'}"
            )
        asked = inference_pb2.DrainRequest(undo=request.undo, move=request.move)
        await self._drain_replica(replica, asked)
        return router_pb2.DrainReplicaResponse()

    async def ListReplicas(
        self, request: router_pb2.ListReplicasRequest, context: Context
    ) -> router_pb2.ListReplicasResponse:
        """The replica table as this router sees it."""
        found = (r for r in self._core.registry if request.region in ("", r.region))
        now = self._clock()
        statuses = self._core.placement.statuses(now)
        return router_pb2.ListReplicasResponse(
            replicas=[_to_proto(it, statuses[it.name], now) for it in found],
            moves=[_move_to_proto(it, now) for it in self._core.recent.moves],
        )

    async def DescribeMesh(
        self, request: router_pb2.DescribeMeshRequest, context: Context
    ) -> router_pb2.DescribeMeshResponse:
        """Models and replicas for the page of an edge. Raises PermissionDeniedError unless the
        settings allow it."""
        if not self._config.mesh_page:
            raise PermissionDeniedError(
                "this router tells edges nothing of the mesh; set router.mesh_page = true for "
                "their page /ui/mesh"
            )
        described = router_pb2.DescribeMeshResponse(
            region=self._config.region,
            models=await self.ListModels(router_pb2.ListModelsRequest(), context),
            replicas=await self.ListReplicas(router_pb2.ListReplicasRequest(), context),
        )
        for replica in described.replicas.replicas:
            replica.ClearField("address")
            replica.name = _without_address(replica.name)
            for prefix in replica.static_prefixes:
                prefix.ClearField("tenants")
        for move in described.replicas.moves:
            move.left, move.replica = map(_without_address, (move.left, move.replica))
        return described

    def _fleet_to_proto(
        self, fleet: ModelFleet, num_waiting: int, now: float
    ) -> router_pb2.ModelFleet:
        return router_pb2.ModelFleet(
            model=fleet.model,
            vocabulary_digests=fleet.vocabulary_digests,
            regions=[self._region_to_proto(it, fleet.model, now) for it in fleet.regions],
            waiting_sessions=num_waiting,
        )

    def _region_to_proto(
        self, fleet: RegionFleet, model: str, now: float
    ) -> router_pb2.RegionFleet:
        key = FleetKey(fleet.region, model)
        advice = self._advice().get(key)
        return router_pb2.RegionFleet(
            region=fleet.region,
            replicas=fleet.num_replicas,
            ready_replicas=fleet.num_ready,
            sessions=fleet.num_sessions,
            predicted_wait_ms=fleet.predicted_wait_ms,
            recent=_recent_to_proto(self._core.recent.of(key, now)),
            advice=None if advice is None else _advice_to_proto(advice),
        )


def _without_address(name: str) -> str:
    """A replica that was found is called by its address until it says its name."""
    if ":" not in name:
        return name
    return f"unnamed-{blake2b(name.encode(), digest_size=3).hexdigest()}"


def _move_to_proto(move: Move, now: float) -> router_pb2.Move:
    return router_pb2.Move(
        left=move.left,
        replica=move.replica,
        reason=move.reason,
        pause_ms=move.pause_ms,
        age_s=now - move.at,
    )


def _advice_to_proto(advice: ScalingAdvice) -> router_pb2.ScalingAdvice:
    return router_pb2.ScalingAdvice(
        desired_replicas=advice.desired_replicas,
        late_ratio=advice.late_share,
        utilization_ratio=advice.utilization,
    )


def _recent_to_proto(recent: Recent) -> router_pb2.RecentReplies:
    return router_pb2.RecentReplies(
        window_s=WINDOW_S,
        first_tokens=recent.num_first_tokens,
        ttft_p50_ms=recent.ttft_p50_ms,
        ttft_p95_ms=recent.ttft_p95_ms,
        ended=recent.num_ended,
        completion_tokens=recent.totals.completion_tokens,
        draft_tokens=recent.totals.draft_tokens,
        accepted_tokens=recent.totals.accepted_tokens,
    )


def _to_proto(replica: Replica, status: ReplicaStatus, now: float) -> router_pb2.Replica:
    load = replica.load or _NO_LOAD
    return router_pb2.Replica(
        name=replica.name,
        region=replica.region,
        address=replica.address,
        model=replica.model_name,
        vocabulary_digest=replica.model.vocabulary_digest if replica.model else b"",
        state=router_pb2.ReplicaState.ValueType(replica.state),
        rtt_ms=replica.rtt.smoothed_ms,
        predicted_wait_ms=status.wait.total_ms,
        sessions=status.num_sessions,
        min_rtt_ms=replica.rtt.min_ms if replica.rtt.is_measured else 0.0,
        source=replica.source,
        quarantines=replica.health.quarantine.count,
        state_s=now - replica.health.since,
        model_identity=replica.model_identity,
        inconsistent=replica.is_inconsistent,
        running_sessions=load.running_sessions,
        queued_sessions=load.queued_sessions,
        max_sessions=load.max_sessions,
        kv_blocks_total=load.kv_blocks_total,
        kv_blocks_free=load.kv_blocks_free,
        overload_level=load.overload_level,
        kv=inference_pb2.KvCounts(**load.kv._asdict()),
        static_prefixes=[
            inference_pb2.StaticPrefix(**prefix._asdict())
            for prefix in (replica.model.static_prefixes if replica.model else ())
        ],
        engine=replica.model.engine if replica.model else "",
        guarantees=replica.model.guarantees if replica.model else (),
    )
