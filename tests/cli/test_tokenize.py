"""`outrider tokenize` as users run it: killed, interrupted, resumed, told what is wrong."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from outrider.models.vocabulary import Vocabulary
from outrider.testing import eventually
from tests.bulk.making import contents, rows
from tests.models import corpus

pytestmark = [pytest.mark.model, pytest.mark.e2e]
NUM_COPIES = 1200
COMMAND = [sys.executable, "-m", "outrider.cli.main", "tokenize"]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("input") / "a.jsonl"
    texts = corpus.LANGUAGES * NUM_COPIES
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


def command(file: Path, out: Path, *options: str) -> list[str]:
    # The reference: slow enough to be met at work.
    small = ("--shard-mb", "0.05", "--backend", "tokenizers", "--workers", "2")
    return [*COMMAND, str(file), "--out", str(out), *small, *options]


def run(file: Path, out: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(file, out, *options), capture_output=True, text=True, timeout=100)


@pytest.fixture(scope="module")
def whole(file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "out"
    done = run(file, folder, "--json", "--stats")
    assert (done.returncode, done.stderr) == (0, "")
    told = json.loads(done.stdout)
    assert told["documents"] == len(corpus.LANGUAGES) * NUM_COPIES and told["problems"] == []
    assert told["tokens_per_document"]["max"] > told["tokens_per_document"]["p50"] > 5
    assert len(told["shards"]) > 30
    return folder


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGKILL, -signal.SIGKILL), (signal.SIGINT, 130)]
)
def test_a_command_that_is_ended_can_go_on(
    file: Path, whole: Path, tmp_path: Path, number: signal.Signals, status: int
) -> None:
    process = subprocess.Popen(
        # A shell that starts the tests in the background has it ignored, and that is inherited.
        ["env", "--default-signal=INT", *command(file, tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    shards = "shard-*.parquet"
    asyncio.run(eventually(lambda: len(list(tmp_path.glob(shards))) > 3, timeout_s=90.0))
    process.send_signal(number)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == status
    assert ("continue with --resume" in errors) == (number == signal.SIGINT)
    finished = {path: path.stat().st_mtime_ns for path in tmp_path.glob("shard-*.parquet")}
    assert len(finished) < len(list(whole.glob("shard-*")))
    assert run(file, tmp_path, "--resume").returncode == 0
    assert contents(tmp_path) == contents(whole)
    # At most what ran is done again: two shards at each of two workers.
    again = [path for path, at in finished.items() if path.stat().st_mtime_ns != at]
    assert len(again) <= 4


def test_what_is_wrong_is_told_at_the_end(vocabulary: Vocabulary, tmp_path: Path) -> None:
    wrong, right = tmp_path / "a.jsonl", tmp_path / "b.txt"
    wrong.write_text('{"text": "one"}\n{"body": "two"}\n')
    right.write_text("three")
    out = tmp_path / "out"
    command = [*COMMAND, str(wrong), str(right), "--out", str(out), "--workers", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 1
    assert f"{wrong}, record 1: has no field 'text'" in done.stderr
    assert "2 documents, 8 bytes" in done.stdout and "in 2 shards" in done.stdout
    assert "2 of 2 shards" in done.stderr, "progress leaves the output alone"
    assert [row["ids"] for row in rows(out)] == [
        vocabulary.encode("one"),
        vocabulary.encode("three"),
    ]
