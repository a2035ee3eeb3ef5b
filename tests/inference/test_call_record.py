"""What a process leaves behind of its engine calls, in real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from structlog.typing import EventDict

from outrider.engine_calls import MAX_CALL_REQUESTS, MAX_CRASHES, Crash, EngineCall, request_key
from services.inference.call_record import CallRecord, Preparations, WorkRecord

PROCESS = """
import os, signal, sys
from pathlib import Path
from services.inference.call_record import CallRecord, Preparations

with CallRecord(Path(sys.argv[1]), sys.argv[2]) as record:
    first, second = record.part(), record.part()
    first.begin([7, 8], 3)
    first.end()
    first.begin([11], 2)
    if sys.argv[3] == "both":
        second.begin([22], 1)
    print(record.process.hex(), flush=True)
    signal.pause()
"""


@contextmanager
def running(folder: Path, kind: str = "one", name: str = "a") -> Iterator[subprocess.Popen[str]]:
    """A process in the middle of a call, whose name is its output."""
    command = [sys.executable, "-c", PROCESS, str(folder), name, kind]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


def left_by(folder: Path, number: signal.Signals, kind: str = "one") -> tuple[bytes, CallRecord]:
    """The process that this signal ended, and the record of the next one."""
    with running(folder, kind) as process:
        assert process.stdout is not None
        name = bytes.fromhex(process.stdout.readline())
        process.send_signal(number)
        assert process.wait(60) == -number
    return name, CallRecord(folder, "a")


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE])
def test_a_crash_tells_the_call_that_it_happened_in(
    number: signal.Signals, tmp_path: Path, logs: list[EventDict]
) -> None:
    process, record = left_by(tmp_path, number)
    assert record.crashes == (Crash(process, EngineCall(frozenset({11}), 2)),)
    (logged,) = logs
    assert logged["event"] == "earlier_process_crashed"
    assert "Fatal Python error" in logged["fault"]
    assert CallRecord(tmp_path, "a").crashes == record.crashes, "the next one tells it, too"
    assert len(logs) == 1, "and logs it no more"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_who_is_ended_from_outside_has_not_crashed(number: signal.Signals, tmp_path: Path) -> None:
    _, record = left_by(tmp_path, number)
    assert record.crashes == ()
    with record:
        assert [path.name for path in (tmp_path / "a").iterdir()] == [record.process.hex()]
    assert list((tmp_path / "a").iterdir()) == [], "nothing is left of a process that was stopped"


def test_all_that_a_process_worked_on_may_be_the_reason(tmp_path: Path) -> None:
    _, record = left_by(tmp_path, signal.SIGABRT, "both")
    assert record.crashes[0].call == EngineCall(frozenset({11, 22}), 3)


def test_who_lives_has_not_crashed_and_other_replicas_crashes_are_not_told(tmp_path: Path) -> None:
    with running(tmp_path) as living:
        assert living.stdout is not None
        living.stdout.readline()
        assert CallRecord(tmp_path, "a").crashes == ()
    with running(tmp_path, name="b") as other:
        assert other.stdout is not None
        other.stdout.readline()
        other.send_signal(signal.SIGABRT)
        other.wait(60)
    assert CallRecord(tmp_path, "a").crashes == ()
    assert len(CallRecord(tmp_path, "b").crashes) == 1


def test_a_process_that_runs_keeps_its_record_when_others_begin(tmp_path: Path) -> None:
    with running(tmp_path) as living:
        assert living.stdout is not None
        process = bytes.fromhex(living.stdout.readline())
        assert CallRecord(tmp_path, "a").crashes == ()
        living.send_signal(signal.SIGABRT)
        living.wait(60)
    (crash,) = CallRecord(tmp_path, "a").crashes
    assert crash.process == process


def test_crashes_are_kept_for_a_while_and_only_so_many(tmp_path: Path) -> None:
    process, record = left_by(tmp_path, signal.SIGABRT)
    (kept,) = [path for path in (tmp_path / "a").iterdir() if path.suffix]
    for number in range(2 * MAX_CRASHES):
        copy = kept.with_name(f"{number:016x}.crashed")
        copy.write_bytes(kept.read_bytes())
        os.utime(copy, (1e9, kept.stat().st_mtime - 1.0))
    told = CallRecord(tmp_path, "a").crashes
    assert len(told) == MAX_CRASHES
    assert told[-1].process == process, "the last ones"
    for path in (tmp_path / "a").iterdir():
        os.utime(path, (1e9, 1e9))
    assert CallRecord(tmp_path, "a").crashes == ()
    assert not [path for path in (tmp_path / "a").iterdir() if path.suffix]
    assert record.crashes


def test_files_that_are_no_records_are_passed_over(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    folder.mkdir()
    (folder / "empty.crashed").write_bytes(b"")
    (folder / "not hexadecimal.crashed").write_bytes(bytes(1 << 17))
    (folder / "0011").write_bytes(b"just created")
    assert CallRecord(tmp_path, "a").crashes == ()


def test_without_a_folder_that_can_be_written_nothing_is_recorded(
    tmp_path: Path, logs: list[EventDict]
) -> None:
    (tmp_path / "file").write_text("not a folder")
    with CallRecord(tmp_path / "file", "a") as record:
        work = record.part()
        work.begin([1], 1)
        assert record.longest(0.0) is not None
        work.end()
    assert logs[0]["event"] == "calls_not_recorded"
    assert len(record.process) == 8


def test_a_replica_of_any_name_has_a_folder_of_its_own(tmp_path: Path) -> None:
    CallRecord(tmp_path, "../eu/größte 1")
    assert [path.name for path in tmp_path.iterdir()] == ["..%2Feu%2Fgr%C3%B6%C3%9Fte%201"]


def test_a_call_lasts_from_when_it_was_first_looked_at() -> None:
    record = CallRecord(None, "a")
    work, other = record.part(), record.part()
    assert record.longest(1.0) is None
    work.begin([1, 2], 3)
    assert record.longest(10.0) == EngineCall(frozenset({1, 2}), 3, 0.0)
    other.begin([9], 1)
    assert record.longest(12.5) == EngineCall(frozenset({1, 2}), 3, 2500.0)
    work.end()
    assert record.longest(13.5) == EngineCall(frozenset({9}), 1, 1000.0)
    work.begin([1], 1)
    assert work.observe(14.0).duration_ms == 0.0, "another call"
    work.end()
    work.begin([], 5)
    assert work.call == EngineCall(), "decoding alone is not recorded"


ON_A_FULL_DISK = """
import subprocess, sys
from pathlib import Path
from services.inference.call_record import CallRecord

folder = Path(sys.argv[1])
subprocess.run(("mount", "-t", "tmpfs", "-o", "size=64k", "none", folder), check=True)
try:
    (folder / "a").mkdir()
    (folder / "ballast").write_bytes(bytes(1 << 20))
except OSError:
    pass
with CallRecord(folder, "a") as record:
    work = record.part()
    work.begin([7, 8], 3)
    work.end()
print([path.name for path in (folder / "a").iterdir()])
"""


def test_a_full_disk_costs_the_record_and_not_the_process(tmp_path: Path) -> None:
    apart = ("unshare", "--user", "--map-root-user", "--mount")
    if subprocess.run((*apart, "true"), capture_output=True, check=False).returncode != 0:
        pytest.skip("no namespaces of one's own here")
    command = (*apart, sys.executable, "-c", ON_A_FULL_DISK, str(tmp_path))
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "calls_not_recorded" in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"


def test_more_requests_than_are_recorded_are_left_out(tmp_path: Path) -> None:
    with CallRecord(tmp_path, "a") as record:
        work = record.part()
        work.begin(range(1, 2 * MAX_CALL_REQUESTS), 999)
        assert len(work.call.requests) == MAX_CALL_REQUESTS


def test_preparations_overlap() -> None:
    work = WorkRecord(None, 0)
    preparations = Preparations(work)
    with preparations.of(1):
        with preparations.of(2), preparations.of(1):
            assert work.call == EngineCall(frozenset({1, 2}), 3)
        assert work.call == EngineCall(frozenset({1}), 1)
    assert work.call == EngineCall()


def test_requests_have_keys_of_their_own() -> None:
    keys = {request_key(*name) for name in (("a", "bc"), ("ab", "c"), ("", "abc"), ("1:a", "bc"))}
    assert len(keys) == 4
    assert request_key("acme", "r-1") == request_key("acme", "r-1")
