"""Which mesh is up: decided by a lock, whatever files were left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from bench.harness.local_mesh import outrider
from outrider.cli.local.state import (
    RunningMesh,
    command_for,
    holding,
    killed_mesh,
    left_running,
    no_mesh,
    publish,
    record_start,
    running_mesh,
    start_of,
    started_by,
    supervisor_pid,
    withdraw,
)
from outrider.errors import UnavailableError

MESH = RunningMesh(os.getpid(), "127.0.0.1", [{"name": "edge", "port": 4433}], [{"name": "m"}])
OLD = replace(MESH, supervisor_pid=1)
_UP = ("up", "--engine", "fake", "--port", "0", "--http-port", "0")


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    """A process that has nothing to do with any mesh."""
    process = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    yield process
    process.kill()
    process.wait()


def test_a_mesh_is_up_from_its_publication_to_its_withdrawal(tmp_path: Path) -> None:
    assert supervisor_pid(tmp_path) is None
    with holding(tmp_path):
        assert supervisor_pid(tmp_path) == os.getpid()
        assert running_mesh(tmp_path) is None
        publish(tmp_path, MESH)
        assert running_mesh(tmp_path) == MESH
        withdraw(tmp_path)
        assert running_mesh(tmp_path) is None
    assert supervisor_pid(tmp_path) is None


def test_how_far_a_start_is_is_said_until_the_mesh_is_up_or_gone(tmp_path: Path) -> None:
    with holding(tmp_path):
        assert start_of(tmp_path) == ""
        record_start(tmp_path, "2 of 5 processes ready")
        assert "is still starting: 2 of 5 processes ready" in no_mesh(tmp_path).message
        publish(tmp_path, MESH)
        assert start_of(tmp_path) == ""
        record_start(tmp_path, "3 of 5 processes ready")
        withdraw(tmp_path)
        assert start_of(tmp_path) == ""
        record_start(tmp_path, "1 of 5 processes ready")
    assert "starting" not in no_mesh(tmp_path).message, "what was left of a killed one"


def test_the_line_of_a_start_waits_for_no_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is written every second by the loop that starts the mesh, while the disk is busiest."""

    def sync(descriptor: int) -> None:
        pytest.fail("waits for the disk")

    monkeypatch.setattr(os, "fsync", sync)
    record_start(tmp_path, "2 of 5 processes ready")
    assert start_of(tmp_path) == "2 of 5 processes ready"


def test_commands_that_are_printed_find_the_mesh_of_their_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTRIDER_STATE_DIR", str(tmp_path))
    assert command_for("chat", tmp_path) == "outrider chat"
    other = tmp_path / "an other"
    assert command_for("chat", other) == f"outrider chat --state-dir '{other}'"
    with holding(other), pytest.raises(UnavailableError) as refused, holding(other):
        pass
    assert f"`outrider down --state-dir '{other}'`" in refused.value.message
    assert f"`outrider up --model A --model B --state-dir '{other}'`" in refused.value.message


def test_a_folder_holds_one_mesh(tmp_path: Path) -> None:
    with holding(tmp_path), pytest.raises(UnavailableError, match="already up"), holding(tmp_path):
        pass


def test_files_left_behind_are_no_mesh(tmp_path: Path) -> None:
    with holding(tmp_path):
        publish(tmp_path, MESH)
    assert running_mesh(tmp_path) is None
    with holding(tmp_path):  # they do not stop the next one, nor pass for it while it starts
        publish(tmp_path, replace(MESH, supervisor_pid=1))
        assert running_mesh(tmp_path) is None


def test_a_mesh_that_was_killed_is_told_from_one_that_was_stopped(tmp_path: Path) -> None:
    assert killed_mesh(tmp_path) is None
    with holding(tmp_path):
        publish(tmp_path, MESH)
        assert killed_mesh(tmp_path) is None, "it is up"
    assert killed_mesh(tmp_path) == MESH
    assert f"killed: process {MESH.supervisor_pid}" in no_mesh(tmp_path).message
    (tmp_path / "mesh.json").write_text("{bad", encoding="utf-8")
    assert killed_mesh(tmp_path) is None
    withdraw(tmp_path)
    assert "(the last one" not in no_mesh(tmp_path).message


def test_only_processes_of_the_folder_are_left_of_a_killed_mesh(
    tmp_path: Path, stranger: subprocess.Popen[bytes]
) -> None:
    command = [
        sys.executable,
        "-c",
        "import signal; signal.pause()",
        str(tmp_path / "config" / "a"),
    ]
    with subprocess.Popen(command) as own:
        try:
            killed = replace(MESH, services=[{"pid": own.pid}, {"pid": stranger.pid}])
            while not (left := left_running(killed, tmp_path)):  # the kernel tells it after exec
                assert own.poll() is None
            assert left == [own.pid]
        finally:
            own.kill()
    assert left_running(killed, tmp_path) == []


def test_a_damaged_record_is_named(tmp_path: Path) -> None:
    with holding(tmp_path):
        (tmp_path / "mesh.json").write_text("{bad", encoding="utf-8")
        with pytest.raises(UnavailableError, match=r"mesh\.json is damaged"):
            running_mesh(tmp_path)


@pytest.mark.parametrize("left", ["", "{bad", "{}", json.dumps(asdict(OLD))])
def test_what_an_earlier_mesh_left_stops_no_start(left: str, tmp_path: Path) -> None:
    own = os.getpid()
    with holding(tmp_path):
        (tmp_path / "mesh.json").write_text(left, encoding="utf-8")
        assert started_by(own, tmp_path) is None
        publish(tmp_path, MESH)
        assert started_by(own, tmp_path) == MESH
        assert started_by(own + 1, tmp_path) is None


@pytest.mark.e2e
@pytest.mark.parametrize("command", ["down", "status"])
def test_a_pid_that_passed_to_another_program_is_left_alone(
    command: str, tmp_path: Path, stranger: subprocess.Popen[bytes]
) -> None:
    record = {"supervisor_pid": stranger.pid, "host": "127.0.0.1", "services": []}
    (tmp_path / "mesh.json").write_text(json.dumps(record), encoding="utf-8")
    (tmp_path / "mesh.lock").write_text(str(stranger.pid), encoding="utf-8")
    done = outrider(command, "--state-dir", str(tmp_path), check=False)
    assert done.returncode == 1
    assert "no mesh is up" in done.stderr
    assert stranger.poll() is None


@pytest.mark.e2e
@pytest.mark.timeout(120)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_leaving_a_detached_start_stops_it(number: signal.Signals, tmp_path: Path) -> None:
    command = [*_UP, "--detach", "--state-dir", str(tmp_path)]
    waiting = subprocess.Popen([sys.executable, "-m", "outrider.cli.main", *command])
    while supervisor_pid(tmp_path) is None:
        assert waiting.poll() is None
        time.sleep(0.02)
    waiting.send_signal(number)
    assert waiting.wait(60) == 128 + number
    assert supervisor_pid(tmp_path) is None


@pytest.mark.e2e
@pytest.mark.timeout(120)
def test_down_stops_a_mesh_that_is_still_starting(tmp_path: Path) -> None:
    command = [*_UP, "--state-dir", str(tmp_path)]
    started = subprocess.Popen(
        [sys.executable, "-m", "outrider.cli.main", *command], stderr=subprocess.PIPE
    )
    try:
        while supervisor_pid(tmp_path) is None:
            assert started.poll() is None
            time.sleep(0.02)
        done = outrider("down", "--state-dir", str(tmp_path))
        assert "stopped" in done.stderr
        assert started.wait(60) == 0
    finally:
        started.send_signal(signal.SIGKILL)
        assert started.stderr is not None
        started.stderr.close()
        started.wait()


@pytest.mark.e2e
def test_a_folder_that_cannot_be_made_is_one_clear_line() -> None:
    done = outrider("up", "--engine", "fake", "--state-dir", "/dev/null/here", check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("outrider: ")
    assert "/dev/null" in done.stderr
    assert len(done.stderr.splitlines()) == 1
