"""Derived directories: built once, whole or absent, rebuilt when damaged."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from outrider.errors import ConfigError, ModelStoreError
from outrider.models.disk.derived import MANIFEST
from outrider.models.store import Artifact, ModelStore


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    return ModelStore(tmp_path / "store")


@pytest.fixture
def artifact(store: ModelStore, tmp_path: Path) -> Artifact:
    (tmp_path / "model").write_bytes(b"weights")
    return store.pull(f"file:{tmp_path / 'model'}")


def build(folder: Path) -> None:
    (folder / "nested").mkdir()
    (folder / "nested/weights.bin").write_bytes(b"converted")
    (folder / "graph.xml").write_bytes(b"<graph/>")


def files(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != MANIFEST
    }


BUILT = {"nested/weights.bin": b"converted", "graph.xml": b"<graph/>"}


def test_it_is_built_once(store: ModelStore, artifact: Artifact) -> None:
    folder = store.derived(artifact, "ir-1", build)
    assert files(folder) == BUILT
    assert store.derived(artifact, "ir-1", lambda _: pytest.fail("built twice")) == folder


def test_threads_build_once(store: ModelStore, artifact: Artifact) -> None:
    builds: list[Path] = []
    together = threading.Barrier(4)

    def counted(folder: Path) -> None:
        builds.append(folder)
        build(folder)

    def load() -> None:
        together.wait()
        store.derived(artifact, "ir-1", counted)

    threads = [threading.Thread(target=load) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(builds) == 1


@pytest.mark.parametrize("how", ["flipped", "added", "removed", "no manifest", "bad manifest"])
def test_any_difference_is_rebuilt(store: ModelStore, artifact: Artifact, how: str) -> None:
    folder = store.derived(artifact, "ir-1", build)
    if how == "flipped":
        (folder / "graph.xml").write_bytes(b"<grapf/>")
    elif how == "added":
        (folder / "more").write_bytes(b"")
    elif how == "removed":
        (folder / "graph.xml").unlink()
    elif how == "no manifest":
        (folder / MANIFEST).unlink()
    else:
        (folder / MANIFEST).write_bytes(b"[")
    assert files(store.derived(artifact, "ir-1", build)) == BUILT
    assert list((store.root / "tmp").iterdir()) == []


def test_a_failed_build_leaves_nothing(store: ModelStore, artifact: Artifact) -> None:
    def fail(folder: Path) -> None:
        build(folder)
        raise ValueError("conversion failed")

    with pytest.raises(ValueError, match="conversion failed"):
        store.derived(artifact, "ir-1", fail)
    assert not (store.root / "derived" / artifact.sha256 / "ir-1").exists()
    assert list((store.root / "tmp").iterdir()) == []
    assert files(store.derived(artifact, "ir-1", build)) == BUILT


def test_leftovers_of_a_killed_build_are_cleared(store: ModelStore, artifact: Artifact) -> None:
    leftover = store.root / "tmp" / f"{artifact.sha256}-ir-1"
    leftover.mkdir(parents=True)
    (leftover / "half").write_bytes(b"ha")
    assert files(store.derived(artifact, "ir-1", build)) == BUILT


def test_links_and_empty_builds_are_refused(store: ModelStore, artifact: Artifact) -> None:
    with pytest.raises(ModelStoreError, match="plain files"):
        store.derived(artifact, "ir-1", lambda folder: (folder / "l").symlink_to("/etc/passwd"))
    with pytest.raises(ModelStoreError, match="nothing was built"):
        store.derived(artifact, "ir-1", lambda folder: None)


@pytest.mark.parametrize("name", ["", ".", "..", "../up", "a/b", "-x", "a\0", "x" * 200])
def test_a_name_is_a_plain_file_name(store: ModelStore, artifact: Artifact, name: str) -> None:
    with pytest.raises(ConfigError, match="cannot name"):
        store.derived(artifact, name, build)
