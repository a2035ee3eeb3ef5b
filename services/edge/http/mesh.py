"""How the mesh is doing, for operators: one object, or one every second as an event stream."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import msgspec

from outrider.errors import OutriderError, UnauthenticatedError
from services.edge.http import sse
from services.edge.http.exchange import Exchange
from services.edge.http.openai_errors import described
from services.edge.upstream.mesh_watch import INTERVAL_S, MeshSnapshot

_EVENT_STREAM: Final = "text/event-stream"
_HEADERS: Final = {"x-accel-buffering": "no"}
_encode: Final = msgspec.json.Encoder().encode


class MeshRecent(msgspec.Struct, kw_only=True):
    """Sessions of one model in one region, of the last `window_s` seconds."""

    window_s: float
    first_tokens: int
    """Sessions that had their first token."""
    ttft_p50_ms: float
    """From the session's open at the router to its first token; 0 without any."""
    ttft_p95_ms: float
    ended: int
    completion_tokens: int
    draft_tokens: int
    """Drafts that the model verified."""
    accepted_tokens: int
    """Drafts that became part of the reply."""


class MeshAdvice(msgspec.Struct, kw_only=True):
    """How many replicas there should be."""

    desired_replicas: int
    late_ratio: float
    """Share of requests whose first token was late."""
    utilization_ratio: float
    """Above 1 where more is asked for than there is room."""


class MeshRegion(msgspec.Struct, kw_only=True):
    """The replicas of one model in one region."""

    name: str
    replicas: int
    ready_replicas: int
    sessions: int
    predicted_wait_ms: float
    """The least predicted wait for a first token; 0 without a ready replica."""
    recent: MeshRecent
    advice: MeshAdvice | None
    """None: not known yet."""


class MeshModel(msgspec.Struct, kw_only=True):
    """A model."""

    name: str
    is_default: bool
    waiting_sessions: int
    """Sessions in the router's queue."""
    regions: list[MeshRegion]


class MeshKv(msgspec.Struct, kw_only=True):
    """Where a replica's prompts had their KV from, in tokens since it started."""

    prompt_tokens: int
    pool_tokens: int
    """From its own memory."""
    store_tokens: int
    """From a Redis."""
    peer_tokens: int
    """From another replica."""


class MeshPrefix(msgspec.Struct, kw_only=True):
    """A registered beginning of prompts, whose KV is pinned."""

    name: str
    tokens: int


class MeshReplica(msgspec.Struct, kw_only=True):
    """A replica."""

    name: str
    region: str
    model: str
    """Empty: it has not said yet."""
    identity: str
    """Of its model, hexadecimal: replies continue between replicas of one identity."""
    engine: str
    """What computes there; empty: it has not said yet."""
    guarantees: list[str]
    """What it promises of its replies: docs/guides/engines.md."""
    state: str
    """CONNECTING, READY, SUSPECT, DOWN, DRAINING, QUARANTINED or TRIAL."""
    state_s: float
    """Since when, in seconds."""
    rtt_ms: float
    """Round trip between router and replica; a guess while `min_rtt_ms` is 0."""
    min_rtt_ms: float
    predicted_wait_ms: float
    sessions: int
    """Those of this router."""
    running_sessions: int
    """Of all routers, as the replica last reported."""
    queued_sessions: int
    max_sessions: int
    kv_blocks_total: int
    kv_blocks_free: int
    overload_level: int
    quarantines: int
    inconsistent: bool
    """It computes another model than it says."""
    kv: MeshKv
    static_prefixes: list[MeshPrefix]


class MeshMove(msgspec.Struct, kw_only=True):
    """A session that continued on another replica."""

    left: str
    """The replica before, which may be gone."""
    replica: str
    reason: str
    """Why it left."""
    pause_ms: float
    """Without a token."""
    age_s: float


class MeshRouter(msgspec.Struct, kw_only=True):
    """A router, as this edge sees it."""

    region: str
    """Empty: it has not said yet."""
    state: str
    rtt_ms: float
    sessions: int
    """Those of this edge."""


class MeshEdge(msgspec.Struct, kw_only=True):
    """The edge that answers."""

    name: str
    region: str
    routers: list[MeshRouter]


class Mesh(msgspec.Struct, kw_only=True):
    """The mesh as one router sees it, and the way there. Nothing of it is about a chat, a text or a
    tenant."""

    at: float
    """When the router said so, in seconds since 1970."""
    edge: MeshEdge
    models: list[MeshModel]
    replicas: list[MeshReplica]
    moves: list[MeshMove]
    """The latest ones, newest first."""


async def serve_mesh(exchange: Exchange) -> None:
    """Answer with the state of the mesh; whoever accepts an event stream gets one a second. Raises
    OverloadedError for a stream too many, UnavailableError, PermissionDeniedError."""
    exchange.frontend.check_draining()
    watch = exchange.frontend.mesh
    if _EVENT_STREAM not in exchange.headers.get("accept", ""):
        looked = await exchange.while_there(watch.look())
        await exchange.answer(200, _encode(_mesh_of(exchange, looked)))
        return
    identity = exchange.identity
    assert identity is not None
    with watch.watching(identity.origin):
        await exchange.while_there(_watch(exchange))


async def _watch(exchange: Exchange) -> None:
    """Send an event a second until the edge stops or the key is withdrawn. Failures are events too:
    the router may be back in a moment."""
    context, identity = exchange.frontend.context, exchange.identity
    assert identity is not None
    # The first answer decides if there is a stream.
    data = await _looked(exchange)
    await exchange.begin(200, _EVENT_STREAM, _HEADERS)
    while True:
        await exchange.write(data, more=True)
        await asyncio.sleep(INTERVAL_S)
        try:
            exchange.frontend.check_draining()
            context.identities.check(identity)
            data = await _looked(exchange)
        except OutriderError as error:
            data = sse.event(_encode(described(error)), name="error")
            if isinstance(error, UnauthenticatedError) or exchange.frontend.limits.is_draining:
                break
    await exchange.write(data, more=False)


async def _looked(exchange: Exchange) -> bytes:
    looked = await exchange.frontend.mesh.look()
    return sse.event(_encode(_mesh_of(exchange, looked)))


def _mesh_of(exchange: Exchange, looked: MeshSnapshot) -> Mesh:
    context = exchange.frontend.context
    routers = [
        {
            "region": it.region,
            "state": it.state.name,
            "rtt_ms": round(it.rtt.smoothed_ms, 3),
            "sessions": it.num_sessions,
        }
        for it in context.upstream.table
    ]
    edge: dict[str, Any] = {"name": context.name, "region": context.region, "routers": routers}
    return msgspec.convert({"at": looked.at, "edge": edge, **looked.state}, Mesh)
