"""Puts a model into a mirror: its shards, and last of all the manifest that makes it known."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeAlias

from outrider.errors import SourceError
from outrider.mirrors.manifest import (
    DEFAULT_SHARD_BYTES,
    Manifest,
    check_shard_bytes,
    manifest_name,
    shard_name,
)
from outrider.mirrors.mirror import BrokeOffError, LacksError, RefusedError, WritableMirror
from outrider.models.disk.fetch import PullProgress, ReportProgress, ignore_progress

_ATTEMPTS: Final = 3
_READ_BYTES: Final = 1 << 20

_Step: TypeAlias = Callable[[int], tuple[int, int]]
"""Puts one shard there: its bytes, and how many of them were sent."""


def make_manifest(path: Path, shard_bytes: int = DEFAULT_SHARD_BYTES) -> Manifest:
    """The manifest of a model's file, which is read once. Raises ConfigError for an impossible
    shard size, OSError."""
    num_bytes = path.stat().st_size
    check_shard_bytes(shard_bytes, num_bytes)
    whole, shards = hashlib.sha256(), list[str]()
    with path.open("rb") as file:
        for _ in range(0, num_bytes, shard_bytes):
            shard = hashlib.sha256()
            for piece in _pieces(file.fileno(), shard_bytes):
                whole.update(piece)
                shard.update(piece)
            shards.append(shard.hexdigest())
    return Manifest(whole.hexdigest(), num_bytes, shard_bytes, tuple(shards))


def push(
    path: Path,
    manifest: Manifest,
    mirror: WritableMirror,
    *,
    connections: int = 4,
    refresh: bool = False,
    report: ReportProgress = ignore_progress,
) -> int:
    """Send a model's shards to a mirror; those that it has in the right size are skipped unless
    `refresh`. Returns the number of bytes sent. Raises SourceError; shards sent before it stay and
    are skipped the next time."""
    done_bytes = sent_bytes = 0

    def one(shard: int) -> tuple[int, int]:
        begin, num_bytes = manifest.extent(shard)
        name = shard_name(manifest.sha256, shard)
        if not refresh and mirror.num_bytes(name) == num_bytes:
            return num_bytes, 0
        with path.open("rb") as file:
            mirror.put(name, os.pread(file.fileno(), num_bytes, begin))
        return num_bytes, num_bytes

    with ThreadPoolExecutor(connections, "push") as threads:
        shards = range(len(manifest.shards))
        waiting = [threads.submit(_tried, mirror, one, shard) for shard in shards]
        try:
            for future in waiting:
                there, sent = future.result()
                done_bytes, sent_bytes = done_bytes + there, sent_bytes + sent
                report(PullProgress("pushing", done_bytes, manifest.num_bytes))
        finally:
            for future in waiting:
                future.cancel()

    def make_known(_: int) -> tuple[int, int]:
        mirror.put(manifest_name(manifest.sha256), manifest.to_json().encode())
        return 0, 0

    _tried(mirror, make_known, 0)
    return sent_bytes


def _tried(mirror: WritableMirror, what: _Step, shard: int) -> tuple[int, int]:
    """Raises SourceError when it fails each time."""
    problem = ""
    for _ in range(_ATTEMPTS):
        try:
            return what(shard)
        except LacksError:
            raise SourceError(f"{mirror.text}: there is no such bucket; make it") from None
        except RefusedError as error:
            raise SourceError(f"{mirror.text}: {error}") from error
        except BrokeOffError as error:
            problem = str(error)
    raise SourceError(
        f"{mirror.text}: gave up after {_ATTEMPTS} attempts ({problem}); what was sent stays: push "
        "again later"
    )


def _pieces(descriptor: int, num_bytes: int) -> Iterator[bytes]:
    while num_bytes and (piece := os.read(descriptor, min(num_bytes, _READ_BYTES))):
        num_bytes -= len(piece)
        yield piece
