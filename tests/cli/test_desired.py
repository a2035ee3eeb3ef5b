"""How many replicas a router says that there should be."""

from __future__ import annotations

import asyncio

import pytest

from outrider.cli.local.desired import desired_line, desired_replicas, figures
from outrider.errors import UnavailableError
from outrider.telemetry.admin import AdminServer
from outrider.telemetry.metrics import Metrics
from outrider.testing import free_tcp_port

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
            metrics.table(f"outrider.router.{name}").set([(value, LABELS)])
    admin = AdminServer("127.0.0.1", 0, ready=lambda: (True, ""), registry=metrics.registry)
    port = await admin.start()
    try:
        found = await asyncio.to_thread(desired_replicas, "127.0.0.1", port)
    finally:
        await admin.stop()
        metrics.close()
    assert found == [EXPECTED]
    assert "3 wanted, 2 serve  late 25.0%  utilization 90%" in desired_line(found[0])


def test_a_router_that_never_looked_says_nothing() -> None:
    assert figures("# HELP x\noutrider_router_sessions 1.0\n") == []


def test_no_answer_is_said() -> None:
    with pytest.raises(UnavailableError, match="gives no metrics"):
        desired_replicas("127.0.0.1", free_tcp_port())
