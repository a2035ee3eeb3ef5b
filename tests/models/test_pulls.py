"""Pulls by several processes and threads at once, killed, interrupted and starved of disk."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from outrider.errors import ArtifactCorruptError, ArtifactMissingError
from outrider.models.disk.fetch import PullProgress
from outrider.models.store import ModelStore
from tests.models.sources.web_server import Site, serve
from tests.models.stores import published, unfinished

BYTES = bytes(range(256)) * 40


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    return ModelStore(tmp_path / "store")


@pytest.fixture
def site() -> Iterator[Site]:
    with serve(Site(body=BYTES)) as running:
        yield running


def run_pull(store: ModelStore, source: str, prelude: str = "") -> subprocess.Popen[str]:
    """Pull in a process of its own; it prints each stage as it is reached, and the outcome."""
    script = (
        "import sys\nfrom pathlib import Path\n"
        "from outrider.errors import OutriderError\n"
        "from outrider.models.store import ModelStore\n"
        f"{prelude}\n"
        "try:\n"
        "    store = ModelStore(Path(sys.argv[1]))\n"
        "    report = lambda p: print(p.stage, flush=True)\n"
        "    print(store.pull(sys.argv[2], progress=report).sha256)\n"
        "except OutriderError as error:\n"
        "    print(type(error).__name__, error.message)\n"
    )
    command = [sys.executable, "-c", script, str(store.root), source]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_a_disk_that_fills_up_keeps_nothing(store: ModelStore, site: Site) -> None:
    """The kernel refuses the write: a file-size limit here stands for the full disk."""
    site.body = bytes(3 << 20)
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))"
    with run_pull(store, f"{site.url}/model", limit) as process:
        said, _ = process.communicate()
    assert "ModelStoreError the disk of" in said
    assert published(store) == []
    assert unfinished(store) == []


def test_two_processes_pull_once(store: ModelStore, site: Site) -> None:
    """The second process starts while the first one's body is held back, and waits for it."""
    process: list[subprocess.Popen[str]] = []

    def hold_until_the_other_waits() -> None:
        process.append(run_pull(store, f"{site.url}/model"))
        assert process[0].stdout is not None
        assert process[0].stdout.readline() == "waiting\n"

    site.before_body = hold_until_the_other_waits
    artifact = store.pull(f"{site.url}/model")
    said, _ = process[0].communicate()
    assert said.splitlines()[-1] == artifact.sha256
    assert len(site.requests) == 1


def test_two_threads_pull_once(store: ModelStore, site: Site) -> None:
    waiting = threading.Event()
    stages: list[str] = []

    def second() -> None:
        def report(progress: PullProgress) -> None:
            stages.append(progress.stage)
            waiting.set()

        store.pull(f"{site.url}/model", progress=report)

    thread = threading.Thread(target=second)

    def hold() -> None:
        thread.start()
        assert waiting.wait(30)

    site.before_body = hold
    store.pull(f"{site.url}/model")
    thread.join()
    assert stages == ["waiting"]
    assert len(site.requests) == 1


def test_who_waited_for_a_pull_that_failed_pulls_itself(store: ModelStore, site: Site) -> None:
    waiting = threading.Event()
    found: list[str] = []

    def second() -> None:
        artifact = store.pull(f"{site.url}/model", progress=lambda _: waiting.set())
        found.append(artifact.sha256)

    thread = threading.Thread(target=second)

    def fail_once() -> None:
        site.before_body = lambda: None
        thread.start()
        assert waiting.wait(30)

    site.before_body = fail_once
    with pytest.raises(ArtifactCorruptError):
        store.pull(f"{site.url}/model", sha256="0" * 64)
    thread.join()
    assert found == [hashlib.sha256(BYTES).hexdigest()]


def test_a_killed_pull_publishes_nothing_and_is_resumed(store: ModelStore, site: Site) -> None:
    """SIGKILL after 33 MiB: the next pull goes on from the checkpoint at 32 MiB."""
    site.body = BYTES * 3400
    sent = threading.Event()
    process: list[subprocess.Popen[str]] = []

    def kill() -> None:
        assert process[0].stdout is not None
        for _ in range(34):
            process[0].stdout.readline()  # one report per MiB received
        process[0].kill()
        process[0].wait()
        sent.set()

    site.cuts, site.at_cut = [33 << 20], kill
    process.append(run_pull(store, f"{site.url}/model"))
    assert sent.wait(60)
    process[0].communicate()
    assert published(store) == []
    with pytest.raises(ArtifactMissingError):
        store.path(f"{site.url}/model")
    artifact = store.pull(f"{site.url}/model")
    assert artifact.sha256 == hashlib.sha256(site.body).hexdigest()
    assert site.ranges == [None, f"bytes={32 << 20}-"]
    assert unfinished(store) == []


def test_an_interrupted_pull_is_resumed_where_it_stopped(store: ModelStore, site: Site) -> None:
    site.body = BYTES * 400

    def interrupt(progress: PullProgress) -> None:
        if progress.done_bytes:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.pull(f"{site.url}/model", progress=interrupt)
    assert published(store) == []
    artifact = store.pull(f"{site.url}/model")
    assert artifact.sha256 == hashlib.sha256(site.body).hexdigest()
    assert site.ranges == [None, f"bytes={1 << 20}-"]


def test_a_copy_is_resumed_unless_the_file_changed(store: ModelStore, tmp_path: Path) -> None:
    original = tmp_path / "weights.gguf"
    original.write_bytes(BYTES * 400)
    reports: list[PullProgress] = []

    def interrupt(progress: PullProgress) -> None:
        if progress.done_bytes:
            raise KeyboardInterrupt

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            store.pull(f"file:{original}", progress=interrupt)
    artifact = store.pull(f"file:{original}", progress=reports.append)
    assert reports[0].done_bytes == 1 << 20
    assert artifact.path.read_bytes() == BYTES * 400
    with pytest.raises(KeyboardInterrupt):
        store.pull(f"file:{original}", progress=interrupt)
    original.write_bytes(BYTES[::-1] * 400)
    assert store.pull(f"file:{original}").path.read_bytes() == BYTES[::-1] * 400
