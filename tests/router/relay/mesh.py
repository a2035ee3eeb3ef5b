"""A switch between scripted edges and replicas: virtual time and no network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final, TypeVar

from outrider.engine_calls import Crash
from outrider.errors import OutriderError
from outrider.rpc import Outbox
from outrider.telemetry.metrics import Metrics
from outrider.testing import FakeClock
from outrider.v1 import common_pb2, inference_pb2, router_pb2
from outrider.wire import error_to_proto
from services.router.admission.policy import AdmissionPolicy, WakeUpPolicy
from services.router.admission.pricing import Price
from services.router.admission.tenants import TenantPolicy
from services.router.config import RouterConfig
from services.router.core import RouterCore
from services.router.fleet.entries import ReplicaConfig
from services.router.fleet.replica import ReplicaIdentity, ServedModel
from services.router.placement.types import PlacementPolicy
from services.router.relay.frames import Down, RelayedSession, Up
from services.router.relay.policy import FailoverPolicy

DIGEST = b"\x01" * 32
IDENTITY = b"\x0a" * 32
"""What both replicas compute, unless a test says otherwise."""
LIMITS: Final[dict[str, Any]] = {
    "max_sessions": 64,
    "max_sessions_per_stream": 16,
    "max_early_frames": 4,
    "max_kept_bytes": 1 << 20,
    "prompt_memory_bytes": 1 << 20,
}
"""Of the router's settings, small enough to be reached."""
FrameT = TypeVar("FrameT")
Frames = list[inference_pb2.SessionDown]


class Mesh:
    """A switch between edges and replicas, all of them in this process."""

    def __init__(
        self,
        *,
        names: Sequence[str] = ("near", "far"),
        edge_capacity: int = 64,
        replica_capacity: int = 64,
        policy: AdmissionPolicy | None = None,
        tenants: tuple[TenantPolicy, ...] = (),
        max_queued: int = 0,
        prices: tuple[Price, ...] = (),
        return_s: float = 0.0,
        failover_policy: FailoverPolicy | None = None,
        clock: FakeClock | None = None,
        num_processes: int = 0,
        wake_up: WakeUpPolicy | None = None,
    ) -> None:
        """The first of the replicas' `names` is near, the others are far away; `num_processes`:
        replicas' processes that there were before."""
        self.clock = clock or FakeClock(100.0)
        self.metrics = Metrics("router")
        self.texts: list[RelayedSession] = []
        self.given_up: list[RelayedSession] = []
        """Those of `texts` that nobody waits for any more."""
        self.num_retries_scheduled = 0
        near, *far = names
        replicas = (
            ReplicaConfig(near, "us", "h:1"),
            *(ReplicaConfig(it, "eu", "h:2") for it in far),
        )
        config = RouterConfig(
            region="us",
            default_rtt_ms=90.0,
            replicas=replicas,
            admission=policy or AdmissionPolicy(),
            tenants=tenants,
            prices=prices,
            currency="USD" if prices else "",
            placement=PlacementPolicy(1.0, max_queued),
            return_s=return_s,
            failover=failover_policy or FailoverPolicy(),
            wake_up=wake_up or WakeUpPolicy(),
            **LIMITS,
        )
        core = RouterCore(
            config,
            self.metrics,
            Random(1),
            0.0,
            timer=self.clock,
            default_model=lambda: "m",
            tokenize=self._tokenize,
            tokenize_s=30.0,
            schedule_retry=self.schedule_retry,
        )
        self.registry, self.table = core.registry, core.table
        self.telemetry, self.history = core.telemetry, core.history
        self.placement, self.index = core.placement, core.prefix_index
        self.admission, self.fleet_view = core.admission, core.fleet_view
        self.autoscale, self.intake = core.autoscale, core.intake
        self.prompts, self.switch = core.received_prompts, core.switch
        self.failover = core.failover
        self.recent = core.recent
        self.dispatch, self.token_ids = core.dispatch, core.token_ids
        self.edge_capacity, self.replica_capacity = edge_capacity, replica_capacity
        self.num_processes = num_processes
        self.streams: dict[str, int] = {}
        self.up: dict[str, Outbox[Up]] = {}
        self.down: dict[int, Outbox[Down]] = {}
        for replica in replicas:
            self.connect(replica.name)

    def _tokenize(self, session: RelayedSession) -> Callable[[], object]:
        self.texts.append(session)
        return lambda: self.given_up.append(session)

    def schedule_retry(self) -> None:
        self.num_retries_scheduled += 1

    def connect(
        self,
        name: str,
        identity: bytes = IDENTITY,
        process: bytes = b"",
        crashes: Sequence[Crash] = (),
    ) -> None:
        """`process`: empty: another one than before."""
        self.num_processes += 1
        process = process or f"process {self.num_processes}".encode()
        model = ServedModel("m", DIGEST, 2048, (1, 2), identity=identity)
        said = ReplicaIdentity(name, "", model, process, tuple(crashes))
        self.registry.identify(name, said)
        self.switch.replica_connected(name, process, crashes, self.clock())
        self.up[name] = Outbox(self.replica_capacity, 16)
        self.streams[name] = self.switch.attach_replica(name, self.up[name])
        self.registry.connected(name, model, self.clock())
        self.fleet_view.refresh(self.registry, self.clock())

    def lose(self, name: str, *, is_own: bool = False) -> None:
        self.registry.lost(name, "the test says so", self.clock(), is_own=is_own)
        stream = self.streams.pop(name)
        self.switch.detach_replica(name, stream, self.clock(), is_own=is_own)

    def edge(self) -> int:
        outbox: Outbox[Down] = Outbox(self.edge_capacity, 16)
        edge = self.switch.attach_edge(outbox)
        self.down[edge] = outbox
        return edge

    def send(self, edge: int, frame: inference_pb2.SessionUp) -> None:
        request = router_pb2.RouteRequest(frames=[frame])
        self.switch.from_edge(edge, request.frames, self.clock())

    def reply(self, name: str, frame: inference_pb2.SessionDown) -> bool:
        """False: the switch wants the stream closed."""
        response = router_pb2.RouteResponse(frames=[frame])
        return self.switch.from_replica(self.streams[name], response.frames, self.clock())

    async def at_replica(self, name: str) -> list[inference_pb2.SessionUp]:
        return await _drain(self.up[name])

    async def at_edge(self, edge: int) -> Frames:
        return await _drain(self.down[edge])


async def _drain(outbox: Outbox[FrameT]) -> list[FrameT]:
    found = [await anext(outbox) for _ in range(len(outbox))]
    return [frame for frame in found if frame is not None]


def opening(number: int = 1, *, tokens: int = 10, **fields: Any) -> inference_pb2.SessionUp:
    """An open with ids; tokens to resume after are of IDENTITY."""
    ids = inference_pb2.PromptDelta(tail=common_pb2.TokenBlock(count=tokens, payload=b"p"))
    values: dict[str, Any] = {"model": "m", "vocabulary_digest": DIGEST, "ids": ids, **fields}
    if "resume" in fields:
        values.setdefault("model_identity", IDENTITY)
    return inference_pb2.SessionUp(session=number, open=inference_pb2.OpenSession(**values))


def texting(number: int = 1) -> inference_pb2.SessionUp:
    """An open with messages."""
    messages = inference_pb2.PromptMessages(
        messages=[common_pb2.ChatMessage(role="user", content="hello")]
    )
    return inference_pb2.SessionUp(
        session=number, open=inference_pb2.OpenSession(messages=messages)
    )


def draft(number: int = 1, base: int = 0, epoch: int = 1) -> inference_pb2.SessionUp:
    """A draft frame."""
    drafted = inference_pb2.Draft(epoch=epoch, base=base)
    return inference_pb2.SessionUp(session=number, draft=drafted)


def cancel(number: int = 1) -> inference_pb2.SessionUp:
    """A cancel frame."""
    return inference_pb2.SessionUp(session=number, cancel=inference_pb2.CancelSession())


def accepted(
    number: int, identity: bytes = IDENTITY, *, waiting: bool = False
) -> inference_pb2.SessionDown:
    """The replica took the session."""
    opened = inference_pb2.SessionOpened(model_identity=identity, waiting=waiting)
    return inference_pb2.SessionDown(session=number, opened=opened)


def begun(number: int) -> inference_pb2.SessionDown:
    """The replica computes the session."""
    return inference_pb2.SessionDown(session=number, begun=inference_pb2.SessionBegun())


def commit(number: int, upto: int = 1) -> inference_pb2.SessionDown:
    """Tokens."""
    return inference_pb2.SessionDown(session=number, commit=inference_pb2.Commit(upto=upto))


def done(number: int) -> inference_pb2.SessionDown:
    """The end."""
    return inference_pb2.SessionDown(session=number, done=inference_pb2.SessionDone())


def failed(number: int, error: OutriderError) -> inference_pb2.SessionDown:
    """The end, by an error."""
    return inference_pb2.SessionDown(session=number, error=error_to_proto(error))


def reasons(frames: Frames) -> list[tuple[int, str]]:
    """Session and reason of frames that are errors."""
    return [(frame.session, frame.error.reason) for frame in frames]


async def start(mesh: Mesh, edge: int, number: int = 1) -> int:
    """A session that has committed; what the near replica calls it."""
    mesh.send(edge, opening(number))
    (sent,) = await mesh.at_replica("near")
    mesh.reply("near", accepted(sent.session))
    mesh.reply("near", commit(sent.session))
    await mesh.at_edge(edge)
    return sent.session
