"""Workers are forked from a process that has loaded all, and from another where that is gone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from array import array
from collections.abc import Iterator
from contextlib import closing
from multiprocessing import Pipe
from pathlib import Path

import pytest

from outrider.bulk import fork_server
from outrider.bulk.fork_server import ForkServer
from outrider.bulk.plan.results import ShardResult
from outrider.bulk.plan.shards import BulkSettings, Shard
from outrider.bulk.worker import BulkJob
from outrider.models.vocabulary import Vocabulary
from outrider.tokenization.backends.base import REFERENCE, Reference
from outrider.tokenization.backends.packages import PACKAGES, installed_version, make_backend
from tests.bulk.making import contents, tokenize
from tests.models import corpus

pytestmark = pytest.mark.model


@pytest.fixture
def job(vocabulary: Vocabulary, tmp_path: Path) -> BulkJob:
    return BulkJob(str(tmp_path), BulkSettings(), vocabulary, REFERENCE, None)


@pytest.fixture
def forking(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(fork_server, "_may_fork", lambda: True)
    yield


def written(server: ForkServer, number: int) -> tuple[int, ShardResult]:
    """A new worker's process, and what it makes of an empty shard."""
    ours, theirs = Pipe()
    with ours:
        with theirs:
            pid = server.fork(theirs.fileno())
        ours.send(Shard(number, (), 1))
        result = ours.recv()
    assert isinstance(result, ShardResult)
    return pid, result


def test_workers_end_with_their_pipe(job: BulkJob, forking: None) -> None:
    with closing(ForkServer(job, None)) as server:
        for number in range(3):
            pid, result = written(server, number)
            assert result.number == number
            assert server.ended(pid) == 0


def test_a_server_that_was_killed_is_replaced(job: BulkJob, forking: None) -> None:
    with closing(ForkServer(job, None)) as server:
        first, _ = written(server, 0)
        os.kill(os.getpgid(first), signal.SIGKILL)  # its parent leads the session
        second, result = written(server, 1)
        assert result.number == 1
        assert os.getpgid(second) != os.getpgid(os.getpid())
        assert server.ended(first) is None or server.ended(second) == 0


def test_a_backend_that_does_not_survive_a_fork_is_loaded_anew(
    job: BulkJob, forking: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that waits for a thread of the other process, as a pool of threads does."""
    home = os.getpid()

    class Pooled(Reference):
        def encode(self, text: str) -> array[int]:
            if os.getpid() != home:
                threading.Event().wait()
            return super().encode(text)

    monkeypatch.setattr(fork_server, "_PROBE_S", 1)
    with closing(ForkServer(job, Pooled(job.vocabulary))) as server:
        pid, result = written(server, 0)
        assert result.number == 0
        assert server.ended(pid) == 0


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_encode_in_a_fork_of_the_process_that_loaded_them(
    package: str, vocabulary: Vocabulary, tmp_path: Path
) -> None:
    """The very command, in a process of its own, and no second load."""
    if installed_version(package) is None:
        pytest.skip(f"{package} is not installed")
    make_backend(package, vocabulary)
    file = tmp_path / "a.txt"
    file.write_text("\n".join(corpus.LANGUAGES * 8))
    tokenize(vocabulary, [file], tmp_path / "b", BulkSettings(shard_bytes=2000))
    code = f"""
from outrider.bulk import fork_server
def refuse(job): raise AssertionError("it was loaded anew")
fork_server._executed = refuse
import sys
sys.argv = ["outrider", "tokenize", {str(file)!r}, "--out", {str(tmp_path / "a")!r}, "--workers",
            "2", "--shard-mb", "{2000 / (1 << 20)}", "--backend", {package!r}]
from outrider.cli.main import main
main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_workers_of_a_server_that_was_executed_never_load_grpc(
    job: BulkJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does the server, which would fork with gRPC's threads missing."""
    monkeypatch.setattr(fork_server, "_may_fork", lambda: False)
    with closing(ForkServer(job, None)) as server:
        pid, _ = written(server, 0)
        for each in (pid, os.getpgid(pid)):
            assert "cygrpc" not in Path(f"/proc/{each}/maps").read_text()


def test_workers_that_are_forked_of_the_command_never_load_grpc(
    vocabulary: Vocabulary, tmp_path: Path
) -> None:
    """The very command; its workers say what they have loaded after each shard."""
    file = tmp_path / "a.txt"
    file.write_text("\n".join(corpus.LANGUAGES * 8))
    said = tmp_path / "said"
    code = f"""
from outrider.bulk import fork_server
def refuse(job): raise AssertionError("it was not forked")
fork_server._executed = refuse
result = fork_server._result
def then_say(worker, shard):
    made = result(worker, shard)
    with open({str(said)!r}, "a") as file:
        print("grpc" in sys.modules, "cygrpc" in open("/proc/self/maps").read(), file=file)
    return made
fork_server._result = then_say
import sys
sys.argv = ["outrider", "tokenize", {str(file)!r}, "--out", {str(tmp_path / "b")!r}, "--workers",
            "2", "--shard-mb", "{2000 / (1 << 20)}"]
from outrider.cli.main import main
main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    assert set(said.read_text().splitlines()) == {"False False"}


def test_a_process_with_threads_is_not_forked() -> None:
    ended = threading.Event()
    thread = threading.Thread(target=ended.wait)
    thread.start()
    try:
        assert not fork_server._may_fork()
    finally:
        ended.set()
        thread.join()
