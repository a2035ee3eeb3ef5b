"""A model arrives whole, from whichever mirrors, or not at all; nothing is fetched twice."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import obstore
import pytest

from outrider.errors import ModelStoreError, SourceError
from outrider.mirrors import fetch
from outrider.mirrors.config import MirrorConfig
from outrider.mirrors.fetch import Mirrors
from outrider.mirrors.folder import FolderMirror
from outrider.mirrors.manifest import (
    MAX_SHARD_BYTES,
    MIN_SHARD_BYTES,
    manifest_name,
    num_shards,
    shard_name,
)
from outrider.mirrors.opening import open_mirror, open_mirrors
from outrider.mirrors.push import push
from outrider.mirrors.s3 import S3Mirror
from outrider.mirrors.web import WebMirror
from outrider.models.disk.fetch import PullProgress, ignore_progress
from outrider.models.store import ModelStore
from tests.mirrors.cutting_relay import cutting_relay
from tests.mirrors.models import NUM_SHARDS, SHARD_BYTES, SmallModel, flipped, peer, small_model
from tests.models.sources.web_server import Site, serve
from tests.models.stores import published, unfinished
from tests.s3_server import S3Server, s3_server


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> SmallModel:
    return small_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def bucket_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    root = tmp_path_factory.mktemp("s3")
    (root / "models").mkdir()
    with s3_server(root) as server:
        yield server


@pytest.fixture
def bucket(bucket_server: S3Server, model: SmallModel, monkeypatch: pytest.MonkeyPatch) -> S3Mirror:
    """s3://models/weights, which has the model."""
    for name, value in bucket_server.environment().items():
        monkeypatch.setenv(name, value)
    mirror = S3Mirror("s3://models/weights")
    push(model.blob, model.manifest, mirror, refresh=True)
    return mirror


def remove(bucket: S3Mirror, name: str) -> None:
    # Not from the server's folder, of which it remembers what is there.
    obstore.delete(bucket._store, name)


def test_a_bucket_gives_what_was_pushed(
    model: SmallModel, bucket: S3Mirror, tmp_path: Path
) -> None:
    mirrors = open_mirrors(MirrorConfig(("s3://models/weights",)))
    assert mirrors is not None
    reports = list[PullProgress]()
    assert model.fetch(mirrors, tmp_path / "got", reports.append) == model.data
    assert mirrors.fetched_bytes == {"s3://models/weights": len(model.data)}
    assert [it.stage for it in reports[-2:]] == ["fetching", "verifying"]
    assert reports[-2].done_bytes == reports[-2].total_bytes == len(model.data)
    assert push(model.blob, model.manifest, bucket) == 0, "it is all there"
    remove(bucket, shard_name(model.sha256, 4))
    assert push(model.blob, model.manifest, bucket) == SHARD_BYTES


def test_a_flipped_byte_in_a_bucket_is_refused_and_named(
    model: SmallModel, bucket: S3Mirror, tmp_path: Path
) -> None:
    bucket.put(shard_name(model.sha256, 3), flipped(model.data[3 * SHARD_BYTES :][:SHARD_BYTES]))
    mirrors = Mirrors([bucket])
    with pytest.raises(SourceError, match=r"shard 3 have another digest.*outrider models push"):
        model.fetch(mirrors, tmp_path / "got")
    folder = model.mirror(tmp_path / "folder")
    mirrors = Mirrors([bucket, folder])
    assert model.fetch(mirrors, tmp_path / "got") == model.data, "another mirror has it whole"
    assert mirrors.fetched_bytes[folder.text] < len(model.data), "what was good is kept"


def test_a_shard_that_a_bucket_lacks_comes_from_elsewhere(
    model: SmallModel, bucket: S3Mirror, tmp_path: Path
) -> None:
    remove(bucket, shard_name(model.sha256, 5))
    with pytest.raises(SourceError, match="has no shard 5"):
        model.fetch(Mirrors([bucket]), tmp_path / "got")
    folder = model.mirror(tmp_path / "folder")
    mirrors = Mirrors([bucket, folder], connections=1)
    assert model.fetch(mirrors, tmp_path / "new") == model.data
    assert mirrors.fetched_bytes[folder.text] == SHARD_BYTES


def test_a_wrong_key_is_told(
    model: SmallModel, bucket: S3Mirror, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
    with pytest.raises(SourceError, match="AWS_SECRET_ACCESS_KEY"):
        model.fetch(Mirrors([open_mirror("s3://models/weights")]), tmp_path / "got")


async def test_a_link_that_is_cut_goes_on_where_it_was(
    model: SmallModel, bucket: S3Mirror, bucket_server: S3Server, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    async with peer(model.store) as port, cutting_relay(port) as relay:
        # The first answer is the manifest; then shards break early, in the middle, at the end.
        relay.cuts = [10**9, 700, SHARD_BYTES // 2, SHARD_BYTES, 5_000, 2_000]
        mirrors = Mirrors([open_mirror(f"peer://127.0.0.1:{relay.port}")])
        assert await asyncio.to_thread(model.fetch, mirrors, tmp_path / "peer") == model.data
        assert relay.num_cut >= 4
        assert sum(mirrors.fetched_bytes.values()) == len(model.data), "no byte came twice"
    async with cutting_relay(bucket_server.port) as relay:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{relay.port}")
        mirrors = Mirrors([open_mirror("s3://models/weights")])
        relay.cuts = [10**9, 5_000, 9_000]
        assert await asyncio.to_thread(model.fetch, mirrors, tmp_path / "bucket") == model.data
        assert relay.num_cut >= 1  # a connection that the client never used may have the other cut
        assert sum(mirrors.fetched_bytes.values()) == len(model.data)


async def test_a_peer_that_dies_is_left_for_the_next_mirror(
    model: SmallModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = model.mirror(tmp_path / "folder")
    async with peer(model.store) as port, cutting_relay(port) as relay:

        def die(progress: PullProgress) -> None:
            relay.is_dead = relay.is_dead or progress.done_bytes > 0

        # A cap, so that the peer is not done before it dies.
        dying = open_mirror(f"peer://127.0.0.1:{relay.port}")
        mirrors = Mirrors([dying, folder], connections=2)
        monkeypatch.setattr(mirrors, "_pace", _Slow())
        got = await asyncio.to_thread(model.fetch, mirrors, tmp_path / "got", die)
        assert got == model.data
        assert mirrors.fetched_bytes[folder.text] > 0
        assert sum(mirrors.fetched_bytes.values()) <= len(model.data) + 2 * SHARD_BYTES


class _Slow:
    """Some milliseconds for each piece."""

    def take(self, num_bytes: int) -> float:
        return 0.05


def test_an_interrupted_fetch_goes_on_from_what_is_verified(
    model: SmallModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, path = model.mirror(tmp_path / "folder"), tmp_path / "got"

    class StopError(Exception):
        pass

    def stop(progress: PullProgress) -> None:
        if progress.done_bytes > 2 * SHARD_BYTES:
            raise StopError

    first = Mirrors([folder], connections=2)
    monkeypatch.setattr(first, "_pace", _Slow())
    with pytest.raises(StopError):
        model.fetch(first, path, stop)
    left = path.read_bytes()
    # A part of it was damaged meanwhile, as a power loss may do.
    damaged = bytearray(left)
    damaged[10] ^= 1
    path.write_bytes(damaged)
    shards = [slice(at, at + SHARD_BYTES) for at in range(0, len(model.data), SHARD_BYTES)]
    kept = sum(len(left[it]) for it in shards[1:] if left[it] == model.data[it])
    second = Mirrors([folder])
    reports = list[PullProgress]()
    assert model.fetch(second, path, reports.append) == model.data
    assert sum(second.fetched_bytes.values()) == len(model.data) - kept
    assert kept > 0
    third = Mirrors([folder])
    assert model.fetch(third, path) == model.data
    assert sum(third.fetched_bytes.values()) == 0, "all of it is there"


def test_a_manifest_that_lies_is_found_out_by_the_whole(model: SmallModel, tmp_path: Path) -> None:
    """Its shards have the digests that it says, and are not the model."""
    liar, folder = model.mirror(tmp_path / "liar"), model.mirror(tmp_path / "folder")
    lie = flipped(model.data[:SHARD_BYTES])
    liar.put(shard_name(model.sha256, 0), lie)
    shards = (hashlib.sha256(lie).hexdigest(), *model.manifest.shards[1:])
    false = replace(model.manifest, shards=shards).to_json().encode()
    liar.put(manifest_name(model.sha256), false)
    with pytest.raises(SourceError, match="the manifest is false"):
        model.fetch(Mirrors([liar]), tmp_path / "got")
    assert not (tmp_path / "got").exists(), "the model's own source needs the room"
    mirrors = Mirrors([liar, folder])
    assert model.fetch(mirrors, tmp_path / "got") == model.data
    assert mirrors.fetched_bytes[folder.text] == SHARD_BYTES, "the rest was good"


def lie(
    model: SmallModel, mirror: FolderMirror, num_bytes: int, shard_bytes: int, data: bytes
) -> None:
    """Have a mirror say that the model has another size, in shards that all are `data`."""
    shards = (hashlib.sha256(data).hexdigest(),) * num_shards(num_bytes, shard_bytes)
    false = replace(model.manifest, num_bytes=num_bytes, shard_bytes=shard_bytes, shards=shards)
    mirror.put(shard_name(model.sha256, 0), data)
    mirror.put(manifest_name(model.sha256), false.to_json().encode())


def test_more_than_the_disk_has_room_for_is_believed_of_no_mirror(
    model: SmallModel, tmp_path: Path
) -> None:
    liar, folder = model.mirror(tmp_path / "liar"), model.mirror(tmp_path / "folder")
    huge_bytes = 2 * shutil.disk_usage(tmp_path).free
    lie(model, liar, huge_bytes, MAX_SHARD_BYTES, b"")
    mirrors = Mirrors([liar, folder])
    path = tmp_path / "got"
    got = mirrors.fetch(model.sha256, path, max_bytes=2 * huge_bytes, report=ignore_progress)
    assert got == len(model.data)
    assert path.read_bytes() == model.data
    # Nor does it keep a model from its own source.
    store = ModelStore(tmp_path / "store", max_bytes=2 * huge_bytes, mirrors=Mirrors([liar]))
    with pytest.raises(ModelStoreError, match="free space") as told:
        store.pull(f"sha256:{model.sha256}")
    assert not isinstance(told.value, SourceError)
    gone = tmp_path / "origin"
    with pytest.raises(SourceError, match=r"origin.*before that: .*free space"):
        store.pull(f"file:{gone}", sha256=model.sha256)
    gone.write_bytes(model.data)
    assert store.pull(f"file:{gone}", sha256=model.sha256).path.read_bytes() == model.data


def test_a_size_that_is_too_small_takes_nothing_from_what_is_there(
    model: SmallModel, tmp_path: Path
) -> None:
    liar, folder = model.mirror(tmp_path / "liar"), model.mirror(tmp_path / "folder")
    lie(model, liar, MIN_SHARD_BYTES, MIN_SHARD_BYTES, bytes(MIN_SHARD_BYTES))
    path = tmp_path / "got"
    path.write_bytes(model.data[: 5 * SHARD_BYTES])
    mirrors = Mirrors([liar, folder])
    assert model.fetch(mirrors, path) == model.data
    # Of the five shards that were there, the lie was written over the first.
    assert mirrors.fetched_bytes[folder.text] == len(model.data) - 4 * SHARD_BYTES


def test_a_size_that_is_too_large_leaves_nothing_behind_the_model(
    model: SmallModel, tmp_path: Path
) -> None:
    liar, folder = model.mirror(tmp_path / "liar"), model.mirror(tmp_path / "folder")
    num_bytes = len(model.data) + 5
    lie(model, liar, num_bytes, MAX_SHARD_BYTES, model.data + b"12345")
    mirrors = Mirrors([liar, folder])
    assert model.fetch(mirrors, tmp_path / "got") == model.data
    assert mirrors.fetched_bytes == {liar.text: num_bytes, folder.text: 0}


def test_a_mirror_that_fails_in_a_way_nobody_foresaw_is_left_for_the_next(
    model: SmallModel, tmp_path: Path
) -> None:
    folder = model.mirror(tmp_path / "folder")
    broken = model.mirror(tmp_path / "broken")
    for shard in range(NUM_SHARDS):  # a file that opens, and whose first page cannot be read: EIO
        model.shard(tmp_path / "broken", shard).unlink()
        model.shard(tmp_path / "broken", shard).symlink_to("/proc/self/mem")
    assert model.fetch(Mirrors([broken, folder]), tmp_path / "eio") == model.data
    with pytest.raises(SourceError, match=r"OSError: .*outrider models push"):
        model.fetch(Mirrors([broken]), tmp_path / "never")


def test_redirects_to_nowhere_and_ranges_without_end_are_refused(
    model: SmallModel, tmp_path: Path
) -> None:
    folder = model.mirror(tmp_path / "folder")
    manifest = model.manifest.to_json().encode()
    with serve(Site(body=manifest)) as site:

        def redirect() -> None:
            site.redirect = "https://[x"

        site.before_body = redirect
        mirrors = Mirrors([WebMirror(site.url), folder])
        assert model.fetch(mirrors, tmp_path / "redirected") == model.data
        assert len(site.requests) > 1
    with serve(Site(body=manifest, ignores_conditions=True)) as site:

        def cut_the_first_shard() -> None:
            # The first cut, of nothing, is the manifest's.
            site.body, site.cuts = model.data[:SHARD_BYTES], [10**9, 100]
            site.before_body = lambda: None
            site.content_range = f"bytes {'9' * 5_000}-9/*"

        site.before_body = cut_the_first_shard
        mirrors = Mirrors([WebMirror(site.url), folder], connections=1)
        assert model.fetch(mirrors, tmp_path / "ranged") == model.data
        assert site.ranges == [None, None, "bytes=100-"]


def test_a_disk_that_cannot_be_read_is_no_fault_of_the_mirrors(
    model: SmallModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = model.mirror(tmp_path / "folder")

    def fail(descriptor: int, num_bytes: int, at: int) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "pread", fail)
    with pytest.raises(OSError, match="Input/output error"):
        model.fetch(Mirrors([folder]), tmp_path / "got")


def test_a_full_disk_keeps_nothing_and_says_what_to_do(
    model: SmallModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, path = model.mirror(tmp_path / "folder"), tmp_path / "got"
    write = os.pwrite

    def full(descriptor: int, data: memoryview, at: int) -> int:
        if at >= 3 * SHARD_BYTES:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, data, at)

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(ModelStoreError, match="free space"):
        model.fetch(Mirrors([folder]), path)
    assert not path.exists()


def test_a_store_publishes_what_mirrors_give_and_nothing_less(
    model: SmallModel, tmp_path: Path
) -> None:
    folder = model.mirror(tmp_path / "folder")
    model.shard(tmp_path / "folder", 2).unlink()
    store = ModelStore(tmp_path / "store", mirrors=Mirrors([folder]))
    source = f"sha256:{model.sha256}"
    with pytest.raises(SourceError, match="has no shard 2"):
        store.ensure(source)
    assert published(store) == []
    assert ModelStore(tmp_path / "store").recorded(source) == ""
    # Where a model has a source of its own, that is asked then.
    origin = tmp_path / "origin"
    origin.write_bytes(model.data)
    assert store.ensure(f"file:{origin}", sha256=model.sha256).sha256 == model.sha256
    # And what is there is not fetched, whichever source is asked for.
    assert store.ensure(source).path.read_bytes() == model.data
    assert unfinished(store) == [], "nor is what the mirrors gave kept beside it"


def test_what_a_source_began_goes_once_mirrors_have_given_the_model(
    model: SmallModel, tmp_path: Path
) -> None:
    origin = tmp_path / "origin"
    origin.write_bytes(model.data)
    store = ModelStore(tmp_path / "store", mirrors=Mirrors([model.mirror(tmp_path / "folder")]))

    def interrupt(progress: PullProgress) -> None:
        if progress.done_bytes:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.pull(f"file:{origin}", progress=interrupt)
    assert {path.suffix for path in unfinished(store) if path.is_file()} == {".part", ".json"}
    store.pull(f"file:{origin}", sha256=model.sha256)
    assert unfinished(store) == []


def test_what_is_half_done_goes_with_the_model(model: SmallModel, tmp_path: Path) -> None:
    origin = tmp_path / "origin"
    origin.write_bytes(model.data)
    folder = model.mirror(tmp_path / "folder")
    model.shard(tmp_path / "folder", 2).unlink()
    store = ModelStore(tmp_path / "store", mirrors=Mirrors([folder]))
    artifact = store.pull(f"file:{origin}")
    artifact.path.unlink()
    origin.unlink()
    with pytest.raises(SourceError, match="has no shard 2"):
        store.pull(f"file:{origin}", sha256=model.sha256)
    (left,) = unfinished(store)
    assert left.suffix == ".shards"
    store.remove(artifact.source)
    assert unfinished(store) == []


def test_a_fetch_that_is_under_way_is_neither_waited_for_nor_cleared_away(
    model: SmallModel, tmp_path: Path
) -> None:
    origin = tmp_path / "origin"
    origin.write_bytes(model.data)
    store = ModelStore(tmp_path / "store", mirrors=Mirrors([model.mirror(tmp_path / "folder")]))
    by_digest, stages = f"sha256:{model.sha256}", list[str]()

    def pull_and_remove() -> None:
        store.pull(f"file:{origin}")
        store.remove(f"file:{origin}")

    def meanwhile(progress: PullProgress) -> None:
        if progress.stage not in stages and progress.done_bytes:
            stages.append(progress.stage)
            other = threading.Thread(target=pull_and_remove, daemon=True)
            other.start()
            other.join(60)  # the fetch goes on only then
            assert not other.is_alive(), "it waits for the fetch"

    assert store.pull(by_digest, progress=meanwhile).path.read_bytes() == model.data
    assert stages == ["fetching", "verifying"]
    store.remove(by_digest)

    def remove(progress: PullProgress) -> None:
        if progress.done_bytes and by_digest not in stages:
            stages.append(by_digest)
            store.remove(f"file:{origin}")

    store.pull(f"file:{origin}")
    assert store.pull(f"file:{origin}", progress=remove).path.read_bytes() == model.data
    assert unfinished(store) == []


def test_without_a_mirror_a_digest_is_no_source(model: SmallModel, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="--from MIRROR"):
        ModelStore(tmp_path).pull(f"sha256:{model.sha256}")


def test_more_than_a_store_may_hold_is_refused_before_it_comes(
    model: SmallModel, tmp_path: Path
) -> None:
    mirrors = Mirrors([model.mirror(tmp_path / "folder")])
    store = ModelStore(tmp_path / "store", max_bytes=1000, mirrors=mirrors)
    with pytest.raises(SourceError, match="above the limit"):
        store.pull(f"sha256:{model.sha256}")
    assert sum(mirrors.fetched_bytes.values()) == 0


def test_a_mirror_that_takes_too_long_is_left_for_the_next(
    model: SmallModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, folder = model.mirror(tmp_path / "slow"), model.mirror(tmp_path / "folder")
    monkeypatch.setattr(fetch, "_SHARD_S", -1.0)
    with pytest.raises(SourceError, match="it takes more than"):
        model.fetch(Mirrors([slow]), tmp_path / "got")

    def told(progress: PullProgress) -> None:
        if progress.stage == "asking" and (tmp_path / "got").exists():
            monkeypatch.setattr(fetch, "_SHARD_S", 60.0)  # the next mirror is asked

    (tmp_path / "got").unlink()
    mirrors = Mirrors([slow, folder])
    assert model.fetch(mirrors, tmp_path / "got", told) == model.data
    assert mirrors.fetched_bytes[folder.text] > 0


async def test_a_mirror_that_is_silent_holds_up_nobody(
    model: SmallModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "_ANSWER_S", 0.5)
    folder, gone = model.mirror(tmp_path / "folder"), asyncio.Event()

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await gone.wait()
        writer.close()

    server = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    mirrors = Mirrors([open_mirror(f"peer://127.0.0.1:{port}"), folder])
    assert await asyncio.to_thread(model.fetch, mirrors, tmp_path / "got") == model.data
    gone.set()
    server.close()
    await server.wait_closed()


async def test_a_manifest_that_trickles_is_not_waited_for_without_end(
    model: SmallModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "_ANSWER_S", 0.5)
    gone = asyncio.Event()

    async def trickle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
        with suppress(ConnectionError):
            while not gone.is_set():
                writer.write(b" ")
                await writer.drain()
                with suppress(TimeoutError):
                    await asyncio.wait_for(gone.wait(), 0.01)
        writer.close()

    server = await asyncio.start_server(trickle, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    mirrors = Mirrors([open_mirror(f"peer://127.0.0.1:{port}")])
    store = ModelStore(tmp_path / "store", mirrors=mirrors)
    origin = tmp_path / "origin"
    origin.write_bytes(model.data)
    pull = asyncio.to_thread(store.pull, f"file:{origin}", sha256=model.sha256)
    pulling = asyncio.create_task(pull)
    try:
        artifact = await asyncio.wait_for(asyncio.shield(pulling), 60)
        assert artifact.path.read_bytes() == model.data
        with pytest.raises(SourceError, match="does not answer"):
            await asyncio.to_thread(model.fetch, mirrors, tmp_path / "got")
    finally:
        gone.set()  # else a pull that waits would hold up the end of the test
        server.close()
        await asyncio.wait([pulling])
        await server.wait_closed()
