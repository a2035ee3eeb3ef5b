"""Files that are replaced whole, whatever fails on the way."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from outrider.durable_files import write_atomic

_WRITES_ON = """
import sys
from pathlib import Path
from outrider.durable_files import write_atomic
for number in range(10**9):
    write_atomic(Path(sys.argv[1]), b"%d;" % (number % 10) * 50_000)
    print(flush=True)
"""


_WRITES_ONCE = """
import fcntl, os, signal, sys
from pathlib import Path
from outrider.durable_files import write_atomic
def dies(*given, **named):
    os.kill(os.getpid(), signal.SIGKILL)
setattr({"flock": fcntl, "replace": Path}.get(sys.argv[2], os), sys.argv[2], dies)
write_atomic(Path(sys.argv[1]), b"new")
"""
STEPS = ("flock", "ftruncate", "write", "fchmod", "fsync", "replace")


@pytest.mark.parametrize("failing", ["open", *STEPS])
def test_a_step_that_fails_leaves_the_old_file_and_nothing_else(
    failing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    write_atomic(file, b"old")

    def full(*given: object, **named: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        place = {"flock": fcntl, "replace": Path}.get(failing, os)
        patch.setattr(place, failing, full)
        with pytest.raises(OSError, match="No space left"):
            write_atomic(file, b"new")
    assert [it.name for it in tmp_path.iterdir()] == ["file"]
    assert file.read_bytes() == b"old"


def test_a_disk_that_is_full_is_found_in_time(tmp_path: Path) -> None:
    file = tmp_path / "file"
    write_atomic(file, b"old")
    script = "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
    script += "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n" + _WRITES_ON
    ran = subprocess.run([sys.executable, "-c", script, str(file)], capture_output=True, text=True)
    assert ran.returncode == 1 and "File too large" in ran.stderr
    assert [it.name for it in tmp_path.iterdir()] == ["file"]
    assert file.read_bytes() == b"old"


def test_a_writer_that_is_killed_leaves_a_whole_file(tmp_path: Path) -> None:
    file = tmp_path / "file"
    for number in range(1, 8):
        writer = subprocess.Popen(
            [sys.executable, "-c", _WRITES_ON, str(file)], stdout=subprocess.PIPE
        )
        assert writer.stdout is not None
        for _ in range(number):
            writer.stdout.readline()
        writer.kill()
        writer.wait()
        writer.stdout.close()
        data = file.read_bytes()
        assert len(data) == 100_000 and data == data[:2] * 50_000


@pytest.mark.parametrize("step", STEPS)
def test_what_a_writer_left_that_was_killed_goes_with_the_next_write(
    step: str, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    write_atomic(file, b"old")
    killed = subprocess.run([sys.executable, "-c", _WRITES_ONCE, str(file), step])
    assert killed.returncode == -signal.SIGKILL
    assert file.read_bytes() == b"old"
    assert len(list(tmp_path.iterdir())) == 2
    write_atomic(file, b"newer")
    assert [it.name for it in tmp_path.iterdir()] == ["file"]
    assert file.read_bytes() == b"newer"


def test_a_file_that_another_process_writes_is_left_alone(tmp_path: Path) -> None:
    file, others = tmp_path / "file", tmp_path / ".new-0-file"
    with others.open("wb") as written:
        fcntl.flock(written, fcntl.LOCK_EX)
        written.write(b"half")
        written.flush()
        write_atomic(file, b"a")
        assert others.read_bytes() == b"half"
    (tmp_path / ".new-1-file").symlink_to(tmp_path / "elsewhere")
    write_atomic(file, b"b")
    assert file.read_bytes() == b"b" and not others.exists()
    with others.open("wb") as written:
        fcntl.flock(written, fcntl.LOCK_EX)
        write_atomic(file, b"c")
    assert file.read_bytes() == b"c" and not (tmp_path / "elsewhere").exists()


def test_writers_at_once_leave_one_whole_file_and_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "file"
    texts = [bytes([number]) * 10_000 for number in range(8)]

    def write_often(text: bytes) -> None:
        for _ in range(20):
            write_atomic(file, text)

    with ThreadPoolExecutor(len(texts)) as pool:
        list(pool.map(write_often, texts))
    assert file.read_bytes() in texts
    write_atomic(file, b"last")
    assert [it.name for it in tmp_path.iterdir()] == ["file"]


def test_only_its_owner_reads_it_unless_told_otherwise(tmp_path: Path) -> None:
    for mode in (0o600, 0o644):
        write_atomic(tmp_path / "file", b"a", mode=mode)
        assert (tmp_path / "file").stat().st_mode & 0o777 == mode
