"""The admin port over real sockets, good and bad requests."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator

import pytest

from bench.harness.prometheus import running_prometheus
from outrider.errors import ConfigError
from outrider.telemetry import admin
from outrider.telemetry.config import AdminConfig
from outrider.telemetry.metrics import Metrics
from outrider.testing import eventually, leak_check


class Running:
    def __init__(self) -> None:
        self.ready = (True, "serving")
        self.metrics = Metrics("test")
        self.metrics.record_ttft(5, "m")
        self.num_refreshed = 0
        self.server = admin.AdminServer(
            AdminConfig(),
            ready=lambda: self.ready,
            registry=self.metrics.registry,
            refresh=self._refresh,
        )
        self.port = 0

    def _refresh(self) -> None:
        self.num_refreshed += 1
        self.metrics.set_batch_utilization(self.num_refreshed / 4)

    async def send(self, request: bytes) -> tuple[int, dict[str, str], bytes]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(request)
        raw = await reader.read()
        writer.close()
        await writer.wait_closed()
        head, _, body = raw.partition(b"\r\n\r\n")
        status, *fields = head.decode().split("\r\n")
        return int(status.split()[1]), dict(f.split(": ", 1) for f in fields), body

    async def get(self, path: str) -> tuple[int, dict[str, str], bytes]:
        return await self.send(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())


@pytest.fixture
async def running() -> AsyncIterator[Running]:
    async with leak_check():
        it = Running()
        it.port = await it.server.start()
        yield it
        await it.server.stop()
        await it.server.stop()
        it.metrics.close()


async def test_metrics(running: Running) -> None:
    status, fields, body = await running.get("/metrics")
    assert status == 200
    assert fields["Content-Type"].startswith("text/plain")
    assert int(fields["Content-Length"]) == len(body)
    assert b"outrider_ttft_seconds_bucket" in body


async def test_who_asks_for_openmetrics_gets_exemplars(running: Running) -> None:
    running.metrics.record_ttft(5, "m", "a" * 32)
    accept = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"
    request = f"GET /metrics HTTP/1.1\r\nHost: localhost\r\nAccept: {accept}\r\n\r\n"
    status, fields, body = await running.send(request.encode())
    assert status == 200
    assert fields["Content-Type"].startswith("application/openmetrics-text")
    assert body.endswith(b"# EOF\n")
    assert ('# {trace_id="' + "a" * 32 + '"} 0.005').encode() in body
    assert b"_created" not in body
    assert b"trace_id" not in (await running.get("/metrics"))[2]


async def test_a_real_prometheus_keeps_exemplars(running: Running) -> None:
    running.metrics.record_ttft(5, "m", "a" * 32)
    with running_prometheus({"edge": [f"127.0.0.1:{running.port}"]}, rules=()) as prometheus:

        async def are_kept() -> bool:
            found = await asyncio.to_thread(prometheus.exemplars, "outrider_ttft_seconds_bucket")
            return [it["labels"] for it in found] == [{"trace_id": "a" * 32}]

        async with asyncio.timeout(60):
            while not await are_kept():
                await asyncio.sleep(0.1)


async def test_metrics_are_brought_up_to_date_when_they_are_read(running: Running) -> None:
    for share in (0.25, 0.5):
        body = (await running.get("/metrics"))[2]
        assert f"outrider_batch_utilization_ratio {share}" in body.decode()
    await running.get("/health")
    assert running.num_refreshed == 2


def _values(body: bytes) -> dict[str, float]:
    lines = [line.split() for line in body.decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in lines if name.startswith("outrider_process")}


async def test_metrics_tell_of_tasks_threads_and_files(running: Running) -> None:
    before = _values((await running.get("/metrics"))[2])
    stop = asyncio.Event()
    tasks = [asyncio.create_task(stop.wait()) for _ in range(3)]
    waiting = threading.Event()
    thread = threading.Thread(target=waiting.wait)
    thread.start()
    with socket.socket():
        during = _values((await running.get("/metrics"))[2])
    waiting.set()
    thread.join()
    stop.set()
    await asyncio.gather(*tasks)
    after = _values((await running.get("/metrics"))[2])
    assert during["outrider_process_tasks"] == before["outrider_process_tasks"] + 3
    assert during["outrider_process_threads"] > before["outrider_process_threads"]
    assert during["outrider_process_files"] > before["outrider_process_files"]
    assert after["outrider_process_tasks"] == before["outrider_process_tasks"]


async def test_health_and_readiness(running: Running) -> None:
    assert (await running.get("/health"))[0] == 200
    assert (await running.get("/ready?verbose"))[0] == 200
    running.ready = (False, "model is loading")
    status, _, body = await running.get("/ready")
    assert status == 503
    assert json.loads(body) == {"ready": False, "reason": "model is loading"}
    assert (await running.get("/health"))[0] == 200


async def test_head_has_no_body(running: Running) -> None:
    status, fields, body = await running.send(b"HEAD /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert (status, body) == (200, b"")
    assert int(fields["Content-Length"]) > 0


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET /secret HTTP/1.1\r\nHost: [::1]\r\n\r\n", 404),
        (b"POST /metrics HTTP/1.1\r\nHost: [::1]\r\n\r\n", 405),
        (b"nonsense\r\n\r\n", 400),
        (b"\xff\xfe \xff \xff\r\n\r\n", 400),
        (b"GET /" + b"x" * 9000 + b" HTTP/1.1\r\n\r\n", 431),
    ],
)
async def test_bad_requests(running: Running, request_bytes: bytes, status: int) -> None:
    assert (await running.send(request_bytes))[0] == status
    assert (await running.get("/health"))[0] == 200


async def test_a_client_that_leaves_early_is_no_event(running: Running) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", running.port)
    writer.write(b"GET /hea")
    await writer.drain()
    writer.close()
    await writer.wait_closed()
    assert (await running.get("/health"))[0] == 200


async def test_who_is_one_too_many_is_told_and_a_flood_of_them_is_not(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin, "MAX_CONNECTIONS", 2)
    served = [await asyncio.open_connection("127.0.0.1", running.port) for _ in range(2)]
    assert (await running.get("/health"))[::2] == (503, b"too many connections\n")
    told = [await asyncio.open_connection("127.0.0.1", running.port) for _ in range(2)]
    for reader, _ in told:
        assert (await reader.readline()).startswith(b"HTTP/1.1 503 ")
    with pytest.raises(ConnectionResetError):
        await running.get("/health")
    for _, writer in (*told, *served):
        writer.close()
        await writer.wait_closed()
    await eventually(lambda: not running.server._connections)
    assert (await running.get("/health"))[0] == 200


async def test_stalled_connections_time_out(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin, "TIMEOUT_S", 0.2)
    reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
    assert await reader.read() == b""
    writer.close()


async def test_a_taken_port_is_a_config_error(running: Running) -> None:
    second = admin.AdminServer(
        AdminConfig(port=running.port),
        ready=lambda: (True, ""),
        registry=running.metrics.registry,
    )
    with pytest.raises(ConfigError, match="cannot listen on admin address"):
        await second.start()
    await second.stop()


@pytest.mark.parametrize(
    ("host", "is_answered"),
    [
        *(("127.0.0.1", True), ("localhost:9090", True), ("[::1]:9090", True)),
        *(("evil.example", False), ("192.0.2.1", False), ("a\r\nHost: localhost", False)),
        *(("[::1", False), ("", False)),
    ],
)
async def test_a_loopback_port_answers_no_other_name(
    host: str, is_answered: bool, running: Running
) -> None:
    request = f"GET /health HTTP/1.1\r\nhOST: {host}\r\n\r\n"
    status, _, body = await running.send(request.encode())
    assert status == (200 if is_answered else 400 if "\r" in host else 421)
    assert (b"alive" in body) is is_answered


async def test_only_http_1_0_may_leave_the_host_out(running: Running) -> None:
    assert (await running.send(b"GET /health HTTP/1.0\r\n\r\n"))[0] == 200
    assert (await running.send(b"GET /health HTTP/1.1\r\n\r\n"))[0] == 400
