"""The model store: what is published is whole, what is loaded is verified, pulls are shared."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from outrider.errors import (
    ArtifactCorruptError,
    ArtifactMissingError,
    ConfigError,
    ModelStoreError,
    SourceError,
)
from outrider.models.catalog import DEFAULT_MODEL
from outrider.models.progress import Progress
from outrider.models.store import ModelStore, default_root
from tests.models.web_server import Site, serve

BYTES = bytes(range(256)) * 40


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    return ModelStore(tmp_path / "store")


@pytest.fixture
def original(tmp_path: Path) -> Path:
    path = tmp_path / "weights.gguf"
    path.write_bytes(BYTES)
    return path


@pytest.fixture
def site() -> Iterator[Site]:
    with serve(Site(body=BYTES)) as running:
        yield running


def tree(root: Path) -> dict[str, tuple[int, int]]:
    """Every path of a directory with its size and time of change."""
    return {
        str(path.relative_to(root)): (path.stat().st_size, path.stat().st_mtime_ns)
        for path in sorted(root.rglob("*"))
    }


def published(store: ModelStore) -> list[str]:
    """The digests under blobs/."""
    return sorted(path.name for path in (store.root / "blobs").rglob("*") if path.is_file())


def unfinished(store: ModelStore) -> list[Path]:
    """What lies under tmp/ and partial/."""
    return [path for name in ("tmp", "partial") for path in (store.root / name).rglob("*")]


def test_a_pulled_file_is_found_by_its_digest(store: ModelStore, original: Path) -> None:
    artifact = store.pull(f"file:{original}")
    assert artifact.sha256 == hashlib.sha256(BYTES).hexdigest()
    assert artifact.path == store.root / "blobs/sha256" / artifact.sha256
    assert artifact.path.read_bytes() == BYTES
    assert artifact.num_bytes == len(BYTES)
    assert store.path(f"file:{original}") == artifact.path
    assert store.list() == (artifact,)
    assert unfinished(store) == []


def test_an_artifact_cannot_be_written_by_its_readers(store: ModelStore, original: Path) -> None:
    assert store.pull(f"file:{original}").path.stat().st_mode & 0o777 == 0o444


def test_a_source_never_pulled_is_missing(store: ModelStore, original: Path) -> None:
    with pytest.raises(ArtifactMissingError, match="outrider models pull"):
        store.path(f"file:{original}")


def test_the_artifact_outlives_its_source(store: ModelStore, original: Path) -> None:
    artifact = store.ensure(f"file:{original}")
    original.unlink()
    assert store.ensure(f"file:{original}") == artifact


def damage(path: Path, how: str) -> None:
    path.chmod(0o644)
    if how == "flipped":
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    elif how == "truncated":
        path.write_bytes(path.read_bytes()[:-1])
    else:
        path.unlink()


@pytest.mark.parametrize("how", ["flipped", "truncated", "gone"])
def test_damage_is_named_refused_and_healed(store: ModelStore, original: Path, how: str) -> None:
    source = f"file:{original}"
    artifact = store.pull(source)
    damage(artifact.path, how)
    with pytest.raises(ArtifactCorruptError) as refused:
        store.path(source)
    assert source in refused.value.message
    assert artifact.sha256 in refused.value.message
    assert [bool(one.problem) for one in store.verify()] == [True]
    assert store.ensure(source) == artifact
    assert artifact.path.read_bytes() == BYTES
    assert [one.problem for one in store.verify()] == [""]


def test_a_corrupt_artifact_is_not_replaced_by_other_bytes(
    store: ModelStore, original: Path
) -> None:
    artifact = store.pull(f"file:{original}")
    damage(artifact.path, "flipped")
    original.write_bytes(b"another model")
    with pytest.raises(ArtifactCorruptError, match="thrown away"):
        store.ensure(f"file:{original}")
    assert published(store) == [artifact.sha256]
    assert unfinished(store) == []


def test_pull_takes_what_the_source_holds_now(store: ModelStore, original: Path) -> None:
    store.pull(f"file:{original}")
    original.write_bytes(b"a newer model")
    newer = store.pull(f"file:{original}")
    assert newer.sha256 == hashlib.sha256(b"a newer model").hexdigest()
    assert store.list() == (newer,)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"source": 1}', b'{"a": "b"}'])
def test_a_damaged_index_entry_is_named_and_healed(
    store: ModelStore, original: Path, content: bytes
) -> None:
    source = f"file:{original}"
    artifact = store.pull(source)
    (entry,) = (store.root / "index").iterdir()
    entry.write_bytes(content)
    with pytest.raises(ArtifactCorruptError, match=entry.name):
        store.path(source)
    assert store.ensure(source) == artifact


def test_an_index_entry_of_another_source_is_refused(store: ModelStore, original: Path) -> None:
    store.pull(f"file:{original}")
    (entry,) = (store.root / "index").iterdir()
    entry.write_text(entry.read_text().replace("weights.gguf", "wrights.gguf"))
    with pytest.raises(ArtifactCorruptError, match="wrights"):
        store.path(f"file:{original}")


def test_other_bytes_than_pinned_are_refused(store: ModelStore, original: Path) -> None:
    with pytest.raises(ArtifactCorruptError, match="the pin says"):
        store.pull(f"file:{original}", sha256="0" * 64)
    assert published(store) == []
    assert unfinished(store) == []
    store.pull(f"file:{original}")
    with pytest.raises(ArtifactCorruptError, match="is wanted"):
        store.path(f"file:{original}", sha256="0" * 64)


def test_a_pin_must_be_a_digest(store: ModelStore, original: Path) -> None:
    with pytest.raises(ConfigError, match="64"):
        store.pull(f"file:{original}", sha256="../../etc/passwd")


def test_pinned_bytes_that_are_there_are_not_fetched_again(
    store: ModelStore, original: Path, site: Site
) -> None:
    digest = store.pull(f"file:{original}").sha256
    artifact = store.pull(f"{site.url}/model", sha256=digest)
    assert site.requests == []
    assert store.path(f"{site.url}/model") == artifact.path


def test_equal_bytes_are_kept_once_until_the_last_source_goes(
    store: ModelStore, original: Path, site: Site
) -> None:
    first = store.pull(f"file:{original}")
    second = store.pull(f"{site.url}/model")
    assert first.path == second.path
    built = store.derived(first, "upper", lambda folder: write(folder / "a", b"A"))
    store.remove(first.source)
    assert second.path.exists()
    assert built.exists()
    store.remove(second.source)
    assert published(store) == []
    assert not built.exists()
    with pytest.raises(ArtifactMissingError):
        store.remove(second.source)


def test_loading_writes_nothing(store: ModelStore, original: Path) -> None:
    """So a filled store may be mounted read-only."""
    artifact = store.pull(f"file:{original}")
    store.derived(artifact, "copy", lambda folder: write(folder / "a", b"A"))
    before = tree(store.root)
    store.path(artifact.source)
    store.ensure(artifact.source)
    store.derived(artifact, "copy", lambda folder: pytest.fail("built twice"))
    store.verify()
    assert tree(store.root) == before


def test_a_source_above_the_size_limit_is_refused(tmp_path: Path, site: Site) -> None:
    store = ModelStore(tmp_path / "store", max_bytes=len(BYTES) - 1)
    with pytest.raises(SourceError, match="above the limit"):
        store.pull(f"{site.url}/announced")
    site.omits_length = True
    with pytest.raises(SourceError, match="above the limit"):
        store.pull(f"{site.url}/unannounced")
    assert published(store) == []


def test_a_pull_that_cannot_fit_is_refused_before_it_starts(tmp_path: Path, site: Site) -> None:
    store = ModelStore(tmp_path / "store", max_bytes=1 << 60)
    site.announces_bytes = 1 << 59
    with pytest.raises(ModelStoreError, match="free space"):
        store.pull(f"{site.url}/huge")
    assert published(store) == []


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
        def report(progress: Progress) -> None:
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

    def interrupt(progress: Progress) -> None:
        if progress.done_bytes:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.pull(f"{site.url}/model", progress=interrupt)
    assert published(store) == []
    artifact = store.pull(f"{site.url}/model")
    assert artifact.sha256 == hashlib.sha256(site.body).hexdigest()
    assert site.ranges == [None, f"bytes={1 << 20}-"]


def test_a_copy_is_resumed_unless_the_file_changed(store: ModelStore, original: Path) -> None:
    original.write_bytes(BYTES * 400)
    reports: list[Progress] = []

    def interrupt(progress: Progress) -> None:
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


def test_progress_ends_at_the_total(store: ModelStore, site: Site) -> None:
    reports: list[Progress] = []
    store.pull(f"{site.url}/model", progress=reports.append)
    assert reports[0] == Progress("fetching", 0, len(BYTES))
    assert reports[-1] == Progress("fetching", len(BYTES), len(BYTES))


def test_an_unwritable_store_is_a_store_error(tmp_path: Path, original: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ModelStoreError, match="failed"):
        ModelStore(tmp_path / "file" / "store").pull(f"file:{original}")


def test_default_root() -> None:
    assert default_root({"OUTRIDER_MODEL_STORE": "/srv/models"}) == Path("/srv/models")
    assert default_root({}) == Path.home() / ".cache/outrider/models"


def write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


@pytest.mark.model
def test_the_default_model_is_what_the_catalogue_says() -> None:
    store = ModelStore(default_root())
    artifact = store.ensure(DEFAULT_MODEL.source, sha256=DEFAULT_MODEL.sha256)
    assert artifact.num_bytes == 98_362_432
    with artifact.path.open("rb") as file:
        assert file.read(4) == b"GGUF"
