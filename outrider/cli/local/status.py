"""`outrider status`: the services of the running mesh, and models and replicas as a router sees
them."""

from __future__ import annotations

import asyncio
import http.client
import json
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

from outrider.cli import operator
from outrider.cli.local.state import RunningMesh, StateDir, default_state_dir, running_mesh
from outrider.config import check_address
from outrider.errors import UnavailableError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from outrider.tls import Tls
    from outrider.v1 import router_pb2

_TIMEOUT_S: Final = 5.0

_Router = Annotated[
    str, typer.Option(help="Ask the router at HOST:PORT, not one of a mesh on this machine.")
]


def status(
    state_dir: StateDir = None,
    router: _Router = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print the state as JSON.")] = False,
    certificate: operator.Certificate = None,
    private_key: operator.PrivateKey = None,
    ca: operator.Ca = None,
    trust_domain: operator.TrustDomain = operator.TRUST_DOMAIN,
    plaintext: operator.Plaintext = False,
) -> None:
    """Show the services of the running mesh, its models (where they are served), its replicas
    (state, round trip, load), and how many of them there should be."""
    folder = (state_dir or default_state_dir()).resolve()
    mesh = None if router else _mesh(folder)
    flags = (certificate, private_key, ca, trust_domain, plaintext)
    tls = operator.of_mesh(folder) if mesh else operator.of_flags(*flags)
    if mesh is not None:
        row = mesh.service("router")
        router = f"{mesh.host}:{row['port']}"
    check_address(router, "--router")
    services = mesh.services if mesh else []
    host = mesh.host if mesh else ""
    if not as_json:
        width = max((len(row["name"]) for row in services), default=0)
        for row in services:
            print(_service_line(row, host, width))
    told = asyncio.run(_told(router, tls))
    replicas = [_as_dict(replica) for replica in told.replicas]
    models = [_model_as_dict(fleet, told.default_model) for fleet in told.models]
    advice = autoscale_advice(host, mesh.service("router")["admin_port"]) if mesh else []
    if as_json:
        found = {"host": host, "services": services, "models": models}
        print(json.dumps(found | {"replicas": replicas, "desired": advice}))
        return
    lines = (*map(model_line, models), *map(_replica_line, replicas), *map(advice_line, advice))
    for line in lines:
        print(line)


def _mesh(folder: Path) -> RunningMesh:
    mesh = running_mesh(folder)
    if mesh is None:
        raise UnavailableError(f"no mesh is up in {folder}; start one with `outrider up`")
    return mesh


class _Told(NamedTuple):
    """What a router says."""

    replicas: Sequence[router_pb2.Replica]
    models: Sequence[router_pb2.ModelFleet]
    default_model: str


async def _told(address: str, tls: Tls) -> _Told:
    # Imported here: `outrider --help` does without.
    import grpc.aio

    from outrider.rpc import from_rpc_error, make_channel
    from outrider.tls import Role
    from outrider.v1 import router_pb2, router_pb2_grpc

    async with make_channel(address, tls=tls, role=Role.ROUTER) as channel:
        stub: router_pb2_grpc.RouterServiceAsyncStub = router_pb2_grpc.RouterServiceStub(channel)
        try:
            replicas, models = await asyncio.gather(
                stub.ListReplicas(router_pb2.ListReplicasRequest(), timeout=_TIMEOUT_S),
                stub.ListModels(router_pb2.ListModelsRequest(), timeout=_TIMEOUT_S),
            )
        except grpc.aio.AioRpcError as error:
            why = from_rpc_error(error).message
            raise UnavailableError(f"the router at {address} does not answer: {why}") from error
    return _Told(replicas.replicas, models.models, models.default_model)


def _model_as_dict(fleet: router_pb2.ModelFleet, default_model: str) -> dict[str, Any]:
    return {
        "name": fleet.model,
        "is_default": fleet.model == default_model,
        "vocabularies": [digest.hex() for digest in fleet.vocabulary_digests],
        "waiting_sessions": fleet.waiting_sessions,
        "regions": [
            {
                "name": it.region,
                "replicas": it.replicas,
                "ready_replicas": it.ready_replicas,
                "sessions": it.sessions,
                "predicted_wait_ms": round(it.predicted_wait_ms, 1),
            }
            for it in fleet.regions
        ],
    }


def model_line(model: dict[str, Any]) -> str:
    """One model in words: where it is served, and who waits for it."""
    name = model["name"] + (" (default)" if model["is_default"] else "")
    regions = "; ".join(
        f"{it['name']} {it['ready_replicas']} of {it['replicas']} replicas ready, "
        + (f"wait {it['predicted_wait_ms']:.0f} ms, " if it["ready_replicas"] else "")
        + f"sessions {it['sessions']}"
        for it in model["regions"]
    )
    return f"{name:<36} {regions}; {model['waiting_sessions']} waiting"


def _as_dict(replica: router_pb2.Replica) -> dict[str, Any]:
    from outrider.v1 import router_pb2

    state = router_pb2.ReplicaState.Name(replica.state).removeprefix("REPLICA_STATE_")
    return {
        "name": replica.name,
        "region": replica.region,
        "address": replica.address,
        "source": replica.source or "configured",
        "model": replica.model,
        "identity": replica.model_identity.hex(),
        "state": state,
        "state_s": round(replica.state_s, 1),
        "rtt_ms": round(replica.rtt_ms, 3),
        "min_rtt_ms": round(replica.min_rtt_ms, 3),
        "predicted_wait_ms": round(replica.predicted_wait_ms, 1),
        "sessions": replica.sessions,
        "quarantines": replica.quarantines,
        "inconsistent": replica.inconsistent,
    }


def _service_line(row: dict[str, Any], host: str, width: int) -> str:
    told = "" if row["is_up"] else "  DOWN, is started again"
    if row["last_end"] is not None:
        told += f"  {last_end_text(row['last_end'])}"
    if row["restarts"]:
        told += f"  restarts {row['restarts']}"
    model = f"  {row['model']}" if "model" in row else ""
    if row.get("rtt_ms"):
        told += f"  {row['rtt_ms']:g} ms from the edges"
    return (
        f"{row['name']:<{width}} {row['role']:<10} pid {row['pid']:<8} port {row['port']:<6} "
        f"admin http://{host}:{row['admin_port']}/metrics{model}{told}"
    )


def last_end_text(end: dict[str, Any]) -> str:
    """`killed (signal 9) 14:38, back 14:39`, in local time."""
    text = f"{end['why']} {_clock(end['at_s'])}"
    return text if end["back_at_s"] is None else f"{text}, back {_clock(end['back_at_s'])}"


def _clock(at_s: float) -> str:
    return time.strftime("%H:%M", time.localtime(at_s))


def _replica_line(replica: dict[str, Any]) -> str:
    """One replica; a round trip that was not measured is a guess, and marked so."""
    about = "" if replica["min_rtt_ms"] else "~"
    rtt = f"{about}{replica['rtt_ms']:.1f} ms"
    state = f"{replica['state']} {replica['state_s']:.0f} s"
    warning = "  opens sessions as another model" if replica["inconsistent"] else ""
    return (
        f"{replica['name']:<24} {replica['region']:<14} {state:<18} "
        f"computes as {replica['identity'][:8] or 'unknown':<8} rtt {rtt:<10} "
        f"wait {replica['predicted_wait_ms']:.0f} ms  sessions {replica['sessions']}  "
        f"quarantines {replica['quarantines']}  {replica['address']} ({replica['source']}){warning}"
    )


_LINE: Final = re.compile(r"^outrider_router_(\w+)\{(.*)\} (\S+)$", re.MULTILINE)
_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ADVICE_METRICS: Final = ("desired_replicas", "serving_replicas", "late_share", "utilization")


def autoscale_advice(host: str, admin_port: int) -> list[dict[str, Any]]:
    """The autoscale advice by region and model. Raises UnavailableError."""
    connection = http.client.HTTPConnection(host, admin_port, timeout=_TIMEOUT_S)
    try:
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode("utf-8")
    except (OSError, http.client.HTTPException) as error:
        raise UnavailableError(f"{host}:{admin_port} gives no metrics: {error}") from error
    finally:
        connection.close()
    return parse_autoscale(text)


def parse_autoscale(text: str) -> list[dict[str, Any]]:
    """The advice by region and model in the text of a router's /metrics."""
    advice: dict[tuple[str, str], dict[str, Any]] = {}
    for name, labels, value in _LINE.findall(text):
        known = dict(_LABEL.findall(labels))
        if name in _ADVICE_METRICS and "region" in known and "model" in known:
            fleet = {"region": known["region"], "model": known["model"]}
            advice.setdefault((fleet["region"], fleet["model"]), fleet)[name] = float(value)
    return [advice[key] for key in sorted(advice)]


def advice_line(fleet: dict[str, Any]) -> str:
    """One region and model in words."""
    return (
        f"{fleet['region']:<14} {fleet['model']:<28} replicas: "
        f"{fleet['desired_replicas']:.0f} wanted, {fleet['serving_replicas']:.0f} serve  "
        f"late {fleet['late_share']:.1%}  utilization {fleet['utilization']:.0%}"
    )
