"""`outrider embed FILES -o OUT.parquet`, as a process, against an endpoint that answers slowly."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pyarrow.parquet as pq
import pytest

from outrider.testing import eventually
from tests.cli.invoking import invoke
from tests.embedding_endpoint import MAX_BYTES, EmbeddingEndpoint, running_endpoint

START_S: Final = 200.0
"""Limit for a process to start, also on a slow disk: it imports pyarrow."""


@pytest.fixture
def endpoint() -> Iterator[EmbeddingEndpoint]:
    with running_endpoint() as endpoint:
        yield endpoint


def flags(endpoint: EmbeddingEndpoint, file: Path, out: Path) -> list[str]:
    return ["embed", str(file), "-o", str(out), "--url", endpoint.url, "--requests", "2"]


def lines(tmp_path: Path, count: int) -> Path:
    file = tmp_path / "lines.txt"
    file.write_text("".join(f"line {number} {'of many ' * 20}\n" for number in range(count)))
    return file


async def test_a_run_that_is_killed_goes_on_and_writes_the_same(
    endpoint: EmbeddingEndpoint, tmp_path: Path
) -> None:
    file, cut = lines(tmp_path, 4000), tmp_path / "cut.parquet"
    endpoint.stops_after = 20
    command = [sys.executable, "-m", "outrider.cli.main", *flags(endpoint, file, cut)]
    finished = (tmp_path / "cut.parquet.parts").glob
    with subprocess.Popen(  # noqa: ASYNC220
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            # One waits for an answer; whether the other one has a request too, is open.
            await eventually(
                lambda: len(endpoint.asked) > 20 and any(finished("shard-*.parquet")),
                timeout_s=START_S,
            )
        finally:
            process.kill()
    assert not cut.exists()
    endpoint.may_go.set()
    endpoint.stops_after = 1 << 30
    refused = invoke(flags(endpoint, file, cut))
    assert "--resume" in str(refused.exception)
    before = len(endpoint.asked)
    resumed = invoke([*flags(endpoint, file, cut), "--resume"])
    assert resumed.exit_code == 0, resumed.output
    num_resumed = len(endpoint.asked) - before
    whole = tmp_path / "whole.parquet"
    assert invoke(flags(endpoint, file, whole)).exit_code == 0
    assert whole.read_bytes() == cut.read_bytes()
    assert num_resumed < len(endpoint.asked) - before - num_resumed
    assert not (tmp_path / "cut.parquet.parts").exists()


async def test_an_interrupt_ends_it_though_requests_are_under_way(
    endpoint: EmbeddingEndpoint, tmp_path: Path
) -> None:
    endpoint.stops_after = 1
    # A shell that starts the tests in the background has it ignored, and that is inherited.
    command = ["env", "--default-signal=INT", sys.executable, "-m", "outrider.cli.main"]
    with subprocess.Popen(  # noqa: ASYNC220
        [*command, *flags(endpoint, lines(tmp_path, 1000), tmp_path / "cut.parquet")],
        stderr=subprocess.PIPE,
    ) as process:
        await eventually(lambda: len(endpoint.asked) > 1, timeout_s=START_S)
        process.send_signal(signal.SIGINT)
        try:
            _, told = process.communicate(timeout=200)
        finally:
            process.kill()
    assert process.returncode == 130
    assert b"continue with --resume" in told


def test_what_cannot_be_embedded_is_named_by_its_line(
    endpoint: EmbeddingEndpoint, tmp_path: Path
) -> None:
    """The others are embedded, and an endpoint that is busy is asked again."""
    file, out = tmp_path / "some.jsonl", tmp_path / "out.parquet"
    file.write_text('{"body": "one"}\n{"text": "two"}\n{"body": "three"}\n')
    endpoint.num_busy = 2
    done = invoke([*flags(endpoint, file, out), "--field", "body"])
    assert done.exit_code == 1
    assert f"{file}:2: has no field 'body'" in done.stderr
    assert pq.read_table(out)["id"].to_pylist() == [0, 2]


def test_texts_that_are_too_large_for_the_endpoint_cost_no_others(
    endpoint: EmbeddingEndpoint, tmp_path: Path
) -> None:
    file, out = tmp_path / "some.jsonl", tmp_path / "out.parquet"
    rows = ["one", "long " * (MAX_BYTES // 4), "three", "long " * MAX_BYTES, "five"]
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


def test_what_it_refuses(endpoint: EmbeddingEndpoint, tmp_path: Path) -> None:
    file = lines(tmp_path, 1)
    for out, why in ((tmp_path / "out.csv", "ends with .parquet"), (tmp_path / "no.parquet", "")):
        done = invoke(flags(endpoint, file if why else tmp_path / "none.txt", out))
        assert done.exit_code == 1 and (why or "there is no file") in str(done.exception)
    there = tmp_path / "there.parquet"
    there.write_bytes(b"")
    assert "exists already" in str(invoke(flags(endpoint, file, there)).exception)
