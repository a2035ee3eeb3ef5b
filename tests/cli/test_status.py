"""`outrider status` before a real router, and how many replicas a router says there should be."""

from __future__ import annotations

import asyncio
import json

import pytest
from typer.testing import CliRunner

from outrider.cli.local.status import advice_line, autoscale_advice, parse_autoscale
from outrider.cli.main import app
from outrider.errors import ConfigError, UnavailableError
from outrider.telemetry.admin import AdminServer
from outrider.telemetry.config import AdminConfig
from outrider.telemetry.families import Family
from outrider.telemetry.metrics import Metrics
from outrider.testing import free_tcp_port
from outrider.v1 import router_pb2
from tests.router.replica import Replica, running_replicas, running_router


async def _asked(port: int, *flags: str) -> str:
    """What the command prints; it has an event loop of its own, so a thread."""
    arguments = ["status", "--router", f"127.0.0.1:{port}", *flags]
    done = await asyncio.to_thread(CliRunner().invoke, app, arguments, catch_exceptions=False)
    return done.stdout


async def test_the_replicas_of_a_router_are_shown_with_state_and_round_trip() -> None:
    near, absent = Replica("near"), Replica("absent", "eu")
    absent.address = f"127.0.0.1:{free_tcp_port()}"
    async with running_replicas(near), running_router(near, absent) as router:
        await router.state_of("near", router_pb2.REPLICA_STATE_READY)
        await router.state_of("absent", router_pb2.REPLICA_STATE_DOWN)
        port = router.ports.main
        found = json.loads(await _asked(port, "--json"))
        rows = {row["name"]: row for row in found["replicas"]}
        assert rows["near"]["state"] == "READY"
        assert rows["near"]["source"] == "configured"
        assert rows["near"]["min_rtt_ms"] > 0.0
        assert rows["absent"]["min_rtt_ms"] == 0.0
        assert (rows["near"]["identity"], rows["absent"]["identity"]) == (near.identity.hex(), "")
        shown = await _asked(port)
    assert found["models"] == [
        {
            "name": "m",
            "is_default": True,
            "vocabularies": [near.digest.hex()],
            "waiting_sessions": 0,
            "regions": [
                {
                    "name": "us",
                    "replicas": 1,
                    "ready_replicas": 1,
                    "sessions": 0,
                    "predicted_wait_ms": found["models"][0]["regions"][0]["predicted_wait_ms"],
                }
            ],
        }
    ]
    model, first, second = shown.splitlines()
    assert model.startswith("m (default) ")
    assert "us 1 of 1 replicas ready, wait " in model and model.endswith("; 0 waiting")
    assert first.startswith("near")
    assert "READY" in first and "computes as 0a0a0a0a " in first
    assert "DOWN" in second and "computes as unknown " in second
    assert "rtt ~100.0 ms" in second, "a guess is marked as one"


def test_a_router_that_is_not_there_is_said_plainly() -> None:
    address = f"127.0.0.1:{free_tcp_port()}"
    failed = CliRunner().invoke(app, ["status", "--router", address])
    assert isinstance(failed.exception, UnavailableError)
    assert f"the router at {address} does not answer" in str(failed.exception)


@pytest.mark.parametrize("address", ["here", "here:0"])
def test_an_address_is_host_and_port(address: str) -> None:
    failed = CliRunner().invoke(app, ["status", "--router", address])
    assert isinstance(failed.exception, ConfigError)


LABELS = {"region": "us-east", "model": "smollm2-135m-instruct"}
EXPECTED = {
    **LABELS,
    "desired_replicas": 3.0,
    "serving_replicas": 2.0,
    "late_share": 0.25,
    "utilization": 0.9,
}


async def test_it_reads_what_metrics_say() -> None:
    metrics = Metrics("router")
    for name, value in EXPECTED.items():
        if isinstance(value, float):
            metrics.table(Family(f"outrider_router_{name}", "A figure.")).set([(value, LABELS)])
    admin = AdminServer(AdminConfig(), ready=lambda: (True, ""), registry=metrics.registry)
    port = await admin.start()
    try:
        found = await asyncio.to_thread(autoscale_advice, "127.0.0.1", port)
    finally:
        await admin.stop()
        metrics.close()
    assert found == [EXPECTED]
    assert "3 wanted, 2 serve  late 25.0%  utilization 90%" in advice_line(found[0])


def test_a_router_that_never_looked_says_nothing() -> None:
    assert parse_autoscale("# HELP x\noutrider_router_sessions 1.0\n") == []


def test_no_answer_is_said() -> None:
    with pytest.raises(UnavailableError, match="gives no metrics"):
        autoscale_advice("127.0.0.1", free_tcp_port())
