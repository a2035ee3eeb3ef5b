"""The model store: what is published is whole, what is loaded is verified, pulls are shared."""

from __future__ import annotations

import errno
import hashlib
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
from outrider.models.definitions import ModelSpec
from outrider.models.store import Artifact, ModelStore, default_root
from tests.models.sources.web_server import Site, serve
from tests.models.stores import published, unfinished

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


def test_models_are_told_apart_by_their_weights_or_else_by_name(
    store: ModelStore, original: Path
) -> None:
    a, b = (ModelSpec(name, f"file:{original}") for name in ("a", "b"))
    assert [store.weights_of(spec) for spec in (a, b)] == ["a", "b"], "nobody knows theirs"
    artifact = store.pull(a.source)
    assert store.weights_of(a) == store.weights_of(b) == artifact.sha256
    assert store.weights_of(ModelSpec("c", a.source, sha256="0" * 64)) == "0" * 64


def test_the_digest_of_the_first_pull_is_recorded(store: ModelStore, original: Path) -> None:
    source = f"file:{original}"
    assert store.recorded(source) == ""
    artifact = store.ensure(source, sha256="")
    assert store.recorded(source) == artifact.sha256
    original.write_bytes(b"another model")
    assert store.ensure(source, sha256="") == artifact


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


def test_what_was_built_is_found_without_a_look_at_the_artifact(
    store: ModelStore, original: Path
) -> None:
    source = f"file:{original}"
    assert store.intact(source, "copy") is None, "never pulled"
    artifact = store.pull(source)
    assert store.intact(source, "copy") is None, "never built"
    built = store.derived(artifact, "copy", lambda folder: write(folder / "a", b"A"))
    artifact.path.chmod(0o644)
    write(artifact.path, b"other bytes")
    for pin in (None, "", artifact.sha256):
        assert store.intact(source, "copy", sha256=pin) == built
    assert store.intact(source, "copy", sha256="0" * 64) is None
    assert store.intact(source, "other") is None
    write(built / "a", b"B")
    assert store.intact(source, "copy") is None, "damaged"


def test_other_users_of_the_machine_may_read_what_is_there(
    store: ModelStore, original: Path
) -> None:
    artifact = store.pull(f"file:{original}")
    built = store.derived(artifact, "copy", lambda folder: write(folder / "a", b"A"))
    entries = list((store.root / "index").iterdir())
    for path in (*entries, artifact.path, *(it for it in built.iterdir() if it.is_file())):
        assert path.stat().st_mode & 0o044 == 0o044, path


def test_a_pull_that_was_killed_before_it_was_published_can_be_made_again(
    store: ModelStore, original: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(_: Path, __: Path) -> Path:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Path, "replace", killed)
        store.pull(f"file:{original}")
    for left in (store.root / "partial").iterdir():
        assert left.stat().st_mode & 0o200, "whoever comes next writes to it"
    assert store.pull(f"file:{original}").path.read_bytes() == BYTES


def test_what_is_removed_while_it_is_found_by_its_digest_is_fetched(
    store: ModelStore, original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = store.pull(f"file:{original}")
    again = tmp_path / "again.gguf"
    again.write_bytes(BYTES)
    looked = store._problem

    def look(artifact: Artifact) -> str:
        """It takes seconds of a large one, without a lock."""
        found = looked(artifact)
        if store.recorded(f"file:{original}"):
            store.remove(f"file:{original}")
        return found

    monkeypatch.setattr(store, "_problem", look)
    assert store.pull(f"file:{again}", sha256=first.sha256).path.read_bytes() == BYTES


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


def test_a_root_that_is_no_folder_is_a_store_error(tmp_path: Path, original: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    store, source = ModelStore(tmp_path / "file"), f"file:{original}"
    for ask in (store.path, store.load, store.ensure, store.pull, store.remove):
        with pytest.raises(ModelStoreError, match="OUTRIDER_MODEL_STORE"):
            ask(source)


def test_a_disk_that_fails_while_something_is_built(store: ModelStore, original: Path) -> None:
    artifact = store.pull(f"file:{original}")

    def build(folder: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(ModelStoreError, match="No space left"):
        store.derived(artifact, "built", build)
    write(store.root / "derived", b"in the way")
    with pytest.raises(ModelStoreError, match="Not a directory"):
        store.derived(artifact, "built", lambda folder: write(folder / "part", b"x"))


def test_default_root() -> None:
    assert default_root({"OUTRIDER_MODEL_STORE": "/srv/models"}) == Path("/srv/models")
    assert default_root({}) == Path.home() / ".cache/outrider/models"


def write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
