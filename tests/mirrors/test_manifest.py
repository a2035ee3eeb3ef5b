"""What a mirror says of a model is checked before anything is fetched."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.errors import ConfigError, SourceError
from outrider.mirrors.manifest import (
    MAX_MANIFEST_BYTES,
    MAX_SHARDS,
    MIN_SHARD_BYTES,
    Manifest,
    read_manifest,
)
from outrider.mirrors.push import make_manifest

DIGEST = hashlib.sha256(b"").hexdigest()
GOOD = Manifest(DIGEST, 2 * MIN_SHARD_BYTES + 1, MIN_SHARD_BYTES, (DIGEST,) * 3)


@given(st.integers(0, 5 * MIN_SHARD_BYTES), st.integers(MIN_SHARD_BYTES, 3 * MIN_SHARD_BYTES))
def test_shards_cover_the_whole_once(num_bytes: int, shard_bytes: int) -> None:
    count = -(-num_bytes // shard_bytes)
    manifest = Manifest(DIGEST, num_bytes, shard_bytes, (DIGEST,) * count)
    assert read_manifest(manifest.to_json().encode(), DIGEST) == manifest
    at = 0
    for shard in range(count):
        begin, length = manifest.extent(shard)
        assert begin == at
        assert length > 0
        at += length
    assert at == num_bytes


def test_a_manifest_has_the_digests_of_whole_and_shards(tmp_path: Path) -> None:
    data = bytes(range(256)) * 9
    (tmp_path / "model").write_bytes(data)
    manifest = make_manifest(tmp_path / "model", MIN_SHARD_BYTES)
    assert manifest.sha256 == hashlib.sha256(data).hexdigest()
    parts = [data[at : at + MIN_SHARD_BYTES] for at in range(0, len(data), MIN_SHARD_BYTES)]
    assert manifest.shards == tuple(hashlib.sha256(part).hexdigest() for part in parts)
    with pytest.raises(ConfigError, match="shards of 1 bytes"):
        make_manifest(tmp_path / "model", 1)


def changed(**values: Any) -> bytes:
    return json.dumps(json.loads(GOOD.to_json()) | values).encode()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"<html>",
        b" " * (MAX_MANIFEST_BYTES + 1),
        b"[" * 100_000,
        changed(version=2),
        changed(sha256="0" * 64),
        changed(num_bytes=-1),
        changed(num_bytes=1.5),
        changed(num_bytes=GOOD.num_bytes + MIN_SHARD_BYTES),
        changed(shard_bytes=0),
        changed(shard_bytes=True),
        changed(shard_bytes=1 << 40),
        changed(num_bytes=MIN_SHARD_BYTES * (MAX_SHARDS + 1)),
        changed(shards="abc"),
        changed(shards=[DIGEST, DIGEST, "../../etc/passwd"]),
        changed(shards=[DIGEST, DIGEST, 5]),
    ],
)
def test_what_cannot_be_a_manifest_is_refused(data: bytes) -> None:
    with pytest.raises(SourceError, match="push the model there again"):
        read_manifest(data, DIGEST)
