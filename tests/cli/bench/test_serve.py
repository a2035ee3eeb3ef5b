"""`outrider bench serve` before a mesh of real processes with the fake engine."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from bench.harness.local_mesh import LocalMesh, outrider
from outrider.cli.bench.report import Reply
from outrider.cli.bench.serve import read_goals, read_rate
from outrider.cli.bench.targets import (
    Endpoint,
    RequestFailedError,
    RequestSettings,
    endpoint_target,
)
from outrider.errors import InvalidRequestError
from outrider.testing import free_tcp_port, free_udp_port

SMALL = ("--requests", "12", "--rate", "50", "--max-tokens", "8")


def _bench(*flags: str) -> subprocess.CompletedProcess[str]:
    return outrider("bench", "serve", *flags, check=False)


def _told(*flags: str) -> dict[str, Any]:
    done = _bench(*flags, "--json")
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


@pytest.mark.e2e
def test_both_doors_of_a_mesh_are_loaded(mesh: LocalMesh, tmp_path: Path) -> None:
    here = ("--state-dir", str(mesh.state_dir))
    picture = tmp_path / "load.png"
    (edge,) = mesh.services("edge")
    url = f"http://{mesh.state.host}:{edge['http_port']}/v1"
    for way in ((), ("--url", url)):
        told = _told(*here, *way, *SMALL, "--goodput", "e2e:100000", "--plot", str(picture))
        assert (told["requests"], told["well"], told["errors"]) == (12, 12, {})
        assert 12 <= told["output_tokens"] <= 12 * 8
        assert told["ttft_ms"]["n"] == 12
        assert 0 < told["ttft_ms"]["p50"] <= told["e2e_ms"]["p99"]
        assert told["goodput"]["requests"] == 12
        assert picture.read_bytes().startswith(b"\x89PNG")
        picture.unlink()
    text = _bench(*here, *SMALL, "--max-concurrency", "2", "--rate", "inf").stdout
    assert text.startswith("12 requests in ") and "waited to be sent" in text

    refused = _bench("--url", url, *SMALL, "--api-key", "or_none")
    assert refused.returncode == 1 and "HTTP_401; give a key" in refused.stderr
    failed = _bench("--url", url, *SMALL, "--api-key", "or_none", "--warmup", "0")
    assert failed.returncode == 1 and "12 x HTTP_401" in failed.stdout
    without_key = _bench("--url", url, *SMALL, "--state-dir", str(tmp_path))
    assert "HTTP_401" in without_key.stderr, "the development key is of that mesh alone"


@pytest.mark.e2e
def test_ctrl_c_ends_it_with_what_there_is(mesh: LocalMesh) -> None:
    command = (sys.executable, "-m", "outrider.cli.main", "bench", "serve", "--json")
    slow = ("--rate", "0.001", "--requests", "5", "--warmup", "1")
    before = _chats(mesh)
    with subprocess.Popen(
        # Whoever runs the tests in the background ignores SIGINT; children inherit that.
        ["env", "--default-signal=INT", *command, *slow, "--state-dir", str(mesh.state_dir)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        while _chats(mesh) == before and process.poll() is None:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    assert not output or json.loads(output)["requests"] <= 5


def _chats(mesh: LocalMesh) -> list[str]:
    """What the edge counts of them."""
    (edge,) = mesh.services("edge")
    with urlopen(f"http://{mesh.state.host}:{edge['admin_port']}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return [line for line in lines if line.startswith("outrider_edge_chats_total{")]


def test_where_nothing_listens_it_says_so_at_once() -> None:
    url = f"http://127.0.0.1:{free_tcp_port()}/v1"
    done = _bench("--url", url)
    assert done.returncode == 1 and "check --url" in done.stderr
    done = _bench("--edge", f"127.0.0.1:{free_udp_port()}", "--insecure")
    assert done.returncode == 1 and "nothing answers" in done.stderr


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (("--rate", "0"), "--rate takes requests per second"),
        (("--goodput", "itl:3"), "a name of ttft, tpot, e2e"),
        (("--plot", "x.gif"), "--plot takes a .png"),
        (("--url", "ftp://x/v1"), "--url takes http"),
        (("--url", "http://h/v1", "--edge", "h:1"), "give either --url"),
    ],
)
def test_flags_that_make_no_sense_are_said(flags: tuple[str, ...], told: str) -> None:
    done = _bench(*flags)
    assert done.returncode == 1 and told in done.stderr and "Traceback" not in done.stderr


def test_rates_and_goals_are_read() -> None:
    assert read_rate("2.5") == 2.5 and read_rate("inf") == float("inf")
    assert read_goals(["ttft:200", "e2e:1e3"]) == {"ttft": 200.0, "e2e": 1000.0}
    for text in ("nan", "-1", "x"):
        with pytest.raises(InvalidRequestError):
            read_rate(text)


@pytest.mark.parametrize(
    ("answer", "text_events", "tokens"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\n%s", 2, 7),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%s", 2, 7),
    ],
)
async def test_streams_are_read_whole_and_in_chunks(
    answer: bytes, text_events: int, tokens: int
) -> None:
    stream = (
        b"".join(
            b"data: %s\n\n" % json.dumps(it).encode()
            for it in (
                {"choices": [{"delta": {"role": "assistant"}}]},
                {"choices": [{"delta": {"content": "a"}}]},
                {"choices": [{"delta": {"content": "b"}}]},
                {"choices": [], "usage": {"completion_tokens": 7}},
            )
        )
        + b"data: [DONE]\n\n"
    )
    if b"chunked" in answer:  # cut in the middle of lines
        parts = [stream[at : at + 13] for at in range(0, len(stream), 13)]
        stream = b"".join(b"%x\r\n%s\r\n" % (len(it), it) for it in parts) + b"0\r\n\r\n"
    reply = await _answered(answer.replace(b"%s", stream))
    assert (len(reply.text_s), reply.num_tokens) == (text_events, tokens)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"HTTP/1.1 503 No\r\n\r\n", "HTTP_503"),
        (b"", "CONNECTION_BROKE"),
        (b"garbage\r\n\r\n", "MALFORMED_ANSWER"),
        (b"HTTP/1.1 200 OK\r\n\r\ndata: {\n\n", "MALFORMED_ANSWER"),
        (b"HTTP/1.1 200 OK\r\n\r\ndata: []\n\n", "MALFORMED_ANSWER"),
        (b'HTTP/1.1 200 OK\r\n\r\ndata: {"error": {"code": 500}}\n\n', "ERROR_IN_STREAM"),
        (b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 300 + b"\r\n", "TOO_MANY_HEADERS"),
    ],
)
async def test_what_is_no_reply_has_a_reason(answer: bytes, reason: str) -> None:
    with pytest.raises(RequestFailedError) as caught:
        await _answered(answer)
    assert caught.value.reason == reason


async def _answered(answer: bytes) -> Reply:
    """The reply that a server with this answer gives."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if await reader.readline():
            writer.write(answer)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    reply = Reply(0.0)
    async with (
        server,
        endpoint_target(Endpoint.parse(f"http://127.0.0.1:{port}"), RequestSettings()) as it,
    ):
        await it.ask("hello", reply, lambda: 1.0)
    return reply
