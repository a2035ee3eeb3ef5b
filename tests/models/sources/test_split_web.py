"""Split GGUF files from a hub, over real connections: the parts are joined to the artifact that the
same files make here, and what is missing or wrong is named."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outrider.errors import ArtifactCorruptError, ModelStoreError, SourceError
from outrider.models.sources import parse, split_web
from outrider.models.sources.split_web import SplitWebSource
from outrider.models.sources.web import WebSource
from outrider.models.store import ModelStore
from tests.models.sources.hub_server import Hub, serve_hub
from tests.models.sources.test_split_gguf import write_split

FIRST, SECOND, THIRD = (f"m-{n:05}-of-00003.gguf" for n in (1, 2, 3))
SOURCE = f"hf:org/name#q4/{FIRST}"
ALL = 1 << 30
"""Bytes sent before the connection breaks, of an answer that does not."""


def repository(folder: Path, **changes: Any) -> Hub:
    parts = {f"q4/{path.name}": path.read_bytes() for path in write_split(folder)}
    claims = {name: hashlib.sha256(data).hexdigest() for name, data in parts.items()}
    return Hub(parts, commit="main", claims=claims, **changes)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    folder = tmp_path / "parts"
    folder.mkdir()

    def impatient(*args: Any, backoff_s: float, **more: Any) -> WebSource:
        return WebSource(*args, backoff_s=0.0, **more)

    monkeypatch.setattr(split_web, "WebSource", impatient)
    with serve_hub(repository(folder)) as running:
        monkeypatch.setenv("HF_ENDPOINT", running.url)
        monkeypatch.setenv("HF_TOKEN", "secret")
        yield running


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    return ModelStore(tmp_path / "store")


def left_over(store: ModelStore) -> list[str]:
    return [path.name for path in (store.root / "partial").rglob("*")]


def ranges(hub: Hub, name: str) -> list[str | None]:
    """Of the requests for a part's bytes, the first of which only asks what is offered."""
    return [span for path, _, span in hub.requests if path.endswith(f"/storage/main/q4/{name}")][1:]


def test_parts_of_a_hub_are_the_artifact_that_they_are_here(
    hub: Hub, store: ModelStore, tmp_path: Path
) -> None:
    artifact = store.ensure(SOURCE)
    here = ModelStore(tmp_path / "other").ensure(f"file:{tmp_path}/parts/{FIRST}")
    assert artifact.sha256 == here.sha256
    assert artifact.path.read_bytes() == here.path.read_bytes()
    assert hub.fetched() == [FIRST, SECOND, THIRD] * 2, "offered, then fetched"
    assert {token for path, token, _ in hub.requests if "/resolve/" in path} == {"Bearer secret"}
    assert left_over(store) == []


def test_parts_of_an_address_keep_its_query(hub: Hub, store: ModelStore) -> None:
    source = f"{hub.url}/storage/main/q4/{FIRST}"
    wanted = store.ensure(SOURCE).sha256
    assert store.ensure(source).sha256 == wanted
    asked = parse.parse_source(f"https://host/a/{FIRST}?download=true")
    assert isinstance(asked, SplitWebSource)
    assert isinstance(parse.parse_source(f"https://host/{FIRST}/model.gguf"), WebSource)
    assert asked._web(f"/a/{SECOND}", SECOND).url == f"https://host/a/{SECOND}?download=true"


def test_a_pull_that_broke_continues_in_the_part_where_it_broke(
    hub: Hub, store: ModelStore
) -> None:
    whole = store.ensure(SOURCE).sha256
    store.remove(SOURCE)
    hub.requests.clear()
    hub.cuts[f"q4/{SECOND}"] = [ALL, 100, 20, 0, 0, 0]
    with pytest.raises(SourceError, match=f"{SECOND}: gave up after 5 attempts"):
        store.pull(SOURCE)
    assert ranges(hub, SECOND) == [None, "bytes=100-", *["bytes=120-"] * 3]
    assert ranges(hub, THIRD) == []
    hub.requests.clear()
    assert store.pull(SOURCE).sha256 == whole
    assert ranges(hub, FIRST) == [], "it is here"
    assert ranges(hub, SECOND) == ["bytes=120-"]
    assert ranges(hub, THIRD) == [None]
    assert left_over(store) == []


def test_a_part_that_changed_between_two_pulls_is_fetched_again(
    hub: Hub, store: ModelStore, tmp_path: Path
) -> None:
    hub.cuts[f"q4/{SECOND}"] = [ALL, 100, 0, 0, 0, 0]
    with pytest.raises(SourceError):
        store.pull(SOURCE)
    (tmp_path / "newer").mkdir()
    paths = write_split(tmp_path / "newer", part1={"other": 1})
    hub.files = {f"q4/{path.name}": path.read_bytes() for path in paths}
    hub.claims = {}
    pulled = store.pull(SOURCE)
    here = ModelStore(tmp_path / "other").ensure(f"file:{paths[0]}")
    assert pulled.path.read_bytes() == here.path.read_bytes()


def test_a_missing_part_is_named_before_any_byte_is_fetched(hub: Hub, store: ModelStore) -> None:
    del hub.files[f"q4/{THIRD}"]
    with pytest.raises(SourceError, match=f"{THIRD}: the server answered 404"):
        store.pull(SOURCE)
    assert hub.fetched() == [FIRST, SECOND, THIRD]
    assert ranges(hub, FIRST) == []
    with pytest.raises(SourceError, match=f"part 2 of 3; name the first, {FIRST}"):
        store.pull(f"hf:org/name#q4/{SECOND}")


def test_a_part_with_another_digest_than_claimed_is_thrown_away(
    hub: Hub, store: ModelStore
) -> None:
    hub.sent[f"q4/{SECOND}"] = hub.files[f"q4/{SECOND}"][:-1] + b"\x77"
    with pytest.raises(ArtifactCorruptError, match=rf"{SECOND}: .* its origin says"):
        store.pull(SOURCE)
    assert SECOND not in left_over(store)
    assert store.list() == ()
    hub.sent.clear()
    assert store.pull(SOURCE).num_bytes


def test_parts_of_two_files_are_refused_and_not_kept(
    hub: Hub, store: ModelStore, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    other = write_split(tmp_path / "other", part2={"no": 2})[1].read_bytes()
    hub.files[f"q4/{SECOND}"] = other
    hub.claims[f"q4/{SECOND}"] = hashlib.sha256(other).hexdigest()
    with pytest.raises(ArtifactCorruptError, match=f"{SECOND} does not belong to the first part"):
        store.pull(SOURCE)
    assert left_over(store) == []


def test_the_limit_and_the_disk_are_looked_at_for_all_parts_together(
    hub: Hub, store: ModelStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = [len(data) for data in hub.files.values()]
    small = ModelStore(tmp_path / "small", max_bytes=sum(sizes) - 1)
    with pytest.raises(SourceError, match="above the limit"):
        small.pull(SOURCE)
    usage = shutil.disk_usage(tmp_path)
    needed = sum(sizes) + max(sizes)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=needed - 1))
    with pytest.raises(ModelStoreError, match=f"{needed} bytes are needed"):
        store.pull(SOURCE)
    assert hub.fetched() == [FIRST, SECOND, THIRD] * 2, "only what is offered"
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=needed))
    assert store.pull(SOURCE).num_bytes


def test_what_is_known_by_its_digest_comes_from_mirrors(
    hub: Hub, store: ModelStore, tmp_path: Path
) -> None:
    artifact = store.ensure(SOURCE)

    class Mirrors:
        def fetch(self, sha256: str, path: Path, **_: Any) -> int:
            assert sha256 == artifact.sha256
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(artifact.path, path)
            return artifact.num_bytes

    hub.requests.clear()
    other = ModelStore(tmp_path / "other", mirrors=Mirrors())
    assert other.ensure(SOURCE, sha256=artifact.sha256).num_bytes == artifact.num_bytes
    assert hub.requests == []
