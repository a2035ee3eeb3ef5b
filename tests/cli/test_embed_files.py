"""`outrider embed FILES -o OUT.parquet`, as a process, against an endpoint that answers slowly."""

from __future__ import annotations

import base64
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from outrider.testing import eventually
from tests.cli.invoking import invoke

_MAX_BYTES = 2 << 20


class _Endpoint(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.num_answered = 0
        self.stops_after = 1 << 30
        """From then on requests wait, for ever."""
        self.num_busy = 0
        """Requests that are refused first."""
        self.may_go = threading.Event()
        self.lock = threading.Lock()


class _Handler(BaseHTTPRequestHandler):
    server: _Endpoint

    def do_POST(self) -> None:
        if int(self.headers["content-length"]) > _MAX_BYTES:
            self._answer(413, {"error": {"message": "the body is too large"}})
            return  # the connection is closed, and nothing of the body was read
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        with self.server.lock:
            self.server.num_answered += 1
            waits = self.server.num_answered > self.server.stops_after
            is_busy, self.server.num_busy = self.server.num_busy > 0, self.server.num_busy - 1
        if waits:
            self.server.may_go.wait(60)
            return
        if is_busy:
            self._answer(429, {"error": {"message": "later"}})
            return
        rows = [
            {
                "index": i,
                "embedding": base64.b64encode(np.array([len(text), 1], "<f4").tobytes()).decode(),
            }
            for i, text in enumerate(body["input"])
        ]
        told = {"data": rows, "usage": {"prompt_tokens": len(rows)}, "system_fingerprint": "fp_1"}
        self._answer(200, told)

    def _answer(self, status: int, told: object) -> None:
        data = json.dumps(told).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""


@pytest.fixture
def endpoint() -> Iterator[_Endpoint]:
    with _Endpoint() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.may_go.set()
        server.shutdown()
        thread.join()


def flags(endpoint: _Endpoint, file: Path, out: Path) -> list[str]:
    url = f"http://127.0.0.1:{endpoint.server_port}/v1"
    return ["embed", str(file), "-o", str(out), "--url", url, "--requests", "2"]


def lines(tmp_path: Path, count: int) -> Path:
    file = tmp_path / "lines.txt"
    file.write_text("".join(f"line {number} {'of many ' * 20}\n" for number in range(count)))
    return file


async def test_a_run_that_is_killed_goes_on_and_writes_the_same(
    endpoint: _Endpoint, tmp_path: Path
) -> None:
    file, cut = lines(tmp_path, 4000), tmp_path / "cut.parquet"
    endpoint.stops_after = 20
    command = [sys.executable, "-m", "outrider.cli.main", *flags(endpoint, file, cut)]
    process = subprocess.Popen(  # noqa: ASYNC220
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    await eventually(lambda: endpoint.num_answered >= 22)
    process.kill()
    process.wait()
    assert not cut.exists()
    assert list((tmp_path / "cut.parquet.parts").glob("shard-*.parquet"))
    endpoint.may_go.set()
    endpoint.stops_after = 1 << 30
    refused = invoke(flags(endpoint, file, cut))
    assert "--resume" in str(refused.exception)
    before = endpoint.num_answered
    resumed = invoke([*flags(endpoint, file, cut), "--resume"])
    assert resumed.exit_code == 0, resumed.output
    num_resumed = endpoint.num_answered - before
    whole = tmp_path / "whole.parquet"
    assert invoke(flags(endpoint, file, whole)).exit_code == 0
    assert whole.read_bytes() == cut.read_bytes()
    assert num_resumed < endpoint.num_answered - before - num_resumed
    assert not (tmp_path / "cut.parquet.parts").exists()


async def test_an_interrupt_ends_it_though_requests_are_under_way(
    endpoint: _Endpoint, tmp_path: Path
) -> None:
    endpoint.stops_after = 1
    # A shell that starts the tests in the background has it ignored, and that is inherited.
    command = ["env", "--default-signal=INT", sys.executable, "-m", "outrider.cli.main"]
    with subprocess.Popen(  # noqa: ASYNC220
        [*command, *flags(endpoint, lines(tmp_path, 1000), tmp_path / "cut.parquet")],
        stderr=subprocess.PIPE,
    ) as process:
        await eventually(lambda: endpoint.num_answered == 3)
        process.send_signal(signal.SIGINT)
        try:
            _, told = process.communicate(timeout=200)
        finally:
            process.kill()
    assert process.returncode == 130
    assert b"go on with --resume" in told


def test_what_cannot_be_embedded_is_named_by_its_line(endpoint: _Endpoint, tmp_path: Path) -> None:
    """The others are embedded, and an endpoint that is busy is asked again."""
    file, out = tmp_path / "some.jsonl", tmp_path / "out.parquet"
    file.write_text('{"body": "one"}\n{"text": "two"}\n{"body": "three"}\n')
    endpoint.num_busy = 2
    done = invoke([*flags(endpoint, file, out), "--field", "body"])
    assert done.exit_code == 1
    assert f"{file}:2: has no field 'body'" in done.stderr
    assert pq.read_table(out)["id"].to_pylist() == [0, 2]


def test_texts_that_are_too_large_for_the_endpoint_cost_no_others(
    endpoint: _Endpoint, tmp_path: Path
) -> None:
    file, out = tmp_path / "some.jsonl", tmp_path / "out.parquet"
    rows = ["one", "long " * (_MAX_BYTES // 4), "three", "long " * _MAX_BYTES, "five"]
    file.write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))
    done = invoke(flags(endpoint, file, out))
    assert done.exit_code == 1
    assert [f"{file}:{line}: the body is too large" in done.stderr for line in range(1, 6)] == [
        False,
        True,
        False,
        True,
        False,
    ]
    assert pq.read_table(out)["id"].to_pylist() == [0, 2, 4]


def test_what_it_refuses(endpoint: _Endpoint, tmp_path: Path) -> None:
    file = lines(tmp_path, 1)
    for out, why in ((tmp_path / "out.csv", "ends with .parquet"), (tmp_path / "no.parquet", "")):
        done = invoke(flags(endpoint, file if why else tmp_path / "none.txt", out))
        assert done.exit_code == 1 and (why or "there is no file") in str(done.exception)
    there = tmp_path / "there.parquet"
    there.write_bytes(b"")
    assert "is there already" in str(invoke(flags(endpoint, file, there)).exception)
