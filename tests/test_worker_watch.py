"""Runs of two workers, one of which dies or hangs: they end, and are no success."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = """
from tests.worker_watch import WorkerWatch

watches = []

def pytest_sessionstart(session):
    plugins = session.config.pluginmanager
    if plugins.has_plugin("dsession"):
        watches.append(WorkerWatch(session, grace_s=1.0))
        plugins.register(watches[0])

def pytest_runtest_logstart(nodeid):
    # Not before: on a busy machine workers that start are silent for longer.
    if "test_hangs" in nodeid:
        for watch in watches:
            watch._max_silence_s = 4.0
"""
DIES = """
import os, signal

def test_it():
    if os.fork():
        os._exit(0)
    signal.alarm(8)
    signal.pause()  # holds the pipe to the controller until the alarm ends it
"""
HANGS = """
import ctypes

def test_hangs():
    ctypes.CDLL(None).pause()
"""
PASSES = "def test_it():\n    pass\n"


def run(folder: Path, *tests: str) -> tuple[int, str]:
    (folder / "conftest.py").write_text(CONFTEST)
    for number, text in enumerate(tests):
        (folder / f"test_{number}.py").write_text(text)
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")
    }
    # Other plugins have no part in this, and take most of the time to import.
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    plugins = ("-p", "xdist", "-p", "no:cacheprovider")
    where = ("-c", os.devnull, "--rootdir", str(folder), str(folder))
    options = ("-n", "2", "--dist", "loadfile", "--max-worker-restart", "0")
    # A file: a pipe would not end before all who hold it.
    said = folder / "said.txt"
    with said.open("w") as sink:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-s", *plugins, *options, *where],
            env=environment | {"PYTHONPATH": str(Path(__file__).parents[1])},
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
        )
    return done.returncode, said.read_text()


def test_a_worker_that_dies_ends_the_run_whoever_holds_its_pipe(tmp_path: Path) -> None:
    status, said = run(tmp_path, DIES, PASSES)
    assert status == pytest.ExitCode.INTERRUPTED
    assert "ended in the middle of the run: its process is gone" in said
    assert "1 failed, 1 passed" in said


def test_a_worker_that_hangs_says_where_and_ends_the_run(tmp_path: Path) -> None:
    status, said = run(tmp_path, HANGS, PASSES)
    assert status == pytest.ExitCode.INTERRUPTED
    assert "ended in the middle of the run: Not properly terminated" in said
    assert "test_0.py" in said and "Fatal Python error: Aborted" in said


def test_a_run_without_trouble_is_none(tmp_path: Path) -> None:
    status, said = run(tmp_path, PASSES, PASSES)
    assert status == pytest.ExitCode.OK, said
