"""A small model in a store, and what serves it."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from outrider.mirrors.fetch import Mirrors
from outrider.mirrors.folder import FolderMirror
from outrider.mirrors.manifest import MIN_SHARD_BYTES, Manifest, shard_name
from outrider.mirrors.push import make_manifest, push
from outrider.mirrors.server import ModelServer, ServerConfig
from outrider.models.disk.fetch import ReportProgress, ignore_progress
from outrider.models.store import ModelStore
from outrider.tls import PLAINTEXT, Tls

SHARD_BYTES = 16 * MIN_SHARD_BYTES
NUM_SHARDS = 9


@dataclass(frozen=True)
class SmallModel:
    """Random bytes in nine shards, the last one short."""

    data: bytes
    manifest: Manifest
    store: ModelStore
    """Has it."""

    @property
    def sha256(self) -> str:
        return self.manifest.sha256

    @property
    def blob(self) -> Path:
        """Its file in the store."""
        path = self.store.blob(self.sha256)
        assert path is not None
        return path

    def mirror(self, folder: Path) -> FolderMirror:
        """A folder that has it."""
        mirror = FolderMirror(folder)
        push(self.blob, self.manifest, mirror)
        return mirror

    def shard(self, folder: Path, shard: int) -> Path:
        """Where such a folder has a shard."""
        return folder / shard_name(self.sha256, shard)

    def fetch(
        self, mirrors: Mirrors, path: Path, report: ReportProgress = ignore_progress
    ) -> bytes:
        """What they give."""
        assert mirrors.fetch(self.sha256, path, max_bytes=1 << 30, report=report) == len(self.data)
        return path.read_bytes()


def small_model(folder: Path) -> SmallModel:
    """Always the same."""
    data = random.Random(7).randbytes(NUM_SHARDS * SHARD_BYTES - 5)
    folder.mkdir(exist_ok=True)
    (folder / "weights").write_bytes(data)
    store = ModelStore(folder / "store")
    store.pull(f"file:{folder / 'weights'}")
    return SmallModel(data, make_manifest(folder / "weights", SHARD_BYTES), store)


def flipped(data: bytes) -> bytes:
    """With one bit in the middle the other way."""
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


@asynccontextmanager
async def peer(
    store: ModelStore, tls: Tls = PLAINTEXT, max_connections: int = 64
) -> AsyncIterator[int]:
    """A server of a store; yields its port."""
    config = ServerConfig(port=0, shard_bytes=SHARD_BYTES, max_connections=max_connections)
    server = ModelServer(store, config, tls)
    port = await server.start()
    async with server.serving():
        yield port
