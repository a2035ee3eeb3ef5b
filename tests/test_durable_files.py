"""Files that are replaced whole, whatever fails on the way."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import tempfile
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


@pytest.mark.parametrize("failing", ["mkstemp", "fdopen", "fchmod", "fsync", "replace"])
def test_a_step_that_fails_leaves_the_old_file_and_nothing_else(
    failing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    write_atomic(file, b"old")

    def full(*given: object, **named: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        place = {"mkstemp": tempfile, "replace": Path}.get(failing, os)
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


def test_only_its_owner_reads_it_unless_told_otherwise(tmp_path: Path) -> None:
    for mode in (0o600, 0o644):
        write_atomic(tmp_path / "file", b"a", mode=mode)
        assert (tmp_path / "file").stat().st_mode & 0o777 == mode
