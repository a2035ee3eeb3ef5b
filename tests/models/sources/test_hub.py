"""Whole folders of a hub against a real server: only what makes the model is fetched, from one
commit, compared with its digests, gone on with, and stored whole or not at all."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from outrider.errors import ArtifactCorruptError, OutriderError, SourceError, UnsupportedModelError
from outrider.models.catalog import ModelSpec
from outrider.models.folder import unpacked
from outrider.models.sources import hub as hub_source
from outrider.models.sources.web import MAX_ATTEMPTS, WebSource
from outrider.models.store import ModelStore
from outrider.models.vocabulary import load_vocabulary
from tests.models.checkpoints import LLAMA, Small, random_tensors, write_checkpoint
from tests.models.sources.hub_server import COMMITS, Hub, hub_of, serve_hub
from tests.models.test_folder import write_folder
from tests.models.test_tokenizer_json import small as small_tokenizer

SOURCE = "hf:org/name@main"
SHARD = "model-00002-of-00002.safetensors"
NEW = COMMITS[1]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    small = Small(LLAMA, 288, width=64, heads=2, kv_heads=1, head_size=32, inner=64)
    tokenizer = small_tokenizer("gpt-2")
    return write_checkpoint(tmp_path / "m", small, random_tensors(small), tokenizer, shards=2)


@pytest.fixture
def hub(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with serve_hub(hub_of(folder)) as running:
        monkeypatch.setenv("HF_ENDPOINT", running.url)
        monkeypatch.setenv("HF_TOKEN", "secret")

        def impatient(*args: Any, backoff_s: float, **more: Any) -> WebSource:
            return WebSource(*args, backoff_s=0.0, **more)

        monkeypatch.setattr(hub_source, "WebSource", impatient)
        yield running


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    return ModelStore(tmp_path / "store")


def test_a_folder_of_the_hub_is_the_artifact_that_the_files_make_here(
    hub: Hub, folder: Path, store: ModelStore, tmp_path: Path
) -> None:
    artifact = store.ensure(SOURCE)
    assert artifact.sha256 == ModelStore(tmp_path / "other").ensure(f"dir:{folder}").sha256
    assert hub.fetched() == [
        "model.safetensors.index.json",
        *sorted(path.name for path in folder.iterdir()),
    ]
    assert all(f"/{COMMITS[0]}/" in path for path, _, _ in hub.requests[1:]), "of one commit"
    assert {token for path, token, _ in hub.requests if "/api/" in path} == {"Bearer secret"}
    vocabulary = load_vocabulary(ModelSpec("m", SOURCE, artifact.sha256), store)
    assert vocabulary.size == 288
    num_requests = len(hub.requests)
    store.ensure(SOURCE)
    assert len(hub.requests) == num_requests, "what is there is not asked for"


def test_a_graph_of_the_hub(hub: Hub, store: ModelStore, tmp_path: Path) -> None:
    hub.files = hub_of(write_folder(tmp_path / "ir")).files
    artifact = store.ensure(SOURCE)
    assert (unpacked(artifact, store) / "openvino_model.bin").read_bytes() == b"weights" * 1000
    assert "pytorch_model.bin" not in hub.fetched()


def test_broken_connections_are_gone_on_with(
    hub: Hub, folder: Path, store: ModelStore, tmp_path: Path
) -> None:
    hub.cuts = {SHARD: [1000, 500], "config.json": [10]}
    artifact = store.ensure(SOURCE)
    assert artifact.sha256 == ModelStore(tmp_path / "other").ensure(f"dir:{folder}").sha256
    ranges = [found for path, _, found in hub.requests if path.endswith(SHARD) and "stor" in path]
    assert ranges == [None, "bytes=1000-", "bytes=1500-"]


@pytest.mark.parametrize("cut", [0, 1, 1000, None])
def test_another_process_goes_on_where_one_gave_up(
    cut: int | None, hub: Hub, folder: Path, store: ModelStore, tmp_path: Path
) -> None:
    whole = len(hub.files[SHARD])
    hub.cuts = {SHARD: [whole if cut is None else cut]}
    hub.statuses = {"tokenizer.json": [403]} if cut is None else {}
    if cut is not None:
        hub.cuts[SHARD] += [0] * (MAX_ATTEMPTS - 1)
    with pytest.raises(SourceError):
        store.ensure(SOURCE)
    assert store.list() == ()
    hub.requests.clear()
    artifact = ModelStore(store.root).ensure(SOURCE)
    assert artifact.sha256 == ModelStore(tmp_path / "other").ensure(f"dir:{folder}").sha256
    assert "config.json" not in hub.fetched(), "what was compared is not fetched again"
    if cut:
        assert f"bytes={cut}-" in [found for _, _, found in hub.requests]
    if cut is None:
        assert SHARD not in hub.fetched()


def test_a_whole_file_without_a_digest_is_not_taken_unseen(
    hub: Hub, folder: Path, store: ModelStore, tmp_path: Path
) -> None:
    """Nothing says that bytes which an earlier process left are the file's: it is fetched again."""
    hub.listed[SHARD] = {"lfs": {"size": len(hub.files[SHARD])}}
    hub.cuts = {SHARD: [len(hub.files[SHARD])]}
    hub.statuses = {"tokenizer.json": [403]}
    with pytest.raises(SourceError):
        store.ensure(SOURCE)
    [part] = (store.root / "partial").glob("*.part")
    data = bytearray(part.read_bytes())
    at = data.index(hub.files[SHARD]) + len(hub.files[SHARD])
    state = part.with_suffix(".json")
    kept = json.loads(state.read_text())
    state.write_text(json.dumps(kept | {"num_bytes": at}))
    data[at - 1] ^= 1
    part.write_bytes(data[:at])
    hub.requests.clear()
    artifact = ModelStore(store.root).ensure(SOURCE)
    assert SHARD in hub.fetched()
    assert artifact.sha256 == ModelStore(tmp_path / "other").ensure(f"dir:{folder}").sha256


def test_a_server_without_ranges_sends_a_file_again(
    hub: Hub, folder: Path, store: ModelStore, tmp_path: Path
) -> None:
    hub.cuts, hub.ignores_ranges = {SHARD: [1000]}, True
    artifact = store.ensure(SOURCE)
    assert artifact.sha256 == ModelStore(tmp_path / "other").ensure(f"dir:{folder}").sha256


def test_of_bytes_with_another_digest_nothing_is_kept(hub: Hub, store: ModelStore) -> None:
    for name in ("config.json", SHARD):
        true = hub.files[name]
        hub.sent = {name: true[:-1] + bytes([true[-1] ^ 1])}
        with pytest.raises(ArtifactCorruptError, match=f"{name} has the digest .* hub says"):
            store.ensure(SOURCE)
        assert store.list() == ()
        hub.sent = {}
        hub.requests.clear()
    store.ensure(SOURCE)
    assert SHARD in hub.fetched()
    assert "config.json" not in hub.fetched(), "what was compared is kept"


@pytest.mark.parametrize("source", [SOURCE, "hf:org/name"])
def test_a_branch_means_the_commit_of_the_first_pull(
    source: str, hub: Hub, store: ModelStore
) -> None:
    first = store.ensure(source)
    hub.older = {hub.commit: hub.files}
    hub.files = hub.files | {"config.json": hub.files["config.json"] + b"\n"}
    hub.commit = NEW
    first.path.chmod(0o644)
    first.path.write_bytes(b"damaged")
    again = store.ensure(source)
    assert again.sha256 == first.sha256, "fetched from the older commit"
    assert hub.requests[-1][0].startswith(f"/storage/{COMMITS[0]}/")
    newer = store.pull(source)
    assert newer.sha256 != first.sha256


def test_a_commit_is_that_commit(hub: Hub, store: ModelStore) -> None:
    store.ensure(f"hf:org/name@{hub.commit}")
    hub.listing = hub.answer(hub.commit).replace(b"a" * 40, b"c" * 40)
    with pytest.raises(SourceError, match="answers with the commit c"):
        store.pull(f"hf:org/name@{hub.commit}")
    with pytest.raises(SourceError, match="answered 404"):
        store.pull("hf:org/name@nobranch")


def _lists(name: str, **entry: Any) -> Callable[[Hub], None]:
    return lambda hub: hub.listed.update({name: entry})


def _says(listing: object) -> Callable[[Hub], None]:
    data = listing if isinstance(listing, bytes) else json.dumps(listing).encode()
    return lambda hub: setattr(hub, "listing", data)


def _has(**changes: bytes | None) -> Callable[[Hub], None]:
    def change(hub: Hub) -> None:
        names = {"index": "model.safetensors.index.json", "shard": SHARD, "config": "config.json"}
        for key, content in changes.items():
            hub.files.pop(names[key])
            if content is not None:
                hub.files[names[key]] = content

    return change


def _sends(name: str, content: bytes) -> Callable[[Hub], None]:
    return lambda hub: hub.sent.update({name: content})


def _redirects(target: str) -> Callable[[Hub], None]:
    return lambda hub: hub.redirects.update({SHARD: target})


def _only(**files: bytes) -> Callable[[Hub], None]:
    return lambda hub: setattr(hub, "files", {n.replace("__", "."): b for n, b in files.items()})


EVIL_INDEX = json.dumps({"weight_map": {"a": "../../../etc/passwd"}}).encode()
SHA256 = hashlib.sha256(b"x").hexdigest()


@pytest.mark.parametrize(
    ("change", "error", "complaint"),
    [
        (_has(config=None), SourceError, r"lacks config\.json"),
        (_has(shard=None), SourceError, SHARD),
        (_has(index=EVIL_INDEX), ArtifactCorruptError, "no plain name"),
        (_has(index=b"{"), ArtifactCorruptError, "no weight_map"),
        (_has(shard=b"\0" * 99), ArtifactCorruptError, f"{SHARD} is not a whole safetensors file"),
        (_only(pytorch_model__bin=b"x", config__json=b"{}"), UnsupportedModelError, "pickles"),
        (_only(a__gguf=b"x"), UnsupportedModelError, "name one of them"),
        (_only(**{"\x1b[2J__gguf": b"x"}), UnsupportedModelError, r"PATH/'\\x1b\[2J\.gguf'"),
        (_says(b"<html>"), SourceError, "listing cannot be read"),
        (_says([]), SourceError, "listing cannot be read"),
        (_says({"sha": "main", "siblings": []}), SourceError, "names no commit"),
        (_says({"sha": "a" * 40, "siblings": [{}]}), SourceError, "listing cannot be read"),
        (_says({"sha": "a" * 40, "siblings": [{"rfilename": 3}]}), SourceError, "has no name"),
        (_says(b"[" * 100_000), SourceError, "listing cannot be read"),
        (_says(b" " * ((16 << 20) + 1)), SourceError, "more than 16777216 bytes"),
        (_lists("config.json", size="3"), SourceError, "has no size"),
        (_lists("config.json", size=-1), SourceError, "has no size"),
        (_lists("config.json", blobId="zz"), SourceError, "another form"),
        (_lists(SHARD, lfs={"size": 9, "sha256": "../x"}), SourceError, "another form"),
        (_lists("config.json", size=5), SourceError, "listing says 5"),
        (_lists(SHARD, lfs={"size": 1 << 40, "sha256": SHA256}), SourceError, "above the limit"),
        (_sends(SHARD, b"short"), SourceError, "offers 5 bytes"),
        (_redirects("http://example.org/x"), SourceError, "not https; refused"),
        (_redirects("/nowhere"), SourceError, "answered 404"),
    ],
)
def test_hubs_that_lie_leave_nothing_in_the_store(
    change: Callable[[Hub], None],
    error: type[OutriderError],
    complaint: str,
    hub: Hub,
    tmp_path: Path,
) -> None:
    change(hub)
    store = ModelStore(tmp_path / "store", max_bytes=1 << 30)
    with pytest.raises(error, match=complaint):
        store.ensure(SOURCE)
    assert store.list() == ()
    assert not (store.root / "blobs").exists()
    unfinished = [path.name for path in (store.root / "partial").glob("*")]
    assert all(name.endswith((".part", ".json")) for name in unfinished)
    assert not list(tmp_path.glob("**/escape")) and not list((store.root / "tmp").iterdir())


def test_a_hub_that_lies_leaves_other_models_alone(
    hub: Hub, store: ModelStore, tmp_path: Path
) -> None:
    other = store.ensure(f"dir:{write_folder(tmp_path / 'ir')}")
    hub.sent = {SHARD: bytes(len(hub.files[SHARD]))}
    with pytest.raises(ArtifactCorruptError):
        store.ensure(SOURCE)
    assert store.load(other.source) == other
    assert store.list() == (other,)
